"""Programs of our users: one run a process, opened by its first call and closed at its exit."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from dataclasses import dataclass
from typing import Any

from bernstein.capture.run import OpenRun
from bernstein.errors import BernsteinError, ReplayMissError, UsageError
from bernstein.events import trajectory as event
from bernstein.rundir import open_sdd
from bernstein.settings import read_settings


@dataclass(frozen=True, slots=True)
class CallScope:
    """The run, lane and step that calls made here belong to."""

    run: OpenRun
    lane: str = ""
    step_id: str | None = None


_process_lock = threading.Lock()
_process: CallScope | None = None
_has_failed = False


def process_scope() -> CallScope:
    """The scope of a program that opened no run: its run is opened now and closed at exit."""
    global _process  # noqa: PLW0603 - one run a process is the point
    with _process_lock:
        if _process is None or _process.run.pid != os.getpid():
            if _process is not None and _process.run.source is not None:
                raise ReplayMissError(
                    "replay miss: a forked child asks, and what it was answered is not in the "
                    "recording of its parent\n  replay the child's own run, or ask in threads",
                    key="",
                    model="",
                    reason="no_recording",
                )
            run = open_program_run()
            _process = CallScope(run)
            atexit.register(_end_process_run, run)
            _watch_for_failure()
        elif _process.run.is_closed:
            raise UsageError("the run of this program has ended: no call can be made at its exit")
        return _process


def _watch_for_failure() -> None:
    """Note an exception that nobody catches: the run of such a program has failed."""
    before = sys.excepthook

    def note(*arguments: Any) -> None:
        global _has_failed  # noqa: PLW0603 - the process has failed
        _has_failed = True
        before(*arguments)

    sys.excepthook = note


def _forget_process_lock() -> None:
    global _process_lock  # noqa: PLW0603 - a forked child may have inherited it held
    _process_lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_process_lock)


def open_program_run() -> OpenRun:
    """Open a run for this program, as the environment asks: a recording, or a replay."""
    settings = read_settings()
    run = OpenRun(
        open_sdd(settings.sdd_dir),
        settings,
        {"kind": "program", "argv": list(sys.argv)},
        follows_score=False,
    )
    run.append(event.RUN_STARTED, {"agentId": "program"})
    return run


def close_program_run(run: OpenRun, status: event.RunStatus) -> int:
    """End a program's run and report a replay on standard error.

    Returns:
        What a program that ends well must end with: 3 after a strict miss, 1 after a replay that
        diverged or a run that could not be sealed, else 0.
    """
    for end in list(run.open_calls.values()):
        end()  # streams that were begun and left open; what nobody read of stays in flight
    run.append_end(status)
    run.close(status)
    if run.seal_problem is not None:
        sys.stderr.write(f"bernstein: the run is not sealed: {run.seal_problem}\n")
    coverage, comparison = run.coverage(), run.comparison()
    run.retain()
    if coverage is None or comparison is None:
        return int(run.seal_problem is not None)
    if run.hold is not None and run.hold.has_expired:
        sys.stderr.write(
            "note: a call that was recorded did not come, so from there the answers "
            "were not held in their order\n"
        )
    sys.stderr.write(f"{coverage.line()}\n{comparison.line()}\n")
    if coverage.strict_violations:
        return ReplayMissError.exit_code
    return int((run.is_strict and comparison.relation == "diverged") or bool(run.seal_problem))


def _end_process_run(run: OpenRun) -> None:
    if run.pid != os.getpid():
        return  # a forked child, whose parent ends this run
    has_failed = _has_failed or run.store.first_miss is not None
    try:
        code = close_program_run(run, "failed" if has_failed else "completed")
    except (BernsteinError, OSError) as error:
        sys.stderr.write(f"bernstein: the run could not be ended: {error}\n")
        code = ReplayMissError.exit_code if run.store.first_miss is not None else 1
    if code == ReplayMissError.exit_code or (code and not _has_failed):
        # At exit the interpreter's own code can only be overruled like this.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
