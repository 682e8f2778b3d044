"""Whose turn it is: a replay's rows come in the order in which the recording has them.

The score is the recorded journal. A row of a lane may be written when the score's next row is of
that lane. Once a row differs, or none of those who wait can go on, the replay has diverged: from
there the turns are off, so that a replay which left its recording still ends. Where the recorded
run was cancelled, so is the replay, once all have come as far as the recording did.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple

from bernstein.chain.read import load_replay_events, payload_of
from bernstein.events.trajectory import DECISION_MADE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bernstein.events.entry import JournalEntry


class ScoreRow(NamedTuple):
    """What of a recorded row a replay is held to."""

    event: str
    lane: str
    payload_hash: str


class Score:
    """Gives out turns to actors (the scheduler and the steps that run), on one event loop."""

    def __init__(self, recorded: Path | None) -> None:
        """Follow the journal ``recorded``; with None every turn is free, as in a recording."""
        rows = load_replay_events(recorded) if recorded is not None else ()
        self._rows = [ScoreRow(row.event, row.lane, row.payload_hash) for row in rows]
        self._next = 0
        self._waiting: deque[tuple[str, Future[None]]] = deque()
        self._actors = 0
        self._is_followed = recorded is not None
        self.diverged_at: int | None = None
        self.cancel_at = _first_cancel(recorded) if recorded is not None else None
        self.on_cancel: Callable[[], None] = lambda: None

    def enter(self) -> None:
        """Count an actor that will ask for turns."""
        self._actors += 1

    def leave(self) -> None:
        """Count an actor out; those who still wait may be stuck now."""
        self._actors -= 1
        self._wake()

    def turn(self, lane: str) -> Future[None]:
        """A future that is done when ``lane`` may write its next row."""
        ticket: Future[None] = Future()
        self._waiting.append((lane, ticket))
        self._wake()
        return ticket

    def follow(self, entry: JournalEntry) -> None:
        """Hold a row that was just written against the score, and pass the turn on."""
        if self._is_followed:
            expected = self._rows[self._next] if self._next < len(self._rows) else None
            if expected == (entry.event, entry.lane, entry.payload_hash):
                self._next += 1
            else:
                self._diverge()

    def settle(self) -> None:
        """Wake who may write next: called when a group of rows is complete."""
        self._wake()

    @property
    def next_row(self) -> ScoreRow | None:
        """The recorded row that comes next, while the score is followed."""
        if self._is_followed and self._next < len(self._rows):
            return self._rows[self._next]
        return None

    @property
    def ends_cancelled(self) -> bool:
        """Whether the score is followed and the recorded run was cancelled."""
        return self._is_followed and self.cancel_at is not None

    def _diverge(self) -> None:
        if self._is_followed:
            self._is_followed = False
            self.diverged_at = self._next

    def _wake(self) -> None:
        while self._waiting:
            if any(ticket.cancelled() for _, ticket in self._waiting):
                self._waiting = deque(w for w in self._waiting if not w[1].cancelled())
                continue
            if not self._is_followed:
                self._waiting.popleft()[1].set_result(None)
                continue
            row = self.next_row
            if self._next == self.cancel_at:
                if len(self._waiting) == self._actors:
                    self.on_cancel()
                return
            for place, (lane, ticket) in enumerate(self._waiting):
                if row is not None and lane == row.lane:
                    del self._waiting[place]
                    ticket.set_result(None)
                    return
            if len(self._waiting) < self._actors:
                return  # somebody still works and may be the one whose turn it is
            self._diverge()


def _first_cancel(recorded: Path) -> int | None:
    """The index of the first row that cancels something, or None."""
    for row in load_replay_events(recorded):
        if row.event == DECISION_MADE and payload_of(row).get("decision") == "cancel":
            return row.index
    return None
