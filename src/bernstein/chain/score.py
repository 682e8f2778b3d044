"""Whose turn it is: a replay's rows come in the order in which the recording has them.

The score is the recorded journal. A row of a lane may be written when the score's next row is of
that lane. Once a row differs, or none of those who wait can go on, the replay has diverged: from
there the turns are off, so that a replay which left its recording still ends. Where the recorded
run was cancelled, so is the replay, once all have come as far as the recording did.

Agents are programs that are not ours: what they ask is in lanes below theirs, and comes when it
comes. Where one of them races with itself, so that the row whose turn it is waits for one that is
held, their rows are let go and only those of the plan still wait: the score is *loose*.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple

from bernstein.chain.read import content_hash, load_replay_events, payload_of
from bernstein.events.trajectory import AGENT_STARTED, DECISION_MADE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bernstein.events.entry import JournalEntry

_RACE_S = 1.0  # how long a row is held for one that another lane of its agent is to write
_STALL_S = 60.0  # and for any other: a tool that an agent runs takes its time


class ScoreRow(NamedTuple):
    """What of a recorded row a replay is held to."""

    event: str
    lane: str
    content: str
    cancels: bool


class Score:
    """Gives out turns to actors (the scheduler and the steps that run); safe for threads."""

    def __init__(self, recorded: Path | None, *, goes_on: bool = False) -> None:
        """Follow the journal ``recorded``; with None every turn is free, as in a recording.

        With ``goes_on`` it is the beginning of this very run: behind it every turn is free.
        """
        rows = load_replay_events(recorded) if recorded is not None else ()
        self._rows: list[ScoreRow] = []
        self._agents: set[str] = set()
        for row in rows:
            if row.event == AGENT_STARTED:
                self._agents.add(row.lane)
            self._rows.append(ScoreRow(row.event, row.lane, content_hash(row), _cancels(row)))
        self._next = 0
        self._waiting: deque[tuple[str, Future[None]]] = deque()
        self._foreign: deque[tuple[str, Future[None]]] = deque()
        self._granted: str | None = None  # the lane of an agent that is about to write
        self._actors = 0
        self._away = 0
        self._is_cancelled = False
        self._is_followed = recorded is not None and bool(self._rows or not goes_on)
        self._goes_on = goes_on
        self._is_loose = False
        self._moved_s = time.monotonic()
        self._lock = threading.RLock()
        self.diverged_at: int | None = None
        self.has_cancel = any(row.cancels for row in self._rows)
        self.on_cancel: Callable[[], object] = lambda: None

    def enter(self) -> None:
        """Count an actor that will ask for turns."""
        with self._lock:
            self._actors += 1

    def leave(self) -> None:
        """Count an actor out; those who still wait may be stuck now."""
        with self._lock:
            self._actors -= 1
            self._wake()

    def go_away(self) -> None:
        """An actor waits for an agent, and asks for no turn until it has come back."""
        with self._lock:
            self._away += 1
            self._wake()

    def come_back(self) -> None:
        """The agent of an actor has ended."""
        with self._lock:
            self._away -= 1

    def turn(self, lane: str) -> Future[None]:
        """A future that is done when ``lane`` may write its next row."""
        return self._ticket(lane, self._waiting)

    def turn_of_agent(self, lane: str) -> Future[None]:
        """Like ``turn``, for a lane below an agent's; ``settle`` or ``pass_on`` follows."""
        return self._ticket(lane, self._foreign)

    def _ticket(self, lane: str, queue: deque[tuple[str, Future[None]]]) -> Future[None]:
        ticket: Future[None] = Future()
        with self._lock:
            queue.append((lane, ticket))
            self._wake()
        return ticket

    def follow(self, entry: JournalEntry) -> None:
        """Hold a row that was just written against the score, and pass the turn on."""
        with self._lock:
            is_foreign = _agent_of(entry.lane) in self._agents
            if not self._is_followed or (self._is_loose and is_foreign):
                return
            expected = self._rows[self._next] if self._next < len(self._rows) else None
            found = (entry.event, entry.lane, content_hash(entry))
            if expected is not None and expected[:3] == found:
                self._next += 1
                self._moved_s = time.monotonic()
                if self._goes_on and self._next == len(self._rows):
                    self._is_followed = False
                    self._wake()
            elif is_foreign:
                self._loosen()
            else:
                self._diverge()

    def settle(self) -> None:
        """Wake who may write next: called when a group of rows is complete."""
        with self._lock:
            self._granted = None
            self._wake()

    def pass_on(self, lane: str) -> None:
        """Give up a turn of an agent's lane: whoever asked for it has gone."""
        with self._lock:
            if self._granted == lane:
                self._granted = None
            self._wake()

    def loosen_if_stalled(self) -> None:
        """Let the rows of agents go where the next one does not come."""
        with self._lock:
            row = self.next_row
            agent = "" if row is None else _agent_of(row.lane)
            races = any(_agent_of(lane) == agent for lane, _ in self._foreign)
            bound_s = _RACE_S if row is None or races else _STALL_S
            if time.monotonic() - self._moved_s > bound_s:
                self._loosen()

    @property
    def next_row(self) -> ScoreRow | None:
        """The recorded row that comes next, while the score is followed."""
        if self._is_followed and self._next < len(self._rows):
            return self._rows[self._next]
        return None

    @property
    def ends_cancelled(self) -> bool:
        """Whether the score is followed and the recorded run was cancelled."""
        return self._is_followed and self.has_cancel

    def _diverge(self) -> None:
        if self._is_followed:
            self._is_followed = False
            self.diverged_at = self._next
            self._wake()

    def _loosen(self) -> None:
        if self._is_followed and not self._is_loose:
            self._is_loose = True
            rest = self._rows[self._next :]
            own = [row for row in rest if _agent_of(row.lane) not in self._agents]
            self._rows[self._next :] = own
            self._wake()

    def _wake(self) -> None:
        self._drop_cancelled()
        if not self._is_followed or self._is_loose:
            _let_all_go(self._foreign)
        while self._waiting and not self._is_followed:
            _let_go(self._waiting.popleft()[1])
        if not self._is_followed or self._granted is not None:
            return
        row = self.next_row
        if row is not None and row.cancels:
            if len(self._waiting) + self._away >= self._actors and not self._is_cancelled:
                self._is_cancelled = True
                self.on_cancel()
            return
        queue = self._foreign if row is not None and self._is_foreign(row) else self._waiting
        for place, (lane, ticket) in enumerate(queue):
            if row is not None and lane == row.lane:
                del queue[place]
                if queue is self._foreign:
                    self._granted = lane
                _let_go(ticket)
                return
        if self._waiting and len(self._waiting) >= self._actors:
            self._diverge()  # all wait, and nobody is the one whose turn it is

    def _is_foreign(self, row: ScoreRow) -> bool:
        return _agent_of(row.lane) in self._agents

    def _drop_cancelled(self) -> None:
        for queue in (self._waiting, self._foreign):
            if any(ticket.cancelled() for _, ticket in queue):
                kept = [pair for pair in queue if not pair[1].cancelled()]
                queue.clear()
                queue.extend(kept)


def _agent_of(lane: str) -> str:
    """The lane of the agent below which a lane is, if it is below one."""
    return lane.rpartition("/")[0]


def _let_go(ticket: Future[None]) -> None:
    if ticket.set_running_or_notify_cancel():
        ticket.set_result(None)


def _let_all_go(queue: deque[tuple[str, Future[None]]]) -> None:
    while queue:
        _let_go(queue.popleft()[1])


def _cancels(row: JournalEntry) -> bool:
    """Whether a row says that something was cancelled."""
    return row.event == DECISION_MADE and payload_of(row).get("decision") == "cancel"
