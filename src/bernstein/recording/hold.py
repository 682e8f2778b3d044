"""Gives served answers out in the order in which they came when they were recorded.

An answer is held until as many calls have begun as had begun then, and until the answers that were
known before it have gone out. The wait is bounded; when it has run out once, the order is given up
for the rest of the replay and that is reported.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bernstein.recording.rows import CallRow

DEFAULT_BOUND_S = 10.0


class Hold:
    """The waiting room of one replay; safe for threads."""

    def __init__(self, rows: Iterable[CallRow], bound_s: float = DEFAULT_BOUND_S) -> None:
        self.bound_s = bound_s
        self.has_expired = False
        self._lock = threading.Lock()
        self._begun = 0
        self._ended = 0
        self._outstanding = sorted(row.done for row in rows)
        self._released: set[int] = set()
        self._waiting: list[tuple[int, int, int, Future[None]]] = []
        self._asked = itertools.count()

    def call_began(self) -> None:
        """Count a call, served or live."""
        with self._lock:
            self._begun += 1
        self._wake()

    def wait(self, row: CallRow) -> Future[None]:
        """A future that is done when the answer of ``row`` may go out."""
        ticket: Future[None] = Future()
        with self._lock:
            heapq.heappush(self._waiting, (row.done, row.begun, next(self._asked), ticket))
        self._wake()
        return ticket

    def call_ended(self) -> None:
        """Count a call out, served or live."""
        with self._lock:
            self._ended += 1

    @property
    def has_others(self) -> bool:
        """Whether a call is under way."""
        with self._lock:
            return self._begun > self._ended

    def answer_went_out(self, row: CallRow) -> None:
        """Whoever asked for ``row`` has had time to act on its answer: the next may follow."""
        with self._lock:
            self._released.add(row.done)
        self._wake()

    def expire(self) -> None:
        """Give up the order: a wait ran out."""
        self.has_expired = True
        self._wake()

    def _wake(self) -> None:
        ready: list[Future[None]] = []
        with self._lock:
            while self._outstanding and self._outstanding[0] in self._released:
                self._outstanding.pop(0)
            while self._waiting and self._waiting[0][-1].cancelled():
                heapq.heappop(self._waiting)  # its caller cancelled, and may wait for it anew
            if self.has_expired:
                ready = [ticket for *_, ticket in sorted(self._waiting, key=lambda w: w[:3])]
                self._waiting = []
            elif self._waiting and self._outstanding:
                done, begun, _, ticket = self._waiting[0]
                if done == self._outstanding[0] and self._begun >= begun:
                    heapq.heappop(self._waiting)
                    ready = [ticket]
        for ticket in ready:
            if ticket.set_running_or_notify_cancel():
                ticket.set_result(None)
