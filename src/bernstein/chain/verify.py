"""Recomputes a chain and reports where it stops holding.

Rule: bad data never raises here and never ends the check silently; it becomes a reason.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from bernstein.chain.read import parse_row
from bernstein.errors import RecordingError
from bernstein.events.entry import GENESIS, JournalEntry, event_hash, payload_hash
from bernstein.jsonl import read_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ChainReason: TypeAlias = Literal[
    "torn", "line_endings", "not_json", "not_a_row", "order", "payload", "event"
]


class ChainCheck(msgspec.Struct, frozen=True):
    """What a check of a journal by itself found.

    Attributes:
        rows: Rows that hold, in order, before the first that does not.
        head: The hash of the last row that holds; 64 zeros where there is none.
        sha256: Over the bytes of the file, where all rows hold.
        reason: Why the first row that does not hold does not; None where all do.
        step_index: That row, from 0.
        expected_hash: The hash recomputed for it, where one could be.
        actual_hash: The hash that it states.
    """

    rows: int
    head: str
    sha256: str = ""
    reason: ChainReason | None = None
    step_index: int | None = None
    expected_hash: str | None = None
    actual_hash: str | None = None


def check_chain(path: Path) -> ChainCheck:
    """Recompute the chain of a ``journal.jsonl``, one row in memory at a time.

    Raises:
        OSError: The file cannot be read.
    Source: docs/spec.md, "Journal".
    """
    whole = sha256()
    head, index = GENESIS, 0
    for line in read_lines(path):
        row = parse_row(line.data) if line.is_whole else "torn"
        if not isinstance(row, JournalEntry):
            return ChainCheck(index, head, "", row, index)
        if row.index != index or row.prev_hash != head:
            return ChainCheck(index, head, "", "order", index, head, row.prev_hash)
        hashed = payload_hash(row.event, row.lane, bytes(row.payload))
        if hashed != row.payload_hash:
            return ChainCheck(index, head, "", "payload", index, hashed, row.payload_hash)
        chained = event_hash(head, row.event, hashed, index)
        if chained != row.event_hash:
            return ChainCheck(index, head, "", "event", index, chained, row.event_hash)
        whole.update(line.data)
        whole.update(b"\n")
        head = chained
        index += 1
    return ChainCheck(index, head, whole.hexdigest())


def checked_rows(path: Path) -> Iterator[JournalEntry]:
    """The rows of a journal, each once it is known to hold.

    Raises:
        RecordingError: A row does not hold; the rows before it have been yielded.
    """
    head = GENESIS
    for index, line in enumerate(read_lines(path)):
        row = parse_row(line.data) if line.is_whole else "torn"
        problem = row if isinstance(row, str) else _problem(row, index, head)
        if problem is not None or isinstance(row, str):
            raise RecordingError(
                f"{path} does not hold at row {index}: {problem}\n"
                f"  see: bernstein replay {path.parent.name} --verify"
            )
        yield row
        head = row.event_hash


def _problem(row: JournalEntry, index: int, head: str) -> ChainReason | None:
    if row.index != index or row.prev_hash != head:
        return "order"
    if payload_hash(row.event, row.lane, bytes(row.payload)) != row.payload_hash:
        return "payload"
    if event_hash(head, row.event, row.payload_hash, index) != row.event_hash:
        return "event"
    return None


def compute_replay_fingerprint(path: Path) -> str:
    """The head of a journal file, checked on the way: the identity of its run.

    Raises:
        RecordingError: The chain does not hold.
    """
    check = check_chain(path)
    if check.reason is not None:
        raise RecordingError(
            f"{path} does not hold at row {check.step_index}: {check.reason}\n"
            f"  see: bernstein replay {path.parent.name} --verify"
        )
    return check.head
