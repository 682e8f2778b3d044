"""A recorded response about the recording's folders, made one about the folders of this run.

A path can be cut over many deltas of a stream: the deltas of one block are joined, the folder is
replaced, and the text goes back to the delta where it began. Where nothing is to be replaced bytes
pass untouched.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from bernstein.canonical import JsonObject, decode_strict
from bernstein.errors import CanonicalError
from bernstein.wire.protocol import kind_of

if TYPE_CHECKING:
    from bernstein.recording.exchanges import ExchangeRow
    from bernstein.wire.folders import Move


class Served(NamedTuple):
    """A piece to send, and the number of the recorded piece in which its end came."""

    data: bytes
    number: int


def moved_body(row: ExchangeRow, body: bytes, pieces: list[Served], move: Move) -> list[Served]:
    """The pieces of a response with the recording's folders replaced."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return pieces
    if not text.lstrip().startswith(("data:", "event:", "id:", ":", "retry:")):
        moved = move.text(text)
        return pieces if moved == text else [Served(moved.encode("utf-8"), len(row.chunks) - 1)]
    text = text.replace("\r\n", "\n")
    events = _moved_events(text.split("\n\n"), kind_of(row.method, row.path), move)
    if events is None:
        return pieces
    ends = list(accumulate(row.chunks))
    served: list[Served] = []
    at = 0
    for old, new in zip(text.split("\n\n"), events, strict=True):
        at += len(old.encode("utf-8")) + 2
        number = min(bisect_left(ends, at), len(ends) - 1)
        served.append(Served(f"{new}\n\n".encode(), number))
    last = served.pop()
    return served if not events[-1] else [*served, Served(events[-1].encode(), last.number)]


def _moved_events(events: list[str], kind: str, move: Move) -> list[str] | None:
    """The events of a stream with folders replaced; None where none changes."""
    values: list[JsonObject | None] = [_value(event) for event in events]
    changed: set[int] = set()
    blocks: dict[object, list[tuple[int, _Slot]]] = {}
    for place, value in enumerate(values):
        if value is None:
            continue
        for key, slot in _SLOTS.get(kind, _no_slots)(value):
            blocks.setdefault(key, []).append((place, slot))
    for slots in blocks.values():
        before = [slot.text for _, slot in slots]
        after = move.pieces(before)
        for (place, slot), old, new in zip(slots, before, after, strict=True):
            if old != new:
                slot.put(new)
                changed.add(place)
    moved: list[str] = []
    for place, (event, value) in enumerate(zip(events, values, strict=True)):
        out = event
        if value is not None and place in changed:
            out = _with_data(event, value)
        # What stands whole in one event: a final object that repeats the text.
        replaced = move.text(out)
        if replaced != event:
            changed.add(place)
        moved.append(replaced)
    return moved if changed else None


class _Slot:
    """A place in an event's value that holds a piece of a text."""

    def __init__(self, holder: dict[str, Any], name: str) -> None:
        self._holder = holder
        self._name = name

    @property
    def text(self) -> str:
        text: str = self._holder[self._name]
        return text

    def put(self, text: str) -> None:
        self._holder[self._name] = text


def _value(event: str) -> JsonObject | None:
    data = "\n".join(
        line[5:].removeprefix(" ") for line in event.split("\n") if line.startswith("data:")
    )
    try:
        value = decode_strict(data.encode())
    except (CanonicalError, UnicodeEncodeError):
        return None
    return value if isinstance(value, dict) else None


def _with_data(event: str, value: JsonObject) -> str:
    lines = [line for line in event.split("\n") if not line.startswith("data:")]
    data = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return "\n".join([*lines, f"data: {data}"])


_Slots = list[tuple[object, _Slot]]


def _slots_of(holder: object, *names: str) -> list[_Slot]:
    if not isinstance(holder, dict):
        return []
    return [_Slot(holder, name) for name in names if isinstance(holder.get(name), str)]


def _messages(value: JsonObject) -> _Slots:
    delta = value.get("delta")
    slots = _slots_of(delta, "text", "partial_json", "thinking")
    return [((value.get("index"), slot._name), slot) for slot in slots]


def _chat(value: JsonObject) -> _Slots:
    found: _Slots = []
    for choice in value.get("choices") or []:
        delta = choice.get("delta") or {}
        found += [(slot._name, slot) for slot in _slots_of(delta, "content")]
        for place, call in enumerate(delta.get("tool_calls") or []):
            slots = _slots_of(call.get("function"), "arguments")
            found += [(("call", call.get("index", place)), slot) for slot in slots]
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


def _no_slots(value: JsonObject) -> _Slots:
    del value
    return []


_SLOTS: dict[str, Callable[[JsonObject], _Slots]] = {
    "messages": _messages,
    "chat": _chat,
    "responses": _responses,
    "generate": _generate,
}
