"""What a client's output said of its context, as it said it: one file a session.

A file is for people and for tools that follow a session; what a run commits to is chained. A run
that is forgotten or pruned takes its rows along.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from bernstein.canonical import JsonObject, decode_strict, sha256_hex
from bernstein.errors import CanonicalError
from bernstein.files import make_private, write_file
from bernstein.jsonl import append_line, open_append, read_lines

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def append_events(folder: Path, session: str, lines: Iterable[bytes]) -> None:
    """Append rows, each without its LF, to the file of a session."""
    make_private(folder)
    if not _SESSION.fullmatch(session):
        session = sha256_hex(session.encode("utf-8", "surrogatepass"))
    fd = open_append(folder / f"{session}.jsonl")
    try:
        for line in lines:
            append_line(fd, line + b"\n")
    finally:
        os.close(fd)


def remove_events(folder: Path, run_id: str) -> None:
    """Take the rows of a run out of the files of all sessions."""
    for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else ():
        lines = [line.data for line in read_lines(path) if line.is_whole]
        kept = [line for line in lines if _run_of(line) != run_id]
        if not kept:
            path.unlink(missing_ok=True)
        elif len(kept) < len(lines):
            write_file(path, b"".join(line + b"\n" for line in kept))


def _run_of(line: bytes) -> str | None:
    with suppress(CanonicalError):
        row: JsonObject = decode_strict(line)
        if isinstance(row, dict):
            return row.get("run_id")
    return None
