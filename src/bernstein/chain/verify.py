"""Recomputes a chain and reports where it stops holding.

Rule: bad data never raises here and never ends the check silently; it becomes a reason.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import msgspec

from bernstein.chain.read import parse_row, payload_of
from bernstein.errors import RecordingError
from bernstein.events.entry import (
    EVENT,
    GENESIS,
    LANE,
    JournalEntry,
    event_hash,
    payload_hash,
)
from bernstein.events.provider_state import is_addressed
from bernstein.events.trajectory import PROVIDER_STATE_MUTATION
from bernstein.jsonl import open_regular, raw_lines, read_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bernstein.canonical import JsonObject

ChainReason: TypeAlias = Literal[
    "torn", "line_endings", "not_json", "not_a_row", "order", "payload", "event"
]


class ChainCheck(msgspec.Struct, frozen=True):
    """What a check of a journal by itself found.

    Attributes:
        rows: Rows that hold, in order, before the first that does not.
        head: The hash of the last row that holds; 64 zeros where there is none.
        sha256: Over the bytes of the file, where all rows hold.
        reason: Why the first row that does not hold does not; None where all do.
        step_index: That row, from 0.
        expected_hash: The hash recomputed for it, where one could be.
        actual_hash: The hash that it states.
        flagged: Rows of mutations that came though a deterministic run asked for none.
        unflagged: The first row of any other mutation, or None.
    """

    rows: int
    head: str
    sha256: str = ""
    reason: ChainReason | None = None
    step_index: int | None = None
    expected_hash: str | None = None
    actual_hash: str | None = None
    flagged: tuple[int, ...] = ()
    unflagged: int | None = None


def check_chain(path: Path) -> ChainCheck:
    """Recompute the chain of a ``journal.jsonl``, one row in memory at a time.

    Raises:
        OSError: The file cannot be read.
    Source: docs/spec.md, "Journal".
    """
    whole = sha256()
    head, index = GENESIS.encode(), 0
    flagged: list[int] = []
    unflagged: int | None = None
    with open_regular(path) as file:
        for line in raw_lines(file):
            chained = _fast(line, index, head)
            if chained is None:
                found = _slow(line, index, head.decode())
                if isinstance(found, ChainCheck):
                    return found
                chained = found.encode()
            before, head = head, chained
            whole.update(line)
            if _MUTATION in line and (mutation := _mutation_in(line)) is not None:
                if not is_addressed(mutation, index):
                    return ChainCheck(index, before.decode(), "", "payload", index)
                if mutation["flagged"]:
                    flagged.append(index)
                elif unflagged is None:
                    unflagged = index
            index += 1
    return ChainCheck(
        index,
        head.decode(),
        whole.hexdigest(),
        flagged=tuple(flagged),
        unflagged=unflagged,
    )


def check_row(line: bytes, index: int, head: str) -> ChainCheck | str:
    """Check one row of a chain behind those that hold.

    Args:
        line: The row, with its LF.
        index: Its place.
        head: The hash of the row before it.
    Returns:
        Its hash, or why it does not hold.
    """
    chained = _fast(line, index, head.encode())
    return _slow(line, index, head) if chained is None else chained.decode()


_MUTATION = b'"event":"provider_state_mutation"'


def _mutation_in(line: bytes) -> JsonObject | None:
    """What a row that holds says of a mutation with an address; None where it says none."""
    row = parse_row(line.rstrip(b"\n"))
    if not isinstance(row, JournalEntry) or row.event != PROVIDER_STATE_MUTATION:
        return None
    payload = payload_of(row)
    return payload if "address" in payload else None


_decode = msgspec.json.Decoder(JournalEntry).decode
_SHALLOW_BYTES = 1024
_is_json = msgspec.json.Decoder(msgspec.Raw).decode
_known: dict[bytes, tuple[bytes, bytes]] = {}
_BETWEEN = re.compile(rb',"event":"([^"]*)","lane":"([^"]*)","payload":')
_HASHES = b',"payload_hash":"%b","prev_hash":"%b","event_hash":"%b","ts":"'
_HASHES_BYTES = len(_HASHES) - 3 * len("%b") + 3 * 64
# What follows these: time and duration, by their shape, that is with every digit a zero. Of longer
# durations not every digit comes back from a double: those are for the slow way.
_TO_SHAPE = bytes.maketrans(b"123456789", b"000000000")
_BEFORE_S = b'0000-00-00T00:00:00.000000Z","elapsed_s":'
_SHAPES = frozenset(_BEFORE_S + b"0" * n + b".000000}\n" for n in range(1, 10))
_SHORTEST = min(map(len, _SHAPES))


def _fast(line: bytes, index: int, head: bytes) -> bytes | None:
    """The hash of a row that holds; None sends it the slow way, which says why it does not.

    What stands around the payload has one spelling, which is built from what was recomputed.
    """
    start = b'{"index":%d' % index
    at = line.find(b'"payload":') + 10
    end = line.rfind(b',"payload_hash":"')
    between = line[len(start) : at]
    parts = _known.get(between) or _learn(between)
    if parts is None or line[at : at + 1] != b"{" or line[end - 1 : end] != b"}":
        return None
    preimage, name = parts
    payload = line[at:end]
    hashed = sha256(preimage + payload).hexdigest().encode()
    # sha256("bernstein.event.v1\n" + prev_hash + "\n" + event + "\n" + payload_hash + "\n" + index)
    chained = (
        sha256(b"bernstein.event.v1\n%b\n%b\n%b\n%d" % (head, name, hashed, index))
        .hexdigest()
        .encode()
    )
    envelope = line[end + _HASHES_BYTES :]
    is_spelled = (
        line.startswith(start)
        and line.startswith(_HASHES % (hashed, head, chained), end)
        and envelope.translate(_TO_SHAPE) in _SHAPES
        and (len(envelope) == _SHORTEST or envelope[len(_BEFORE_S)] != ord("0"))
    )
    try:
        # What is nested deep is judged in its row, as the slow way does.
        _is_json(payload) if len(payload) < _SHALLOW_BYTES else _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return chained if is_spelled else None


def _learn(between: bytes) -> tuple[bytes, bytes] | None:
    """For what stands between index and payload of a row: what stands before the payload in its
    preimage, and the event's name.
    """
    found = _BETWEEN.fullmatch(between)
    if found is None:
        return None
    event, lane = found[1].decode("ascii", "replace"), found[2].decode("ascii", "replace")
    if not (EVENT.fullmatch(event) and LANE.fullmatch(lane)):
        return None
    if len(_known) > 10_000:
        _known.clear()
    parts = (b"bernstein.payload.v1\n%b\n%b\n" % (found[1], found[2]), found[1])
    _known[between] = parts
    return parts


def _slow(line: bytes, index: int, head: str) -> ChainCheck | str:
    """Why a row does not hold, or its hash where it does."""
    row = parse_row(line[:-1]) if line.endswith(b"\n") else "torn"
    if not isinstance(row, JournalEntry):
        return ChainCheck(index, head, "", row, index)
    problem = _problem(row, index, head)
    if problem is not None:
        return ChainCheck(index, head, "", problem.reason, index, problem.expected, problem.actual)
    return row.event_hash


class BadLine(msgspec.Struct, frozen=True):
    """A line of a journal that does not hold: its place from 0, its offset in bytes, and why."""

    line: int
    offset: int
    reason: ChainReason


def find_bad_lines(path: Path) -> Iterator[BadLine]:
    """Every line that does not hold, each by itself and to the line before: it does not stop.

    Behind a line that is no row the chain is taken up again at the hash that the next one states.
    """
    head: str | None = GENESIS
    index: int | None = 0
    offset = 0
    for number, line in enumerate(read_lines(path)):
        row = parse_row(line.data) if line.is_whole else "torn"
        if isinstance(row, str):
            yield BadLine(number, offset, row)
            head = index = None
        else:
            if (index is not None and row.index != index) or (head or row.prev_hash) != (
                row.prev_hash
            ):
                yield BadLine(number, offset, "order")
            elif problem := _problem(row, row.index, row.prev_hash):
                yield BadLine(number, offset, problem.reason)
            head, index = row.event_hash, row.index + 1
        offset += len(line.data) + 1


def checked_rows(path: Path) -> Iterator[JournalEntry]:
    """The rows of a journal, each once it is known to hold.

    Raises:
        RecordingError: A row does not hold; the rows before it have been yielded.
    """
    head = GENESIS
    for index, line in enumerate(read_lines(path)):
        row = parse_row(line.data) if line.is_whole else "torn"
        if isinstance(row, str):
            raise _does_not_hold(path, index, row)
        if problem := _problem(row, index, head):
            raise _does_not_hold(path, index, problem.reason)
        yield row
        head = row.event_hash


class _Problem(NamedTuple):
    """Why a row does not hold: the hash that it should state, and the one that it states."""

    reason: ChainReason
    expected: str
    actual: str


def _problem(row: JournalEntry, index: int, head: str) -> _Problem | None:
    if row.index != index or row.prev_hash != head:
        return _Problem("order", head, row.prev_hash)
    hashed = payload_hash(row.event, row.lane, bytes(row.payload))
    if hashed != row.payload_hash:
        return _Problem("payload", hashed, row.payload_hash)
    chained = event_hash(head, row.event, hashed, index)
    if chained != row.event_hash:
        return _Problem("event", chained, row.event_hash)
    return None


def compute_replay_fingerprint(path: Path) -> str:
    """The head of a journal file, checked on the way: the identity of its run.

    Raises:
        RecordingError: The chain does not hold.
    """
    check = check_chain(path)
    if check.reason is not None:
        raise _does_not_hold(path, check.step_index, check.reason)
    return check.head


def _does_not_hold(path: Path, index: int | None, reason: ChainReason) -> RecordingError:
    return RecordingError(
        f"{path} does not hold at row {index}: {reason}\n"
        f"  see: bernstein replay {path.parent.name} --verify"
    )
