"""Where the rows in a terminal come from: the stream that every viewer is fed by, or a look at the
journal each second. What comes is the same.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from bernstein.fold.thread import stream_event
from bernstein.jsonl import open_regular, raw_lines
from bernstein.show.tail import Tail

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from bernstein.fold.thread import StreamEvent
    from bernstein.rundir import RunDir

POLL_S = 1.0
_BATCH = 4000
_BOUND_S = 15.0
_DATA = len(b"data: ")


class Source(Protocol):
    """Rows of a run in batches, and an empty batch whenever there are no more for now."""

    def __call__(self, run: RunDir) -> AsyncIterator[list[StreamEvent]]:
        """Begin with the first row; ends never."""


async def polled(run: RunDir) -> AsyncIterator[list[StreamEvent]]:
    """Look at the journal each second."""
    at = 0
    while True:
        with open_regular(run.journal) as file:
            file.seek(at)
            batch = list(islice(_rows(raw_lines(file)), _BATCH))
        at += sum(len(row.data) + 1 for row in batch)
        yield batch
        await asyncio.sleep(0 if len(batch) == _BATCH else POLL_S)


async def streamed(run: RunDir) -> AsyncIterator[list[StreamEvent]]:
    """Take what the stream carries, as it comes."""
    at = 0
    while True:
        # A run that waits, or was killed, may go on: then it has a new tail.
        with closing(Tail(run)) as tail:
            is_over = False
            while not is_over:
                is_over = tail.is_over
                piece = tail.read(at)
                if piece.end == at:
                    yield []
                    if not is_over:
                        await tail.grown(_BOUND_S)
                    continue
                is_over, at = False, piece.end
                frames = piece.frames.split(b"\n")
                yield list(
                    _rows(line[_DATA:] + b"\n" for line in frames if line[:_DATA] == b"data: ")
                )
                await asyncio.sleep(0)
        await asyncio.sleep(POLL_S)


def _rows(lines: Iterable[bytes]) -> Iterator[StreamEvent]:
    """The rows of lines, up to the first that is none."""
    for line in lines:
        row = stream_event(line)
        if row is None:
            return
        yield row
