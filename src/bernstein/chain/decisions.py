"""The decision log ``wal.jsonl``: what the scheduler decided, in order.

A row is JCS {index, decision, stepId, attempt, inputs, ts}; ``inputs`` is the digest of what the
decision rests on.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from bernstein.canonical import JsonObject, canonical_bytes, digest_of
from bernstein.jsonl import append_line, open_append, utc_now

if TYPE_CHECKING:
    from pathlib import Path

    from bernstein.events.trajectory import Decision


class DecisionLog:
    """The only writer of a run's ``wal.jsonl``."""

    def __init__(self, path: Path) -> None:
        self._fd = open_append(path)
        self._lock = threading.Lock()
        self._index = 0

    def append(self, decision: Decision, step_id: str, attempt: int, inputs: JsonObject) -> None:
        """Write one decision; ``inputs`` is digested, not kept."""
        with self._lock:
            row = {
                "index": self._index,
                "decision": decision,
                "stepId": step_id,
                "attempt": attempt,
                "inputs": digest_of(inputs).digest,
                "ts": utc_now(),
            }
            append_line(self._fd, canonical_bytes(row) + b"\n")
            self._index += 1

    def close(self) -> None:
        """Put everything on disk and close the file; a second call does nothing."""
        if self._fd >= 0:
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1
