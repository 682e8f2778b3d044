"""The stored form of long texts: what one adds to an earlier text, or a DigestRef into the blobs.

Texts of one group (a lane, a conversation) grow at their end, so each is stored as a splice of one
before it: ``{seq, head, tail, text}``, the first ``head`` and last ``tail`` characters of the text
of row ``seq`` around ``text``. Writer and reader remember the same few texts of each group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.canonical import (
    JsonObject,
    JsonValue,
    as_ref,
    canonical_bytes,
    decode_strict,
    digest_of_bytes,
    utf8,
)
from bernstein.errors import CanonicalError, ForgottenBodyError, RecordingError
from bernstein.recording.blobs import LARGE_BYTES, BlobStore
from bernstein.recording.texts import shared_ends

if TYPE_CHECKING:
    import msgspec

_MIN_SHARED_CHARS = 1024


class _Remembered:
    """The last texts of each group, newest first."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._texts: dict[str, tuple[tuple[int, str], ...]] = {}

    def add(self, group: str, seq: int, text: str) -> None:
        if len(text) > _MIN_SHARED_CHARS:
            # Newest first; a few, so that a new tuple is cheaper than a queue of their own.
            self._texts[group] = ((seq, text), *self.of(group)[: self._keep - 1])

    def of(self, group: str) -> tuple[tuple[int, str], ...]:
        return self._texts.get(group, ())


class TextWriter:
    """Chooses the stored form of the texts of one recording."""

    def __init__(self, blobs: BlobStore, keep: int = 1) -> None:
        """Remember the last ``keep`` texts of each group to splice from."""
        self._blobs = blobs
        self._remembered = _Remembered(keep)

    def stored(self, group: str, text: str) -> str | JsonObject:
        """What stands in a row for ``text``."""
        spliced = self._splice(group, text) if len(text) > _MIN_SHARED_CHARS else text
        if self._blobs.encrypts:
            ref = digest_of_bytes(utf8(text))
            return self._blobs.put_encrypted(ref, canonical_bytes(spliced)).to_json()
        if len(text) > LARGE_BYTES // 8 and len(canonical_bytes(spliced)) > LARGE_BYTES:
            return self._blobs.put(utf8(text)).to_json()
        return spliced

    def written(self, group: str, seq: int, text: str) -> None:
        """The row is on disk: a later text of its group may be stored as what it adds to it."""
        self._remembered.add(group, seq, text)

    def _splice(self, group: str, text: str) -> str | JsonObject:
        """``text``, or what it adds to one before, where that is less than half."""
        best: JsonObject | None = None
        least = len(text) // 2
        for seq, base in self._remembered.of(group):
            head, tail = shared_ends(base, text)
            added = len(text) - head - tail
            if added < least or (best is None and added * 2 < len(text)):
                least = added
                best = {"seq": seq, "head": head, "tail": tail}
        if best is None:
            return text
        return {**best, "text": text[best["head"] : len(text) - best["tail"]]}


class TextReader:
    """Gives back the texts of one recording, in the file's order."""

    def __init__(self, blobs: BlobStore, keep: int = 1) -> None:
        self._blobs = blobs
        self._remembered = _Remembered(keep)
        self._forgotten: set[tuple[str, int]] = set()

    def read(self, group: str, seq: int, stored: msgspec.Raw) -> str:
        """The full text of row ``seq``; the rows before it in its group must have been read.

        Raises:
            ForgottenBodyError: It is not here, or its key is not.
            RecordingError: The stored form does not lead to a text.
        """
        try:
            text = self._expand(group, decode_strict(bytes(stored)))
        except ForgottenBodyError:
            self._forgotten.add((group, seq))
            raise
        except (CanonicalError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise RecordingError(f"the text of row {seq} is damaged: {error}") from error
        self._remembered.add(group, seq, text)
        return text

    def _expand(self, group: str, stored: JsonValue) -> str:
        if isinstance(stored, str):
            return stored
        ref = as_ref(stored)
        if ref is not None and ref.enc_ref is None:
            return self._blobs.get(ref).decode("utf-8", "surrogatepass")
        if ref is not None:
            text = self._expand(group, decode_strict(self._blobs.get(ref)))
            if digest_of_bytes(utf8(text)).digest != ref.digest:
                raise RecordingError("an encrypted body that is not the one that the row names")
            return text
        head, tail = stored["head"], stored["tail"]
        if (group, stored["seq"]) in self._forgotten:
            raise ForgottenBodyError(f"a text adds to that of row {stored['seq']}, which is gone")
        for seq, base in self._remembered.of(group):
            if seq == stored["seq"] and head >= 0 <= tail and head + tail <= len(base):
                return base[:head] + str(stored["text"]) + base[len(base) - tail :]
        raise RecordingError(f"a splice of row {stored['seq']}, which is not one before it")
