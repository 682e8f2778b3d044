"""What a run has written already, for when it goes on after its process has ended.

It is done again from its beginning, and what it does is held against what stands there: rows, calls
and decisions that are the same are passed over, and new ones are written behind them. Where one
differs, the run cannot go on, and nothing of it has been changed.
"""

from __future__ import annotations

import fcntl
import os
from collections import deque
from typing import TYPE_CHECKING

from bernstein.canonical import JsonObject, canonical_bytes
from bernstein.chain.read import load_replay_events
from bernstein.errors import RecordingError, UsageError
from bernstein.events.trajectory import DECISION_MADE
from bernstein.files import write_file
from bernstein.jsonl import open_append
from bernstein.seal.evidence import verify_run
from bernstein.seal.seals import set_torn_lines_aside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bernstein.events.entry import JournalEntry
    from bernstein.rundir import RunDir, SddDir
    from bernstein.seal.signing import KeyStore


class Resumed:
    """The rows of a run that goes on, taken one after the other as it makes them again."""

    def __init__(self, run: RunDir) -> None:
        """Read what stands there."""
        self._run = run
        self._rows = deque(load_replay_events(run.journal))
        self.count = len(self._rows)
        self.decisions = sum(row.event == DECISION_MADE for row in self._rows)
        self.problem: UsageError | None = None

    def pass_over(self, rows: Sequence[tuple[str, JsonObject]], lane: str) -> list[JournalEntry]:
        """Those of the rows that stand there already, from the first on.

        Raises:
            UsageError: Another row stands in the place of one.
        """
        passed: list[JournalEntry] = []
        for name, payload in rows:
            if self.problem is not None:
                raise self.problem
            if not self._rows:
                break
            row = self._rows.popleft()
            said = (row.event, row.lane, bytes(row.payload))
            if said != (name, lane, canonical_bytes(payload)):
                self.problem = UsageError(
                    f"run {self._run.run_id} cannot go on: at row {row.index} it would now write "
                    f"{name} of {lane or 'the run'}, and {row.event} of {row.lane or 'the run'} "
                    "stands there\n  nothing was changed; run the plan again"
                )
                raise self.problem
            passed.append(row)
        return passed


def hold_to_resume(run: RunDir, sdd: SddDir, keys: KeyStore) -> int:
    """Take the lock of a run that is to go on; gives its descriptor.

    Raises:
        UsageError: It has ended, goes on elsewhere, or is none that can.
        RecordingError: Its evidence does not hold.
    """
    lock_fd = open_append(run.lock)
    try:
        _take(lock_fd, run)
        _refuse_ended(run)
        set_torn_lines_aside(run)
        _refuse_damaged(run, sdd, keys)
        _cut_decisions(run)
    except BaseException:
        os.close(lock_fd)
        raise
    return lock_fd


def _cut_decisions(run: RunDir) -> None:
    """Take back a decision that a kill kept from being chained: it is made again, or another is."""
    chained = sum(row.event == DECISION_MADE for row in load_replay_events(run.journal))
    lines = run.wal.read_bytes().splitlines(keepends=True) if run.wal.exists() else []
    if len(lines) > chained:
        write_file(run.wal, b"".join(lines[:chained]))


def _take(lock_fd: int, run: RunDir) -> None:
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(
            f"run {run.run_id} is going on already, in another process\n"
            "  let that one end: bernstein runs"
        ) from None


def _refuse_damaged(run: RunDir, sdd: SddDir, keys: KeyStore) -> None:
    verdict = verify_run(run, sdd, keys)
    if verdict.verdict == "mismatch":
        raise RecordingError(
            f"run {run.run_id} does not hold ({verdict.reason}): it cannot go on\n"
            f"  see: bernstein replay {run.run_id} --verify"
        )


def _refuse_ended(run: RunDir) -> None:
    info, name = run.read_info(), f"run {run.run_id}"
    # It has said how it ended before its lock is free, and is sealed then.
    if run.seal.exists() or info.get("status") in {"completed", "failed", "cancelled"}:
        raise UsageError(f"{name} has ended: there is nothing to go on with\n  see: bernstein runs")
    if info.get("kind") != "plan" or not run.journal.exists():
        raise UsageError(f"{name} is no run of a plan: only these can go on")
    if info.get("source_run") is not None:
        raise UsageError(f"{name} is a replay: replay {info['source_run']} again instead")
