"""Finds where two journals part: the first row that differs, why, and how they go on.

One row of each is in memory up to there, and a bounded window behind it.
"""

from __future__ import annotations

from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from bernstein.canonical import JsonObject, JsonValue
from bernstein.chain.read import (
    differ_in_counts_alone,
    load_replay_events,
    payload_of,
    placeless_hash,
)
from bernstein.events import trajectory as event

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bernstein.events.entry import JournalEntry

DiffReason: TypeAlias = Literal[
    "payload",
    "event",
    "order",
    "missing",
    "extra",
    "provider_state_mutation",
    "model_answer",
    "tool_result",
    "decision",
]

WINDOW_ROWS = 2000
_RUN_ON = 3  # rows that must be equal in a row for two runs to count as realigned
_REASON_OF = {
    event.MODEL_ANSWER: "model_answer",
    event.TOOL_RESULT: "tool_result",
    event.DECISION_MADE: "decision",
}


class FieldDifference(msgspec.Struct, frozen=True):
    """A member of the two payloads that differs; null where one of them lacks it."""

    path: str
    left: JsonValue
    right: JsonValue


class JournalDiff(msgspec.Struct, frozen=True):
    """Where two journals part.

    Attributes:
        step_index: The first row that differs, from 0.
        reason: missing: the second journal lacks the row; extra: the first does; order: the row
            comes, but later; provider_state_mutation: one of them is a mutation of the model's
            context; model_answer, tool_result, decision: the payload of such a row; event: two
            different events; else payload.
        left, right: Event and lane of the row in each, or None.
        kinds: For provider_state_mutation the kind on each side, or None.
        in_counts_alone: Whether two mutations differ in nothing but the token counts that they
            report: a client's own counts can follow its timing.
        fields: The members that differ, where both rows are of one event.
        realigned: The rows, one of each, from which the two are equal again; None where they
            are not within the window.
    """

    step_index: int
    reason: DiffReason
    left: tuple[str, str] | None
    right: tuple[str, str] | None
    fields: list[FieldDifference]
    kinds: tuple[str | None, str | None] | None = None
    realigned: tuple[int, int] | None = None
    in_counts_alone: bool = False


def diff_journals(left: Path, right: Path) -> JournalDiff | None:
    """The first difference of two journals whose chains hold, or None.

    Two rows are equal when their events, lanes and payloads are: a row behind a difference is not
    different because the chain is.
    """
    ours, theirs = load_replay_events(left), load_replay_events(right)
    for index, (one, other) in enumerate(zip_longest(ours, theirs)):
        if one is None or other is None or _identity(one) != _identity(other):
            return _describe(index, one, other, ours, theirs)
    return None


def _describe(
    index: int,
    one: JournalEntry | None,
    other: JournalEntry | None,
    ours: Iterator[JournalEntry],
    theirs: Iterator[JournalEntry],
) -> JournalDiff:
    left = ([one] if one else []) + list(islice(ours, WINDOW_ROWS))
    right = ([other] if other else []) + list(islice(theirs, WINDOW_ROWS))
    mutations = (_mutation_kind(one), _mutation_kind(other))
    fields: list[FieldDifference] = []
    if one is not None and other is not None and one.event == other.event:
        _walk(payload_of(one), payload_of(other), "", fields)
    return JournalDiff(
        step_index=index,
        reason=_reason(one, other, left, right),
        left=None if one is None else (one.event, one.lane),
        right=None if other is None else (other.event, other.lane),
        fields=fields,
        kinds=mutations if any(mutations) else None,
        realigned=_realigned(left, right),
        in_counts_alone=one is not None
        and other is not None
        and differ_in_counts_alone(one, other),
    )


def _identity(row: JournalEntry) -> tuple[str, str, str]:
    return row.event, row.lane, placeless_hash(row)


def _mutation_kind(row: JournalEntry | None) -> str | None:
    if row is None or row.event != event.PROVIDER_STATE_MUTATION:
        return None
    return str(payload_of(row).get("kind"))


def _reason(
    one: JournalEntry | None,
    other: JournalEntry | None,
    left: list[JournalEntry],
    right: list[JournalEntry],
) -> DiffReason:
    if _mutation_kind(one) or _mutation_kind(other):
        return "provider_state_mutation"
    if other is None:
        return "missing"
    if one is None:
        return "extra"
    later_right = {_identity(row) for row in right}
    later_left = {_identity(row) for row in left}
    here, there = _identity(one) in later_right, _identity(other) in later_left
    if here and there:
        return "order"
    if there:
        return "missing"
    if here:
        return "extra"
    if one.event != other.event:
        return "event"
    reason: DiffReason = _REASON_OF.get(one.event, "payload")  # type: ignore[assignment]
    return reason


def _realigned(left: list[JournalEntry], right: list[JournalEntry]) -> tuple[int, int] | None:
    """The first pair of rows behind the difference from which a run of rows is equal."""
    ours, theirs = [_identity(row) for row in left], [_identity(row) for row in right]
    places: dict[tuple[str, str, str], list[int]] = {}
    for place, identity in enumerate(theirs):
        places.setdefault(identity, []).append(place)
    for mine, identity in enumerate(ours):
        for its in places.get(identity, ()):
            length = min(_RUN_ON, len(ours) - mine, len(theirs) - its)
            if ours[mine : mine + length] == theirs[its : its + length]:
                return left[mine].index, right[its].index
    return None


def _walk(left: JsonValue, right: JsonValue, path: str, found: list[FieldDifference]) -> None:
    if isinstance(left, dict) and isinstance(right, dict):
        for name in sorted(left.keys() | right.keys()):
            _walk(left.get(name), right.get(name), f"{path}.{name}".lstrip("."), found)
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for place, (one, other) in enumerate(zip(left, right, strict=True)):
            _walk(one, other, f"{path}[{place}]", found)
    elif left != right:
        found.append(FieldDifference(path or "$", left, right))


def to_json(diff: JournalDiff) -> JsonObject:
    """A difference as a JSON value."""
    value: JsonObject = msgspec.to_builtins(diff)
    return value
