"""Real command-line agents through the gateway, recorded once and replayed in other surroundings.

They are looked for in ``.clients/bin``, where ``make clients`` puts them; a test whose client is not
there is skipped and says so.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bernstein.rundir import SddDir
from tests.helpers import events, rows, verify
from tests.upstream import Reply, messages, serving

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(600)]

CLIENTS = Path(__file__).parents[1] / ".clients" / "bin"


def client(name: str) -> str:
    path = CLIENTS / name
    if not path.exists():
        pytest.skip(f"{name} is not installed: make clients")
    return str(path)


def run_client(
    sdd: SddDir, *arguments: str, cwd: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bernstein", "--sdd", str(sdd.path), *arguments],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def first_text(body: dict[str, Any]) -> str:
    return json.dumps(body["messages"][0])


def claude_answers(folder: Path, delay_s: float) -> Any:
    """Turns by content: shell, a file at an absolute path, three tools at once, two sub-agents."""
    turns: list[list[dict[str, Any]]] = [
        [{"text": "I look."}, {"tool": "Bash", "input": {"command": "pwd && ls"}}],
        [{"tool": "Write", "input": {"file_path": f"{folder}/made/out.txt", "content": "made\n"}}],
        [
            {"tool": "Bash", "input": {"command": "sleep 0.4 && echo slow"}},
            {"tool": "Bash", "input": {"command": "echo fast"}},
            {"tool": "Read", "input": {"file_path": f"{folder}/made/out.txt"}},
        ],
        [
            {
                "tool": "Task",
                "input": {
                    "description": word,
                    "prompt": f"Say the word SUB-{word}.",
                    "subagent_type": "general-purpose",
                    "run_in_background": False,
                },
            }
            for word in ("ONE", "TWO")
        ],
        [{"text": "All of it is done."}],
    ]

    def answer(path: str, body: dict[str, Any], number: int) -> Reply:
        kind = "text/event-stream"
        if "count_tokens" in path or "messages" not in body:
            return Reply([b'{"input_tokens": 7}'])
        said = first_text(body)
        for word in ("ONE", "TWO"):
            if f"SUB-{word}" in said:
                return Reply(messages({"text": f"the word is {word}"}), kind=kind, delay_s=delay_s)
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        blocks = turns[min(turn, len(turns) - 1)]
        stop = "tool_use" if any("tool" in block for block in blocks) else "end_turn"
        return Reply(messages(*blocks, stop=stop, salt=number), kind=kind, delay_s=delay_s)

    return answer


@pytest.mark.parametrize("delay_s", [0.0, 0.3])
def test_claude_code_replays_in_other_folders_and_at_other_speeds(
    sdd: SddDir, tmp_path: Path, delay_s: float
) -> None:
    command = shlex.split(
        f"{client('claude')} -p 'make the file' --output-format stream-json --verbose "
        "--model claude-sonnet-4-5 --allowedTools 'Bash Write Read Task' "
        "--permission-mode acceptEdits"
    )
    there = tmp_path / "recorded here"
    there.mkdir()
    with serving(claude_answers(there, delay_s)) as upstream:
        env = {"ANTHROPIC_BASE_URL": upstream.base_url, "ANTHROPIC_API_KEY": "dummy-key-0123456789"}
        done = run_client(sdd, "record", "--", *command, cwd=there, env=env)
    assert done.returncode == 0, done.stderr + done.stdout[-2000:]
    run = sdd.find_run("latest")
    assert verify(sdd, run).verdict == "verified"
    exchanges = rows(run.exchanges)
    assert len(exchanges) >= 7
    assert len({row["lane"] for row in exchanges}) == 3, "the main agent and two sub-agents"
    assert (there / "made" / "out.txt").read_text() == "made\n"
    (there / "made" / "out.txt").unlink()
    (there / "made").rmdir()
    folders = [there, tmp_path / "elsewhere", tmp_path / "deeper" / "and deeper" / "still"]
    for number, folder in enumerate(folders):
        folder.mkdir(parents=True, exist_ok=True)
        pace = "recorded" if number == 2 else "fast"
        done = run_client(sdd, "replay", run.run_id, "--pace", pace, "--", *command, cwd=folder)
        assert done.returncode == 0, done.stderr[-3000:]
        assert f"hits={len(exchanges)} misses=0" in done.stderr
        assert "replay identical" in done.stderr or "replay equivalent" in done.stderr
        assert (folder / "made" / "out.txt").read_text() == "made\n"
        assert [p.name for p in folder.iterdir() if p.name != ".sdd"] == ["made"]
        results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert any(item.get("result") == "All of it is done." for item in results)
    assert not (there / "made").exists() or folders[0] == there


def hello(path: str, body: dict[str, Any], number: int) -> Reply:
    return Reply(messages({"text": "hello"}), kind="text/event-stream")


def test_claude_code_after_a_miss_ends_and_the_miss_is_told_once_a_lane(
    sdd: SddDir, tmp_path: Path
) -> None:
    command = [client("claude"), "-p", "make the file", "--model", "claude-sonnet-4-5"]
    with serving(hello) as up:
        env = {"ANTHROPIC_BASE_URL": up.base_url, "ANTHROPIC_API_KEY": "dummy-key-0123456789"}
        done = run_client(sdd, "record", "--", *command, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "hello\n"
    command[2] = "make another file"
    done = run_client(sdd, "replay", "latest", "--", *command, cwd=tmp_path)
    assert done.returncode == 3
    assert "replay miss" in done.stdout
    assert "strict_violations=1" in done.stderr
    assert "make another file" in done.stderr
    assert len(events(sdd.list_runs()[-1], "model.call")) >= 1
