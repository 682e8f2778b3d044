"""The rows of ``llm_calls.jsonl``: written in their canonical spelling, read back lazily.

A prompt that extends an earlier one of its lane is stored as what it adds (a splice), and a body
over 64 KiB as a DigestRef into the blobs, so a recording grows with what is new in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from bernstein.canonical import JsonObject, canonical_bytes, decode_strict, utf8
from bernstein.errors import CanonicalError, RecordingError
from bernstein.recording.answer import Outcome, outcome_from
from bernstein.recording.blobs import LARGE_BYTES, BlobStore
from bernstein.recording.key import KEY_SCHEMES, replay_key
from bernstein.recording.texts import shared_ends

if TYPE_CHECKING:
    from collections.abc import Iterator

_MIN_SHARED_CHARS = 1024


class CallRow(msgspec.Struct, frozen=True):
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
            value = decode_strict(bytes(self.outcome))
            if "digest" in value:
                value = decode_strict(blobs.get(value["digest"]))
            return outcome_from(value)
        except (CanonicalError, msgspec.ValidationError, KeyError, TypeError) as error:
            raise RecordingError(
                f"the outcome of recorded call {self.seq} is damaged: {error}"
            ) from error

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
        return msgspec.convert({**value, **parts}, CallRow, strict=True)
    except (KeyError, msgspec.ValidationError, CanonicalError) as error:
        raise RecordingError(f"not a recorded call: {error}") from error


def to_line(row: JsonObject) -> bytes:
    """The row's line with its LF."""
    return canonical_bytes(row) + b"\n"


class PromptWriter:
    """Chooses the stored form of each prompt of one recording."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._last: dict[str, tuple[int, str]] = {}

    def store(self, lane: str, seq: int, prompt: str) -> str | JsonObject:
        """``prompt`` itself, a splice of the lane's last prompt, or a DigestRef."""
        base = self._last.get(lane)
        self._last[lane] = (seq, prompt)
        added: str | JsonObject = prompt
        if base is not None and len(prompt) > _MIN_SHARED_CHARS:
            head, tail = shared_ends(base[1], prompt)
            if head + tail > _MIN_SHARED_CHARS:
                text = prompt[head : len(prompt) - tail]
                if len(text) * 2 < len(prompt):
                    added = {"seq": base[0], "head": head, "tail": tail, "text": text}
        if len(canonical_bytes(added)) <= LARGE_BYTES:
            return added
        return self._blobs.put(utf8(prompt)).to_json()


class PromptReader:
    """Gives back the prompts of one recording, in the file's order."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._last: dict[str, tuple[int, str]] = {}

    def read(self, row: CallRow) -> str:
        """The full prompt of ``row``; the rows before it in its lane must have been read.

        Raises:
            RecordingError: The stored form does not lead to a text.
        """
        try:
            prompt = self._expand(row.lane, decode_strict(bytes(row.prompt)))
        except (CanonicalError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise RecordingError(
                f"the prompt of recorded call {row.seq} is damaged: {error}"
            ) from error
        self._last[row.lane] = (row.seq, prompt)
        return prompt

    def _expand(self, lane: str, stored: str | JsonObject) -> str:
        if isinstance(stored, str):
            return stored
        if "digest" in stored:
            return self._blobs.get(stored["digest"]).decode("utf-8", "surrogatepass")
        seq, base = self._last.get(lane, (None, ""))
        head, tail = stored["head"], stored["tail"]
        if seq != stored["seq"] or not (head >= 0 <= tail and head + tail <= len(base)):
            raise RecordingError(f"a splice of call {stored['seq']}, which is not the one before")
        return base[:head] + str(stored["text"]) + base[len(base) - tail :]


def read_prompts(rows: list[CallRow], blobs: BlobStore) -> Iterator[tuple[CallRow, str]]:
    """Each row with its full prompt, in the file's order."""
    reader = PromptReader(blobs)
    for row in rows:
        yield row, reader.read(row)
