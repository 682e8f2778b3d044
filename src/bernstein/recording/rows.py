"""The rows of ``llm_calls.jsonl``: written in their canonical spelling, read back lazily.

A prompt that extends an earlier one of its lane is stored as what it adds (a splice), and a body
over 64 KiB as a DigestRef into the blobs, so a recording grows with what is new in it. In a run
that encrypts, both bodies of every row are blobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from bernstein.canonical import (
    JsonObject,
    canonical_bytes,
    convert,
    decode_strict,
    digest_of_bytes,
    sha256_hex,
)
from bernstein.errors import CanonicalError, RecordingError
from bernstein.recording.answer import Outcome, StoredOutcome, parse_stored
from bernstein.recording.blobs import LARGE_BYTES, BlobStore
from bernstein.recording.bodies import TextReader, TextWriter
from bernstein.recording.key import KEY_SCHEMES, replay_key

if TYPE_CHECKING:
    from collections.abc import Iterator


class CallRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One recorded call.

    Attributes:
        seq: When it began, from 0: the page's call order.
        begun: How many calls had begun when its outcome was known.
        done: The order in which outcomes were known, from 0.
        prompt: The stored form: text, a splice, or a DigestRef.
        outcome: The stored form: ``{"ok": …}``, ``{"error": …}``, or a DigestRef.
    """

    seq: int
    begun: int
    done: int
    key: str
    key_scheme: str
    lane: str
    model: str
    provider: str
    temperature: float | None
    max_tokens: int | None
    prompt: msgspec.Raw
    outcome: msgspec.Raw
    ts: str
    elapsed_s: float

    def read_outcome(self, blobs: BlobStore) -> Outcome:
        """The answer or failure of this call.

        Raises:
            RecordingError: It cannot be read.
        """
        try:
            stored = parse_stored(self.outcome)
            if stored.ref is not None:
                data = blobs.get(stored.ref)
                if sha256_hex(data) != stored.ref.digest:
                    raise RecordingError(f"recorded call {self.seq} has another outcome's body")
                stored = parse_stored(data)
        except CanonicalError as error:
            raise RecordingError(
                f"the outcome of recorded call {self.seq} is damaged: {error}"
            ) from error
        outcome = stored.ok or stored.error
        if outcome is None:
            raise RecordingError(f"recorded call {self.seq} has neither an answer nor a failure")
        return outcome

    def key_of(self, prompt: str) -> str:
        """The key that this row must have if ``prompt`` is its full prompt."""
        return replay_key(self.model, prompt, self.provider, self.temperature, self.max_tokens)


_decode_row = msgspec.json.Decoder(CallRow).decode


def parse_call_row(line: bytes) -> CallRow | None:
    """The row that ``line`` holds; None where it is JSON of an older key scheme.

    Raises:
        RecordingError: It is no JSON object.
    """
    try:
        row = _decode_row(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _parse_slowly(line)
    return row if row.key_scheme in KEY_SCHEMES else None


def _parse_slowly(line: bytes) -> CallRow | None:
    try:
        value = decode_strict(line)
    except CanonicalError as error:
        raise RecordingError(str(error)) from error
    if not isinstance(value, dict):
        raise RecordingError("not a JSON object")
    if value.get("key_scheme") not in KEY_SCHEMES:
        return None
    try:
        parts = {name: msgspec.Raw(canonical_bytes(value[name])) for name in ("prompt", "outcome")}
        return convert({**value, **parts}, CallRow)
    except (KeyError, CanonicalError) as error:
        raise RecordingError(f"not a recorded call: {error}") from error


class NewRow(msgspec.Struct, frozen=True):
    """A row to write: the members of ``CallRow`` with their values, in canonical order."""

    begun: int
    done: int
    elapsed_s: float
    key: str
    key_scheme: str
    lane: str
    max_tokens: int | None
    model: str
    outcome: StoredOutcome
    prompt: str | JsonObject
    provider: str
    seq: int
    temperature: float | int | None
    ts: str


_encode_row = msgspec.json.Encoder(order="sorted").encode


def to_line(row: NewRow) -> bytes:
    """The row's canonical line with its LF."""
    # Only an exponent and a lone surrogate are spelled otherwise by msgspec; whole temperatures
    # are ints by now.
    if row.elapsed_s >= 1e-5 and _is_plain_heat(row.temperature):
        try:
            return _encode_row(row) + b"\n"
        except UnicodeEncodeError:
            pass
    return canonical_bytes(msgspec.to_builtins(row)) + b"\n"


def _is_plain_heat(heat: float | None) -> bool:
    return heat is None or isinstance(heat, int) or 1e-5 < abs(heat) < 1e15


class RowWriter:
    """Chooses the stored form of each prompt and outcome of one recording, and spells its rows."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._prompts = TextWriter(blobs)

    def line(self, row: NewRow) -> bytes:
        """The line of ``row``, which has its prompt and outcome in full."""
        assert isinstance(row.prompt, str)
        stored = self._prompts.stored(row.lane, row.prompt)
        if stored is not row.prompt:
            row = replace(row, prompt=stored)
        line = None if self._blobs.encrypts else to_line(row)
        if line is not None and len(line) <= LARGE_BYTES:
            return line
        body = canonical_bytes(msgspec.to_builtins(row.outcome))
        if self._blobs.encrypts:
            ref = self._blobs.put_encrypted(digest_of_bytes(body), body)
        elif len(body) > LARGE_BYTES:
            ref = self._blobs.put(body)
        else:
            return to_line(row)
        outcome = StoredOutcome(digest=ref.digest, byteLength=ref.byte_length, encRef=ref.enc_ref)
        return to_line(replace(row, outcome=outcome))

    def written(self, row: NewRow) -> None:
        """``row`` is on disk: a later prompt of its lane may be stored as what it adds to it."""
        if isinstance(row.prompt, str):
            self._prompts.written(row.lane, row.seq, row.prompt)


class PromptReader:
    """Gives back the prompts of one recording, in the file's order."""

    def __init__(self, blobs: BlobStore) -> None:
        self._prompts = TextReader(blobs)

    def read(self, row: CallRow) -> str:
        """The full prompt of ``row``; the rows before it in its lane must have been read.

        Raises:
            RecordingError: The stored form does not lead to a text.
        """
        return self._prompts.read(row.lane, row.seq, row.prompt)


def read_prompts(rows: list[CallRow], blobs: BlobStore) -> Iterator[tuple[CallRow, str]]:
    """Each row with its full prompt, in the file's order."""
    reader = PromptReader(blobs)
    for row in rows:
        yield row, reader.read(row)
