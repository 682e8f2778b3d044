"""Events out of files: rows of a journal, or envelopes, a line each, in any order.

An envelope is ``{eventId, runId, seq, version, occurredAt, kind, payload}``. Rows of other kinds
than a trajectory's are handed on, for folds to pass over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal, Protocol, TypeAlias, Union

import msgspec
from msgspec import Meta

from bernstein.canonical import MAX_INT, JsonObject, JsonValue, decode_strict
from bernstein.errors import CanonicalError
from bernstein.events import trajectory
from bernstein.events.entry import EVENT
from bernstein.events.payloads import KINDS, VERSION, Count, FoldError, Payload, payload_from
from bernstein.jsonl import MAX_LINE_BYTES, open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Event(Protocol):
    """What a fold reads of an event."""

    @property
    def seq(self) -> int:
        """Its place in the run."""

    @property
    def kind(self) -> str:
        """One of the eleven kinds, or the name of another row."""

    @property
    def payload(self) -> Payload | JsonObject | msgspec.Raw:
        """What it says."""


class TrajectoryEvent(msgspec.Struct, frozen=True, gc=False):
    """One event of a run.

    Attributes:
        seq: Its place in the run, from 0: the journal's index.
        run_id: The run's id, or "" where a row by itself does not say it.
        kind: One of the eleven kinds, or the name of another row, which folds pass over.
        payload: What it says, as JSON or as a value of its kind.
    """

    seq: int
    run_id: str
    kind: str
    payload: Payload | JsonObject | msgspec.Raw


Batch: TypeAlias = tuple[str, Sequence[Event]]  # a run's id, and events of it

_READ_BYTES = 2**17
# What stands around a payload: of a row it is checked to be JSON, and not read.
_ROW = ("lane", "payload_hash", "prev_hash", "event_hash", "ts", "elapsed_s")
_TIME = r"^\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)$"
_ENVELOPE: tuple[tuple[str, Any], ...] = (
    ("eventId", str),
    ("runId", str),
    ("version", Literal[1]),
    ("occurredAt", Annotated[str, Meta(pattern=_TIME, max_length=64)]),
)
_OTHERS = sorted(
    value
    for name, value in vars(trajectory).items()
    if name.isupper() and isinstance(value, str) and value not in KINDS
)


# Beside what is read each has its kind, as an attribute of the class.


def _row(kind: str, payload: Any) -> Any:
    """The type of a journal's row of a kind."""
    return msgspec.defstruct(
        "Row",
        [("seq", Count), ("payload", payload), *((name, msgspec.Raw) for name in _ROW)],
        rename={"seq": "index"},
        tag_field="event",
        tag=kind,
        namespace={"kind": kind},
        forbid_unknown_fields=True,
        gc=False,
    )


def _envelope(kind: str, payload: type[Payload]) -> Any:
    """The type of an envelope of a kind."""
    return msgspec.defstruct(
        f"{payload.__name__}Event",
        [("seq", Count), ("payload", payload), *_ENVELOPE],
        tag_field="kind",
        tag=kind,
        namespace={"kind": kind},
        forbid_unknown_fields=True,
        gc=False,
    )


_ROWS = [_row(kind, payload) for kind, payload in KINDS.items()]
_ROWS += [_row(kind, msgspec.Raw) for kind in _OTHERS]
ENVELOPES = [_envelope(kind, payload) for kind, payload in KINDS.items()]
_rows = msgspec.json.Decoder(Union[tuple(_ROWS)])  # noqa: UP007 - made of a list
_envelopes = msgspec.json.Decoder(Union[tuple(ENVELOPES)])  # noqa: UP007
_encode_lines = msgspec.json.Encoder().encode_lines
_BEGINS_ROW = b'{"index":'


class EventFile:
    """The events of a file, in the file's order; every iteration reads it anew."""

    def __init__(self, path: Path, run_id: str = "") -> None:
        """Name a file.

        Args:
            path: Rows of a journal, or envelopes.
            run_id: The run's id, which rows do not say.
        """
        self._path = path
        self._run_id = run_id

    def __iter__(self) -> Iterator[TrajectoryEvent]:
        """Read it, one event in memory.

        Raises:
            FoldError: A line is no event; the message has line and path.
        """
        for run_id, events in self.batches():
            for event in events:
                yield TrajectoryEvent(event.seq, run_id, event.kind, event.payload)

    def batches(self) -> Iterator[Batch]:
        """Read it, some at a time."""
        with open_regular(self._path) as file:
            yield from read_batches(file, self._run_id)


def read_batches(file: BinaryIO, run_id: str = "") -> Iterator[Batch]:
    """The events of an open file, some at a time, each time of one run; see ``EventFile``."""
    number = 1
    for data in _whole_lines(file):
        is_row = data.startswith(_BEGINS_ROW)
        try:
            events = (_rows if is_row else _envelopes).decode_lines(data)
            # What is longer there has a key twice, or is spelled otherwise.
            is_read = len(_encode_lines(events)) == len(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            is_read = False
        if is_read and is_row:
            number += len(events)
            yield run_id, events
        elif is_read and all(event.runId == events[0].runId for event in events):
            number += len(events)
            yield events[0].runId, events
        else:
            for at, line in enumerate(data.split(b"\n"), number):
                if line.strip():
                    event = _read_slowly(line, at, run_id)
                    yield event.run_id, [event]
            number += data.count(b"\n")


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """An open file in pieces of whole lines; the last line may be without its LF.

    Raises:
        FoldError: A line is too long; no more of it is read than that takes.
    """
    rest, at = b"", 0
    # As much again as is held: a long line is not copied for every piece of it.
    while read := file.read(max(_READ_BYTES, len(rest))):
        data = rest + read
        end = data.rfind(b"\n") + 1
        rest = data[end:]
        if max(len(rest), end) > MAX_LINE_BYTES and _has_long_line(data):
            raise FoldError(f"from byte {at} on: a line is longer than {MAX_LINE_BYTES} bytes")
        if end:
            at += end
            yield data[:end]
    if rest:
        yield rest


def _has_long_line(data: bytes) -> bool:
    return any(len(line) > MAX_LINE_BYTES for line in data.split(b"\n"))


def _read_slowly(line: bytes, number: int, run_id: str) -> TrajectoryEvent:
    """The event of a line in any spelling.

    Raises:
        FoldError: It is none.
    """
    try:
        return _any_event(decode_strict(line), run_id)
    except (CanonicalError, FoldError, msgspec.ValidationError) as error:
        raise FoldError(f"line {number}: {error}") from error


def _any_event(value: JsonValue, run_id: str) -> TrajectoryEvent:
    if isinstance(value, dict) and "event" in value:
        return _as_event(value, value["event"], "index", {"event", *_ROW}, run_id)
    if not isinstance(value, dict) or "kind" not in value:
        raise FoldError("neither a row of a journal nor an envelope of an event")
    if value.get("version") != VERSION:
        raise FoldError(f"of version {value.get('version')!r}; this program reads {VERSION}")
    names = {name for name, _ in _ENVELOPE}
    msgspec.convert({name: value.get(name) for name in names}, _Around, strict=True)
    return _as_event(value, value["kind"], "seq", {"kind", *names}, value["runId"])


_Around = msgspec.defstruct("Around", _ENVELOPE)


def _as_event(
    value: JsonObject, kind: JsonValue, place: str, names: set[str], run_id: str
) -> TrajectoryEvent:
    wrong = value.keys() ^ {place, "payload", *names}
    if wrong:
        name = min(wrong)
        raise FoldError(f"{'unknown' if name in value else 'no'} member `{name}` - at `$`")
    seq, payload = value[place], value["payload"]
    if type(seq) is not int or not 0 <= seq <= MAX_INT:
        raise FoldError(f"no count from 0 to 2^53-1 - at `$.{place}`")
    if not isinstance(payload, dict):
        raise FoldError("not an object - at `$.payload`")
    if isinstance(kind, str) and kind in KINDS:
        return TrajectoryEvent(seq, run_id, kind, payload_from(kind, payload))
    if place == "seq" or not isinstance(kind, str) or not EVENT.fullmatch(kind):
        raise FoldError(f"no kind of event: {kind!r}")
    return TrajectoryEvent(seq, run_id, kind, payload)
