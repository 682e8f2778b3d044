"""The causal hold: what is served waits for what had happened before it was recorded.

A piece of an answer is kept back until every request of another lane that had arrived before the
piece came has arrived; a client can act on an answer while it still streams. The last piece waits
also until every answer of another lane that ended before this lane's next request has been sent.
What was asked after this answer had ended is left out; an answer that waits counts as sent, or two
would wait for each other.

An answer that another lane quotes waits for the request before the one that quotes it: that request
was made without it. Equal requests that were under way at once may change callers, and so none of
them waits for what the caller of another one did next.

Within a lane rows keep their order: a request begins behind the answers that had ended before it,
and an answer ends behind the answers that had ended, and the requests that had begun, before it.
Each wait is bounded, and one that ran out is reported.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bernstein.recording.exchanges import ExchangeRow

DEFAULT_BOUND_S = 10.0


class CausalHold:
    """The waiting room of one replay; safe for threads."""

    def __init__(
        self,
        rows: Sequence[ExchangeRow],
        quotes: Mapping[int, int],
        bound_s: float = DEFAULT_BOUND_S,
    ) -> None:
        """Hold the answers of ``rows``; ``quotes`` says where they are first quoted."""
        self._quotes = quotes
        self.has_expired = False
        self.bound_s = bound_s
        self._is_given_up = False
        by_seq = sorted(rows, key=lambda row: row.seq)
        self._by_seq = by_seq
        self._by_done = sorted(rows, key=lambda row: row.done)
        self._next: dict[int, ExchangeRow] = {}
        self._previous: dict[int, ExchangeRow] = {}
        last: dict[str, ExchangeRow] = {}
        for row in by_seq:
            if row.lane in last:
                self._next[last[row.lane].seq] = row
                self._previous[row.seq] = last[row.lane]
            last[row.lane] = row
        self._exchangeable = _exchangeable(by_seq)
        self._arrived: set[int] = set()
        self._sent: set[int] = set()
        self._first_missing = 0  # of by_seq: everything before it has arrived
        self._first_unsent = 0  # of by_done: everything before it was sent or waits
        self._unended: dict[str, deque[ExchangeRow]] = {}  # by lane, in the order of ending
        self._lanes: dict[str, list[ExchangeRow]] = {}
        for row in by_seq:
            self._lanes.setdefault(row.lane, []).append(row)
        for row in self._by_done:
            self._unended.setdefault(row.lane, deque()).append(row)
        self._ended: set[int] = set()
        self._waiting: list[tuple[Callable[[], bool], Future[None]]] = []
        self._lock = threading.RLock()

    def arrived(self, row: ExchangeRow) -> None:
        """A request came that ``row`` answers."""
        with self._lock:
            self._arrived.add(row.seq)
            while (
                self._first_missing < len(self._by_seq)
                and self._by_seq[self._first_missing].seq in self._arrived
            ):
                self._first_missing += 1
        self._wake()

    def returned(self, row: ExchangeRow) -> None:
        """The answer was cut off on its way, and will be asked for again."""
        with self._lock:
            self._sent.discard(row.seq)

    def wait(self, row: ExchangeRow, piece: int) -> Future[None] | None:
        """A future that is done when this piece of the answer of ``row`` may go out.

        None where it may go now. Pieces are numbered from 0; an answer whose last piece is waited
        for counts as sent.
        """
        with self._lock:
            is_news = piece >= len(row.arrived) - 1 and self._count_as_sent(row)
            ticket = self._ticket(lambda: self._may_go(row, piece))
        if is_news:
            self._wake()
        return ticket

    def is_clear(self, row: ExchangeRow, piece: int) -> bool:
        """Whether this piece, not the last one, has surely nothing to wait for; asks no lock."""
        if piece >= len(row.arrived) - 1:
            return False
        first = self._first_missing
        return first >= len(self._by_seq) or row.arrived[piece] <= self._by_seq[first].seq

    def wait_to_begin(self, row: ExchangeRow) -> Future[None] | None:
        """A future that is done when the request that ``row`` answers may begin; None where now."""
        with self._lock:
            return self._ticket(lambda: self._may_begin(row))

    def wait_to_end(self, row: ExchangeRow) -> Future[None] | None:
        """A future that is done when the end of the answer may be recorded; None where now."""
        with self._lock:
            return self._ticket(lambda: self._may_end(row))

    def _ticket(self, may_pass: Callable[[], bool]) -> Future[None] | None:
        if may_pass():
            return None
        ticket: Future[None] = Future()
        self._waiting.append((may_pass, ticket))
        return ticket

    def ended(self, row: ExchangeRow) -> None:
        """The end of the answer is recorded."""
        with self._lock:
            self._ended.add(row.seq)
            queue = self._unended[row.lane]
            while queue and queue[0].seq in self._ended:
                queue.popleft()
        self._wake()

    def give_up(self) -> None:
        """Hold nothing any more: this is not the recorded run."""
        self._is_given_up = True
        self._wake()

    def expire(self) -> None:
        """Hold nothing any more: a wait ran out."""
        self.has_expired = True
        self._wake()

    def _count_as_sent(self, row: ExchangeRow) -> bool:
        if row.seq in self._sent:
            return False
        self._sent.add(row.seq)
        while (
            self._first_unsent < len(self._by_done)
            and self._by_done[self._first_unsent].seq in self._sent
        ):
            self._first_unsent += 1
        return True

    def _wake(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
            ready = []
            for may_pass, ticket in waiting:
                if may_pass():
                    ready.append(ticket)
                elif not ticket.cancelled():
                    self._waiting.append((may_pass, ticket))
        for ticket in ready:
            if ticket.set_running_or_notify_cancel():
                ticket.set_result(None)

    def _may_begin(self, row: ExchangeRow) -> bool:
        queue = self._unended[row.lane]
        return self._is_open or not queue or queue[0].done >= row.after

    def _may_end(self, row: ExchangeRow) -> bool:
        queue = self._unended[row.lane]
        if self._is_open or not queue:
            return True
        lane = self._lanes[row.lane]
        begun = all(other.seq in self._arrived for other in lane if other.seq < row.begun)
        return begun and queue[0].done >= row.done

    @property
    def _is_open(self) -> bool:
        return self.has_expired or self._is_given_up

    def _may_go(self, row: ExchangeRow, piece: int) -> bool:
        if self._is_open:
            return True
        is_last = piece >= len(row.arrived) - 1
        arrived = min(_arrived(row, piece), self._exchangeable.get(row.seq, row.begun))
        for other in self._by_seq[self._first_missing :]:
            if other.seq >= arrived:
                break
            if other.lane != row.lane and other.seq not in self._arrived:
                return False
        if not is_last:
            return True
        if row.seq in self._quotes:
            before = self._previous.get(self._quotes[row.seq])
            if before is not None and before.seq > row.seq and before.seq not in self._arrived:
                return False
        following = self._next.get(row.seq)
        if following is None:
            return True
        for other in self._by_done[self._first_unsent :]:
            if other.done >= following.after:
                break
            if self._quotes.get(other.seq, -1) > following.seq:
                continue  # it was told later
            # What was asked after this answer had ended may depend on it; and so may an answer
            # whose pieces wait for such a request.
            is_earlier = other.seq < row.begun and max(other.arrived[:-1], default=0) <= row.begun
            if other.lane != row.lane and is_earlier and other.seq not in self._sent:
                return False
        return True


def _arrived(row: ExchangeRow, piece: int) -> int:
    return row.arrived[piece] if row.arrived else row.begun


def _exchangeable(by_seq: Sequence[ExchangeRow]) -> dict[int, int]:
    """For rows that were under way beside equal ones: what had arrived at their first answer."""
    groups: dict[tuple[str, str], list[ExchangeRow]] = {}
    for row in by_seq:
        groups.setdefault((row.lane, row.key), []).append(row)
    least: dict[int, int] = {}
    for group in groups.values():
        for place, row in enumerate(group):
            for other in group[place + 1 :]:
                if other.after > row.done:
                    break
                first = min(_arrived(row, 0), _arrived(other, 0))
                for one in (row, other):
                    least[one.seq] = min(least.get(one.seq, first), first)
    return least
