"""The causal hold: a served answer waits for what had happened before it was recorded.

A piece of an answer is kept back until every request of another lane that had arrived before the
piece came has arrived; a client can act on an answer while it still streams. The last piece waits
also until every answer of another lane that ended before this lane's next request has been sent.
Lanes born later are left out; an answer that waits counts as sent, or two would wait for each
other. The wait is bounded, and a wait that ran out is reported.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bernstein.recording.exchanges import ExchangeRow

DEFAULT_BOUND_S = 10.0


class CausalHold:
    """The waiting room of one replay; for one event loop."""

    def __init__(self, rows: Sequence[ExchangeRow], bound_s: float = DEFAULT_BOUND_S) -> None:
        self.has_expired = False
        self._is_given_up = False
        self._bound_s = bound_s
        by_seq = sorted(rows, key=lambda row: row.seq)
        self._by_seq = by_seq
        self._by_done = sorted(rows, key=lambda row: row.done)
        self._next: dict[int, ExchangeRow] = {}
        self._born: dict[str, int] = {}
        last: dict[str, ExchangeRow] = {}
        for row in by_seq:
            self._born.setdefault(row.lane, row.seq)
            if row.lane in last:
                self._next[last[row.lane].seq] = row
            last[row.lane] = row
        self._arrived: set[int] = set()
        self._sent: set[int] = set()
        self._first_missing = 0  # of by_seq: everything before it has arrived
        self._first_unsent = 0  # of by_done: everything before it was sent or waits
        self._changed = asyncio.Event()

    def arrived(self, row: ExchangeRow) -> None:
        """A request came that ``row`` answers."""
        self._arrived.add(row.seq)
        while (
            self._first_missing < len(self._by_seq)
            and self._by_seq[self._first_missing].seq in self._arrived
        ):
            self._first_missing += 1
        self._wake()

    def returned(self, row: ExchangeRow) -> None:
        """The answer was cut off on its way, and will be asked for again."""
        self._sent.discard(row.seq)

    def is_open(self, row: ExchangeRow, piece: int) -> bool:
        """Whether this piece may go out now; an answer whose last piece is asked for counts as
        sent.
        """
        is_last = piece >= len(row.arrived) - 1
        if is_last and row.seq not in self._sent:
            self._sent.add(row.seq)
            while (
                self._first_unsent < len(self._by_done)
                and self._by_done[self._first_unsent].seq in self._sent
            ):
                self._first_unsent += 1
            self._wake()
        arrived = row.arrived[piece] if row.arrived else row.begun
        return self._may_go(row, arrived, is_last=is_last)

    def give_up(self) -> None:
        """Hold nothing any more: this is not the recorded run."""
        self._is_given_up = True
        self._wake()

    async def wait(self, row: ExchangeRow, piece: int) -> None:
        """Return when this piece of the answer of ``row`` may go out, pieces numbered from 0."""
        try:
            async with asyncio.timeout(self._bound_s):
                while not self.is_open(row, piece):
                    await self._changed.wait()
        except TimeoutError:
            self.has_expired = True
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _may_go(self, row: ExchangeRow, arrived: int, *, is_last: bool) -> bool:
        if self.has_expired or self._is_given_up:
            return True
        for other in self._by_seq[self._first_missing :]:
            if other.seq >= arrived:
                break
            if other.lane != row.lane and other.seq not in self._arrived:
                return False
        following = self._next.get(row.seq)
        if following is None or not is_last:
            return True
        for other in self._by_done[self._first_unsent :]:
            if other.done >= following.after:
                break
            is_later_born = self._born[other.lane] >= row.begun
            if other.lane != row.lane and not is_later_born and other.seq not in self._sent:
                return False
        return True
