"""Makes docs/pictures: the page and the terminal view of runs that are recorded for it.

``python -m tools.pictures`` records a plan whose model answers from a file and whose tools run for
real, approves what it asks in the page, replays it with another prompt, and takes the pictures.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

_PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
_PLAN = """\
name: Fix the tests
max_agents: 2
stages:
  - name: fix
    steps:
      - title: Make the tests pass
        tools: [list_files, read_file, edit_file, run_command]
        approve: [run_command]
      - title: Write the notes
        tools: [write_file]
"""
_TEST = "import unittest\nfrom calc import add\n\n\nclass Test(unittest.TestCase):\n"
_TEST += "    def test(self):\n        self.assertEqual(add(1, 2), 3)\n"
_RUN = "python3 -m unittest -q test_calc"


def call(name: str, **arguments: str) -> dict[str, str]:
    """A call of a tool, as the model's file has it."""
    return {"name": name, "args": json.dumps(arguments)}


def answers() -> dict[str, Any]:
    """What the model says: it looks, runs the tests, mends, and runs them again."""
    turns = [
        [call("list_files")],
        [call("read_file", path="calc.py"), call("read_file", path="test_calc.py")],
        [call("run_command", command=_RUN)],
        [call("edit_file", path="calc.py", old="a - b", new="a + b")],
        [call("run_command", command=_RUN)],
    ]
    rules: list[dict[str, Any]] = [
        {
            "match": 'Write the notes(.|\\n)*"tool_call_id"',
            "text": "done",
            "usage": {"input": 320, "output": 9, "credits": 40},
        },
        {
            "match": "Write the notes",
            "text": "",
            "delay_s": 1.1,
            "usage": {"input": 280, "output": 31, "credits": 60},
            "tool_calls": [call("write_file", path="NOTES.md", content="# Notes\n")],
        },
    ]
    count = 0
    for turn in [*turns, []]:
        before = f'"tool_call_id":"call-{count}"' if count else "Make the tests pass"
        usage = {"input": 900 + 300 * count, "output": 60, "credits": 1200}
        more = {"tool_calls": turn} if turn else {}
        rules.insert(
            2, {"match": before, "text": "so", "delay_s": [0.3, 0.9], "usage": usage, **more}
        )
        count += len(turn)
    return {"answers": rules}


def bernstein(*arguments: str, **environment: str) -> str:
    """Run a command of ours; give what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "bernstein", *arguments],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    return done.stdout


def take(page: Page, name: str) -> None:
    """Take a picture."""
    page.wait_for_timeout(500)
    page.screenshot(path=_PICTURES / f"{name}.png")


def pictures_of_the_page(address: str, run_id: str, replay: str, token: str) -> None:
    """The page: a run that waits, one that has ended, and two compared."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])

        def opened(scheme: Any, width: int, height: int) -> Page:
            size: Any = {"width": width, "height": height}
            page = browser.new_context(viewport=size, color_scheme=scheme).new_page()
            page.goto(address)
            page.wait_for_selector(".runs")
            return page

        def go(page: Page, place: str, text: str) -> None:
            page.goto(f"{address.partition('#')[0]}#/{place}")
            page.locator(".chip").filter(has_text=text).first.wait_for()

        page = opened("light", 1280, 760)
        go(page, f"run/{run_id}", "parked")
        page.fill("[aria-label='Operator token']", token)
        page.click("text=Show what is asked for")
        page.fill("[aria-label='Your name']", "alice")
        take(page, "page-decide")
        page.click("button.approved")
        page.wait_for_selector("text=let the run go on")
        for _ in range(2):
            bernstein("run", "--resume", run_id, "-q")
            waiting = json.loads(bernstein("approve", run_id, "--json"))
            for item in waiting:
                if not item["said"]:
                    bernstein("approve", run_id, item["call"], "--as", "alice")
        for scheme in ("light", "dark"):
            page = opened(scheme, 1280, 1000)
            go(page, f"run/{run_id}", "signed by")
            page.keyboard.press("n")
            take(page, f"page-{scheme}")
        page = opened("light", 420, 860)
        go(page, f"run/{run_id}", "signed by")
        take(page, "page-narrow")
        page = opened("light", 1280, 720)
        go(page, f"diff/{run_id}/{replay}", "verified here")
        page.wait_for_selector(".pair")
        take(page, "page-diff")
        browser.close()


def picture_of_the_terminal(run_id: str) -> None:
    """The terminal view, as a drawing without letters from elsewhere."""
    import asyncio

    from bernstein.rundir import open_sdd
    from bernstein.seal.signing import default_keys
    from bernstein.show.tui.app import ThreadApp
    from bernstein.show.tui.sources import polled

    async def draw() -> str:
        sdd = open_sdd()
        app = ThreadApp(sdd, default_keys(sdd), polled, "alice", sdd.find_run(run_id))
        async with app.run_test(size=(124, 30)) as pilot:
            await pilot.pause(1)
            await pilot.press(*["up"] * 6)
            await pilot.pause()
            return app.export_screenshot(title="bernstein tui")

    drawn = asyncio.run(draw())
    drawn = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    (_PICTURES / "tui.svg").write_text(drawn)


def main() -> None:
    """Record, and take all pictures."""
    _PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "project")
        folder.mkdir()
        os.chdir(folder)
        os.environ["BERNSTEIN_KEYS_DIR"] = str(Path(name, "keys"))
        token_file = Path(name, "token")
        token_file.write_text("a-token-for-these-pictures\n")
        token_file.chmod(0o600)
        os.environ["BERNSTEIN_SERVE_TOKEN_FILE"] = str(token_file)
        Path("plan.yaml").write_text(_PLAN)
        Path("answers.yaml").write_text(json.dumps(answers()))
        Path("calc.py").write_text("def add(a, b):\n    return a - b\n")
        Path("test_calc.py").write_text(_TEST)
        bernstein("run", "plan.yaml", "--model", "scripted:answers.yaml", "-q")
        run_id = bernstein("runs").split()[0]
        Path("other.yaml").write_text(_PLAN.replace("Write the notes", "Write a note"))
        command = [sys.executable, "-m", "bernstein", "serve", "--port", "0", "--texts"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            address = server.stdout.readline().strip() + "#token=a-token-for-these-pictures"
            time.sleep(1)
            bernstein("run", "other.yaml", "-q", BERNSTEIN_REPLAY_RUN_ID=run_id)
            replay = bernstein("runs").split()[0]
            operator = Path(name, "keys", "operator.token").read_text().strip()
            try:
                pictures_of_the_page(address, run_id, replay, operator)
            finally:
                server.terminate()
        picture_of_the_terminal(run_id)


if __name__ == "__main__":
    main()
