"""The folders that differ between two runs of one program, as variables; both ways.

In a key a folder stands as its variable; in a served answer the recorded folder is replaced by the
one of this run, so that what the program writes lands here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_AFTER = r"(?![A-Za-z0-9_])"


def slug(path: str) -> str:
    """A path as clients spell it in the name of a folder: what is no letter or digit is a dash."""
    return re.sub(r"[^A-Za-z0-9]", "-", path)


class Folders:
    """Named folders of one run; a name is ``cwd``, ``home``, ``tmp`` or ``gateway``."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        """Use these names and paths, absolute and without a slash at their end."""
        self.paths = dict(paths)
        spelled: dict[str, str] = {}
        for name, path in paths.items():
            if len(path) > 1:
                spelled.setdefault(path, f"<{name}>")
                if path.startswith("/"):
                    spelled.setdefault(slug(path), f"<{name}-slug>")
        self._spelled = spelled
        longest_first = sorted(spelled, key=len, reverse=True)
        self._pattern = re.compile(
            "(?:" + "|".join(map(re.escape, longest_first)) + ")" + _AFTER if spelled else r"(?!)"
        )

    def to_variables(self, text: str) -> str:
        """``text`` with each folder as its variable."""
        if not self._pattern.search(text):
            return text
        return self._pattern.sub(lambda found: self._spelled[found[0]], text)

    def moved_to(self, other: Folders) -> Move:
        """What turns a text about these folders into one about those of ``other``."""
        theirs = {variable: path for path, variable in other._spelled.items()}
        moves = {
            path: theirs[variable]
            for path, variable in self._spelled.items()
            if variable in theirs and theirs[variable] != path
        }
        return Move(moves)


class Move:
    """Replaces the folders of a recording by those of a replay."""

    def __init__(self, moves: Mapping[str, str]) -> None:
        self._moves = dict(moves)
        longest_first = sorted(moves, key=len, reverse=True)
        self._pattern = re.compile(
            "(?:" + "|".join(map(re.escape, longest_first)) + ")" + _AFTER if moves else r"(?!)"
        )

    def __bool__(self) -> bool:
        return bool(self._moves)

    def text(self, text: str) -> str:
        """``text`` with each recorded folder replaced."""
        return self._pattern.sub(lambda found: self._moves[found[0]], text)

    def pieces(self, pieces: list[str]) -> list[str]:
        """Pieces of one text, a folder in it replaced in the piece where it begins."""
        joined = "".join(pieces)
        found = list(self._pattern.finditer(joined))
        if not found:
            return pieces
        moved: list[str] = []
        start, matches = 0, iter(found)
        match = next(matches, None)
        for piece in pieces:
            end = start + len(piece)
            out, at = [], start
            while match is not None and match.start() < end:
                if match.start() >= at:
                    out.append(joined[at : match.start()])
                    out.append(self._moves[match[0]])
                at = max(at, min(match.end(), end))
                if match.end() > end:
                    break
                at = match.end()
                match = next(matches, None)
            if at < end:
                out.append(joined[at:end])
            moved.append("".join(out))
            start = end
        return moved
