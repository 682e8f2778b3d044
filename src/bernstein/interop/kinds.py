"""The kinds of files that others write of a run, and how each is told and read."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from bernstein.errors import UsageError
from bernstein.interop.claude_transcript import is_claude_code, read_claude_code
from bernstein.interop.codex import is_codex, read_codex
from bernstein.interop.records import Records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bernstein.canonical import JsonObject
    from bernstein.interop.transcript import Transcript

_LOOKED_AT = 50  # records, until a file is of no kind that is known


class Kind(NamedTuple):
    """How files of a kind are told from others, and read."""

    is_one: Callable[[Records], bool]
    read: Callable[[Records], Iterator[Transcript]]


def _some(is_one: Callable[[JsonObject], bool]) -> Callable[[Records], bool]:
    """Whether one of the first records is of a kind."""
    return lambda records: any(map(is_one, islice(records.values, _LOOKED_AT)))


# In the order in which they are tried.
KINDS: dict[str, Kind] = {
    "codex": Kind(_some(is_codex), read_codex),
    "claude-code": Kind(_some(is_claude_code), read_claude_code),
}


def kind_of(records: Records) -> str:
    """The kind of a file, by what it says.

    Raises:
        UsageError: It is of none that is known.
    """
    for name, kind in KINDS.items():
        if kind.is_one(records):
            return name
    raise UsageError(
        f"this is of no kind that is known ({', '.join(sorted(KINDS))})\n"
        "  name its kind with --as, or take what it says of a context: bernstein import events FILE"
    )
