"""What a file of somebody else's tells of a run, as a value: events, bodies, reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bernstein.canonical import DigestRef

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bernstein.canonical import JsonObject, JsonValue
    from bernstein.events import trajectory as event
    from bernstein.events.provider_state import MutationKind, Seen
    from bernstein.wire.reported import Report


@dataclass(frozen=True, slots=True)
class Told:
    """One event that a file tells.

    Attributes:
        kind: One of the eleven kinds.
        payload: What it says; without its bodies.
        bodies: Those, by the member whose digest stands in the payload.
    """

    kind: str
    payload: JsonObject
    bodies: Mapping[str, JsonValue] = field(default_factory=dict)


def told(kind: str, payload: JsonObject, name: str, body: JsonValue) -> Told:
    """An event with a body, or with the reference to one that is not in the file."""
    if isinstance(body, DigestRef):
        return Told(kind, {**payload, name: body.to_json()})
    return Told(kind, payload, {name: body})


@dataclass(frozen=True, slots=True)
class Transcript:
    """A run as a file tells it.

    Attributes:
        kind: The kind of the file.
        part: Which of several runs of the file it is; empty where it is the only one.
        events: What happened, and between it what changed the context, in the file's order.
        status, reason, output: How it ended, as far as that is told; else completed.
        records: How many records the file holds.
        unknown: How many of those are of no kind that is known.
        bad_lines: The lines that are no record, from 1.
        bad_counts: How many reports of tokens hold what is no count: they count for nothing.
        strays: How many results of tools came that nobody had asked for.
        kept: What the run keeps of the file.
        sight: What of a changed context such a file shows.
        is_whole: Whether the file came to its end.
    """

    kind: str
    events: tuple[Told | Report, ...]
    records: int
    kept: bytes
    part: str = ""
    status: event.RunStatus = "completed"
    reason: event.ErrorCode | None = None
    output: JsonValue = None
    unknown: int = 0
    bad_lines: tuple[int, ...] = ()
    bad_counts: int = 0
    strays: int = 0
    sight: Mapping[MutationKind, Seen] = field(default_factory=dict)
    is_whole: bool = True
