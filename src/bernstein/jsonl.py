"""Lines on disk: append one whole, read them back, and say what a torn one means.

Rule: a line counts once its final LF is on disk; bytes after the last LF are a torn line.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import stat
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from bernstein.errors import JournalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MAX_LINE_BYTES = 64 * 2**20
_CHUNK_BYTES = 2**18
_this_second = (-1, "")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file: its bytes without the LF, and whether the LF was there."""

    data: bytes
    is_whole: bool


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of ``path``, one in memory at a time; a line over 64 MiB comes cut, not whole.

    Only LF ends a line: U+2028, CR and the like are content. A symlink is not followed.
    """
    with open_regular(path) as file:
        for data in raw_lines(file):
            if data.endswith(b"\n"):
                yield Line(data[:-1], is_whole=True)
                continue
            yield Line(data, is_whole=False)
            while (rest := file.readline(_CHUNK_BYTES)) and not rest.endswith(b"\n"):
                pass


def raw_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of an open file, each with its LF; one over 64 MiB comes in pieces."""
    return iter(functools.partial(file.readline, MAX_LINE_BYTES + 1), b"")


def open_regular(path: Path) -> BinaryIO:
    """``path``, to be read; a symlink is not followed, and a FIFO or a device is refused."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0)
    file = os.fdopen(os.open(path, flags), "rb", _CHUNK_BYTES)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def utc_now() -> str:
    """The time as rows have it: UTC, six digits, Z."""
    global _this_second  # noqa: PLW0603 - a memo: rows come many to a second
    second, micros = divmod(time.time_ns() // 1000, 1_000_000)
    known, prefix = _this_second
    if known != second:
        prefix = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        _this_second = (second, prefix)
    return f"{prefix}.{micros:06d}Z"


def open_append(path: Path) -> int:
    """A descriptor that appends to ``path``, made with mode 0600; a symlink is refused."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
    return os.open(path, flags, 0o600)


def append_line(fd: int, line: bytes) -> None:
    """Write ``line`` (with its LF) by one write; on a short write nothing of it stays.

    The caller holds the file's lock, or is its only writer.

    Raises:
        JournalError: The line is over 64 MiB.
        OSError: The disk is full or failing; the file is as before.
    """
    if len(line) > MAX_LINE_BYTES:
        raise JournalError(
            f"a row of {len(line)} bytes is over the limit of {MAX_LINE_BYTES}; "
            "keep the body as a blob and its digest in the row"
        )
    written = os.write(fd, line)
    if written != len(line):
        os.ftruncate(fd, os.fstat(fd).st_size - written)
        raise OSError(
            28,
            f"only {written} of {len(line)} bytes could be written; the row was "
            "taken back, free some space and go on",
        )


def append_linked(path: Path, link: Callable[[Line | None], bytes]) -> None:
    """Write the line that ``link`` makes of the last one; it is on disk when this returns.

    The lock spans the read and the write. A torn last line, as a power cut leaves it, is set aside.

    Raises:
        OSError: The disk refuses; where the write did, the file is as before.
    """
    fd = open_append(path)
    try:
        with locked(fd):
            set_torn_line_aside(fd, path)
            append_line(fd, link(last_line(fd)) + b"\n")
            os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def locked(fd: int) -> Iterator[None]:
    """Hold the exclusive lock of an open file, against other processes."""
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


def set_torn_line_aside(fd: int, path: Path) -> Path | None:
    """Move the bytes behind the last LF to ``<name>.torn-<n>``; the caller holds the lock.

    Returns:
        Where they went, or None where the file ends in a whole line.
    """
    line = last_line(fd)
    if line is None or line.is_whole:
        return None
    number = 0
    while (torn := path.with_name(f"{path.stem}.torn-{number}")).exists():
        number += 1
    torn.touch(mode=0o600)
    torn.write_bytes(line.data)
    os.ftruncate(fd, os.fstat(fd).st_size - len(line.data))
    return torn


def last_line(fd: int) -> Line | None:
    """The last line of an open file, read from its end; None where the file is empty."""
    size = os.fstat(fd).st_size
    if size == 0:
        return None
    data = b""
    start = size
    while start > 0 and data.count(b"\n", 0, -1) == 0:
        step = min(start, 4096 if not data else _CHUNK_BYTES)
        start -= step
        data = os.pread(fd, step, start) + data
    is_whole = data.endswith(b"\n")
    body = data[:-1] if is_whole else data
    return Line(body.rsplit(b"\n", 1)[-1], is_whole)
