"""The rows of ``exchanges.jsonl``: one HTTP exchange each, as it was, without secrets.

A request that extends an earlier one is stored as what it adds; a long text is a DigestRef.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from bernstein.canonical import (
    JsonObject,
    as_ref,
    canonical_bytes,
    convert,
    decode_canonical,
    decode_strict,
    digest_of_bytes,
    sha256_hex,
)
from bernstein.errors import CanonicalError, ForgottenBodyError, RecordingError
from bernstein.jsonl import append_line, open_append, read_lines
from bernstein.recording.blobs import LARGE_BYTES
from bernstein.recording.bodies import TextReader, TextWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bernstein.recording.blobs import BlobStore

# complete; cut: the upstream broke off; left: the client did; unreachable: there was no response.
ExchangeEnd: TypeAlias = Literal["complete", "cut", "left", "unreachable"]

_REMEMBERED = 8  # conversations that run side by side; a request is what it adds to one of them


class ExchangeRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One recorded exchange.

    Attributes:
        seq: When its request arrived, from 0.
        begun: How many requests had arrived when its response ended.
        after: How many responses had ended when its request arrived.
        done: The order in which responses ended, from 0.
        lane: The session or agent that asked, named by first appearance; else its key.
        key: What it is matched by; ``key_scheme`` says how that was worked out.
        provider, origin, method, path, query, headers: The request, as far as it is kept.
        request: The stored form of the request's body: text, a splice, or a DigestRef.
        status: The HTTP status; 0 where there was no response.
        response_headers: Names and values in the order in which they came.
        response: The stored form of the response's body: text or a DigestRef.
        is_binary: The body is no UTF-8, and so a blob.
        chunks: The length in bytes of each piece in which the body came.
        times_ms: When each piece came, in milliseconds after the request.
        arrived: How many requests had arrived when each piece came.
        end: How it ended.
        ids: By the name of a rule, the ids that the request names, in the order of their numbers.
    """

    seq: int
    begun: int
    after: int
    done: int
    lane: str
    key: str
    key_scheme: str
    provider: str
    origin: str
    method: str
    path: str
    query: str
    headers: dict[str, str]
    request: msgspec.Raw
    status: int
    response_headers: list[tuple[str, str]]
    response: msgspec.Raw
    is_binary: bool = msgspec.field(name="binary")
    chunks: list[int]
    times_ms: list[int]
    arrived: list[int]
    end: ExchangeEnd
    ts: str
    elapsed_s: float
    ids: dict[str, list[str]] = {}

    @property
    def group(self) -> str:
        """What requests must share for one to be stored as what it adds to another."""
        return f"{self.method} {self.origin} {self.path}"

    def read_response(self, blobs: BlobStore) -> bytes:
        """The bytes of the body.

        Raises:
            ForgottenBodyError: It is not here.
            RecordingError: It cannot be read.
        """
        try:
            stored = decode_strict(bytes(self.response))
            ref = as_ref(stored)
            if ref is None:
                return str.encode(stored, "utf-8")
            data = blobs.get(ref)
            if ref.enc_ref and not self.is_binary:
                data = str.encode(decode_strict(data), "utf-8")
        except (CanonicalError, TypeError, UnicodeEncodeError) as error:
            raise RecordingError(f"the response of exchange {self.seq} is damaged") from error
        if sha256_hex(data) != ref.digest:
            raise RecordingError(f"exchange {self.seq} has the body of another one")
        return data


_DECODER = msgspec.json.Decoder(ExchangeRow)


def parse_exchange_row(line: bytes) -> ExchangeRow:
    """The row that ``line`` holds.

    Raises:
        RecordingError: It holds none.
    """
    try:
        value = decode_canonical(line)
        try:
            row = _DECODER.decode(line)
        except (msgspec.ValidationError, msgspec.DecodeError):
            # msgspec reads no lone surrogates.
            for name in ("request", "response"):
                value[name] = msgspec.Raw(canonical_bytes(value[name]))
            row = convert(value, ExchangeRow)
    except (CanonicalError, KeyError, TypeError) as error:
        raise RecordingError(f"not a recorded exchange: {error}") from error
    count = len(row.chunks)
    if min(row.chunks, default=0) < 0 or {len(row.times_ms), len(row.arrived)} != {count}:
        raise RecordingError("the pieces of a recorded exchange do not fit")
    return row


def _known_row(line: bytes) -> ExchangeRow:
    try:
        return _DECODER.decode(line)
    except (msgspec.ValidationError, msgspec.DecodeError):
        return parse_exchange_row(line)


@dataclass(frozen=True, slots=True)
class ExchangeRecording:
    """The rows of one ``exchanges.jsonl``, in the order in which they ended."""

    rows: list[ExchangeRow]
    has_torn_end: bool = False


def load_exchanges(path: Path, *, is_checked: bool = False) -> ExchangeRecording:
    """Read a recording; no file is an empty one.

    Args:
        path: An ``exchanges.jsonl``.
        is_checked: Whether it was read before, so that the spelling of its rows is known.
    Raises:
        RecordingError: A whole line is not a recorded exchange; it names the line.
    """
    rows: list[ExchangeRow] = []
    try:
        for number, line in enumerate(read_lines(path), 1):
            if not line.is_whole:
                return ExchangeRecording(rows, has_torn_end=True)
            try:
                rows.append(_known_row(line.data) if is_checked else parse_exchange_row(line.data))
            except RecordingError as error:
                raise RecordingError(f"{path}, line {number} is damaged: {error}") from error
    except FileNotFoundError:
        pass
    return ExchangeRecording(rows)


class RequestReader:
    """Gives back the request bodies of one recording, in the file's order."""

    def __init__(self, blobs: BlobStore) -> None:
        self._texts = TextReader(blobs, _REMEMBERED)

    def read(self, row: ExchangeRow) -> str:
        """The body of ``row`` as text, what is no UTF-8 in it escaped; see ``TextReader.read``."""
        return self._texts.read(row.group, row.seq, row.request)


def read_requests(
    rows: list[ExchangeRow], blobs: BlobStore
) -> Iterator[tuple[ExchangeRow, str | None]]:
    """Each row with its request's body; None where that is forgotten."""
    reader = RequestReader(blobs)
    for row in rows:
        try:
            yield row, reader.read(row)
        except ForgottenBodyError:
            yield row, None


class ExchangeWriter:
    """The only writer of a run's ``exchanges.jsonl``; safe for threads."""

    def __init__(self, path: Path, blobs: BlobStore) -> None:
        self._fd = open_append(path)
        self._blobs = blobs
        self._requests = TextWriter(blobs, _REMEMBERED)
        self._lock = threading.Lock()

    def write(self, row: JsonObject, request: str, response: bytes) -> None:
        """Write one row, given without its bodies.

        Raises:
            OSError: The disk refuses; the file is as before.
        """
        group = f"{row['method']} {row['origin']} {row['path']}"
        with self._lock:
            text, is_binary = self._stored(response)
            stored = {
                **row,
                "request": self._requests.stored(group, request),
                "response": text,
                "binary": is_binary,
            }
            append_line(self._fd, canonical_bytes(stored) + b"\n")
            self._requests.written(group, row["seq"], request)

    def _stored(self, body: bytes) -> tuple[str | JsonObject, bool]:
        """The stored form of a response's body, and whether that is binary."""
        try:
            text, is_binary = body.decode("utf-8"), False
        except UnicodeDecodeError:
            text, is_binary = "", True
        if self._blobs.encrypts:
            data = body if is_binary else canonical_bytes(text)
            return self._blobs.put_encrypted(digest_of_bytes(body), data).to_json(), is_binary
        if is_binary or len(body) > LARGE_BYTES:
            return self._blobs.put(body).to_json(), is_binary
        return text, is_binary

    def sync(self) -> None:
        """Put the written rows on disk."""
        if self._fd >= 0:
            os.fsync(self._fd)

    def close(self) -> None:
        """Put everything on disk and close the file; a second call does nothing."""
        if self._fd >= 0:
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1
