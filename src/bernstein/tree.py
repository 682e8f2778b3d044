"""The files below a folder, as a run begins with them.

What is made anew by tools, and what ``.bernsteinignore`` names, is left out; links are not
followed.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import re
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from bernstein.canonical import digest_of, sha256_hex
from bernstein.errors import CanonicalError, WorkspaceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

IGNORE_FILE = ".bernsteinignore"
MAX_COPY_BYTES = 512 * 2**20
# Beyond these a tree is not looked at before each recording: that would take its time.
MAX_LOOKED_AT_BYTES = 64 * 2**20
MAX_LOOKED_AT_FILES = 10_000
# What nobody writes who works in a folder: its history, and the evidence of its runs.
PRIVATE_FOLDERS = (".git", ".sdd")
_ALWAYS_IGNORED = (
    ".sdd",
    ".git",
    ".hg",
    ".venv",
    "venv",
    "node_modules",
    "__pycache__",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".hypothesis",
)


def list_tree(folder: Path) -> list[str]:
    """The paths of every file below ``folder`` that is not ignored, in the order of their names."""
    return sorted(path for path, _ in _walk(folder, ignored_in(folder)))


def manifest(folder: Path, ignored: tuple[str, ...] | None = None) -> dict[str, str]:
    """Path and digest of every file below ``folder``.

    ``ignored`` are the patterns of what is left out, where they are not the folder's own.
    """
    return dict(_digests(folder, ignored_in(folder) if ignored is None else ignored))


def _digests(folder: Path, ignored: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for path, entry in _walk(folder, ignored):
        digest = file_digest(Path(entry.path))
        if digest is not None:
            yield path, digest


def file_digest(path: Path) -> str | None:
    """The digest of a file's content and whether it is executable, or of a link's target."""
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            return sha256_hex(b"link\n" + os.fsencode(path.readlink()))
        if not stat.S_ISREG(mode):
            return None
        kind = b"exec\n" if mode & stat.S_IXUSR else b"file\n"
        return sha256_hex(kind + path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None


def _walk(
    folder: Path, ignored: tuple[str, ...], prefix: str = ""
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Every entry below ``folder`` that is not a folder, by name, links not followed."""
    is_ignored = _matcher(ignored)
    with os.scandir(folder) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        path = prefix + entry.name
        if is_ignored(entry.name) or is_ignored(path):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), ignored, f"{path}/")
        else:
            yield path, entry


@functools.lru_cache(maxsize=64)
def _matcher(globs: tuple[str, ...]) -> Callable[[str], object]:
    """What is true of the names that one of the patterns matches."""
    return re.compile("|".join(map(fnmatch.translate, globs)) or "(?!)").match


def ignored_in(folder: Path) -> tuple[str, ...]:
    """The patterns of what is no part of a folder: what tools make anew, and what it names."""
    try:
        lines = (folder / IGNORE_FILE).read_text("utf-8").split("\n")
    except FileNotFoundError:
        return _ALWAYS_IGNORED
    globs = (line.strip().rstrip("/") for line in lines)
    return (*_ALWAYS_IGNORED, *(glob for glob in globs if glob and not glob.startswith("#")))


def copy_tree(folder: Path, target: Path) -> None:
    """Copy what is not ignored of a folder to a new one.

    Raises:
        WorkspaceError: It is too large, or holds what cannot be copied.
    """
    ignored = ignored_in(folder)
    size = 0
    target.mkdir(mode=0o700)
    for path, entry in _walk(folder, ignored):
        copy = target / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        if entry.is_symlink():
            copy.symlink_to(Path(entry.path).readlink())
            continue
        status = entry.stat(follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            raise WorkspaceError(
                f"{path} is neither a file nor a folder\n  name it in {IGNORE_FILE}, or run "
                "in the folder itself with --in-place"
            )
        size += status.st_size
        if size > MAX_COPY_BYTES:
            raise WorkspaceError(
                f"the folder {folder} holds more than {MAX_COPY_BYTES // 2**20} MiB (at {path})\n"
                f"  name what is not needed in {IGNORE_FILE} (one pattern a line), or run in the "
                "folder itself with --in-place"
            )
        shutil.copy2(entry.path, copy)


def tree_digests(folder: Path, left_out: tuple[Path, ...] = ()) -> dict[str, str]:
    """A digest of each entry of a folder, with all that is below it.

    Empty where it is too large, or holds what cannot be read.

    Args:
        folder: The folder.
        left_out: Folders below it that are no part of it.
    """
    try:
        return _tree_digests(folder, left_out)
    except (OSError, UnicodeError, RecursionError, CanonicalError):
        return {}


def _tree_digests(folder: Path, left_out: tuple[Path, ...]) -> dict[str, str]:
    inner = [str(p.relative_to(folder)) for p in left_out if p.is_relative_to(folder)]
    files: dict[str, dict[str, str]] = {}
    size = 0
    for count, (path, entry) in enumerate(_walk(folder, (*ignored_in(folder), *inner))):
        size += entry.stat(follow_symlinks=False).st_size
        if count >= MAX_LOOKED_AT_FILES or size > MAX_LOOKED_AT_BYTES:
            return {}
        digest = file_digest(Path(entry.path))
        if digest is not None:
            files.setdefault(path.partition("/")[0], {})[path] = digest
    return {name: digest_of(below).digest for name, below in files.items()}
