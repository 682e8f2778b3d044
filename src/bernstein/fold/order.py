"""Puts events in the order of ``seq`` before they are folded, so that a shuffled batch gives the
same bytes.

Events that are in order already are folded as they come, one in memory. Others are sorted: in
memory as far as they fit, else in a file without a name.
"""

from __future__ import annotations

import heapq
from contextlib import ExitStack
from itertools import groupby, islice
from operator import attrgetter, lt
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Protocol, TypeVar

import msgspec

from bernstein.canonical import MAX_INT, canonical_bytes, decode_known, spelled_json
from bernstein.events.payloads import KINDS, FoldError, Payload, payload_from
from bernstein.fold.source import EventFile, TrajectoryEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from bernstein.canonical import JsonObject
    from bernstein.fold.source import Batch, Event

_AT_ONCE = 50_000  # events in memory
_IN_A_BATCH = 1000
_READ_BYTES = 2**16

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Fold(Protocol[T_co]):
    """What events in order are made of."""

    def take(self, run_id: str, events: Iterable[Event]) -> None:
        """Fold events of a run, whose payloads are values of their kinds."""

    def finish(self) -> T_co:
        """What came of them."""


def fold(events: Iterable[TrajectoryEvent], begin: Callable[[], Fold[T]]) -> T:
    """Fold events that come in any order, equal ones once.

    Args:
        events: Events of one run. What can be iterated over again is, where it is out of order.
        begin: Makes a fold that has nothing yet.
    Raises:
        FoldError: Two different events have one ``seq``, there are events of two runs, or the fold
            finds that they contradict each other.
    """
    with ExitStack() as files:
        source = _Spool(events, files) if iter(events) is events else events
        try:
            made = begin()
            for run_id, batch in _in_sequence(source):
                made.take(run_id, batch)
        except _OutOfOrderError:
            made = begin()
            for run_id, batch in _in_sequence(_sorted(source, files)):
                made.take(run_id, batch)
    return made.finish()


class _OutOfOrderError(Exception):
    """An event that stands behind a later one."""


def _in_sequence(source: Iterable[TrajectoryEvent]) -> Iterator[Batch]:
    """Events in batches, each behind the one before, equal ones once.

    Raises:
        _OutOfOrderError: One stands behind a later one.
    """
    of_run, last = None, None
    for run_id, batch in _batches(source):
        if of_run is None:
            of_run = run_id
        elif run_id != of_run:
            raise FoldError(f"events of two runs: {of_run!r} and {run_id!r}")
        places = [event.seq for event in batch]
        is_behind = last is None or places[0] > last.seq
        if not (is_behind and all(map(lt, places, islice(places, 1, None)))):
            batch = list(_once(last, batch))  # noqa: PLW2901 - of what follows
        if batch:
            last = batch[-1]
            yield run_id, batch


def _once(last: Event | None, events: Iterable[Event]) -> Iterator[Event]:
    for event in events:
        if last is not None and event.seq < last.seq:
            raise _OutOfOrderError
        if last is None or event.seq > last.seq:
            yield event
        elif _plain(event) != _plain(last):
            raise FoldError(f"two different events have seq {event.seq}")
        last = event


def _batches(source: Iterable[TrajectoryEvent]) -> Iterator[Batch]:
    if isinstance(source, EventFile):
        yield from source.batches()
        return
    events = map(typed, source)
    while some := list(islice(events, _IN_A_BATCH)):
        for run_id, of_run in groupby(some, attrgetter("run_id")):
            yield run_id, list(of_run)


def typed(event: TrajectoryEvent) -> TrajectoryEvent:
    """The event with a value of its kind as payload; one of another kind as it is.

    Raises:
        FoldError: Its payload is none of its kind.
    """
    if type(event.seq) is not int or not 0 <= event.seq <= MAX_INT:
        raise FoldError(f"no count from 0 to 2^53-1: seq {event.seq!r}")
    if event.kind not in KINDS or not isinstance(event.payload, dict):
        return event
    try:
        payload = payload_from(event.kind, event.payload)
    except FoldError as error:
        raise FoldError(f"event {event.seq} is {error}") from error
    return TrajectoryEvent(event.seq, event.run_id, event.kind, payload)


def _plain(event: Event) -> tuple[str, bytes]:
    """What two equal events share."""
    value = _as_json(event.payload)
    if event.kind == "model.usage":
        value.setdefault("cachedInputTokens", 0)
    return event.kind, canonical_bytes(value)


def _as_json(payload: Payload | JsonObject | msgspec.Raw) -> JsonObject:
    if isinstance(payload, msgspec.Raw):
        raw: JsonObject = decode_known(bytes(payload))
        return raw
    return payload if isinstance(payload, dict) else msgspec.to_builtins(payload)


def _sorted(events: Iterable[TrajectoryEvent], files: ExitStack) -> Iterator[TrajectoryEvent]:
    by_place = attrgetter("seq")
    rest = iter(events)
    some = sorted(islice(rest, _AT_ONCE), key=by_place)
    if len(some) < _AT_ONCE:
        return iter(some)
    file = files.enter_context(TemporaryFile())  # noqa: SIM115 - closed by it
    parts = []
    while some:
        parts.append(_Stored(file, some))
        some = sorted(islice(rest, _AT_ONCE), key=by_place)
    return heapq.merge(*parts, key=by_place)


class _Stored:
    """Events put away in a part of a file, to be read again, one in memory."""

    def __init__(self, file: IO[bytes], events: Iterable[TrajectoryEvent]) -> None:
        self._file = file
        self._begin = file.seek(0, 2)
        file.writelines(map(_spelled, events))
        self._end = file.tell()

    def __iter__(self) -> Iterator[TrajectoryEvent]:
        at, rest = self._begin, b""
        while at < self._end:
            self._file.seek(at)
            read = self._file.read(min(_READ_BYTES, self._end - at))
            at += len(read)
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                yield TrajectoryEvent(*decode_known(line))


def _spelled(event: TrajectoryEvent) -> bytes:
    value = [event.seq, event.run_id, event.kind, _as_json(event.payload)]
    return spelled_json(value).encode() + b"\n"


class _Spool:
    """Events that come once, kept so that they can be gone through again."""

    def __init__(self, events: Iterable[TrajectoryEvent], files: ExitStack) -> None:
        self._rest = iter(events)
        self._files = files
        self._kept: list[TrajectoryEvent] = []
        self._file: IO[bytes] | None = None
        self._parts: list[_Stored] = []

    def __iter__(self) -> Iterator[TrajectoryEvent]:
        for part in self._parts:
            yield from part
        yield from self._kept
        for event in self._rest:
            if len(self._kept) == _AT_ONCE:
                self._put_away()
            self._kept.append(event)
            yield event

    def _put_away(self) -> None:
        if self._file is None:
            self._file = self._files.enter_context(TemporaryFile())  # noqa: SIM115 - closed by it
        self._parts.append(_Stored(self._file, self._kept))
        self._kept = []
