"""Ids that a client makes anew in each run: a served answer names those of its replay.

A recorded answer can name an id that the client had told the model, a sub-agent to wait for, for
example. Where a profile renames such ids, the recorded one and the live one of each number are a
pair: what the rule's own pattern finds is replaced in what is served, and back in what is chained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.wire.folders import OPAQUE_MEMBERS, SIGNED_BLOCKS, each_open_text
from bernstein.wire.pieces import Finder

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Mapping, Sequence

    from bernstein.canonical import JsonValue
    from bernstein.wire.folders import Move


class Ids:
    """The pairs of one replay, and what changes texts by them; it has no pair until it learns."""

    def __init__(self, patterns: Sequence[re.Pattern[str]]) -> None:
        """Replace what the first group of one of these finds."""
        self._patterns = patterns
        self._live: dict[str, str] = {}
        self._recorded: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._live)

    def learn(
        self, recorded: Mapping[str, Sequence[str]], live: Mapping[str, Sequence[str]]
    ) -> None:
        """Pair the ids of a recorded request with those of the live one that it answers."""
        for name, olds in recorded.items():
            for old, new in zip(olds, live.get(name, ()), strict=False):
                if old != new:
                    self._live.setdefault(old, new)
                    self._recorded.setdefault(new, old)

    def to_recorded(self, text: str) -> str:
        """``text`` with each live id as the recorded one."""
        return self._text(text, self._recorded)

    def to_live(self, text: str) -> str:
        """``text`` with each recorded id as the live one."""
        return self._text(text, self._live)

    def to_live_pieces(self, pieces: list[str]) -> list[str]:
        """Pieces of one text, an id in it replaced in the piece where it begins."""
        for pattern in self._patterns:
            pieces = Finder(pattern, self._live).replace_in_pieces(pieces, _putting(self._live))
        return pieces

    def may_stand_in(self, document: str) -> bool:
        """False where no text of a JSON document, as it is spelled, names a recorded id."""
        return bool(self) and any(
            Finder(pattern, self._live).may_find_in_json(document) for pattern in self._patterns
        )

    def _text(self, text: str, table: Mapping[str, str]) -> str:
        for pattern in self._patterns if table else ():
            text = Finder(pattern, table).replace(text, _putting(table))
        return text


def _putting(table: Mapping[str, str]) -> Callable[[re.Match[str]], str]:
    def put(found: re.Match[str]) -> str:
        start, end = (place - found.start() for place in found.span(1))
        return found[0][:start] + table.get(found[1], found[1]) + found[0][end:]

    return put


class Moved:
    """What a replay changes in an answer: the folders, then the ids (a ``changed.Change``)."""

    def __init__(self, move: Move, ids: Ids) -> None:
        self._move = move
        self._ids = ids

    def __bool__(self) -> bool:
        return bool(self._move) or bool(self._ids)

    def text(self, text: str) -> str:
        """A text, changed."""
        return self._ids.to_live(self._move.text(text))

    def pieces(self, pieces: list[str]) -> list[str]:
        """The pieces of one text, changed where what is found begins."""
        return self._ids.to_live_pieces(self._move.pieces(pieces))

    def value(self, value: JsonValue) -> JsonValue:
        """A JSON value, its texts changed but for what is signed."""
        return each_open_text(value, self.text)

    def takes(self, name: str) -> bool:
        """Whether deltas of this name are changed: not those of a signed block."""
        return name not in SIGNED_BLOCKS and name not in OPAQUE_MEMBERS

    def may_change(self, document: str) -> bool:
        """False where nothing in a JSON document, as it is spelled, is changed."""
        return self._move.may_change(document) or self._ids.may_stand_in(document)
