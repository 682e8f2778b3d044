"""What varies by itself between two requests that are meant to be the same, and rules against it.

A suggestion is to be reviewed: only a person knows whether what varied says something.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, NamedTuple

from bernstein.canonical import JsonObject, JsonValue, canonical_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_CONTEXT_CHARS = 24
_MAX_TOKENS = 3000  # comparing takes their square
_WORD = re.compile(r"[A-Za-z0-9_.:+-]")
_TOKENS = re.compile(r"[A-Za-z0-9_]+|\s+|.", re.DOTALL)
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# In this order: the first that fits both values says what they are.
_KINDS: tuple[tuple[str, str], ...] = (
    ("uuid", _UUID),
    ("time", r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?"),
    ("date", r"\d{4}-\d\d-\d\d"),
    ("number", r"\d+(?:\.\d+)?"),
    ("hex", r"[0-9a-f]{6,}"),
    ("id", r"[A-Za-z]+[_-][A-Za-z0-9]{6,}"),
    ("word", r"[^\s\"'<>]+"),
)


class Variation(NamedTuple):
    """One place that varied.

    Attributes:
        path: Where in the body, with ``[*]`` for every item of a list.
        kind: What the values are: uuid, time, date, number, hex, id, word; order (of a list), or
            other: no rule is suggested for it.
        before: The text before the value on its line; empty where the value is all there is.
        old: The value in the recording.
        new: The value now.
    """

    path: str
    kind: str
    before: str
    old: str
    new: str


def find_variations(old: JsonValue, new: JsonValue, path: str = "") -> Iterator[Variation]:
    """Every place where two values differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            inner = f"{path}.{name}".lstrip(".")
            if name in old and name in new:
                yield from find_variations(old[name], new[name], inner)
            else:
                yield Variation(inner, "other", "", _shown(old.get(name)), _shown(new.get(name)))
    elif isinstance(old, list) and isinstance(new, list):
        yield from _of_lists(old, new, path)
    elif isinstance(old, str) and isinstance(new, str):
        yield from _of_texts(old, new, path)
    elif old != new or type(old) is not type(new):
        are_numbers = all(type(value) in {int, float} for value in (old, new))
        yield Variation(path, "number" if are_numbers else "other", "", _shown(old), _shown(new))


def _of_lists(old: list[JsonValue], new: list[JsonValue], path: str) -> Iterator[Variation]:
    if old != new and sorted(map(canonical_bytes, old)) == sorted(map(canonical_bytes, new)):
        yield Variation(path, "order", "", _shown(old), _shown(new))
    elif len(old) != len(new):
        yield Variation(path, "other", "", f"{len(old)} items", f"{len(new)} items")
    else:
        for left, right in zip(old, new, strict=True):
            yield from find_variations(left, right, f"{path}[*]")


def _of_texts(old: str, new: str, path: str) -> Iterator[Variation]:
    if old == new:
        return
    left, right = _TOKENS.findall(old), _TOKENS.findall(new)
    starts = [_starts(left), _starts(right)]
    until = 0
    for i, j, k, n in _changed_stretches(left, right):
        if starts[0][i] < until:
            continue
        begin, until = _widened(old, starts[0][i], starts[0][j])
        other = _widened(new, starts[1][k], starts[1][n])
        values = old[begin:until], new[slice(*other)]
        line = old[:begin].rpartition("\n")[2][-_CONTEXT_CHARS:]
        yield Variation(path, _kind(*values), line, *values)


def _changed_stretches(left: list[str], right: list[str]) -> list[tuple[int, int, int, int]]:
    """Where two lists of tokens differ, as places in both; one stretch where they are long."""
    least = min(len(left), len(right))
    head = next((n for n in range(least) if left[n] != right[n]), least)
    most = least - head
    tail = next((n for n in range(most) if left[-1 - n] != right[-1 - n]), most)
    inner = left[head : len(left) - tail], right[head : len(right) - tail]
    if max(map(len, inner)) > _MAX_TOKENS:
        return [(head, len(left) - tail, head, len(right) - tail)]
    return [
        (head + i, head + j, head + k, head + n)
        for op, i, j, k, n in SequenceMatcher(None, *inner, autojunk=False).get_opcodes()
        if op != "equal"
    ]


def _starts(tokens: list[str]) -> list[int]:
    places = [0]
    for token in tokens:
        places.append(places[-1] + len(token))
    return places


def _widened(text: str, start: int, end: int) -> tuple[int, int]:
    """The whole words that a stretch of a text touches."""
    while start > 0 and _WORD.match(text[start - 1]):
        start -= 1
    while end < len(text) and _WORD.match(text[end]):
        end += 1
    while end > start and text[end - 1] in ".:":
        end -= 1
    return start, end


def _kind(old: str, new: str) -> str:
    for name, pattern in _KINDS:
        if re.fullmatch(pattern, old) and re.fullmatch(pattern, new):
            return name
    return "other"


def suggested_rules(variations: Iterable[Variation]) -> list[JsonObject]:
    """A rule for each place that varied in a way that a rule can hold."""
    rules: dict[tuple[str, str, str], JsonObject] = {}
    names: dict[str, str] = {}  # of ids, by their value: one id has one name wherever it stands
    patterns = dict(_KINDS)
    for path, kind, before, old, new in variations:
        why = f"varies by itself: {old[:40]}, {new[:40]}"
        if kind == "order":
            rule: JsonObject = {"op": "sort", "path": path, "why": why}
        elif kind == "other" or not path:
            continue
        elif before.strip():
            rule = {
                "op": "rewrite",
                "path": path,
                "pattern": f"({re.escape(before)}){patterns[kind]}",
                "to": f"\\g<1><{kind}>",
                "why": why,
            }
        elif kind in {"uuid", "hex", "id"}:
            own_name = re.sub(r"\W+", "", path.rpartition(".")[2]) or "id"
            name = names.setdefault(old, own_name)
            rule = {"op": "rename", "path": path, "name": name, "why": why}
        else:
            rule = {"op": "drop", "path": path, "why": why}
        rules.setdefault((path, kind, before), rule)
    # Ids are renamed last: what is dropped or put in order before says which comes first.
    return sorted(rules.values(), key=lambda rule: rule["op"] == "rename")


def _shown(value: JsonValue) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else text[:80] + "…"
