"""Recomputes a chain and reports where it stops holding.

Rule: bad data never raises here and never ends the check silently; it becomes a verdict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from bernstein.chain.read import read_rows
from bernstein.errors import RecordingError
from bernstein.events.entry import GENESIS, JournalEntry, event_hash, payload_hash

if TYPE_CHECKING:
    from pathlib import Path

VerdictName: TypeAlias = Literal["verified", "flagged", "mismatch", "prefix"]
Reason: TypeAlias = Literal[
    "torn", "line_endings", "not_json", "not_a_row", "order", "payload", "event", "recording"
]


class Verdict(msgspec.Struct, frozen=True):
    """What a check of one run's evidence found.

    Attributes:
        verdict: mismatch, or prefix: the chain holds, and without a seal nothing says that it is
            complete.
        reason: Why, for a mismatch.
        step_index: The first row that does not hold, from 0.
        expected_hash: The hash recomputed for that row, where one could be.
        actual_hash: The hash that the row states.
        rows: Rows that hold, in order, before the first that does not.
        head: The hash of the last row that holds; 64 zeros where there is none.
    """

    verdict: VerdictName
    rows: int
    head: str
    reason: Reason | None = None
    step_index: int | None = None
    expected_hash: str | None = None
    actual_hash: str | None = None


def verify_journal(path: Path) -> Verdict:
    """Recompute the chain of a ``journal.jsonl``, one row in memory at a time.

    Raises:
        OSError: The file cannot be read.
    Source: docs/spec.md, "Journal".
    """
    head = GENESIS
    index = 0
    for row in read_rows(path):
        if not isinstance(row, JournalEntry):
            return Verdict("mismatch", index, head, row, index)
        if row.index != index or row.prev_hash != head:
            return Verdict("mismatch", index, head, "order", index, head, row.prev_hash)
        hashed = payload_hash(row.event, row.lane, bytes(row.payload))
        if hashed != row.payload_hash:
            return Verdict("mismatch", index, head, "payload", index, hashed, row.payload_hash)
        chained = event_hash(head, row.event, hashed, index)
        if chained != row.event_hash:
            return Verdict("mismatch", index, head, "event", index, chained, row.event_hash)
        head = chained
        index += 1
    return Verdict("prefix", index, head)


def compute_replay_fingerprint(path: Path) -> str:
    """The head of a journal file, checked on the way: the identity of its run.

    Raises:
        RecordingError: The chain does not hold.
    """
    verdict = verify_journal(path)
    if verdict.verdict == "mismatch":
        raise RecordingError(
            f"{path} does not hold at row {verdict.step_index}: {verdict.reason}\n"
            f"  see: bernstein replay {path.parent.name} --verify"
        )
    return verdict.head
