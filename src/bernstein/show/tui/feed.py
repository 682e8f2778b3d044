"""What a terminal shows of a run: its rows as they come, checked, and what they come to.

Rule: of a row its place in the file is kept, and what it adds to the sums; it is read again when it
is shown.
"""

from __future__ import annotations

import os
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bernstein.canonical import JsonObject, decode_strict
from bernstein.chain.verify import ChainCheck, check_row
from bernstein.errors import CanonicalError
from bernstein.events import trajectory as event
from bernstein.events.entry import GENESIS
from bernstein.events.payloads import FoldError
from bernstein.fold.order import typed
from bernstein.fold.run import RunFold
from bernstein.fold.source import TrajectoryEvent
from bernstein.fold.thread import StreamEvent, stream_event
from bernstein.fold.told import failure_of, told_payload
from bernstein.fold.words import plain
from bernstein.jsonl import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bernstein.fold.run import RunProjection
    from bernstein.rundir import RunDir


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A row as it is shown; nothing of it controls a terminal."""

    index: int
    time: str
    lane: str
    event: str
    told: str


class Feed:
    """The rows of a run that have come so far."""

    def __init__(self, run: RunDir) -> None:
        """Open a run's journal; ``close`` gives it up.

        Raises:
            OSError: There is none.
        """
        self.run = run
        self.failures: dict[int, None] = {}  # their places, in order
        self.step_rows: dict[str, int] = {}
        self.undecided: set[str] = set()
        self._tools: dict[str, str] = {}  # their names, by call
        self.calls = self.tools = self.checked = 0
        self.problem: ChainCheck | None = None
        self._file = open_regular(run.journal)
        self._starts = array("q", [0])
        self._head = GENESIS
        self._fold: RunFold | None = RunFold()

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self._starts) - 1

    def take(self, events: Iterable[StreamEvent]) -> int:
        """Take rows that follow those that are here; gives how many."""
        before = len(self)
        for row in events:
            self._check(row.data + b"\n")
            self._sum(row)
            self._starts.append(self._starts[-1] + len(row.data) + 1)
        return len(self) - before

    def data(self, place: int) -> bytes:
        """A row as it stands now, without its LF."""
        start, end = self._starts[place], self._starts[place + 1]
        return os.pread(self._file.fileno(), end - start, start)[:-1]

    def row(self, place: int) -> ShownRow:
        """A row as it is shown."""
        row = stream_event(self.data(place) + b"\n")
        if row is None:  # somebody edits the file
            return ShownRow(place, "", "", "", "this row is not there any more")
        value = decode_strict(row.data)
        told = self._told(value["payload"], row.lane)
        return ShownRow(row.index, value["ts"][11:19], row.lane, row.event, plain(told))

    def _told(self, payload: JsonObject, lane: str) -> str:
        """As ``told_payload``, without what the lane says already, and a tool by its name."""
        call = payload.get("toolCallId")
        if not isinstance(call, str):
            return told_payload(payload, "" if lane == "" else "stepId")
        told = told_payload(payload, "stepId", "toolCallId", "name")
        return f"{self._tools.get(call, '')} {call.removeprefix(f'{lane}/')} {told}".strip()

    def find(self, text: str, start: int, way: int) -> int | None:
        """The next row from ``start`` on that holds a text, in any case; None where none does."""
        wanted, end = text.lower(), len(self) if way > 0 else -1
        for place in range(start, end, way):
            if wanted in self.data(place).decode("utf-8", "replace").lower():
                return place
        return None

    def done(self) -> RunProjection | None:
        """What the rows come to; None where they contradict each other."""
        return None if self._fold is None else self._fold.finish()

    def close(self) -> None:
        """Give the journal up."""
        self._file.close()

    def _check(self, line: bytes) -> None:
        if self.problem is not None:
            return
        found = check_row(line, len(self), self._head)
        if isinstance(found, ChainCheck):
            self.problem = found
        else:
            self._head = found
            self.checked += 1

    def _sum(self, row: StreamEvent) -> None:
        place = len(self)
        try:
            payload: JsonObject = decode_strict(row.data)["payload"]
        except CanonicalError:
            return
        if failure_of(row.event, payload):
            self.failures[place] = None
        call = str(payload.get("toolCallId"))
        match row.event:
            case event.MODEL_CALL:
                self.calls += 1
            case event.STEP_STARTED:
                self.step_rows.setdefault(str(payload.get("stepId")), place)
            case event.TOOL_PROPOSED:
                self.tools += 1
                self.undecided.add(call)
                self._tools.setdefault(call, str(payload.get("name")))
            case event.TOOL_APPROVED | event.TOOL_DENIED | event.TOOL_RESULT:
                self.undecided.discard(call)
        if self._fold is not None:
            try:
                told = typed(TrajectoryEvent(place, self.run.run_id, row.event, payload))
                self._fold.take(self.run.run_id, [told])
            except FoldError:
                self._fold = None
