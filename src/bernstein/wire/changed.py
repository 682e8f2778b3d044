"""A response with its texts changed: folders when it is served, secrets when it is kept.

A path or a token can be cut over many deltas of a stream: the deltas of one block are joined, what
is found is replaced, and the text goes back to the delta where it began. Texts are looked at as
they are decoded. Where nothing is to be replaced bytes pass untouched.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from bernstein.canonical import JsonObject, JsonValue, decode_strict, spelled_json
from bernstein.errors import CanonicalError


class Change(Protocol):
    """What is done to texts: ``Move`` and ``Redactor``."""

    def text(self, text: str) -> str:
        """A text, changed."""

    def pieces(self, pieces: list[str]) -> list[str]:
        """The pieces of one text, changed where what is found begins."""

    def value(self, value: JsonValue) -> JsonValue:
        """A JSON value, its texts changed."""

    def takes(self, name: str) -> bool:
        """Whether deltas of this name are changed."""

    def may_change(self, document: str) -> bool:
        """False where nothing in a JSON document, as it is spelled, is changed."""


class Served(NamedTuple):
    """A piece of a body, and the number of the original piece in which its end came."""

    data: bytes
    number: int


def changed_body(kind: str, pieces: list[bytes], change: Change) -> list[Served]:
    """The pieces of a response with its texts changed.

    Args:
        kind: What was asked for (``protocol.Kind``): it says where a stream's deltas are.
        pieces: The pieces as they came.
        change: What is done to texts.
    """
    body = b"".join(pieces)
    same = [Served(piece, number) for number, piece in enumerate(pieces)]
    text = body.decode("utf-8", "surrogateescape")
    if not text.lstrip("\ufeff \r\n\t").startswith(("data:", "event:", "id:", ":", "retry:")):
        changed = _changed_text(text, change)
        last = max(len(pieces) - 1, 0)
        return same if changed == text else [Served(_encoded(changed), last)]
    text = text.replace("\r\n", "\n")
    old_events = text.split("\n\n")
    events = _changed_events(old_events, kind, change)
    if events is None:
        return same
    ends = list(accumulate(map(len, pieces)))
    served: list[Served] = []
    at = 0
    for old, new in zip(old_events, events, strict=True):
        at += len(_encoded(old)) + 2
        served.append(Served(_encoded(f"{new}\n\n"), min(bisect_left(ends, at), len(ends) - 1)))
    last_piece = served.pop()
    return served if not events[-1] else [*served, last_piece._replace(data=_encoded(events[-1]))]


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _changed_text(text: str, change: Change) -> str:
    """A body or an event's data, its decoded strings changed where it is JSON."""
    if not change.may_change(text):
        return text
    try:
        value = decode_strict(_encoded(text))
    except CanonicalError:
        return change.text(text)
    changed = change.value(value)
    return text if changed == value else spelled_json(changed)


def _changed_events(events: list[str], kind: str, change: Change) -> list[str] | None:
    """The events of a stream, changed; None where none is."""
    values = [_value(event) for event in events]
    changed: set[int] = set()
    blocks: dict[object, list[tuple[int, _Slot]]] = {}
    for place, value in enumerate(values):
        for key, slot in _slots_in(kind, value):
            if change.takes(slot.name):
                blocks.setdefault(key, []).append((place, slot))
    for slots in blocks.values():
        before = [slot.text for _, slot in slots]
        for (place, slot), old, new in zip(slots, before, change.pieces(before), strict=True):
            if old != new:
                slot.put(new)
                changed.add(place)
    out: list[str] = []
    for place, (event, value) in enumerate(zip(events, values, strict=True)):
        if value is None:
            out.append(change.text(event))
            continue
        # What stands whole in one event: a final object that repeats the text.
        whole = change.value(value) if place in changed or change.may_change(event) else value
        out.append(_with_data(event, whole) if place in changed or whole != value else event)
    return out if out != events else None


class _Slot:
    """A place in an event's value that holds a piece of a text."""

    def __init__(self, holder: dict[str, Any], name: str) -> None:
        self._holder = holder
        self.name = name

    @property
    def text(self) -> str:
        text: str = self._holder[self.name]
        return text

    def put(self, text: str) -> None:
        self._holder[self.name] = text


def _value(event: str) -> JsonObject | None:
    data = "\n".join(
        line[5:].removeprefix(" ")
        for line in event.removeprefix("\ufeff").split("\n")
        if line.startswith("data:")
    )
    try:
        value = decode_strict(data.encode())
    except (CanonicalError, UnicodeEncodeError):
        return None
    return value if isinstance(value, dict) else None


def _with_data(event: str, value: JsonObject) -> str:
    lines = event.removeprefix("\ufeff").split("\n")
    lines = [line for line in lines if not line.startswith("data:")]
    return "\n".join([*lines, f"data: {spelled_json(value)}"])


_Slots = list[tuple[object, _Slot]]


def _slots_of(holder: object, *names: str) -> list[_Slot]:
    if not isinstance(holder, dict):
        return []
    return [_Slot(holder, name) for name in names if isinstance(holder.get(name), str)]


def _messages(value: JsonObject) -> _Slots:
    delta = value.get("delta")
    slots = _slots_of(delta, "text", "partial_json", "thinking")
    return [((value.get("index"), slot.name), slot) for slot in slots]


def _slots_in(kind: str, value: JsonObject | None) -> _Slots:
    """The slots of an event; none where it has not the shape that its kind has."""
    if value is None:
        return []
    try:
        found = _SLOTS.get(kind, _of_choices)(value)
        hash(tuple(key for key, _ in found))
    except (AttributeError, KeyError, TypeError):
        return []
    return found


def _of_choices(value: JsonObject) -> _Slots:
    """Chat completions, and the older completions: every text of a choice's delta."""
    found: _Slots = []
    for number, choice in enumerate(value.get("choices") or []):
        which = choice.get("index", number)
        delta = choice.get("delta") or {}
        call = delta.get("function_call")
        for holder, name in ((choice, "text"), (call, "arguments")):
            found += [((which, name), slot) for slot in _slots_of(holder, name)]
        names = [name for name in delta if name != "role"]
        found += [((which, slot.name), slot) for slot in _slots_of(delta, *names)]
        content = delta.get("content")
        for part in content if isinstance(content, list) else ():
            found += [((which, "content"), slot) for slot in _slots_of(part, "text")]
        for place, one in enumerate(delta.get("tool_calls") or []):
            slots = _slots_of(one.get("function"), "arguments")
            found += [((which, "call", one.get("index", place)), slot) for slot in slots]
    return found


def _responses(value: JsonObject) -> _Slots:
    if not str(value.get("type", "")).endswith(".delta"):
        return []
    where = (value.get("type"), value.get("output_index"), value.get("content_index"))
    return [(where, slot) for slot in _slots_of(value, "delta")]


def _generate(value: JsonObject) -> _Slots:
    found: _Slots = []
    for candidate in value.get("candidates") or []:
        for part in (candidate.get("content") or {}).get("parts") or []:
            found += [("text", slot) for slot in _slots_of(part, "text")]
    return found


_SLOTS: dict[str, Callable[[JsonObject], _Slots]] = {
    "messages": _messages,
    "chat": _of_choices,
    "responses": _responses,
    "generate": _generate,
}
