"""The decision log ``wal.jsonl``: what the scheduler decided, in order.

A row is JCS {index, decision, stepId, attempt, inputs, ts}; ``inputs`` is the digest of what the
decision rests on.
"""

from __future__ import annotations

import os
import threading
from hashlib import sha256
from itertools import zip_longest
from typing import TYPE_CHECKING

import msgspec

from bernstein.canonical import JsonObject, canonical_bytes, decode_canonical, digest_of
from bernstein.chain.read import load_replay_events, payload_of
from bernstein.errors import CanonicalError, RecordingError, UsageError
from bernstein.events.trajectory import DECISION_MADE
from bernstein.jsonl import append_line, open_append, read_lines, utc_now

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bernstein.events.trajectory import Decision


class DecisionLog:
    """The only writer of a run's ``wal.jsonl``."""

    def __init__(self, path: Path, passed: int = 0) -> None:
        """Open a log; its first ``passed`` decisions are there, and will be made again."""
        self._fd = open_append(path)
        self._lock = threading.Lock()
        self._index = 0
        self._passed = passed

    def append(self, decision: Decision, step_id: str, attempt: int, inputs: JsonObject) -> None:
        """Write one decision; ``inputs`` is digested, not kept."""
        with self._lock:
            if self._index < self._passed:
                self._index += 1
                return
            row = {
                "index": self._index,
                "decision": decision,
                "stepId": step_id,
                "attempt": attempt,
                "inputs": digest_of(inputs).digest,
                "ts": utc_now(),
            }
            append_line(self._fd, canonical_bytes(row) + b"\n")
            self._index += 1

    def close(self) -> None:
        """Put everything on disk and close the file; a second call does nothing."""
        if self._fd >= 0:
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1


class DecisionComparison(msgspec.Struct, frozen=True):
    """How two decision logs relate.

    Attributes:
        fingerprint: Of the first log.
        rows: How many decisions it has.
        first_difference: The first decision that differs, from 0, or None.
        left, right: Decision, step and attempt there.
    """

    fingerprint: str
    rows: int
    first_difference: int | None = None
    left: str | None = None
    right: str | None = None


def execution_fingerprint(wal: Path) -> str:
    """The identity of a run's decisions, without when they were made; 64 hex digits.

    Raises:
        UsageError: There is no log.
        RecordingError: It holds a line that is not a decision.
    """
    # sha256("bernstein.wal.v1\n", then JCS(row without ts) and LF for each row)
    hashed = sha256(b"bernstein.wal.v1\n")
    for row in _read_decisions(wal):
        hashed.update(canonical_bytes(row) + b"\n")
    return hashed.hexdigest()


def compare_decisions(wal: Path, other: Path) -> DecisionComparison:
    """Compare a decision log with another, or with the decisions that a journal holds.

    Raises:
        UsageError, RecordingError: See ``execution_fingerprint``.
    """
    fingerprint, count = execution_fingerprint(wal), 0
    is_journal = other.name == "journal.jsonl"
    theirs = _chained_decisions(other) if is_journal else _read_decisions(other)
    for index, (one, another) in enumerate(zip_longest(_read_decisions(wal), theirs)):
        count += one is not None
        ours = one if not is_journal or one is None else {n: one[n] for n in _CHAINED}
        if ours != another:
            return DecisionComparison(fingerprint, count, index, _said(one), _said(another))
    return DecisionComparison(fingerprint, count)


_CHAINED = ("decision", "stepId", "attempt")


def _said(row: JsonObject | None) -> str | None:
    return None if row is None else " ".join(str(row[name]) for name in _CHAINED)


def _chained_decisions(journal: Path) -> Iterator[JsonObject]:
    for entry in load_replay_events(journal):
        if entry.event == DECISION_MADE:
            payload = payload_of(entry)
            yield {name: payload[name] for name in _CHAINED}


def _read_decisions(wal: Path) -> Iterator[JsonObject]:
    """The rows of a log without their times."""
    if not wal.exists():
        raise UsageError(f"there is no decision log {wal}\n  only the run of a plan has one")
    for number, line in enumerate(read_lines(wal), 1):
        try:
            row = decode_canonical(line.data)
            yield {name: row[name] for name in ("index", *_CHAINED, "inputs")}
        except (CanonicalError, KeyError, TypeError) as error:
            raise RecordingError(f"{wal}, line {number} is not a decision: {error}") from error
