"""Append-only, hash-chained record of one run.

Rule 1: this is the only module that writes ``journal.jsonl``.
Rule 2: nothing here reads the clock for a value that is hashed.
Rule 3: the head is read from the file's last bytes, under the lock that also spans the write.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from bernstein.canonical import JsonObject, canonical_bytes
from bernstein.chain.read import parse_row
from bernstein.chain.sync import DiskSync
from bernstein.errors import JournalError, UsageError
from bernstein.events.entry import (
    EVENT,
    GENESIS,
    LANE,
    JournalEntry,
    event_hash,
    payload_hash,
    to_line,
)
from bernstein.events.trajectory import DURABLE_EVENTS
from bernstein.files import make_private
from bernstein.jsonl import (
    append_line,
    last_line,
    locked,
    open_append,
    set_torn_line_aside,
    utc_now,
)
from bernstein.rundir import SddDir

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    PayloadAt = Callable[[int], JsonObject]


class EventJournal:
    """The only writer of a run's journal; threads and processes may append to one run.

    When ``append`` returns, the row has been handed to the kernel by one write, so it survives
    the end of the process, and is put on disk within 50 ms. With ``durable``, and for rows that
    something irreversible follows (tool starts, approvals, mutations of the model's context) it
    is on disk by then; threads that wait share one fsync.
    """

    def __init__(
        self,
        run_id: str,
        sdd_dir: Path | str,
        *,
        durable: bool = False,
        before_sync: Callable[[], None] | None = None,
    ) -> None:
        """Open the journal of ``run_id`` below ``sdd_dir``, made where there is none.

        ``before_sync`` puts on disk what must be there before any row is: the recorded calls that
        rows prove.

        A torn last line is set aside to ``journal.torn-<n>`` beside the journal.

        Raises:
            UnknownRunError: ``run_id`` is not one path segment of the allowed characters.
        """
        run = SddDir(Path(sdd_dir)).run(run_id)
        make_private(run.path)
        self.run_id = run_id
        self.path = run.journal
        self._seal = str(run.seal)
        self._last = (b"", GENESIS, -1)  # our last row's bytes behind an LF, its hash and index
        self._thread_lock = threading.Lock()
        self._opened_s = time.monotonic()
        self._durable = durable
        self._pid = os.getpid()
        self._fd = open_append(self.path)
        self._before_sync = before_sync
        self._sync = DiskSync(self._fd, before_sync)
        with self._thread_lock, locked(self._fd):
            self.torn_path = set_torn_line_aside(self._fd, self.path)

    def append(self, event: str, payload: JsonObject, lane: str = "") -> JournalEntry:
        """Chain one row and return it.

        Args:
            event: ``[a-z][a-z0-9_.]{0,63}``.
            payload: A JSON object; see ``canonical_bytes`` for what is refused.
            lane: ``[A-Za-z0-9._/-]{0,128}``; empty for rows of the whole run.
        Raises:
            CanonicalError: The payload has no canonical spelling.
            JournalError: The run is sealed, the file does not end in a row, or the row is over
                64 MiB.
            OSError: The disk refuses. Where the write did, the journal is as before; where an
                fsync did, the row is there once, and no further row is taken.
        """
        return self.append_all([(event, payload)], lane)[0]

    def append_all(
        self, rows: Sequence[tuple[str, JsonObject | PayloadAt]], lane: str = ""
    ) -> list[JournalEntry]:
        """Chain rows of one lane, each an event and its payload, together: all of them or none.

        A payload that names its own place is given as what makes it of the row's index.

        Raises:
            Like ``append``.
        """
        if not LANE.fullmatch(lane):
            raise UsageError(f"lane {lane!r} does not match {LANE.pattern}")
        prepared = [
            (event, None if callable(payload) else _prepared(event, payload, lane))
            for event, payload in rows
        ]
        if self._pid != os.getpid():
            self._reopen()
        entries: list[JournalEntry] = []
        with self._thread_lock:
            fd = self._fd
            if fd < 0:
                raise JournalError(f"the journal of run {self.run_id} is closed")
            fcntl.flock(fd, fcntl.LOCK_EX)  # not by ``locked``: this is where the time goes
            try:
                if os.path.lexists(self._seal):
                    raise JournalError(
                        f"run {self.run_id} is sealed: nothing can be appended to it"
                    )
                self._sync.check()
                prev_hash, index = self._tail()
                lines = []
                for (event, known), (_, payload) in zip(prepared, rows, strict=True):
                    body, hashed = known or _prepared(event, payload(index), lane)  # type: ignore[operator]
                    entry = JournalEntry(
                        index,
                        event,
                        lane,
                        msgspec.Raw(body),
                        hashed,
                        prev_hash,
                        event_hash(prev_hash, event, hashed, index),
                        utc_now(),
                        time.monotonic() - self._opened_s,
                    )
                    entries.append(entry)
                    lines.append(to_line(entry) + b"\n")
                    prev_hash, index = entry.event_hash, index + 1
                append_line(fd, b"".join(lines))
            finally:
                fcntl.flock(fd, fcntl.LOCK_UN)
            self._last = (b"\n" + lines[-1], prev_hash, index - 1)
            number = self._sync.row_written()
        if self._durable or any(event in DURABLE_EVENTS for event, _ in rows):
            self._sync.wait(number)
        return entries

    def head(self) -> str:
        """The last row's hash, 64 hex digits; 64 zeros for an empty journal."""
        if self._pid != os.getpid():
            self._reopen()
        with self._thread_lock, locked(self._fd):
            return self._tail()[0]

    def _reopen(self) -> None:
        """Open the file anew in a forked child: an inherited descriptor's lock excludes nobody."""
        self._thread_lock = threading.Lock()
        self._fd = open_append(self.path)
        self._sync = DiskSync(self._fd, self._before_sync)
        self._pid = os.getpid()

    def close(self) -> None:
        """Put everything on disk and close the file; a second call does nothing."""
        with self._thread_lock:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            try:
                if self._pid == os.getpid():  # what a forked child has not written it need not sync
                    self._sync.close()
            finally:
                os.close(fd)

    def _tail(self) -> tuple[str, int]:
        """The hash to chain to and the next index, from the file's last row."""
        last, head, index = self._last
        start = os.lseek(self._fd, 0, os.SEEK_END) - len(last)
        # The very bytes that were parsed or written before: they need not be parsed again.
        if last and start >= 0 and os.pread(self._fd, len(last), start) == last:
            return head, index + 1
        line = last_line(self._fd)
        if line is None:
            return GENESIS, 0
        entry = parse_row(line.data) if line.is_whole else None
        if not isinstance(entry, JournalEntry):
            # Refuse, do not skip: chaining past a broken row would fork the journal silently.
            raise JournalError(
                f"{self.path} does not end in a whole row\n"
                f"  look at it with: bernstein replay {self.run_id} --verify"
            )
        return entry.event_hash, entry.index + 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _prepared(event: str, payload: JsonObject, lane: str) -> tuple[bytes, str]:
    """A payload's bytes, and their hash."""
    if not EVENT.fullmatch(event):
        raise UsageError(f"event {event!r} does not match {EVENT.pattern}")
    if type(payload) is not dict:
        raise UsageError(f"a payload is a JSON object, not a {type(payload).__name__}")
    body = canonical_bytes(payload)
    return body, payload_hash(event, lane, body)
