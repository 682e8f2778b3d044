"""One tail of a run's journal for any number of viewers.

Rule: nothing is kept for a viewer. Each has a place in the file and reads on from there when its
own connection takes more; what it has not read costs nobody memory. Only the last few pieces that
were read are kept, for those who read at the end side by side.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from bernstein.events.trajectory import RUN_FINISHED
from bernstein.fold.thread import seek_behind, stream_event
from bernstein.jsonl import MAX_LINE_BYTES, open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bernstein.rundir import RunDir

_POLL_S = 0.05
_PIECE_BYTES = 2**16
_PIECES = 32
_LINGER_S = 2.0


class Piece(NamedTuple):
    """Whole rows of a journal, ready to be sent.

    Attributes:
        frames: They as server-sent events.
        end: Where in the file the next row begins.
        has_end: Whether the run's last row is among them.
        is_broken: Whether the line behind them is whole, and no row.
    """

    frames: bytes
    end: int
    has_end: bool
    is_broken: bool


class Tail:
    """The journal of one run, for those who view it now."""

    def __init__(self, run: RunDir) -> None:
        """Open a journal; ``close`` gives it up.

        Raises:
            OSError: There is none.
        """
        self.run = run
        self.viewers = 0
        self._file = open_regular(run.journal)
        self._pieces: OrderedDict[int, Piece] = OrderedDict()
        self._grown = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self.is_over = not run.is_running()

    def place_behind(self, index: int | None) -> int:
        """Where in the file the row behind ``index`` begins.

        Raises:
            UsageError: There is no such row.
        """
        if index is None:
            return 0
        seek_behind(self._file, index)
        return self._file.tell()

    def read(self, at: int) -> Piece:
        """The rows that begin at a place, as far as one piece; without any where there are none."""
        if (known := self._pieces.get(at)) is not None:
            self._pieces.move_to_end(at)
            return known
        data = os.pread(self._file.fileno(), _PIECE_BYTES, at)
        if b"\n" not in data and len(data) == _PIECE_BYTES:
            data = os.pread(self._file.fileno(), MAX_LINE_BYTES + 1, at)
        piece = _piece_of(data, at)
        # A row that is larger is read by each viewer: to keep some of those would cost too much.
        if at < piece.end <= at + _PIECE_BYTES:
            self._pieces[at] = piece
            while len(self._pieces) > _PIECES:
                self._pieces.popitem(last=False)
        return piece

    async def grown(self, bound_s: float) -> bool:
        """Wait until the journal has grown or its run has ended; False where neither came in time.

        Whoever waits looks again at what is there, so that nothing which came between is missed.
        """
        if self._watch is None:
            self._watch = asyncio.create_task(self._look())
        try:
            await asyncio.wait_for(self._grown.wait(), bound_s)
        except TimeoutError:
            return False
        return True

    async def _look(self) -> None:
        """Look at the file, for all who wait."""
        size = -1  # who began to wait may have read before this looks for the first time
        while not self.is_over:
            await asyncio.sleep(_POLL_S)
            is_running = self.run.is_running()
            now = os.fstat(self._file.fileno()).st_size
            if now != size or not is_running:
                size = now
                self.is_over = not is_running
                self._grown.set()
                self._grown = asyncio.Event()

    def is_current(self) -> bool:
        """Whether this is still the tail of what stands in the run's folder."""
        if self._file.closed or (self.is_over and self.run.is_running()):
            return False
        with contextlib.suppress(OSError):
            return os.path.samestat(os.fstat(self._file.fileno()), self.run.journal.lstat())
        return False

    def close(self) -> None:
        """Give the journal up; at once, since a viewer who has gone may wait for nothing more."""
        if self._watch is not None:
            self._watch.cancel()
        self._file.close()


def _piece_of(data: bytes, at: int) -> Piece:
    frames: list[bytes] = []
    end, has_end, is_broken = at, False, len(data) > MAX_LINE_BYTES
    for line in data.split(b"\n")[:-1]:
        event = stream_event(line + b"\n")
        if event is None:
            is_broken = True
            break
        # A row is one line, with no line break that the format of events knows of.
        frames.append(b"id: %d\ndata: %b\n\n" % (event.index, event.data))
        end += len(line) + 1
        has_end = event.event == RUN_FINISHED
    return Piece(b"".join(frames), end, has_end, is_broken)


class Tails:
    """The tails that somebody views, or viewed just now: of who come one after the other each finds
    the pieces that those before it had read.
    """

    def __init__(self) -> None:
        self._open: dict[Path, Tail] = {}

    @contextmanager
    def of(self, run: RunDir) -> Iterator[Tail]:
        """The tail of a run.

        Raises:
            OSError: It has no journal.
        """
        tail = self._open.get(run.path)
        # Of a run that had ended and goes on, or was made anew, the tail is another one.
        if tail is None or not tail.is_current():
            tail = self._open[run.path] = Tail(run)
        tail.viewers += 1
        try:
            yield tail
        finally:
            tail.viewers -= 1
            if not tail.viewers:
                asyncio.get_running_loop().call_later(_LINGER_S, self._close_idle, tail)

    def _close_idle(self, tail: Tail) -> None:
        if not tail.viewers:
            if self._open.get(tail.run.path) is tail:
                del self._open[tail.run.path]
            tail.close()

    def close(self) -> None:
        """Close what is open, whoever views it."""
        for tail in self._open.values():
            tail.close()
        self._open.clear()
