"""The folders that differ between two runs of one program, as variables; both ways.

In a key a folder stands as its variable; in a served answer the recorded folder is replaced by the
one of this run, so that what the program writes lands here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from bernstein.canonical import JsonValue
from bernstein.wire.pieces import Finder

# What is signed or no text: a change would break it.
SIGNED_BLOCKS = frozenset({"thinking", "redacted_thinking"})
OPAQUE_MEMBERS = frozenset({"signature", "encrypted_content", "thoughtSignature"})

# A path begins where no name goes on, or behind file://, and ends where its last name does.
_BEFORE = r"(?:(?<![A-Za-z0-9_.~/-])|(?<=file://))"
_AFTER = r"(?![A-Za-z0-9_-]|\.\w)"
# A slug is the whole name of a folder.
_SLUG_BEFORE, _SLUG_AFTER = r"(?<![^/\s\"'])", r"(?![^/\s\"'])"


def slug(path: str) -> str:
    """A path as clients spell it in the name of a folder: what is no letter or digit is a dash."""
    return re.sub(r"[^A-Za-z0-9]", "-", path)


class Folders:
    """Named folders of one run; a name is ``cwd``, ``home`` or ``tmp``."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        """Use these names and paths, absolute and without a slash at their end."""
        self.paths = dict(paths)
        self.spelled: dict[str, str] = {}
        for name, path in paths.items():
            if len(path) > 1:
                self.spelled.setdefault(path, f"<{name}>")
                if path.count("/") > 1:
                    self.spelled.setdefault(slug(path), f"<{name}-slug>")
        self._finder = Finder(_pattern(self.spelled), self.spelled)

    def to_variables(self, text: str) -> str:
        """``text`` with each folder as its variable."""
        return self._finder.replace(text, lambda found: self.spelled[found[0]])

    def may_stand_in(self, document: str) -> bool:
        """False where no text of a JSON document, as it is spelled, names a folder."""
        return self._finder.may_find_in_json(document)

    def moved_to(self, other: Folders) -> Move:
        """What turns a text about these folders into one about those of ``other``."""
        theirs = {variable: path for path, variable in other.spelled.items()}
        return Move(
            {
                path: theirs[variable]
                for path, variable in self.spelled.items()
                if variable in theirs and theirs[variable] != path
            }
        )


class Move:
    """Replaces the folders of a recording by those of a replay."""

    def __init__(self, moves: Mapping[str, str]) -> None:
        self._moves = dict(moves)
        self._finder = Finder(_pattern(moves), moves)

    def __bool__(self) -> bool:
        return bool(self._moves)

    def text(self, text: str) -> str:
        """``text`` with each recorded folder replaced."""
        return self._finder.replace(text, lambda found: self._moves[found[0]])

    def may_change(self, document: str) -> bool:
        """False where no text of a JSON document is changed; ``document`` is as it is spelled."""
        return self._finder.may_find_in_json(document)

    def value(self, value: JsonValue) -> JsonValue:
        """A JSON value with each recorded folder in its texts replaced, but for what is signed."""
        return each_open_text(value, self.text)

    def takes(self, name: str) -> bool:
        """Whether deltas of this name are changed: not those of a signed block."""
        return name not in {"thinking", "signature"}

    def pieces(self, pieces: list[str]) -> list[str]:
        """Pieces of one text, a folder in it replaced in the piece where it begins."""
        return self._finder.replace_in_pieces(pieces, lambda found: self._moves[found[0]])


def each_open_text(value: JsonValue, change: Callable[[str], str]) -> JsonValue:
    """``value`` with ``change`` applied to every text in it but those that are signed or binary."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [each_open_text(item, change) for item in value]
    if isinstance(value, dict):
        kind = value.get("type")
        if isinstance(kind, str) and kind in SIGNED_BLOCKS:
            return value
        return {
            change(name): item if name in OPAQUE_MEMBERS else each_open_text(item, change)
            for name, item in value.items()
        }
    return value


def _pattern(spelled: Mapping[str, str]) -> re.Pattern[str]:
    """What finds these folders, the longest first."""
    parts = []
    for text in sorted(spelled, key=len, reverse=True):
        is_path = text.startswith("/")
        before, after = (_BEFORE, _AFTER) if is_path else (_SLUG_BEFORE, _SLUG_AFTER)
        parts.append(f"{before}{re.escape(text)}{after}")
    return re.compile("|".join(parts) if parts else r"(?!)")
