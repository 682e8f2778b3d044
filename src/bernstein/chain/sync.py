"""Puts written rows on disk: at once and shared by all who wait, or within 50 ms by itself.

Rule: once an fsync has failed nobody is told that a row is on disk, now or later.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

FLUSH_S = 0.05
_GATHER_S = 0.01


class DiskSync:
    """The fsyncs of one open file; safe for threads."""

    def __init__(self, fd: int, before: Callable[[], None] | None = None) -> None:
        self._fd = fd
        self._before = before
        lock = threading.Lock()
        self._state = threading.Condition(lock)
        self._gathered = threading.Condition(lock)
        self._waiting = 0  # threads whose row is not on disk yet
        self._crowd = 0  # how many they were when the last fsync ended, those it served too
        self._fsync_s = 0.0  # how long that took
        self._written = 0
        self._synced = 0
        self._is_syncing = False
        self._failure: OSError | None = None
        self._flusher: threading.Thread | None = None
        self._is_closed = False
        self._is_idle = False  # the flusher waits for a row
        self._closing = threading.Event()

    def check(self) -> None:
        """Refuse to go on after an fsync that failed.

        Raises:
            OSError: One did.
        """
        self._raise_failure()

    def row_written(self) -> int:
        """Count a row that was handed to the kernel; its number is what to wait for.

        It is on disk within 50 ms, also where nobody waits.
        """
        with self._state:
            self._written += 1
            if self._is_idle:
                self._is_idle = False
                self._state.notify_all()
            if self._flusher is None and not self._is_closed:
                self._flusher = threading.Thread(
                    target=self._flush, name="bernstein-fsync", daemon=True
                )
                self._flusher.start()
            return self._written

    def wait(self, number: int) -> None:
        """Return once row ``number`` is on disk; those who wait together share one fsync.

        Raises:
            OSError: The disk refuses.
        """
        with self._state:
            if self._synced >= number:
                return
            self._waiting += 1
            if self._waiting >= self._crowd:
                self._gathered.notify()
        self._wait(number, gathers=True)

    def _wait(self, number: int, *, gathers: bool = False) -> None:
        while True:
            with self._state:
                while self._is_syncing and self._synced < number:
                    self._state.wait()
                self._raise_failure()
                if self._synced >= number:
                    return
                self._is_syncing = True
                try:
                    if gathers:
                        self._gather()
                except BaseException:  # Ctrl-C: another has to make the fsync
                    self._is_syncing = False
                    self._state.notify_all()
                    raise
                upto, waiting = self._written, self._waiting
            self._sync(upto, waiting)

    def _gather(self) -> None:
        """Let those come who waited for the last fsync, for about as long as that took: they write
        their next row now, and without this it would have to wait for an fsync of its own.
        """
        until_s = time.monotonic() + min(self._fsync_s, _GATHER_S)
        while self._waiting < self._crowd and (left_s := until_s - time.monotonic()) > 0:
            self._gathered.wait(left_s)

    def close(self) -> None:
        """Put everything on disk and stop the flusher.

        Raises:
            OSError: The disk refuses.
        """
        self._closing.set()
        with self._state:
            self._is_closed = True
            written = self._written
            self._state.notify_all()
        self._wait(written)
        if self._flusher is not None:
            self._flusher.join()

    def _sync(self, upto: int, waiting: int) -> None:
        is_on_disk = False
        began_s = time.monotonic()
        failure: OSError | None = None
        try:
            if self._before is not None:
                self._before()
            os.fsync(self._fd)
            is_on_disk = True
        except OSError as error:
            # The kernel may have dropped the pages: a later fsync that works proves nothing.
            failure = error
        finally:  # Ctrl-C can end an fsync too: then another has to be made
            with self._state:
                self._is_syncing = False
                if is_on_disk:
                    self._synced = max(self._synced, upto)
                    self._crowd, self._fsync_s = self._waiting, time.monotonic() - began_s
                    self._waiting -= waiting
                self._failure = self._failure or failure
                self._state.notify_all()
        if failure is not None:
            with self._state:
                self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise OSError(
                self._failure.errno,
                f"the journal could not be put on disk ({self._failure.strerror}); open it again "
                "once the disk is well",
            )

    def _flush(self) -> None:
        while True:
            with self._state:
                while self._written == self._synced and not self._is_closed:
                    self._is_idle = True
                    self._state.wait()
                if self._is_closed or self._failure is not None:
                    return
            self._closing.wait(FLUSH_S / 2)
            with self._state:
                number = self._written
            try:
                self._wait(number)
            except OSError:
                return  # kept, and raised at the next row
