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


class KnownIds:
    """The pairs that a replay has seen: those of a lane are newer than those of others."""

    def __init__(self, patterns: Sequence[re.Pattern[str]]) -> None:
        """Replace what the first group of one of these finds."""
        self._patterns = patterns
        self._all: dict[str, str] = {}
        self._lanes: dict[str, dict[str, str]] = {}

    def learn(
        self, lane: str, recorded: Mapping[str, Sequence[str]], live: Mapping[str, Sequence[str]]
    ) -> Ids:
        """Pair the ids of a recorded request with those of the live one that it answers.

        Returns:
            What the answer to it is changed by: its own pairs, then its lane's, then any other.
        """
        if not self._patterns:
            return Ids((), {})
        own = {
            old: new
            for name, olds in recorded.items()
            for old, new in zip(olds, live.get(name, ()), strict=False)
        }
        lane_pairs = self._lanes.setdefault(lane, {})
        lane_pairs |= own
        for old, new in own.items():
            self._all.setdefault(old, new)
        return Ids(self._patterns, {**self._all, **lane_pairs})


class Ids:
    """What one answer is changed by."""

    def __init__(self, patterns: Sequence[re.Pattern[str]], pairs: Mapping[str, str]) -> None:
        """Replace recorded ids by live ones, where the first group of a pattern finds them."""
        changed = any(old != new for old, new in pairs.items())
        self._patterns = patterns if changed else ()
        self._live = dict(pairs)
        self._recorded = {new: old for old, new in reversed(self._live.items())}

    def __bool__(self) -> bool:
        return bool(self._patterns)

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
        for pattern in self._patterns:
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
