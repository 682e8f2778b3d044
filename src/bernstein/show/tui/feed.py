"""What a terminal shows of a run: its rows as they come, checked, and what they come to.

Rule: of a row its place in the file and its hash are kept, and what it adds to the sums. It is read
again when it is shown, and held against that hash: the file may be another by then.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
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
from bernstein.seal.approvals import RowRef
from bernstein.show.tui.waiting import Undecided

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bernstein.fold.run import RunProjection
    from bernstein.rundir import RunDir


_HASH_BYTES = 32


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
        self.undecided: dict[str, Undecided] = {}  # by call
        self._tools: dict[str, str] = {}  # their names, by call
        self.calls = self.tools = self.step_events = 0
        self.problem: ChainCheck | None = None
        self._file = open_regular(run.journal)
        self._starts = array("q", [0])
        self._hashes = bytearray()  # of the rows that hold
        self._fold: RunFold | None = RunFold()

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self._starts) - 1

    @property
    def checked(self) -> int:
        """How many rows hold, from the first on."""
        return len(self._hashes) // _HASH_BYTES

    def take(self, events: Iterable[StreamEvent]) -> int:
        """Take rows that follow those that are here; gives how many."""
        before = len(self)
        for row in events:
            self._check(row.data + b"\n")
            self._sum(row)
            self._starts.append(self._starts[-1] + len(row.data) + 1)
        return len(self) - before

    def data(self, place: int) -> bytes:
        """A row as it stands now, checked again, without its LF."""
        line = self._line(place)
        if place < self.checked:
            found = check_row(line, place, self._hash(place - 1))
            if found != self._hash(place):
                self._break(place, found)
        return line.removesuffix(b"\n")

    def notice_cut(self) -> None:
        """Check the first row again that is not all there any more."""
        size = os.fstat(self._file.fileno()).st_size
        if size < self._starts[-1]:
            self.data(bisect_right(self._starts, size) - 1)

    def row(self, place: int) -> ShownRow:
        """A row as it is shown."""
        row = stream_event(self.data(place) + b"\n")
        if row is None:  # somebody edited the file
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
            if wanted in self._line(place).decode("utf-8", "replace").lower():
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
        place = len(self)
        found = check_row(line, place, self._hash(place - 1))
        if isinstance(found, ChainCheck):
            self.problem = found
        else:
            self._hashes += bytes.fromhex(found)

    def _line(self, place: int) -> bytes:
        start, end = self._starts[place], self._starts[place + 1]
        return os.pread(self._file.fileno(), end - start, start)

    def _hash(self, place: int) -> str:
        """The hash that a row had; that before the first is the genesis."""
        start = place * _HASH_BYTES
        return GENESIS if place < 0 else self._hashes[start : start + _HASH_BYTES].hex()

    def _break(self, place: int, found: ChainCheck | str) -> None:
        """A row that held does not any more: it is another now, or not there."""
        head, kept = self._hash(place - 1), self._hash(place)
        self.problem = (
            found
            if isinstance(found, ChainCheck)
            else ChainCheck(place, head, "", "event", place, kept, found)
        )
        del self._hashes[place * _HASH_BYTES :]

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
                self.step_events += 1
                self.step_rows.setdefault(str(payload.get("stepId")), place)
            case event.TOOL_PROPOSED:
                self.tools += 1
                name, step_id = str(payload.get("name")), str(payload.get("stepId"))
                ref = RowRef(self.run.run_id, row.index, row.event_hash)
                self.undecided[call] = Undecided(call, name, step_id, ref)
                self._tools.setdefault(call, name)
            case event.STEP_FINISHED:
                self.step_events += 1
            case event.TOOL_APPROVED | event.TOOL_DENIED | event.TOOL_RESULT:
                self.undecided.pop(call, None)
        if self._fold is not None:
            try:
                told = typed(TrajectoryEvent(place, self.run.run_id, row.event, payload))
                self._fold.take(self.run.run_id, [told])
            except FoldError:
                self._fold = None
