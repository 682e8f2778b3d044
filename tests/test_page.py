"""The web page in a real Chromium: what it shows is what stands in the journal, or it says so."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import random
import re
import shutil
import socket
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from bernstein.chain.read import load_replay_events
from bernstein.seal.audit import audit_keys, read_audit
from bernstein.seal.signing import default_keys
from tests.helpers import (
    bernstein,
    events,
    journal_of,
    no_model,
    rechain,
    resume,
    rows,
    run_plan,
    script,
)
from tests.test_approvals import CALL, PLAN, ask_for
from tests.test_serve import OPERATOR, TOKEN, Held, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Page

    from bernstein.rundir import RunDir, SddDir

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
pytestmark = [
    pytest.mark.loopback,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed"),
]
TWO_STEPS = (
    "name: Two\nstages:\n  - name: s\n    steps:\n"
    "      - {title: First, files: [a.txt]}\n      - {title: Second, files: [b.txt]}\n"
)


@contextmanager
def browsing(**options: Any) -> Iterator[Browser]:
    """A browser. Nothing that runs an event loop of its own may be called while it is open."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], **options
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page_of(port: int, place: str = "", prepare: str = "", **options: Any) -> Iterator[Page]:
    """A page that was let in and shows ``place``; a fault of its own fails the test."""
    with browsing() as browser:
        page = browser.new_context(**options).new_page()
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text) if "CSP" in said.text else None)
        if prepare:
            page.add_init_script(prepare)
        page.goto(f"http://127.0.0.1:{port}/#token={TOKEN}")
        page.wait_for_selector(".runs")
        page.goto(f"http://127.0.0.1:{port}/{place}")
        yield page
        assert problems == []


def chip(page: Page, name: str, text: str | re.Pattern[str]) -> None:
    """Wait until a state is shown."""
    page.locator(f".chips [data-chip={name}]").filter(has_text=text).wait_for()


def greens(page: Page) -> list[str]:
    return [mark.inner_text() for mark in page.query_selector_all(".chip.good")]


def marks(page: Page) -> list[str]:
    """The states of the rows that are in sight, in their order."""
    return page.evaluate(
        "[...document.querySelectorAll('.row .mark')].map((m) => m.textContent[0])"
    )


@pytest.fixture
def finished(sdd: SddDir) -> RunDir:
    script({"match": "Split", "text": '{"tasks":[]}'}, {"text": "a text"})
    return sdd.run(run_plan(TWO_STEPS, sdd).run_id)


# --- verified, or not


def test_a_run_is_verified_in_the_browser_and_nothing_leaves_it(
    sdd: SddDir, finished: RunDir
) -> None:
    asked: list[str] = []
    with serving(sdd) as port, browsing() as browser:
        context = browser.new_context()
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"http://127.0.0.1:{port}/#token={TOKEN}")
        page.click(f"a[href='#/run/{finished.run_id}']")
        chip(page, "rows", f"{len(rows(finished.journal))} rows verified here")
        chip(page, "seal", "the seal holds")
        chip(page, "signature", "signed by")
        chip(page, "server", "verified")
        assert set(marks(page)) == {"✓"}
        assert TOKEN not in page.url
        (cookie,) = context.cookies(f"http://127.0.0.1:{port}/api/runs")
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert page.evaluate("document.cookie") == ""
        page.reload()
        chip(page, "rows", "verified here")
    assert all(url.startswith(f"http://127.0.0.1:{port}/") for url in asked)
    assert not any(TOKEN in url.partition("#")[0] for url in asked)


def test_who_shows_no_token_is_asked_for_it(sdd: SddDir, finished: RunDir) -> None:
    with serving(sdd) as port, browsing() as browser:
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{port}/#/run/{finished.run_id}")
        page.fill("[aria-label='Read token']", "another token")
        page.click("button:has-text('Open')")
        page.wait_for_selector("[role=alert]")
        page.fill("[aria-label='Read token']", TOKEN)
        page.click("button:has-text('Open')")
        chip(page, "rows", "verified here")


def edit_payload(lines: list[bytes], at: int) -> None:
    lines[at] = lines[at].replace(b'"stepId":"', b'"stepId":"x', 1)


def edit_hash(lines: list[bytes], at: int) -> None:
    lines[at] = re.sub(rb'"event_hash":"....', b'"event_hash":"0000', lines[at])


def edit_spelling(lines: list[bytes], at: int) -> None:
    lines[at] = lines[at].replace(b',"lane":', b', "lane":')


def delete(lines: list[bytes], at: int) -> None:
    del lines[at]


def double(lines: list[bytes], at: int) -> None:
    lines.insert(at, lines[at - 1])


def garbage(lines: list[bytes], at: int) -> None:
    lines[at] = b"no row"


@pytest.mark.parametrize(
    "damage", [edit_payload, edit_hash, edit_spelling, delete, double, garbage]
)
def test_an_edited_row_is_shown_as_the_break(
    sdd: SddDir, finished: RunDir, damage: Callable[[list[bytes], int], None]
) -> None:
    at = 4
    lines = finished.journal.read_bytes().split(b"\n")[:-1]
    damage(lines, at)
    finished.journal.write_bytes(b"\n".join(lines) + b"\n")
    with serving(sdd) as port, page_of(port, f"#/run/{finished.run_id}") as page:
        chip(page, "rows", f"broken at row {at}")
        chip(page, "seal", "the seal is broken")
        chip(page, "server", "mismatch")
        assert [text for text in greens(page) if not text.startswith("signed by")] == []
        shown = marks(page)
        assert shown[:at] == ["✓"] * at
        if damage not in {garbage, edit_spelling}:  # behind what is no row nothing is sent
            assert shown[at] == "✕"
            assert set(shown[at + 1 :]) == {"?"}


def cut(run: RunDir) -> None:
    run.journal.write_bytes(b"".join(run.journal.read_bytes().splitlines(keepends=True)[:-2]))


def chain_anew(run: RunDir) -> None:
    entries = list(load_replay_events(run.journal))
    entries[3] = msgspec.structs.replace(entries[3], payload=msgspec.Raw(b'{"a":1}'))
    run.journal.write_bytes(rechain(entries))


def edit_time(run: RunDir) -> None:
    run.journal.write_bytes(re.sub(rb'"ts":"20', b'"ts":"19', run.journal.read_bytes(), count=1))


def edit_seal(run: RunDir) -> None:
    seal = run.seal.read_bytes()
    run.seal.write_bytes(re.sub(rb'"status":"[a-z]+"', b'"status":"cancelled"', seal))
    assert run.seal.read_bytes() != seal


def space_seal(run: RunDir) -> None:
    run.seal.write_bytes(run.seal.read_bytes().replace(b'"v":1', b'"v": 1'))


@pytest.mark.parametrize(
    ("damage", "name", "text"),
    [
        (cut, "seal", "the seal is broken: it names"),
        (chain_anew, "seal", "the seal is broken: it names another head"),
        (edit_time, "seal", "the seal is broken: the journal's bytes are others"),
        (edit_seal, "signature", "the signature is broken"),
        (space_seal, "seal", "the seal is broken: the seal is not in its only spelling"),
    ],
)
def test_rows_that_hold_are_held_against_the_seal(
    sdd: SddDir, finished: RunDir, damage: Callable[[RunDir], None], name: str, text: str
) -> None:
    damage(finished)
    with serving(sdd) as port, page_of(port, f"#/run/{finished.run_id}") as page:
        chip(page, "rows", "verified here")
        chip(page, name, text)
        chip(page, "server", "mismatch")
        page.wait_for_selector(".chip.bad")


NO_CRYPTO = "Object.defineProperty(crypto, 'subtle', { value: undefined })"
NO_ED25519 = (
    "const own = crypto.subtle.importKey.bind(crypto.subtle);"
    "crypto.subtle.importKey = async (f, k, a, ...more) => {"
    "  if (a.name === 'Ed25519') throw new DOMException('no', 'NotSupportedError');"
    "  return own(f, k, a, ...more); }"
)


def test_where_the_browser_cannot_verify_nothing_is_green(sdd: SddDir, finished: RunDir) -> None:
    place = f"#/run/{finished.run_id}"
    with serving(sdd) as port:
        with page_of(port, place, NO_CRYPTO) as page:
            chip(page, "rows", "this browser cannot verify them")
            chip(page, "seal", "seal not checked")
            chip(page, "signature", "signature not checked")
            assert greens(page) == []
            assert set(marks(page)) == {"–"}
        with page_of(port, place, NO_ED25519) as page:
            chip(page, "seal", "the seal holds")
            chip(page, "signature", "signature not checked")


def test_a_seal_by_a_key_that_is_not_here_is_not_shown_as_signed(
    sdd: SddDir, finished: RunDir
) -> None:
    shutil.rmtree(default_keys(sdd).folder)
    shutil.rmtree(sdd.keys)
    with serving(sdd) as port, page_of(port, f"#/run/{finished.run_id}") as page:
        chip(page, "seal", "the seal holds")
        chip(page, "signature", "signature not checked")
        chip(page, "server", "prefix")


# --- live


class Proxy:
    """Carries bytes to a port, and drops its connections when it is told to."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._port), 5)
                except OSError:
                    near.close()
                    continue
                self._open |= {near, far}
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(2**16):
                other.sendall(data)
        self._end(one, other)

    def _end(self, *sockets: socket.socket) -> None:
        for one in sockets:
            self._open.discard(one)
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def drop(self) -> None:
        self._end(*list(self._open))

    def close(self) -> None:
        self._listener.close()
        self.drop()


def test_a_live_run_is_seen_whole_through_fifty_drops_and_a_restart(sdd: SddDir) -> None:
    from bernstein import EventJournal

    count, draw = 400, random.Random(7)
    held = Held(sdd, "live")
    stop = contextlib.ExitStack()
    with EventJournal("live", sdd.path) as journal, stop:
        journal.append("run.started", {"agentId": "test"})
        port = stop.enter_context(serving(sdd))
        proxy = Proxy(port)
        with page_of(proxy.port, "#/run/live") as page:
            chip(page, "rows", "1 row verified here")
            chip(page, "state", "live")
            for index in range(1, count):
                journal.append("custom.row", {"n": index, "text": "x" * draw.randrange(2000)}, "a")
                if index % 8 == 0:
                    proxy.drop()
                    page.wait_for_timeout(draw.randrange(30))
                if index == count // 2:
                    stop.close()
                    page.wait_for_timeout(300)
                    stop.enter_context(serving(sdd, port))
            journal.append("run.finished", {"status": "completed"})
            held.end()
            chip(page, "rows", f"{count + 1} rows verified here")  # each once, in their order
            chip(page, "state", "completed")
            assert page.get_attribute(".list [role=option]", "aria-setsize") == str(count + 1)
        proxy.close()


def test_a_live_page_is_at_the_newest_row_until_its_reader_goes_up(sdd: SddDir) -> None:
    from bernstein import EventJournal

    held = Held(sdd, "live")
    sdd.run("live").write_info({"run_id": "live", "status": "running"})
    with EventJournal("live", sdd.path) as journal, serving(sdd) as port:
        for index in range(200):
            journal.append("custom.row", {"n": index})
        with page_of(port, "#/run/live") as page:
            page.wait_for_selector("[data-place='199']")
            journal.append("custom.row", {"n": 200})
            page.wait_for_selector("[data-place='200']")
            page.focus(".list")
            page.keyboard.press("Home")
            page.wait_for_selector("[data-place='0'][aria-selected=true]")
            journal.append("custom.row", {"n": 201})
            chip(page, "rows", "202 rows verified here")
            assert page.query_selector("[data-place='201']") is None
            page.keyboard.press("End")
            page.wait_for_selector("[data-place='201'][aria-selected=true]")
            journal.append("custom.row", {"n": 202})
            page.wait_for_selector("[data-place='202']")
    held.end()


def test_a_decision_in_the_page_is_in_both_chains(sdd: SddDir, tmp_path: Path) -> None:
    Path("plan.yaml").write_text(PLAN)
    ask_for(f"echo ran >> {tmp_path / 'outside.txt'}; echo b > b.txt")
    run = sdd.run(run_plan(PLAN, sdd).run_id)
    with serving(sdd) as port, page_of(port, f"#/run/{run.run_id}") as page:
        chip(page, "state", "parked")
        page.fill("[aria-label='Operator token']", "not the token of the operator")
        page.click("text=Show what is asked for")
        page.wait_for_selector(".approvals [role=alert]")
        page.fill("[aria-label='Operator token']", OPERATOR)
        page.click("text=Show what is asked for")
        asked = page.locator(".approvals pre").inner_text()
        assert "outside.txt" in asked
        page.click("button.approved")
        page.wait_for_selector("text=give your name")
        page.fill("[aria-label='Your name']", "alice")
        page.click("button.approved")
        page.wait_for_selector("text=is approved; let the run go on")
    keys = default_keys(sdd)
    audit = read_audit(sdd.audit, audit_keys(keys.folder))
    (said,) = [row.payload for row in audit if row.type == "thread.approval"]
    proposed = events(run, "tool.proposed")[-1]
    assert (said["index"], said["event_hash"]) == (proposed["index"], proposed["event_hash"])

    resume(sdd, run)
    decided = events(run, "tool.approved")[-1]["payload"]
    assert decided == {"toolCallId": CALL, "actor": "alice"}
    assert (tmp_path / "outside.txt").read_text() == "ran\n"


def test_a_run_that_waited_is_followed_as_it_goes_on(sdd: SddDir) -> None:
    Path("plan.yaml").write_text(PLAN)
    command = {"name": "run_command", "args": '{"command": "echo b > b.txt"}'}
    rules = [{"match": "tool_call_id", "text": "done"}, {"tool_calls": [command]}]
    Path("answers.yaml").write_text(json.dumps({"answers": rules}))
    arguments = ("run", "plan.yaml", "--model", "scripted:answers.yaml", "-q")
    assert bernstein(*arguments).returncode == 2
    run = sdd.find_run("latest")
    with serving(sdd) as port, page_of(port, f"#/run/{run.run_id}") as page:
        chip(page, "state", "parked")
        page.fill("[aria-label='Operator token']", OPERATOR)
        page.click("text=Show what is asked for")
        page.fill("[aria-label='Your name']", "alice")
        page.click("button.denied")
        page.wait_for_selector("text=is denied; let the run go on")
        assert bernstein("run", "--resume", run.run_id, "-q").returncode == 0
        chip(page, "state", "completed")
        chip(page, "rows", f"{len(rows(run.journal))} rows verified here")
        chip(page, "seal", "the seal holds")
        page.wait_for_selector(".approvals", state="hidden")
        page.keyboard.press("n")
        page.wait_for_selector(".detail .bad:has-text('denied by alice')")


# --- what is shown


HTML = "<img src=x onerror='window.hit=1'><script>window.hit=1</script>"


def test_what_a_run_says_is_shown_as_text(sdd: SddDir) -> None:
    evil = f"{HTML}\x1b[31m\u202e\x07"
    odd = {"toString": 1, "valueOf": 1, "__proto__": {"x": 1}}
    ref = {"digest": "0" * 64, "byteLength": 1}
    run = journal_of(
        sdd,
        "evil",
        [
            ("run.started", "", {"agentId": evil}),
            ("step.started", "s", {"stepId": "s", "depth": 0, "label": evil}),
            ("step.started", "o", {"stepId": "o", "depth": 0, "label": odd}),
            ("tool.proposed", "s", {"stepId": "s", "toolCallId": "c", "name": evil, "args": ref}),
            ("tool.result", "s", {"toolCallId": "c", "ok": False, "result": ref}),
            ("model.usage", "s", {"billingStatus": "__proto__", "inputTokens": 5}),
            ("constructor", "s", {"toString": evil}),
            ("artifact.written", "s", {"path": odd}),
            ("custom.row", "s", {"kind": [HTML, {"__proto__": HTML}]}),
            ("run.finished", "", {"status": evil, "reason": odd}),
        ],
    )
    run.write_info({"run_id": "evil", "status": "completed", "plan": {"name": evil}})
    bundle = Path("evil.html").absolute()
    assert bernstein("show", "evil", "--html", str(bundle)).returncode == 0
    with serving(sdd) as port, page_of(port, "#/run/evil") as page:
        chip(page, "rows", "10 rows verified here")
        looked_through(page, 10)
        page.goto(bundle.as_uri())
        chip(page, "rows", "10 rows verified here")
        looked_through(page, 10)


def looked_through(page: Page, count: int) -> None:
    """Choose every row; nothing of them became more than text."""
    page.focus(".list")
    for place in range(count):
        page.keyboard.press("ArrowDown" if place else "Home")
        page.wait_for_selector(f".detail h2:has-text('Row {place}:')")
    assert page.evaluate("window.hit") is None
    assert page.evaluate("({}).in") is None
    assert page.query_selector("main img, main script") is None
    text = page.inner_text("main")
    assert "<script>window.hit=1</script>" in text
    assert "\\u001b[31m" in text
    assert not set(text) & {"\x1b", "\x07", "\u202e"}


def test_what_was_said_is_shown_to_the_operator_as_text(sdd: SddDir) -> None:
    script({"text": f"{HTML}\x1b[31m\u202e"})
    plan = "name: P\nstages: [{name: s, steps: [{title: First, tools: [list_files]}]}]\n"
    run = sdd.run(run_plan(plan, sdd).run_id)
    said = events(run, "model.answer")[-1]["index"]
    place = f"#/run/{run.run_id}/{said}"
    with serving(sdd) as port, page_of(port, place) as page:
        page.fill("[aria-label='Operator token']", "not the token of the operator")
        page.click("text=Show what was said")
        page.wait_for_selector(".text [role=alert]")
        page.fill("[aria-label='Operator token']", OPERATOR)
        page.click("text=Show what was said")
        text = page.locator(".text pre").inner_text()
        assert text == f"{HTML}\\u001b[31m\\u202e"
        page.focus(".list")
        page.keyboard.press("Home")  # a row without a text
        page.wait_for_selector(".text pre", state="detached")
        assert page.evaluate("window.hit") is None
    with serving(sdd, shows_texts=True) as port, page_of(port, place) as page:
        page.wait_for_selector(".text pre:has-text('window.hit')")


def test_a_run_of_100_000_events_is_walked_through(sdd: SddDir) -> None:
    ref = {"digest": "0" * 64, "byteLength": 1}
    made: list[tuple[str, str, Any]] = [("run.started", "", {"agentId": "a"})]
    lanes = [f"s/{number}" for number in range(50)]
    made += [("step.started", lane, {"stepId": lane, "depth": 0}) for lane in lanes]
    while len(made) < 99_999:
        number = len(made)
        call, lane = f"c{number}", lanes[number % 50]
        made.append(
            ("tool.proposed", lane, {"stepId": lane, "toolCallId": call, "name": "t", "args": ref})
        )
        ok = number % 10_000 > 2
        made.append(("tool.result", lane, {"toolCallId": call, "ok": ok, "result": ref}))
    made = [*made[:99_999], ("run.finished", "", {"status": "completed"})]
    bad = [i for i, (_, _, payload) in enumerate(made) if payload.get("ok") is False]
    journal_of(sdd, "large", made)
    with serving(sdd) as port, page_of(port, "#/run/large") as page:
        chip(page, "rows", "100,000 rows verified here")
        page.focus(".list")
        for key, place in (("End", 99_999), ("Home", 0), ("n", bad[0]), ("n", bad[1])):
            page.keyboard.press(key)
            page.wait_for_selector(f"[data-place='{place}'][aria-selected=true]")
            page.wait_for_selector(f".detail h2:has-text('Row {place}:')")
        assert page.locator("[role=option]").count() < 150
        page.keyboard.press("/")
        page.keyboard.type('"c5001"')
        page.wait_for_selector(".found:has-text('2 rows')")
        page.keyboard.press("Escape")
        page.wait_for_selector("[role=option][aria-setsize='100000']")


def test_colours_are_those_of_the_system_until_somebody_chooses(
    sdd: SddDir, finished: RunDir
) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    with (
        serving(sdd) as port,
        page_of(port, f"#/run/{finished.run_id}", color_scheme="dark") as page,
    ):
        chip(page, "rows", "verified here")
        dark = page.evaluate(ground)
        page.emulate_media(color_scheme="light")
        page.wait_for_selector("html[data-theme=light]")
        assert page.evaluate(ground) != dark
        for name in ("light", "dark"):
            page.click("button.theme")
            page.wait_for_selector(f"button.theme:has-text('{name}')")
            assert (page.evaluate(ground) == dark) == (name == "dark")
        page.reload()
        page.wait_for_selector("button.theme:has-text('dark')")
        assert page.evaluate(ground) == dark


def test_a_link_leads_to_its_row_and_related_rows_are_named(sdd: SddDir, finished: RunDir) -> None:
    with serving(sdd) as port, page_of(port, f"#/run/{finished.run_id}/2") as page:
        page.wait_for_selector(".detail h2:has-text('Row 2:')")
        page.wait_for_selector(".detail .state:has-text('verified')")
        ends = [row["index"] for row in events(finished, "step.finished")]
        page.click(".detail button:has-text('step.finished')")
        page.wait_for_selector(f".detail h2:has-text('Row {ends[0]}:')")
        assert page.url.endswith(f"#/run/{finished.run_id}/{ends[0]}")
        (option,) = page.query_selector_all("[aria-selected=true]")
        assert page.get_attribute(".list", "aria-activedescendant") == option.get_attribute("id")
        assert option.get_attribute("aria-posinset") == str(ends[0] + 1)


def test_a_folded_step_lists_its_first_and_last_row(sdd: SddDir, finished: RunDir) -> None:
    lane = events(finished, "step.started")[0]["lane"]
    inner = [row for row in rows(finished.journal) if row["lane"] == lane][1:-1]
    count = len(rows(finished.journal))
    with (
        serving(sdd) as port,
        page_of(port, f"#/run/{finished.run_id}", viewport={"width": 1300, "height": 900}) as page,
    ):
        chip(page, "rows", "verified here")
        page.click(".lanes tbody tr:nth-child(2) button.fold")
        page.wait_for_selector(f".told:has-text('{len(inner)} rows folded')")
        listed = int(page.get_attribute("[role=option]", "aria-setsize") or 0)
        assert listed <= count - len(inner)
        page.click(".lanes tbody tr:nth-child(2) button.fold")
        page.wait_for_selector(f"[role=option][aria-setsize='{count}']")


def test_a_replay_shows_its_misses_and_is_compared_with_its_source(
    sdd: SddDir, finished: RunDir
) -> None:
    no_model()
    again = run_plan(TWO_STEPS.replace("First", "Other"), sdd, replay=finished.run_id)
    assert again.exit_code == 3
    with serving(sdd) as port, page_of(port, f"#/run/{again.run_id}") as page:
        page.wait_for_selector(".misses summary:has-text('replay miss')")
        assert "was never recorded" in page.inner_text(".misses")
        page.click("text=compare with its source")
        page.wait_for_selector(".verdict strong:has-text('They part at row')")
        page.wait_for_selector(".pair.changed, .pair.only")
        assert page.locator(".sides .chip.good").count() == 2
        page.goto(f"http://127.0.0.1:{port}/#/diff/{finished.run_id}/{finished.run_id}")
        page.wait_for_selector(".verdict:has-text('the same, row by row')")
        page.wait_for_selector(".row.folded")


AXE = Path(__file__).parents[1] / ".clients/page/node_modules/axe-core/axe.min.js"


@pytest.mark.skipif(not AXE.exists(), reason="axe is not installed: make page-lint")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_can_be_read_by_all(sdd: SddDir, finished: RunDir, scheme: Any) -> None:
    ask_for("true")
    parked = run_plan(PLAN, sdd).run_id
    no_model()
    replay = run_plan(TWO_STEPS.replace("First", "Other"), sdd, replay=finished.run_id).run_id
    places = {
        "#/": ".runs tbody",
        f"#/run/{finished.run_id}/1": ".detail h2",
        f"#/run/{parked}": ".approvals form",
        f"#/run/{replay}": ".misses",
        f"#/diff/{finished.run_id}/{replay}": ".pair",
    }
    with serving(sdd) as port, page_of(port, color_scheme=scheme, bypass_csp=True) as page:
        for place, shown in places.items():
            page.goto(f"http://127.0.0.1:{port}/{place}")
            page.wait_for_selector(shown)
            page.wait_for_timeout(300)
            page.evaluate(AXE.read_text())
            found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
            told = [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]]
            assert told == [], place


# --- a page in one file


def test_a_page_in_one_file_checks_itself_and_asks_nobody(sdd: SddDir, finished: RunDir) -> None:
    path = Path("run.html").absolute()
    said = bernstein("show", finished.run_id, "--html", str(path))
    assert said.returncode == 0
    assert sdd.path
    asked: list[str] = []
    with browsing() as browser:
        page = browser.new_context(offline=True).new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        chip(page, "rows", f"{len(rows(finished.journal))} rows verified here")
        chip(page, "seal", "the seal holds")
        chip(page, "signature", "signed by")
        assert asked == [path.as_uri()]
        text = path.read_text()
        match = re.search(r'id="journal">([^<]*)<', text)
        assert match is not None
        journal = gzip.decompress(base64.b64decode(match[1]))
        assert journal == finished.journal.read_bytes()
        forged = base64.b64encode(gzip.compress(journal.replace(b'"ok"', b'"no"', 1))).decode()
        path.write_text(text.replace(match[1], forged))
        page.reload()
        chip(page, "rows", "broken at row")
        chip(page, "seal", "the seal is broken")
        assert not any("holds" in text or "verified" in text for text in greens(page))


def test_a_page_of_a_run_that_goes_on_says_so(sdd: SddDir) -> None:
    journal_of(sdd, "on", [("run.started", "", {"agentId": "a"})])
    with sdd.run("on").journal.open("ab") as file:
        file.write(b'{"index":1,"ev')  # just being written
    held = Held(sdd, "on")
    path = Path("on.html").absolute()
    assert bernstein("show", "on", "--html", str(path)).returncode == 0
    held.end()
    with browsing() as browser:
        page = browser.new_page()
        page.goto(path.as_uri())
        chip(page, "rows", "1 row verified here")
        chip(page, "state", "it ran on when this page was made")
        chip(page, "seal", "no seal: rows can be missing at the end")


def test_the_page_may_do_nothing_but_what_it_is_for(sdd: SddDir) -> None:
    import http.client

    with serving(sdd) as port:
        for path in ("/", "/main.js", "/style.css", "/icon.svg"):
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("GET", path)
            response = connection.getresponse()
            policy = response.getheader("Content-Security-Policy") or ""
            assert response.status == 200
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert response.getheader("X-Content-Type-Options") == "nosniff"
            connection.close()
        for path in ("/..%2fapp.py", "/app.py", "/__init__.py", "/page"):
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("GET", path)
            assert connection.getresponse().status == 404
            connection.close()
