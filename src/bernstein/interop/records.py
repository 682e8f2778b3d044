"""The JSON objects of a file, and which of its lines are none.

Rule: a line that cannot be read is counted and named by its number, and the lines behind it are
read all the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bernstein.canonical import JsonObject, JsonValue, decode_tolerant
from bernstein.errors import CanonicalError, RecordingError
from bernstein.jsonl import MAX_LINE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_FILE_BYTES = 2**30
ZIP = b"PK\x03\x04"  # how a zip file begins: it has no lines
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Records:
    """What a file holds.

    Attributes:
        data: The file.
        values: Its objects, in their order: of lines, of server-sent events, or of one list.
        bad_lines: The lines that are none, from 1; of an event of a stream its first line.
        whole: The one JSON value that the file is; None where it is lines.
    """

    data: bytes
    values: list[JsonObject] = field(default_factory=list)
    bad_lines: tuple[int, ...] = ()
    whole: JsonValue = None


def check_size(size_bytes: int) -> None:
    """Refuse a file that is too large, before it is read.

    Raises:
        RecordingError: It is over 1 GiB.
    """
    if size_bytes > MAX_FILE_BYTES:
        raise RecordingError(f"this holds {size_bytes} bytes: at most {MAX_FILE_BYTES} are read")


def read_records(data: bytes) -> Records:
    """Read a file: one JSON value, JSON in lines, or server-sent events.

    Raises:
        RecordingError: It is over 1 GiB.
    """
    check_size(len(data))
    if data.startswith(ZIP):
        return Records(data)
    body = data.removeprefix(_BOM)
    whole = _whole(body)
    if whole is not None:
        items = whole if isinstance(whole, list) else [whole]
        objects = [item for item in items if isinstance(item, dict)]
        return Records(data, objects, (1,) if len(objects) < len(items) else (), whole)
    values: list[JsonObject] = []
    bad: list[int] = []
    for number, line in _lines(body):
        try:
            found = _objects(_decode(line))
        except CanonicalError:
            bad.append(number)
        else:
            values += found
    return Records(data, values, tuple(bad))


def _whole(data: bytes) -> JsonValue:
    """The one value that a file is; None where it is something else."""
    if data.lstrip()[:1] not in {b"{", b"["}:
        return None
    try:
        return decode_tolerant(data)
    except CanonicalError:
        return None


def _decode(line: bytes) -> JsonValue:
    if len(line) > MAX_LINE_BYTES:
        raise CanonicalError("$", f"longer than {MAX_LINE_BYTES} bytes")
    return decode_tolerant(line)


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines that say something, numbered from 1; of a stream of events their data."""
    lines = data.split(b"\n")
    if any(line.startswith(b"data:") for line in lines[:50]):
        yield from _of_stream(lines)
        return
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, line


def _of_stream(lines: list[bytes]) -> Iterator[tuple[int, bytes]]:
    """The data of each whole server-sent event, with the number of its first line."""
    begun, data = 0, list[bytes]()
    for number, line in enumerate(lines, 1):
        text = line.removesuffix(b"\r")
        if text.startswith(b"data:"):
            begun = begun if data else number
            data.append(text[5:].removeprefix(b" "))
        elif not text and data:
            if data != [b"[DONE]"]:
                yield begun, b"\n".join(data)
            data = []


def _objects(value: JsonValue) -> list[JsonObject]:
    """The objects that a value is or lists.

    Raises:
        CanonicalError: It is something else, or lists something else.
    """
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, dict) for item in items):
        raise CanonicalError("$", "no JSON object")
    return items
