"""The live thread of a run: its journal's rows as they stand, one after the other, and their tail.

Rule: what is shown is read from the journal, and from nothing else; so who was away goes on from
the last row that they saw, and needs nobody who remembers it.
"""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from bernstein.chain.read import parse_row
from bernstein.chain.verify import checked_rows
from bernstein.errors import RecordingError, UsageError
from bernstein.events.entry import JournalEntry
from bernstein.jsonl import MAX_LINE_BYTES, open_regular, raw_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_INDEX = re.compile(rb'\{"index":(\d{1,16}),')
_NEAR_BYTES = 2**16  # from here on reading is quicker than searching


class StreamEvent(msgspec.Struct, frozen=True, gc=False):
    """A row of a journal as it is streamed.

    Attributes:
        index: Its place in the run: the id of the event.
        event_hash: The hash that the row states.
        event: What happened.
        lane: Of what.
        data: The row as it stands, without its LF.
    """

    index: int
    event_hash: str
    event: str
    lane: str
    data: bytes


class ThreadCheck(msgspec.Struct, frozen=True):
    """Whether a projection is the journal that was executed.

    Attributes:
        rows: How many events are.
        step_index: The first that is not, or None.
        note: Why.
    """

    rows: int
    step_index: int | None = None
    note: str = ""


def project_journal(path: Path, after_index: int | None = None) -> Iterator[StreamEvent]:
    """The rows of a journal behind ``after_index``, in order; from the first where it is None.

    A last line that is still being written is left out; so is all behind a line that is no row.

    Args:
        path: A ``journal.jsonl``; one row in memory.
        after_index: The last row that was seen, from 0.
    Raises:
        UsageError: There is no such row.
    Source: docs/spec.md, "Journal".
    """
    with open_regular(path) as file:
        if after_index is not None:
            seek_behind(file, after_index)
        for line in raw_lines(file):
            event = stream_event(line)
            if event is None:
                return
            yield event


def stream_event(line: bytes) -> StreamEvent | None:
    """The event of a whole line, with its LF; None where it is no row.

    A row holds no CR: where somebody put one, a stream of events would break there.
    """
    if not line.endswith(b"\n") or len(line) > MAX_LINE_BYTES or b"\r" in line:
        return None
    row = parse_row(line[:-1])
    if not isinstance(row, JournalEntry):
        return None
    return StreamEvent(row.index, row.event_hash, row.event, row.lane, line[:-1])


def seek_behind(file: BinaryIO, index: int) -> None:
    """Go to the beginning of the line behind the row of this index.

    Raises:
        UsageError: There is no such row.
    """
    low, high = 0, file.seek(0, 2)  # the row begins somewhere from low on, and before high
    while high - low > _NEAR_BYTES:
        middle = (low + high) // 2
        file.seek(middle)
        file.readline()
        at = file.tell()
        found = _INDEX.match(file.read(32))
        if found is None:
            break  # the last line, or a file with lines that are no rows
        if int(found[1]) <= index:
            low = at
        else:
            high = middle
    for start in (low, 0):
        # From the beginning too: in a file that somebody edited the search may have gone astray.
        file.seek(start)
        for line in raw_lines(file):
            found = _INDEX.match(line)
            if found is not None and int(found[1]) == index and line.endswith(b"\n"):
                return
            if found is not None and int(found[1]) > index:
                break
    raise UsageError(f"there is no row {index} to go on from\n  begin from the first")


def verify_thread_against_journal(path: Path) -> ThreadCheck:
    """Recompute a journal's chain, and hold each event of its projection against it.

    Returns:
        The first event whose hash is not the one that was recomputed, and the first row that is
        not projected; both are told by their index.
    Source: docs/spec.md, "Journal".
    """
    count = 0
    rows, events = checked_rows(path), project_journal(path)
    try:
        for row, event in zip_longest(rows, events):
            if row is None or event is None:
                return ThreadCheck(count, count, "the journal has another number of rows")
            if (row.index, row.event_hash) != (event.index, event.event_hash):
                return ThreadCheck(count, count, "the hash is another one")
            count += 1
    except RecordingError as error:
        return ThreadCheck(count, count, str(error).split("\n", 1)[0].rpartition(": ")[2])
    return ThreadCheck(count)
