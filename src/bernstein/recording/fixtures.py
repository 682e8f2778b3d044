"""Answers of the world beside the model, kept for replay: ``fixtures.jsonl``.

A row is JCS {seq, kind, key, outcome, response, lane}, and ``request`` where a miss is explained by
it. What was asked with a key never falls back to another key; what was asked without one is
answered by kind, in the order of ``seq``, which is the order of asking.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from bernstein.canonical import (
    JsonObject,
    JsonValue,
    as_ref,
    canonical_bytes,
    decode_canonical,
    digest_of_bytes,
    sha256_hex,
)
from bernstein.errors import CanonicalError, RecordingError
from bernstein.jsonl import append_line, open_append, read_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bernstein.recording.blobs import BlobStore


Outcome: TypeAlias = Literal["ok", "error"]
STEP_TOOL = "step_tool"  # the kind of what a tool of the built-in agent gave


class Fixture(NamedTuple):
    """One recorded answer; its bodies as they are stored."""

    seq: int
    outcome: Outcome
    response: JsonValue
    request: JsonValue = None


def fixture_key(kind: str, request: JsonObject) -> str:
    """The key of a request to the world, 64 hex digits."""
    # sha256("bernstein.fixture.v1\n" + kind + "\n" + JCS of the request)
    return sha256_hex(b"bernstein.fixture.v1\n%b\n%b" % (kind.encode(), canonical_bytes(request)))


def read_fixtures(
    path: Path, blobs: BlobStore
) -> Iterator[tuple[str, JsonValue, Outcome, JsonValue]]:
    """Kind, request, outcome and response of each row.

    Raises:
        RecordingError: A row, or a body of one, cannot be read.
    """
    for line in read_lines(path):
        if not line.is_whole:
            return
        try:
            row = decode_canonical(line.data)
            request, response = (
                _opened(row.get(name), blobs, row["key"]) for name in ("request", "response")
            )
            yield row["kind"], request, row["outcome"], response
        except (CanonicalError, KeyError, TypeError) as error:
            raise RecordingError(f"{path} is damaged: {error}") from error


def _opened(stored: JsonValue, blobs: BlobStore, key: str) -> JsonValue:
    """A body as it stands in a row, or as the blob has it that stands for it there."""
    ref = as_ref(stored)
    if ref is None:
        return stored
    data = blobs.get(ref)
    if sha256_hex(data) != ref.digest:
        raise RecordingError(f"the fixture {key} has the body of another one")
    opened: JsonValue = decode_canonical(data)
    return opened


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
        self._queues: dict[tuple[str, str, str], deque[Fixture]] = {}
        self._count = 0
        if replay_from is not None:
            self._load(replay_from)
        self._record_to = record_to
        self._blobs = blobs
        self._recorded_blobs = recorded_blobs
        self._fd = -1
        # Behind those that are there, where a run goes on.
        self._seq = self._count if replay_from == record_to else 0
        self._lock = threading.Lock()

    def _load(self, path: Path) -> None:
        if not path.exists():
            return
        found: list[tuple[tuple[str, str, str], Fixture]] = []
        for number, line in enumerate(read_lines(path), 1):
            if not line.is_whole:
                break
            try:
                row = decode_canonical(line.data)
                at = (row["kind"], row["lane"], row["key"])
                fixture = Fixture(row["seq"], row["outcome"], row["response"], row.get("request"))
                found.append((at, fixture))
            except (CanonicalError, KeyError, TypeError) as error:
                raise RecordingError(f"{path}, line {number} is damaged: {error}") from error
        self._count = len(found)
        for at, fixture in sorted(found, key=lambda pair: pair[1].seq):
            self._queues.setdefault(at, deque()).append(fixture)

    def begin(self) -> int:
        """Count an answer that is asked for; returns its ``seq``."""
        with self._lock:
            self._seq += 1
            return self._seq - 1

    def take(self, kind: str, key: str, lane: str) -> Fixture | None:
        """The next recorded answer for this key in this lane, its response read, or None."""
        with self._lock:
            queue = self._queues.get((kind, lane, key))
            fixture = queue.popleft() if queue else None
        if fixture is None:
            return None
        return fixture._replace(response=self._read(fixture.response, key))

    def waiting(self, kind: str) -> list[tuple[str, JsonValue]]:
        """Key and request of each answer of this kind that nobody has asked for, in order."""
        with self._lock:
            left = [
                (fixture.seq, key, fixture.request)
                for (known, _, key), queue in self._queues.items()
                if known == kind
                for fixture in queue
            ]
        return [
            (key, self._read(request, key)) for _, key, request in sorted(left, key=lambda x: x[0])
        ]

    def _read(self, stored: JsonValue, key: str) -> JsonValue:
        return _opened(stored, self._recorded_blobs, key)

    def _stored(self, value: JsonValue) -> JsonValue:
        if not self._blobs.encrypts:
            return value
        body = canonical_bytes(value)
        return self._blobs.put_encrypted(digest_of_bytes(body), body).to_json()

    def record(
        self,
        kind: str,
        key: str,
        lane: str,
        response: JsonValue,
        *,
        seq: int | None = None,
        outcome: Outcome = "ok",
        request: JsonObject | None = None,
    ) -> None:
        """Write one answer; without ``seq`` it is counted now."""
        row: JsonObject = {
            "seq": self.begin() if seq is None else seq,
            "kind": kind,
            "key": key,
            "outcome": outcome,
            "response": self._stored(response),
            "lane": lane,
        }
        if request is not None:
            row["request"] = self._stored(request)
        with self._lock:
            if self._fd < 0:
                self._fd = open_append(self._record_to)
            append_line(self._fd, canonical_bytes(row) + b"\n")

    def sync(self) -> None:
        """Put the written rows on disk."""
        if self._fd >= 0:
            os.fsync(self._fd)

    def close(self) -> None:
        """Put everything on disk and close the file; a second call does nothing."""
        self.sync()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
