"""The live thread: the rows of a run as they are, each once, however often a viewer comes and goes."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bernstein import EventJournal
from bernstein.errors import UsageError
from bernstein.fold.follow import follow
from bernstein.fold.thread import project_journal, verify_thread_against_journal
from tests.helpers import ONE_TASK, bernstein, rows, run_plan, script

if TYPE_CHECKING:
    from bernstein.rundir import RunDir, SddDir

PLAN = "name: P\nstages: [{name: a, steps: [{title: X, files: [x.txt]}]}]\n"
HOSTILE = "\x1b]0;owned\x07\x1b[2J<script>\u2028\r\n"


@pytest.fixture
def run(sdd: SddDir) -> RunDir:
    script({"match": "Split one step", "text": ONE_TASK}, {"text": "answered"})
    return sdd.run(run_plan(PLAN, sdd).run_id)


@pytest.fixture
def long_journal(sdd: SddDir) -> Path:
    """More rows than are searched without a jump, of all lengths."""
    draw = random.Random(5)
    with EventJournal("long", sdd.path) as journal:
        for index in range(3000):
            journal.append(
                "custom.row", {"n": index, "text": "x" * draw.randrange(300)}, f"l{index % 3}"
            )
        return journal.path


def test_the_projection_is_the_rows_as_they_stand(run: RunDir) -> None:
    events = list(project_journal(run.journal))
    assert b"".join(event.data + b"\n" for event in events) == run.journal.read_bytes()
    assert [(e.index, e.event_hash) for e in events] == [
        (row["index"], row["event_hash"]) for row in rows(run.journal)
    ]


def test_a_viewer_that_comes_back_fifty_times_sees_each_row_once(long_journal: Path) -> None:
    draw, seen = random.Random(9), []
    cuts = sorted(draw.sample(range(3000), 50))
    for cut in [*cuts, 3000]:
        after = seen[-1] if seen else None
        for event in project_journal(long_journal, after):
            seen.append(event.index)
            if event.index >= cut:
                break
    assert seen == list(range(3000))


@pytest.mark.parametrize("after", [3000, 10**9, 10**30])
def test_a_row_that_is_not_there_is_nothing_to_go_on_from(long_journal: Path, after: int) -> None:
    with pytest.raises(UsageError, match="there is no row"):
        list(project_journal(long_journal, after))


def test_a_line_that_is_being_written_is_left_out(long_journal: Path) -> None:
    data = long_journal.read_bytes()
    long_journal.write_bytes(data[:-1])
    assert sum(1 for _ in project_journal(long_journal)) == 2999


def test_every_edited_row_is_where_the_thread_parts(run: RunDir) -> None:
    data = run.journal.read_bytes()
    lines = data.splitlines(keepends=True)
    assert verify_thread_against_journal(run.journal).rows == len(lines)
    for index, line in enumerate(lines):
        changed = line.replace(b'"payload":{"', b'"payload":{"x', 1)
        run.journal.write_bytes(b"".join([*lines[:index], changed, *lines[index + 1 :]]))
        assert verify_thread_against_journal(run.journal).step_index == index
    without = b"".join(lines[:3] + lines[4:])
    run.journal.write_bytes(without)
    assert verify_thread_against_journal(run.journal).step_index == 3


def test_verify_by_the_command_line(sdd: SddDir, run: RunDir) -> None:
    def check() -> tuple[int, str, str]:
        done = bernstein("thread", "verify", "--run", run.run_id)
        return done.returncode, done.stdout, done.stderr

    count = len(rows(run.journal))
    said = f"run {run.run_id}: {count} events are the journal that was executed\n"
    assert check() == (0, said, "")
    seal = run.seal.read_bytes()
    data = run.journal.read_bytes()
    # The chain holds, and is not all that was sealed.
    run.journal.write_bytes(b"".join(data.splitlines(keepends=True)[:-1]))
    code, out, _ = check()
    assert (code, "differs at step" in out) == (1, True)
    run.journal.write_bytes(data.replace(b'"depth":1', b'"depth":2', 1))
    code, out, _ = check()
    assert (code, "differs at step" in out) == (1, True)
    run.journal.write_bytes(data)
    run.seal.write_bytes(seal.replace(b'"completed"', b'"cancelled"'))
    code, out, _ = check()
    assert (code, out) == (
        1,
        f"run {run.run_id} is not what was sealed: seal: the signature is not that of the seal\n",
    )
    run.seal.unlink()
    sdd.spine.unlink()
    code, out, err = check()
    assert (code, out) == (0, said)
    assert err.startswith("warning: ")
    run.journal.unlink()
    assert check()[0] == 2


def test_a_run_is_watched_while_it_runs(sdd: SddDir) -> None:
    run = sdd.run("live")
    seen: list[int] = []

    def watch() -> None:
        seen.extend(event.index for event in follow(run, None, time.sleep))

    with EventJournal("live", sdd.path) as journal:
        lock = run.lock
        lock.touch()
        watcher = threading.Thread(target=watch)
        holder = subprocess.Popen(
            [sys.executable, "-c", _HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        journal.append("custom.row", {})
        watcher.start()
        for _ in range(200):
            journal.append("custom.row", {})
        journal.append("run.finished", {"status": "completed"})
        watcher.join(20)
    assert not watcher.is_alive()
    assert seen == list(range(202))
    holder.communicate(b"")


_HOLD = """
import fcntl, sys
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_run_that_was_killed_ends_its_watch(sdd: SddDir) -> None:
    with EventJournal("killed", sdd.path) as journal:
        journal.append("custom.row", {})
    run = sdd.run("killed")
    with run.journal.open("ab") as file:
        file.write(b'{"index":1,"ev')
    assert [event.index for event in follow(run, None, time.sleep)] == [0]


def test_what_a_run_says_does_nothing_to_a_terminal(sdd: SddDir) -> None:
    with EventJournal("hostile", sdd.path) as journal:
        journal.append("step.started", {"stepId": HOSTILE, "depth": 0, "label": HOSTILE})
        journal.append("run.finished", {"status": "failed"})
    done = bernstein("thread", "watch", "hostile")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 2
    assert "\x1b" not in done.stdout
    done = bernstein("thread", "watch", "hostile", "--json", "--after", "0")
    assert [json.loads(line)["index"] for line in done.stdout.splitlines()] == [1]
    assert "\x1b" not in bernstein("thread", "watch", "hostile", "--json").stdout
