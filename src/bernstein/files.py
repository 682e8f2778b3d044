"""Files that are private, whole or not there, and inside the folder where they belong.

Rule: folders are 0700 and files 0600: recordings hold prompts.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import stat
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from bernstein.errors import RecordingError, UnsafePathError

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_FILE_BYTES = 64 * 2**20
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")


def make_private(path: Path) -> None:
    """Make a folder and the missing ones above it, each 0700."""
    missing = []
    folder = path
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)


def read_file(path: Path) -> bytes:
    """The bytes of a regular file, by no link.

    Raises:
        FileNotFoundError: There is none.
        RecordingError: Something else stands there, or more than 64 MiB.
    """
    fd = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        try:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
            own = os.open(path.name, flags, dir_fd=fd)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise RecordingError(f"{path} cannot be read: {error.strerror}") from error
        with os.fdopen(own, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
                raise RecordingError(f"{path} is not a file of ours")
            return file.read()
    finally:
        os.close(fd)


def write_file(path: Path, data: bytes) -> None:
    """Write a 0600 file whole or not at all: a temporary neighbour, fsync, rename."""
    with replacing(path) as file:
        file.write(data)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of ``path`` once the block has ended well."""
    temporary, fd = _open_temporary(path)
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)  # under its lock still: nobody sweeps it away before
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _open_temporary(path: Path) -> tuple[Path, int]:
    """A new neighbour of ``path``, locked as long as somebody writes it."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:  # else it was swept away before it was locked
                return temporary, fd
        except BaseException:
            os.close(fd)
            temporary.unlink(missing_ok=True)
            raise
        os.close(fd)


def sync_folder(folder: Path) -> None:
    """Put on disk which names a folder has."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sweep_temporaries(folder: Path) -> None:
    """Remove what ``write_file`` left in a folder, though not below it, when it was killed."""
    for temporary in folder.glob(".*.tmp"):
        if _TEMPORARY.fullmatch(temporary.name) is None:
            continue
        try:
            fd = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue  # gone by now, or not one of ours
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                temporary.unlink(missing_ok=True)
        except BlockingIOError:
            continue  # being written
        finally:
            os.close(fd)


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is below it, as far as that can be done, however deep it is."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:
        # What a program made of it may be deeper than ours can go.
        subprocess.run(["rm", "-rf", "--", str(folder)], check=False, capture_output=True)  # noqa: S603, S607


def inside(root: Path, relative: str) -> Path:
    """The path of ``relative`` below ``root``, with no step out of it, by name or by symlink.

    Raises:
        UnsafePathError: An absolute path, ``..``, a NUL, or a symlink on the way or at the end.
    """
    parts = Path(relative).parts
    if not parts or "\0" in relative or Path(relative).is_absolute() or ".." in parts:
        raise UnsafePathError(f"{relative!r} is not a path inside the folder")
    path = root
    for part in parts:
        path = path / part
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue
        except NotADirectoryError as error:
            raise UnsafePathError(f"{relative!r} goes through a file") from error
        except OSError as error:
            raise UnsafePathError(
                f"{relative[:80]!r} cannot be a path: {error.strerror}"
            ) from error
        if stat.S_ISLNK(mode):
            raise UnsafePathError(f"{relative!r} goes through a symbolic link")
    return path
