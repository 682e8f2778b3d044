"""Answers of the world beside the model, kept for replay: ``fixtures.jsonl``.

A row is JCS {seq, kind, key, outcome, response, lane}. A kind with a key never falls back to
another key.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from bernstein.canonical import (
    JsonObject,
    as_ref,
    canonical_bytes,
    decode_canonical,
    digest_of_bytes,
    sha256_hex,
)
from bernstein.errors import CanonicalError, RecordingError
from bernstein.jsonl import append_line, open_append, read_lines

if TYPE_CHECKING:
    from pathlib import Path

    from bernstein.recording.blobs import BlobStore


def fixture_key(kind: str, request: JsonObject) -> str:
    """The key of a request to the world, 64 hex digits."""
    # sha256("bernstein.fixture.v1\n" + kind + "\n" + JCS of the request)
    return sha256_hex(b"bernstein.fixture.v1\n%b\n%b" % (kind.encode(), canonical_bytes(request)))


class FixtureStore:
    """Records fixtures to one file and serves those of another; safe for threads."""

    def __init__(
        self,
        record_to: Path,
        replay_from: Path | None = None,
        *,
        blobs: BlobStore,
        recorded_blobs: BlobStore,
    ) -> None:
        """Open a store; responses are blobs where those of the run are encrypted.

        Raises:
            RecordingError: ``replay_from`` holds a line that is not a fixture.
        """
        self._queues: dict[tuple[str, str, str], deque[Any]] = {}
        if replay_from is not None:
            self._load(replay_from)
        self._record_to = record_to
        self._blobs = blobs
        self._recorded_blobs = recorded_blobs
        self._fd = -1
        self._seq = 0
        self._lock = threading.Lock()

    def _load(self, path: Path) -> None:
        if not path.exists():
            return
        for number, line in enumerate(read_lines(path), 1):
            if not line.is_whole:
                return
            try:
                row = decode_canonical(line.data)
                at = (row["kind"], row["lane"], row["key"])
                self._queues.setdefault(at, deque()).append(row["response"])
            except (CanonicalError, KeyError, TypeError) as error:
                raise RecordingError(f"{path}, line {number} is damaged: {error}") from error

    def take(self, kind: str, key: str, lane: str) -> JsonObject | None:
        """The next recorded response for this key in this lane, or None."""
        with self._lock:
            queue = self._queues.get((kind, lane, key))
            response: JsonObject | None = queue.popleft() if queue else None
        ref = as_ref(response)
        if ref is None:
            return response
        data = self._recorded_blobs.get(ref)
        if sha256_hex(data) != ref.digest:
            raise RecordingError(f"the fixture {key} has the body of another one")
        opened: JsonObject = decode_canonical(data)
        return opened

    def record(self, kind: str, key: str, lane: str, response: JsonObject) -> None:
        """Write one response."""
        if self._blobs.encrypts:
            body = canonical_bytes(response)
            response = self._blobs.put_encrypted(digest_of_bytes(body), body).to_json()
        with self._lock:
            if self._fd < 0:
                self._fd = open_append(self._record_to)
            row = {
                "seq": self._seq,
                "kind": kind,
                "key": key,
                "outcome": "ok",
                "response": response,
                "lane": lane,
            }
            append_line(self._fd, canonical_bytes(row) + b"\n")
            self._seq += 1

    def close(self) -> None:
        """Put everything on disk and close the file; a second call does nothing."""
        if self._fd >= 0:
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1
