"""What Inspect logged of evaluations: a run for each sample.

A log is JSON, or a zip file with a member for each sample. Bare lists of events are taken too. What
stands in a log once and is referred to (attachments, pooled messages) is put back into bodies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.canonical import decode_tolerant
from bernstein.errors import CanonicalError, RecordingError
from bernstein.interop.archive import Archive
from bernstein.interop.inspect_sample import read_events, read_sample
from bernstein.interop.members import inline, objects_of, part_of
from bernstein.interop.records import ZIP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bernstein.canonical import JsonObject, JsonValue
    from bernstein.interop.records import Records
    from bernstein.interop.transcript import Transcript

_HEADERS = ("header.json", "_journal/start.json")
_EVENTS = frozenset({"span_begin", "model", "tool", "step", "sample_init", "subtask"})


def is_inspect(records: Records) -> bool:
    """Whether a file is a log of Inspect's, or a list of its events."""
    if records.data.startswith(ZIP):
        try:
            return any(name in Archive(records.data).names for name in _HEADERS)
        except RecordingError:
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
    archive = Archive(data)
    model: JsonValue = None
    for name in _HEADERS:
        if name in archive.names:
            model = model or part_of(_decoded(archive.read(name)), "eval").get("model")
    samples = [n for n in archive.names if n.startswith("samples/") and n.endswith(".json")]
    if not samples:
        raise RecordingError("this log holds no samples")
    for name in samples:
        sample = _decoded(archive.read(name))
        if isinstance(sample, dict):
            yield read_sample(sample, model, _part(sample))
        else:
            yield read_sample({}, model, inline(name), is_bad=True)


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
