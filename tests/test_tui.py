"""The thread in a terminal: its screens as text, its keys, and that both sources show the same.

The pictures are in tests/snapshots/tui; those that are missing are made, and the test then fails once.
So where a screen is to look otherwise: remove its picture, run the test twice, and look at what git shows.
"""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from textual.app import ScreenStackError
from textual.color import Color
from textual.worker import WorkerFailed

from bernstein import EventJournal
from bernstein.cli import COMMANDS
from bernstein.seal.audit import audit_keys, read_audit
from bernstein.seal.signing import default_keys
from bernstein.show.told import told_run
from bernstein.show.tui.app import ThreadApp
from bernstein.show.tui.rows import RowList
from bernstein.show.tui.run import RunScreen
from bernstein.show.tui.sources import polled, streamed
from tests.helpers import bernstein, events, journal_of, resume, run_plan
from tests.test_approvals import CALL, PLAN, ask_for, decide
from tests.test_serve import Held

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from textual.pilot import Pilot

    from bernstein.fold.thread import StreamEvent
    from bernstein.rundir import RunDir, SddDir
    from bernstein.show.tui.sources import Source

pytestmark = pytest.mark.timeout(120)
SNAPSHOTS = Path(__file__).parent / "snapshots" / "tui"
SOURCES = {"polled": polled, "streamed": streamed}
REF = {"digest": "0" * 64, "byteLength": 1}
ROWS: list[tuple[str, str, Any]] = [
    ("run.started", "", {"agentId": "bernstein"}),
    ("step.started", "fix/tests", {"stepId": "fix/tests", "depth": 0, "label": "Make them pass"}),
    (
        "model.call",
        "fix/tests",
        {"stepId": "fix/tests", "provider": "x", "model": "m", "prompt": REF},
    ),
    ("model.answer", "fix/tests", {"key": "0" * 64, "outcome": "ok", "answer": REF}),
    (
        "model.usage",
        "fix/tests",
        {
            "stepId": "fix/tests",
            "provider": "x",
            "model": "m",
            "inputTokens": 1200,
            "outputTokens": 30,
            "credits": 0,
            "billingStatus": "estimated",
        },
    ),
    (
        "tool.proposed",
        "fix/tests",
        {"stepId": "fix/tests", "toolCallId": "fix/tests/c1", "name": "run_command", "args": REF},
    ),
    ("tool.approved", "fix/tests", {"toolCallId": "fix/tests/c1", "actor": "policy"}),
    ("tool.result", "fix/tests", {"toolCallId": "fix/tests/c1", "ok": False, "result": REF}),
    (
        "step.finished",
        "fix/tests",
        {"stepId": "fix/tests", "status": "error", "errorCode": "timeout"},
    ),
    ("run.finished", "", {"status": "failed", "reason": "timeout"}),
]


def picture(app: ThreadApp) -> str:
    """What the screen shows, line by line."""
    strips = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips) + "\n"


def view(
    sdd: SddDir,
    run: RunDir | None,
    act: Callable[[Pilot[str | None], ThreadApp], Awaitable[None]],
    *,
    source: Source = streamed,
    size: tuple[int, int] = (80, 24),
) -> str:
    """Show a run, do something there, and give what is shown then."""

    async def show() -> str:
        app = ThreadApp(sdd, default_keys(sdd), source, "alice", run)
        async with app.run_test(size=size) as pilot:
            await settled(pilot, app, run)
            await act(pilot, app)
            await pilot.pause()
            return picture(app)

    return asyncio.run(show())


async def settled(pilot: Pilot[str | None], app: ThreadApp, run: RunDir | None) -> None:
    """Wait until the rows that are there are shown."""
    if run is None:
        await pilot.pause()
        return
    count = run.journal.read_bytes().count(b"\n")
    while not isinstance(app.screen, RunScreen) or len(app.screen.feed) < count:
        await pilot.pause(0.01)
    while not (app.screen._seal or run.is_running() or told_run(run)["status"] == "parked"):
        await pilot.pause(0.01)
    while app.screen._waiting._seen is None:
        await pilot.pause(0.01)
    await pilot.pause()


def keys(*pressed: str) -> Callable[[Pilot[str | None], ThreadApp], Awaitable[None]]:
    async def press(pilot: Pilot[str | None], app: ThreadApp) -> None:
        for key in pressed:
            await pilot.press(key)
            await pilot.pause()
            while any(w.group == "row" and not w.is_finished for w in app.workers):
                await pilot.pause(0.01)  # its text is read
            await pilot.pause()

    return press


def same_as(name: str, shown: str) -> None:
    """Hold what is shown against its picture; times of a clock are masked there."""
    shown = re.sub(r" \d\d:\d\d:\d\d ", " 00:00:00 ", shown)
    path = SNAPSHOTS / f"{name}.txt"
    if not path.exists():
        path.write_text(shown)
        pytest.fail(f"{path} was made: look at it, and run the test again")
    assert shown == path.read_text()


@pytest.fixture
def failed(sdd: SddDir) -> RunDir:
    run = journal_of(sdd, "20261201T000000.000000Z-abc123", ROWS)
    run.write_info(
        {
            "run_id": run.run_id,
            "status": "failed",
            "started": "2026-12-01T00:00:00Z",
            "plan": {"name": "Fix the tests"},
        }
    )
    return run


@pytest.fixture
def nested(sdd: SddDir) -> RunDir:
    made: list[tuple[str, str, Any]] = [("run.started", "", {"agentId": "x"})]
    for step, label in (("a/one", "One"), ("a/two", None)):
        label_of = {"label": label} if label else {}
        made.append(("step.started", step, {"stepId": step, "depth": 0, **label_of}))
        for task in (f"{step}/t1", f"{step}/t2"):
            of = {"stepId": task, "parentStepId": step, "depth": 1}
            made.append(("step.started", task, of))
        made.append(("step.finished", f"{step}/t1", {"stepId": f"{step}/t1", "status": "ok"}))
    made.append(("step.finished", "a/one", {"stepId": "a/one", "status": "error"}))
    return journal_of(sdd, "nested", made)


@pytest.fixture
def parked(sdd: SddDir) -> RunDir:
    ask_for("echo b > b.txt; printf '\x1b[31m[red]no markup[/red]'")
    return sdd.run(run_plan(PLAN, sdd).run_id)


# --- the screens


@pytest.mark.parametrize(
    ("name", "pressed"),
    [
        ("run", ()),
        ("first", ("home",)),
        ("failure", ("home", "f")),
        ("last-failure", ("F", "F")),
        ("search", ("home", "slash", *"usage", "enter")),
        ("searching", ("slash", "a", "b")),
        ("no-hit", ("slash", *"zebra", "enter")),
        ("row", ("home", "down", "enter")),
        ("steps", ("s",)),
        ("step", ("end", "s", "enter")),
        ("keys", ("question_mark",)),
        ("nothing-waits", ("a",)),
        ("runs", ("r",)),
    ],
)
def test_each_screen_looks_as_it_did(
    sdd: SddDir, failed: RunDir, name: str, pressed: tuple[str, ...]
) -> None:
    same_as(name, view(sdd, failed, keys(*pressed)))


def test_a_wide_screen(sdd: SddDir, failed: RunDir) -> None:
    same_as("run-wide", view(sdd, failed, keys(), size=(140, 40)))


def test_steps_stand_beside_the_rows_where_there_is_room(sdd: SddDir, nested: RunDir) -> None:
    same_as("steps-beside", view(sdd, nested, keys("up", "up", "up"), size=(120, 40)))
    assert "│ ok        t1" not in view(sdd, nested, keys(), size=(119, 40))


@pytest.mark.parametrize("source", SOURCES)
def test_what_waits_is_told_until_somebody_decides(
    sdd: SddDir, parked: RunDir, source: str
) -> None:
    same_as("parked", view(sdd, parked, keys(), source=SOURCES[source]))

    async def decided(pilot: Pilot[str | None], app: ThreadApp) -> None:
        assert "run_command waits: a approve, d deny   s/work/t1/c2" in picture(app)
        decide(sdd, parked, "denied")  # in another terminal
        while "waits" in picture(app):
            await pilot.pause(0.01)

    view(sdd, parked, decided, source=SOURCES[source])


def test_q_leaves_the_list_and_the_run(sdd: SddDir, failed: RunDir) -> None:
    for run in (None, failed):
        for key in ("q", "ctrl+c", "ctrl+q"):

            async def left(pilot: Pilot[str | None], app: ThreadApp, key: str = key) -> None:
                await pilot.press(key)
                await pilot.pause()
                assert not app.is_running

            with suppress(ScreenStackError):
                view(sdd, run, left)


def test_what_comes_while_a_run_is_being_left_ends_nothing(sdd: SddDir, failed: RunDir) -> None:
    async def leave(pilot: Pilot[str | None], app: ThreadApp) -> None:
        screen = app.screen
        assert isinstance(screen, RunScreen)
        for turn in range(10):
            await pilot.press("r")
            await asyncio.sleep(turn / 1000)
            await pilot.press("enter")
        await pilot.pause()
        screen._draw()
        screen._tell("decided")
        await settled(pilot, app, failed)

    assert "run.finished" in view(sdd, failed, leave)


def test_a_run_of_its_own_is_not_left_unasked(sdd: SddDir, failed: RunDir) -> None:
    async def asked(pilot: Pilot[str | None], app: ThreadApp) -> None:
        app.is_owned = lambda: True
        for key in ("ctrl+q", "q", "r"):
            await pilot.press(key)
            await pilot.press("escape")
        await pilot.press("q")

    same_as("leave", view(sdd, failed, asked))


def test_the_newest_row_stays_in_sight_when_the_screen_shrinks(sdd: SddDir, failed: RunDir) -> None:
    async def shrink(pilot: Pilot[str | None], app: ThreadApp) -> None:
        await pilot.resize_terminal(60, 10)
        await pilot.pause()

    shown = view(sdd, failed, shrink).splitlines()
    assert "run.finished" in shown[7]
    assert len(shown) == 10


def test_without_colours_all_is_shown_in_the_terminals_own(
    sdd: SddDir, failed: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def look(pilot: Pilot[str | None], app: ThreadApp) -> None:
        for pressed in ("up", "s", "escape", "enter", "escape", "r"):
            await pilot.press(pressed)
            await pilot.pause()
            strips = [
                strip.apply_filter(one, Color(0, 0, 0))
                for strip in app.screen._compositor.render_strips()
                for one in app.get_line_filters()
            ]
            styles = [segment.style for strip in strips for segment in strip if segment.style]
            shown = {style.color for style in styles} | {style.bgcolor for style in styles}
            assert {None if colour is None else colour.name for colour in shown} <= {
                None,
                "default",
            }
            assert any(style.reverse for style in styles) == (pressed != "enter")

    view(sdd, failed, look)


def test_no_runs_and_an_opened_run(sdd: SddDir) -> None:
    assert "no runs yet: bernstein run plan.yaml" in view(sdd, None, keys())
    journal_of(sdd, "one", ROWS)

    async def opened(pilot: Pilot[str | None], app: ThreadApp) -> None:
        await pilot.press("enter")
        while not isinstance(app.screen, RunScreen) or len(app.screen.feed) < len(ROWS):
            await pilot.pause(0.01)

    assert "run.finished" in view(sdd, None, opened)


def test_what_waits_is_shown_whole_and_inert(sdd: SddDir, parked: RunDir) -> None:
    async def waits(pilot: Pilot[str | None], app: ThreadApp) -> None:
        await pilot.press("a")
        while isinstance(app.screen, RunScreen):
            await pilot.pause(0.01)

    same_as("decide", view(sdd, parked, waits))


@pytest.mark.parametrize("source", SOURCES)
def test_an_edited_row_is_shown_as_the_break(sdd: SddDir, failed: RunDir, source: str) -> None:
    journal = failed.journal.read_bytes()
    failed.journal.write_bytes(journal.replace(b'"inputTokens":1200', b'"inputTokens":1201'))
    shown = view(sdd, failed, keys("home"), source=SOURCES[source])
    assert "broken at row 4: payload · mismatch (payload)" in shown
    assert [line[:1] for line in shown.splitlines()[2:12]] == ["✓"] * 4 + ["✗"] + ["?"] * 5


@pytest.mark.parametrize("source", SOURCES)
def test_what_is_changed_behind_the_view_is_shown_as_the_break(
    sdd: SddDir, failed: RunDir, source: str
) -> None:
    journal = failed.journal.read_bytes()

    async def edit(pilot: Pilot[str | None], app: ThreadApp) -> None:
        with failed.journal.open("r+b") as file:
            file.seek(journal.index(b'"inputTokens":1200'))
            file.write(b'"inputTokens":1201')
        await pilot.press("home")
        while "broken at row 4: payload · mismatch (payload)" not in picture(app):
            await pilot.pause(0.01)

    shown = view(sdd, failed, edit, source=SOURCES[source])
    assert [line[:1] for line in shown.splitlines()[2:12]] == ["✓"] * 4 + ["✗"] + ["?"] * 5

    failed.journal.write_bytes(journal)

    async def cut(pilot: Pilot[str | None], app: ThreadApp) -> None:
        rows = journal.splitlines(keepends=True)
        os.truncate(failed.journal, len(b"".join(rows[:6])))
        while "broken at row 6: torn" not in picture(app):
            await pilot.pause(0.01)
        await pilot.press("enter")
        await pilot.pause()
        assert "row 9: it is behind a broken row" in picture(app)

    view(sdd, failed, cut, source=SOURCES[source])


@pytest.mark.parametrize("source", SOURCES)
def test_a_run_that_is_removed_or_damaged_behind_the_view_ends_nothing(
    sdd: SddDir, failed: RunDir, source: str
) -> None:
    async def damage(pilot: Pilot[str | None], app: ThreadApp) -> None:
        failed.run_json.write_text("{")
        await pilot.press("up")
        while "unreadable" not in picture(app):
            await pilot.pause(0.01)

    view(sdd, failed, damage, source=SOURCES[source])

    async def remove(pilot: Pilot[str | None], app: ThreadApp) -> None:
        shutil.rmtree(failed.path)
        while "no more rows are shown: the run's folder is gone" not in picture(app):
            await pilot.pause(0.01)
        await pilot.press("home", "enter")
        await pilot.pause()

    assert "run.started" in view(sdd, failed, remove, source=SOURCES[source])


def test_a_fault_of_ours_is_kept_for_the_command_line(
    sdd: SddDir, failed: RunDir, capfd: pytest.CaptureFixture[str]
) -> None:
    async def broken(run: RunDir) -> AsyncIterator[list[StreamEvent]]:
        yield []
        raise ValueError("ours")

    app = ThreadApp(sdd, default_keys(sdd), broken, "alice", failed)

    async def show() -> None:
        async with app.run_test():
            while app.fault is None:
                await asyncio.sleep(0.01)

    with pytest.raises(WorkerFailed):
        asyncio.run(show())
    assert str(app.fault) == "ours"
    assert "Traceback" not in "".join(capfd.readouterr())


def test_both_sources_show_the_same(sdd: SddDir, failed: RunDir, parked: RunDir) -> None:
    for run in (failed, parked):
        for size in ((80, 24), (140, 40)):
            shown = [view(sdd, run, keys(), source=s, size=size) for s in SOURCES.values()]
            assert shown[0] == shown[1]


def test_what_a_run_says_is_inert(sdd: SddDir) -> None:
    evil = "[bold red]x[/] \x1b[31m\x9b31m\u202e\x07[@click=app.exit]"
    odd = {"toString": [evil]}
    made: list[tuple[str, str, Any]] = [
        ("run.started", "", {"agentId": evil}),
        ("step.started", "s", {"stepId": "s", "depth": 0, "label": evil}),
        ("step.started", "o", {"stepId": odd, "depth": evil, "label": odd}),
        ("tool.proposed", "s", {"stepId": "s", "toolCallId": "c", "name": evil, "args": REF}),
        ("tool.result", "s", {"toolCallId": "c", "ok": False, "result": REF}),
        ("artifact.written", "s", {"path": evil}),
        ("run.finished", "", {"status": evil, "reason": odd}),
    ]
    run = journal_of(sdd, "evil", made)
    run.write_info({"run_id": "evil", "status": "completed", "plan": {"name": evil}})
    for pressed in ((), ("home", "down", "enter"), ("s",), ("r",)):
        shown = view(sdd, run, keys(*pressed), size=(160, 30))
        assert "[bold red]x[/] " in shown
        assert "\\x9b31m\\u202e" in shown
        assert not set(shown) & {"\x1b", "\x9b", "\x07", "\u202e"}


@pytest.mark.parametrize("source", SOURCES)
def test_a_run_of_100_000_events(sdd: SddDir, source: str) -> None:
    count = 100_000
    made = [("custom.row", f"a/{i % 7}", {"name": f"n{i}"}) for i in range(count)]
    run = journal_of(sdd, "large", made)

    async def walk(pilot: Pilot[str | None], app: ThreadApp) -> None:
        rows = app.screen.query_one(RowList)
        assert rows.place == count - 1
        await pilot.press("home")
        await pilot.pause()
        assert "name=n0" in picture(app)
        await pilot.press("slash", *'n50000"', "enter")
        await pilot.pause()
        assert rows.place == 50_000
        assert "name=n50000" in picture(app)
        await pilot.press("end")

    assert f"name=n{count - 1}\n" in view(sdd, run, walk, source=SOURCES[source])


def test_a_row_in_full_has_what_was_said(sdd: SddDir, parked: RunDir) -> None:
    place = events(parked, "tool.proposed")[-1]["index"]

    async def opened(pilot: Pilot[str | None], app: ThreadApp) -> None:
        assert isinstance(app.screen, RunScreen)
        app.screen.query_one(RowList).choose(place)
        await pilot.press("enter")
        while isinstance(app.screen, RunScreen):
            await pilot.pause(0.01)

    shown = view(sdd, parked, opened, size=(140, 40))
    assert f"row {place}: it holds" in shown
    assert "[red]no markup[/red]" in shown


# --- decisions


@pytest.mark.parametrize(("key", "event"), [("y", "tool.approved"), ("x", "tool.denied")])
def test_a_decision_is_in_both_chains(sdd: SddDir, parked: RunDir, key: str, event: str) -> None:
    async def decide(pilot: Pilot[str | None], app: ThreadApp) -> None:
        await pilot.press("a")
        while isinstance(app.screen, RunScreen):
            await pilot.pause(0.01)
        await pilot.press(key)
        while f"by alice; go on: bernstein run --resume {parked.run_id[:8]}" not in picture(app):
            await pilot.pause(0.01)

    view(sdd, parked, decide, size=(140, 30))
    audit = read_audit(sdd.audit, audit_keys(default_keys(sdd).folder))
    (said,) = [row.payload for row in audit if row.type == "thread.approval"]
    assert said["decision"] == event.removeprefix("tool.")
    resume(sdd, parked)
    assert events(parked, event)[-1]["payload"]["toolCallId"] == CALL
    assert events(parked, event)[-1]["payload"]["actor"] == "alice"


def test_a_look_at_what_waits_decides_nothing(sdd: SddDir, parked: RunDir) -> None:
    async def leave(pilot: Pilot[str | None], app: ThreadApp) -> None:
        await pilot.press("d")
        while isinstance(app.screen, RunScreen):
            await pilot.pause(0.01)
        await pilot.press("escape")

    view(sdd, parked, leave)
    assert not sdd.audit.exists()


# --- real terminals


class Terminal:
    """A tmux session of its own server, with one command in it."""

    def __init__(self, name: str, command: str, width: int = 80, height: int = 24) -> None:
        self._tmux = ["tmux", "-L", f"bernstein-{os.getpid()}-{name}", "-f", "/dev/null"]
        size = ["-x", str(width), "-y", str(height)]
        command += "; echo ended with $?; sleep 100"
        subprocess.run([*self._tmux, "new-session", "-d", *size, command], check=True)

    def press(self, *pressed: str) -> None:
        subprocess.run([*self._tmux, "send-keys", *pressed], check=True)

    def picture(self) -> str:
        done = subprocess.run(
            [*self._tmux, "capture-pane", "-p"], check=True, capture_output=True, text=True
        )
        return done.stdout

    def wait_for(self, text: str) -> str:
        for _ in range(600):
            if text in (shown := self.picture()):
                return shown
            time.sleep(0.05)
        raise AssertionError(f"{text!r} did not come; there is:\n{self.picture()}")

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], check=False, capture_output=True)


needs_tmux = pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")
PROGRAM = f"{sys.executable} -m bernstein"


@needs_tmux
def test_a_live_run_in_two_terminals_with_either_source_looks_the_same(sdd: SddDir) -> None:
    held = Held(sdd, "live")
    sdd.run("live").write_info({"run_id": "live", "status": "running"})
    terminals: list[Terminal] = []
    with EventJournal("live", sdd.path) as journal:
        journal.append("run.started", {"agentId": "test"})
        try:
            for switch in ("0", "1"):
                command = f"env BERNSTEIN_TUI_STREAM={switch} {PROGRAM} tui live"
                terminals.append(Terminal(f"live{switch}", command))
            for terminal in terminals:
                terminal.wait_for("1 row verified")
            for number in range(100):
                journal.append("custom.row", {"name": f"row-{number}"}, "a/b")
                time.sleep(0.005)
            shown = [terminal.wait_for("101 rows verified") for terminal in terminals]
            assert shown[0] == shown[1]
            assert "name=row-99" in shown[0]
            journal.append("run.finished", {"status": "completed"})
            held.end()
            shown = [terminal.wait_for("102 rows verified · prefix") for terminal in terminals]
            assert shown[0] == shown[1]
            for terminal in terminals:
                terminal.press("q")
                terminal.wait_for("ended with 0")
        finally:
            for terminal in terminals:
                terminal.close()


PLAN_FILE = "name: P\nstages:\n  - name: s\n    steps: [{title: Say it, tools: [list_files]}]\n"


@needs_tmux
def test_a_run_is_shown_as_it_runs_and_ends_with_its_exit_code(sdd: SddDir) -> None:
    Path("plan.yaml").write_text(PLAN_FILE)
    Path("slow.yaml").write_text('answers: [{text: "{}", delay_s: 30}]\n')
    Path("quick.yaml").write_text("answers: [{text: said}]\n")
    command = f"{PROGRAM} run plan.yaml --tui --model scripted:%s"
    for model, pressed, ends in (("quick", "", 0), ("slow", "e", 130)):
        terminal = Terminal(f"run-{model}", command % f"{model}.yaml", 120, 30)
        try:
            terminal.wait_for("model.call")
            if pressed:
                terminal.press("q")
                terminal.wait_for("The run goes on.")
                terminal.press(pressed)
            else:
                terminal.wait_for("· verified")
                terminal.press("q")
            shown = terminal.wait_for("ended with")
            status = sdd.find_run("latest").read_info()["status"]
            assert (f"ended with {ends}" in shown, status) == (
                True,
                "cancelled" if ends else "completed",
            ), shown
        finally:
            terminal.close()


@needs_tmux
@pytest.mark.parametrize(("pressed", "ends"), [(("C-c", "C-c"), 130), ((), 143)])
def test_a_signal_to_the_view_ends_its_run(
    sdd: SddDir, pressed: tuple[str, ...], ends: int
) -> None:
    Path("plan.yaml").write_text(PLAN_FILE)
    Path("slow.yaml").write_text('answers: [{text: "{}", delay_s: 60}]\n')
    command = f"{PROGRAM} run --tui --model scripted:slow.yaml -- plan.yaml"
    terminal = Terminal(f"signal-{ends}", f"echo $$ > shell; {command}")
    try:
        terminal.wait_for("model.call")
        if pressed:
            terminal.press("C-c")
            terminal.wait_for("The run goes on.")
            terminal.press("C-c")
        else:
            shell = Path("shell").read_text().strip()
            child = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()[0]
            os.kill(int(child), signal.SIGTERM)
        shown = terminal.wait_for(f"ended with {ends}")
        assert "cancelled: 0 calls" in shown
    finally:
        terminal.close()
    run = sdd.find_run("latest")
    assert (run.status(), run.is_running()) == ("cancelled", False)


@needs_tmux
def test_a_tool_is_approved_while_its_run_is_on_the_screen(sdd: SddDir) -> None:
    Path("plan.yaml").write_text(PLAN)
    asks = {"name": "run_command", "args": json.dumps({"command": "echo b > b.txt"})}
    rules = [{"match": "Work", "times": 1, "text": "", "tool_calls": [asks]}, {"text": "done"}]
    Path("model.yaml").write_text(json.dumps({"answers": rules}))
    command = f"{PROGRAM} run plan.yaml --tui --model scripted:model.yaml"
    terminal = Terminal("approved", command, 130, 40)
    try:
        terminal.wait_for("run_command waits: a approve, d deny")
        terminal.press("a")
        terminal.wait_for("let run_command run?")
        terminal.press("y")
        terminal.wait_for("completed")
        terminal.wait_for("· verified")
        terminal.press("q")
        assert "s/work  ok" in terminal.wait_for("ended with 0")
    finally:
        terminal.close()
    (approved,) = events(sdd.find_run("latest"), "tool.approved")
    assert approved["payload"]["actor"] == getpass.getuser()


@needs_tmux
def test_a_plan_that_cannot_run_is_told_as_ever(sdd: SddDir) -> None:
    Path("plan.yaml").write_text("name: P\n")
    terminal = Terminal("bad", f"{PROGRAM} run plan.yaml --tui")
    try:
        shown = terminal.wait_for("ended with 2")
        assert "bernstein: plan.yaml" in shown
    finally:
        terminal.close()
    assert not sdd.runs.exists()


def test_where_there_is_no_terminal_it_says_so(sdd: SddDir, failed: RunDir) -> None:
    Path("plan.yaml").write_text(PLAN_FILE)
    for arguments in (("tui", failed.run_id), ("tui",), ("run", "plan.yaml", "--tui")):
        done = bernstein(*arguments)
        assert done.returncode == 2
        assert "this is no terminal that can show it" in done.stderr
    done = bernstein("run", "plan.yaml", "--tui", "--json")
    assert (done.returncode, "leave -q, --json" in done.stderr) == (2, True)
    assert bernstein("tui", "nowhere").returncode == 2
    done = bernstein("tui", "--help")
    assert (done.returncode, "Example" in done.stdout) == (0, True)
    assert sdd.runs.exists()


def test_the_help_page_needs_nothing_that_draws() -> None:
    code = (
        "import sys; from bernstein.cli import main; main(['--help']);"
        "sys.exit('textual' in sys.modules or 'click' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"tui         {COMMANDS['tui'][1]}" in done.stdout
