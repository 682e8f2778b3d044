"""Reads journal rows and says why a line is not one.

A row is taken only in its one spelling: the line is rebuilt from the fields and compared.
"""

from __future__ import annotations

import re
from math import copysign
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from bernstein.canonical import canonical_bytes, decode_canonical, decode_strict, sha256_hex
from bernstein.errors import CanonicalError
from bernstein.events.entry import EVENT, LANE, JournalEntry, to_line
from bernstein.events.trajectory import PROVIDER_STATE_MUTATION
from bernstein.jsonl import read_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bernstein.canonical import JsonObject

Problem: TypeAlias = Literal["torn", "line_endings", "not_json", "not_a_row"]

_decode = msgspec.json.Decoder(JournalEntry).decode
_HASH = re.compile(r"[0-9a-f]{64}")
_TS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)
_PAYLOAD = b'"payload":'
_AFTER = b',"payload_hash":"'


def read_rows(path: Path) -> Iterator[JournalEntry | Problem]:
    """The rows of a journal in file order, or for a bad line why it is none; one in memory."""
    for line in read_lines(path):
        yield parse_row(line.data) if line.is_whole else "torn"


def load_replay_events(path: Path) -> Iterator[JournalEntry]:
    """The rows of a journal up to the first line that is not one.

    Only whole rows are yielded; use ``verify_journal`` to learn whether the chain holds.
    """
    for row in read_rows(path):
        if not isinstance(row, JournalEntry):
            return
        yield row


def payload_of(entry: JournalEntry) -> JsonObject:
    """The payload as a value.

    Raises:
        CanonicalError: It is not a JSON object.
    """
    raw = bytes(entry.payload)
    try:
        value = decode_canonical(raw)
    except CanonicalError:
        value = decode_strict(raw)  # another spelling, which the chain holds all the same
    if type(value) is not dict:
        raise CanonicalError("$", "a payload is a JSON object")
    return value


def placeless_hash(entry: JournalEntry) -> str:
    """What of a row two executions share wherever it stands: its payload's hash.

    A mutation names its own place, which is a matter of how lanes interleave: it is left out.
    """
    return _hash_without(entry, {"address", "step_index"})


def content_hash(entry: JournalEntry) -> str:
    """What of a row two faithful executions share: all of it but a mutation's place and counts.

    A client's own counts of tokens follow its timing and the length of paths.
    """
    return _hash_without(entry, {"address", "step_index", *_COUNTED})


_COUNTED = ("before_digest", "after_digest")


def _hash_without(entry: JournalEntry, left_out: set[str]) -> str:
    if entry.event != PROVIDER_STATE_MUTATION:
        return entry.payload_hash
    try:
        payload = payload_of(entry)
    except CanonicalError:
        return entry.payload_hash
    rest = (payload.get("tokens") or {}).get("rest_digest")
    if rest is None or not left_out.issuperset(_COUNTED):
        left_out = left_out - set(_COUNTED)
    else:
        payload["tokens"] = rest
    kept = {name: value for name, value in payload.items() if name not in left_out}
    return sha256_hex(canonical_bytes(kept))


def differ_in_counts_alone(one: JournalEntry, other: JournalEntry) -> bool:
    """Whether two mutations differ in the token counts of their reports, and in nothing else."""
    if not (one.event == other.event == PROVIDER_STATE_MUTATION and one.lane == other.lane):
        return False
    try:
        counts = [payload_of(row).get("tokens") or {} for row in (one, other)]
        kinds = {payload_of(row).get("kind") for row in (one, other)}
    except CanonicalError:
        return False
    rests = {said.get("rest_digest") for said in counts}
    return len(kinds) == len(rests) == 1 and None not in rests and counts[0] != counts[1]


def parse_row(line: bytes) -> JournalEntry | Problem:
    """The row that ``line`` (without its LF) spells, or why it is none."""
    try:
        entry = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # msgspec refuses a lone surrogate that the payload may hold: read around the payload.
        slow = _parse_around_payload(line)
        if not isinstance(slow, JournalEntry):
            return slow
        entry = slow
    if line.endswith(b"\r"):
        return "line_endings"
    if (
        entry.index < 0
        or not EVENT.fullmatch(entry.event)
        or not LANE.fullmatch(entry.lane)
        or not is_envelope(entry)
        or not (
            _HASH.fullmatch(entry.payload_hash)
            and _HASH.fullmatch(entry.prev_hash)
            and _HASH.fullmatch(entry.event_hash)
        )
        or not bytes(entry.payload).startswith(b"{")
        or to_line(entry) != line
    ):
        return "not_a_row"
    return entry


def is_envelope(entry: JournalEntry) -> bool:
    """Whether time and duration are spelled as a row has them."""
    return _TS.fullmatch(entry.ts) is not None and copysign(1.0, entry.elapsed_s) > 0


def _parse_around_payload(line: bytes) -> JournalEntry | Problem:
    try:
        decode_strict(line)
    except CanonicalError:
        return "not_json"
    start, end = line.find(_PAYLOAD), line.rfind(_AFTER)
    if not 0 <= start < end:
        return "not_a_row"
    start += len(_PAYLOAD)
    payload = line[start:end]
    try:
        skeleton = _decode(line[:start] + b"{}" + line[end:])
        decode_strict(payload)
    except (msgspec.DecodeError, CanonicalError, UnicodeDecodeError):
        return "not_a_row"
    return msgspec.structs.replace(skeleton, payload=msgspec.Raw(payload))
