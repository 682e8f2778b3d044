"""The calls of a run: recorded as they end, and served again in a replay.

Rule 1: in strict mode nothing goes live on a miss, and after the first miss nothing is served.
Rule 2: an answer of one lane never serves another, whatever its key.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from bernstein.canonical import canonical_bytes, digest_of_bytes
from bernstein.errors import ReplayMissError
from bernstein.jsonl import append_line, open_append, utc_now
from bernstein.recording.answer import LlmFailure, Outcome, to_stored
from bernstein.recording.blobs import BlobStore
from bernstein.recording.explain import RERUN, explain_miss
from bernstein.recording.key import LlmCall, replay_key
from bernstein.recording.queue import AnswerQueue, Recording, load_recording
from bernstein.recording.rows import CallRow, NewRow, RowWriter

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger("bernstein.replay")


class DeterministicStore:
    """Records calls to one ``llm_calls.jsonl`` and serves those of another; safe for threads."""

    def __init__(
        self,
        *,
        record_to: Path | None = None,
        replay_from: Path | None = None,
        misses_to: Path | None = None,
        blobs: Path,
        key: bytes | None = None,
        recorded_blobs: Path | None = None,
        recorded_key: bytes | None = None,
        strict: bool = True,
        was_cut: bool = False,
        rerun: str = RERUN,
    ) -> None:
        """Open a store.

        Args:
            record_to: The ``llm_calls.jsonl`` to append to, or None to record nothing.
            replay_from: The ``llm_calls.jsonl`` to serve, or None to serve nothing.
            misses_to: The ``misses.jsonl`` to append to, or None.
            blobs: The folder of bodies that do not stand in their rows.
            key: What to encrypt the bodies with that are recorded; None records them in the clear.
            recorded_blobs: Those of ``replay_from``, where they lie elsewhere.
            recorded_key: What the bodies of ``replay_from`` were encrypted with, or None.
            strict: Whether a miss raises (the default) or warns and returns None.
            rerun: The command that records again; a miss advises it.
            was_cut: Whether the recorded run did not come to its end; a miss says so.
        Raises:
            RecordingError: ``replay_from`` is damaged.
        """
        self.is_strict = strict
        self._was_cut = was_cut
        self._rerun = rerun
        self.blobs = BlobStore(recorded_blobs or blobs, recorded_key)
        self.recording = load_recording(replay_from) if replay_from else Recording([])
        self.is_replay = replay_from is not None
        self._source = replay_from.parent.name if replay_from else ""
        self._queue = AnswerQueue(self.recording.rows)
        self._missed: dict[tuple[str, str], int] = {}
        self.own_blobs = BlobStore(blobs, key)
        self._rows = RowWriter(self.own_blobs)
        self._fd = open_append(record_to) if record_to else -1
        self._misses_fd = open_append(misses_to) if misses_to else -1
        self._lock = threading.Lock()
        self._begun = 0
        # Behind those that are there, where a run goes on.
        goes_on = record_to is not None and record_to == replay_from
        self._done = len(self.recording.rows) if goes_on else 0
        # Set by a strict miss alone: from then on nothing is served.
        self.first_miss: ReplayMissError | None = None

    # --- replay

    def get_replay(
        self,
        model: str,
        prompt: str,
        provider: str,
        temperature: float | None = None,
        max_tokens: int | None = None,
        *,
        lane: str = "",
    ) -> str | None:
        """The next recorded text for this key, in recorded order.

        Returns:
            The text; None on a miss where the store is not strict, after a warning.
        Raises:
            ReplayMissError: Strict, and there is no (further) answer.
            ProviderError: What was recorded is a failure.
        Source: docs/spec.md, "Recorded calls".
        """
        # Not by way of LlmCall: a hit needs nothing of it but the key.
        row = None
        is_plain = "\0" not in model and "\0" not in provider and prompt.isascii()
        if is_plain and not prompt.startswith("bernstein.") and self.first_miss is None:
            key = replay_key(model, prompt, provider, temperature, max_tokens)
            with self._lock:
                row = self._queue.take(lane, key)
        if row is None:
            heat = None if temperature is None else float(temperature)
            row = self.take(LlmCall(model, prompt, provider, heat, max_tokens), lane)
            if row is None:
                return None
        outcome = row.read_outcome(self.blobs)
        if isinstance(outcome, LlmFailure):
            raise outcome.as_error()
        return outcome.text

    def take(self, call: LlmCall, lane: str) -> CallRow | None:
        """The next recorded row for ``call`` in ``lane``, or None (see ``get_replay``)."""
        with self._lock:
            if self.first_miss is not None:
                raise self.first_miss
            row = self._queue.take(lane, call.key)
            if row is None:
                self._miss(call, lane)
            return row

    def _miss(self, call: LlmCall, lane: str) -> None:
        at = (lane, call.key)
        recorded = self._queue.recorded(*at)
        self._missed[at] = missed = self._missed.get(at, 0) + 1
        self._write_miss(
            explain_miss(
                call,
                lane,
                recorded=recorded,
                requested=recorded + missed,
                rows=self.recording.rows,
                blobs=self.blobs,
                source=self._source,
                was_cut=self._was_cut,
                rerun=self._rerun,
                reason=self._miss_reason(recorded),
            ),
            lane,
        )

    def register_miss(self, miss: ReplayMissError, lane: str) -> None:
        """Count a miss beside the model's calls (a command, the network); raised where strict."""
        with self._lock:
            self._write_miss(miss, lane)

    def _write_miss(self, miss: ReplayMissError, lane: str) -> None:
        if self._misses_fd >= 0:
            nearest = miss.nearest
            if nearest is not None and self.own_blobs.encrypts:
                body = canonical_bytes(nearest)  # it shows parts of prompts
                nearest = self.own_blobs.put_encrypted(digest_of_bytes(body), body).to_json()
            row = {
                "lane": lane,
                "key": miss.key,
                "reason": miss.reason,
                "requested": miss.requested,
                "nearest": nearest,
                "strict": self.is_strict,
            }
            append_line(self._misses_fd, canonical_bytes(row) + b"\n")
        if self.is_strict:
            self.first_miss = self.first_miss or miss
            raise miss
        logger.warning("%s", str(miss).split("\n", 1)[0] + "; going live")

    def has_next(self, call: LlmCall, lane: str) -> bool:
        """Whether ``take`` would find a row."""
        with self._lock:
            return self._queue.has_next(lane, call.key)

    def _miss_reason(self, recorded: int) -> str:
        if recorded:
            return "exhausted"
        if self.recording.stale_rows:
            return "stale_key_scheme"
        return "never_recorded" if self.recording.rows else "no_recording"

    # --- record

    def begin(self) -> int:
        """Count a call that begins; returns its ``seq``."""
        with self._lock:
            self._begun += 1
            return self._begun - 1

    def record(
        self, call: LlmCall, outcome: Outcome, *, seq: int, lane: str = "", begun_s: float
    ) -> None:
        """Write one call's row, now that its outcome is known.

        Args:
            call: The request.
            outcome: The answer or failure.
            seq: What ``begin`` returned.
            lane: The lane of the call.
            begun_s: ``time.monotonic()`` when the call began.
        Raises:
            OSError: The disk refuses; the file is as before.
        """
        if self._fd < 0:
            return
        heat = call.temperature
        with self._lock:
            row = NewRow(
                begun=self._begun,
                done=self._done,
                elapsed_s=round(time.monotonic() - begun_s, 6),
                key=call.key,
                key_scheme=call.key_scheme,
                lane=lane,
                max_tokens=call.max_tokens,
                model=call.model,
                outcome=to_stored(outcome),
                prompt=call.key_prompt,
                provider=call.provider,
                seq=seq,
                temperature=int(heat) if heat is not None and heat.is_integer() else heat,
                ts=utc_now(),
            )
            append_line(self._fd, self._rows.line(row))
            self._rows.written(row)
            self._done += 1

    def sync(self) -> None:
        """Put the recorded rows on disk."""
        if self._fd >= 0:
            os.fsync(self._fd)

    def close(self) -> None:
        """Put everything on disk and close the files; a second call does nothing."""
        for fd in (self._fd, self._misses_fd):
            if fd >= 0:
                os.fsync(fd)
                os.close(fd)
        self._fd = self._misses_fd = -1
