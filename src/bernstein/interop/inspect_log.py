"""What Inspect logged of evaluations: a run for each sample.

A log is JSON, or a zip file with a member for each sample. Bare lists of events are taken too. What
stands in a log once and is referred to (attachments, pooled messages) is put back into bodies.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING

from bernstein.canonical import decode_tolerant
from bernstein.errors import CanonicalError, RecordingError
from bernstein.interop.inspect_sample import read_events, read_sample
from bernstein.interop.members import inline, objects_of, part_of
from bernstein.interop.records import ZIP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bernstein.canonical import JsonObject, JsonValue
    from bernstein.interop.records import Records
    from bernstein.interop.transcript import Transcript

MAX_MEMBER_BYTES = 2**28
MAX_LOG_BYTES = 2**31
# What a zip file that is none, or is broken, raises.
_BROKEN = (
    *(zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError, RuntimeError, EOFError),
    *(LookupError, OSError, OverflowError, ValueError),
)
_EVENTS = frozenset({"span_begin", "model", "tool", "step", "sample_init", "subtask"})


def is_inspect(records: Records) -> bool:
    """Whether a file is a log of Inspect's, or a list of its events."""
    if records.data.startswith(ZIP):
        try:
            with zipfile.ZipFile(io.BytesIO(records.data)) as archive:
                return bool({"header.json", "_journal/start.json"} & set(archive.namelist()))
        except _BROKEN:
            return False
    whole = records.whole
    if isinstance(whole, dict):
        if isinstance(whole.get("eval"), dict) or isinstance(whole.get("expected"), dict):
            return "samples" in whole or "version" in whole or isinstance(whole.get("events"), list)
        return any(map(_is_event, objects_of(whole.get("events"))))
    return any(map(_is_event, records.values[:50]))


def _is_event(value: JsonObject) -> bool:
    return isinstance(value.get("event"), str) and value["event"] in _EVENTS


def read_inspect(records: Records) -> Iterator[Transcript]:
    """The runs that a log tells, one for each sample.

    Raises:
        RecordingError: It holds no sample, or more than is read.
    """
    if records.data.startswith(ZIP):
        yield from _read_zip(records.data)
        return
    whole = records.whole
    if not (isinstance(whole, dict) and ("samples" in whole or "eval" in whole)):
        events = whole.get("events") if isinstance(whole, dict) else None
        yield read_events(objects_of(events) if events is not None else records.values, records)
        return
    model = part_of(whole, "eval").get("model")
    samples = objects_of(whole.get("samples"))
    if not samples:
        raise RecordingError("this log holds no samples")
    for sample in samples:
        yield read_sample(sample, model, _part(sample))


def _read_zip(data: bytes) -> Iterator[Transcript]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            yield from _read_members(archive)
    except _BROKEN as error:
        raise RecordingError(f"this log cannot be unpacked: {error}") from error


def _read_members(archive: zipfile.ZipFile) -> Iterator[Transcript]:
    names = archive.namelist()
    model: JsonValue = None
    left = MAX_LOG_BYTES
    for name in ("header.json", "_journal/start.json"):
        if name in names:
            data = _member(archive, name, left)
            left -= len(data)
            model = model or part_of(_decoded(data), "eval").get("model")
    samples = [n for n in names if n.startswith("samples/") and n.endswith(".json")]
    if not samples:
        raise RecordingError("this log holds no samples")
    for name in dict.fromkeys(samples):
        data = _member(archive, name, left)
        left -= len(data)
        sample = _decoded(data)
        if isinstance(sample, dict):
            yield read_sample(sample, model, _part(sample))
        else:
            yield read_sample({}, model, inline(name), is_bad=True)


def _member(archive: zipfile.ZipFile, name: str, left: int) -> bytes:
    """The bytes of a member, as far as may be read: what its entry says of its size is a claim.

    Raises:
        RecordingError: It is longer, or packed otherwise than deflated.
    """
    packing = archive.getinfo(name).compress_type
    if packing not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise RecordingError(f"{name[:100]!a} is packed in a way that is not read ({packing})")
    limit = min(MAX_MEMBER_BYTES, left)
    with archive.open(name) as member:
        data = member.read(limit + 1)
    if len(data) > limit:
        raise RecordingError(f"{name[:100]!a} unpacks to more than {limit} bytes")
    return data


def _decoded(data: bytes) -> JsonValue:
    try:
        return decode_tolerant(data)
    except CanonicalError:
        return None


def _part(sample: JsonObject) -> str:
    """Which sample a run is, in a line."""
    name, epoch = sample.get("id"), sample.get("epoch")
    said = name if isinstance(name, str) else str(name) if type(name) is int else "?"
    return inline(f"sample {said}" + (f", epoch {epoch}" if type(epoch) is int else ""))
