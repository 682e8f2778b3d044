"""Sums what model calls used, by band: integers alone, and no claim that a row does not make.

Rule: nothing here prices a row by itself, reads a clock, or knows where runs lie.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import msgspec
from msgspec import UNSET

from bernstein.canonical import MAX_INT, JsonObject
from bernstein.events.payloads import BANDS, FoldError, ModelUsage
from bernstein.fold.order import fold
from bernstein.fold.run import as_stringified

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bernstein.events.trajectory import BillingStatus
    from bernstein.fold.source import Event, TrajectoryEvent

By: TypeAlias = Literal["model", "day", "step", "run"]
BYS: tuple[By, ...] = get_args(By)
# What a group is called, by member: ("provider", "openai"), ("model", "gpt-5").
Name: TypeAlias = tuple[tuple[str, str], ...]


class UsageRow(msgspec.Struct, frozen=True, gc=False):
    """A ``model.usage`` row: what a call used, in which run, and when the row was written."""

    run_id: str
    written_at: datetime  # UTC
    payload: ModelUsage


class Sum(msgspec.Struct, rename="camel"):
    """What rows of one band used together; ``credits`` are micro-dollars."""

    rows: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    credits: int = 0

    def add(self, payload: ModelUsage) -> None:
        """Take a row.

        Raises:
            FoldError: A total is beyond 2^53-1.
        """
        cached = payload.cached_input_tokens
        self.rows += 1
        self.input_tokens += payload.input_tokens
        self.output_tokens += payload.output_tokens
        self.cached_input_tokens += 0 if cached is UNSET else cached
        self.credits += payload.credits
        totals: dict[str, int] = msgspec.to_builtins(self)
        name = max(totals, key=totals.__getitem__)
        if totals[name] > MAX_INT:
            raise FoldError(
                f"the total of {name} is beyond 2^53-1, which no calls can have used\n"
                "  look at fewer runs: bernstein usage RUN"
            )


@dataclass(slots=True)
class Bands:
    """The sums of rows by band, and the price books that priced ones name."""

    sums: dict[BillingStatus, Sum] = field(default_factory=dict)
    books: set[str] = field(default_factory=set)

    def add(self, payload: ModelUsage) -> None:
        """Take a row.

        Raises:
            FoldError: A total is beyond 2^53-1.
        """
        self.sums.setdefault(payload.billing_status, Sum()).add(payload)
        if payload.price_book_version is not UNSET:
            self.books.add(payload.price_book_version)

    def to_json(self) -> JsonObject:
        """Each band that has rows, in the order in which bands are written."""
        value: JsonObject = {
            band: msgspec.to_builtins(self.sums[band]) for band in BANDS if band in self.sums
        }
        if self.books:
            value["priced"]["priceBookVersions"] = sorted(self.books)
        return value


class Tally:
    """Bands of groups of rows, and of all rows together.

    ``unpriced`` are the models for which a price was asked and not known.
    """

    def __init__(self) -> None:
        self.groups: dict[Name, Bands] = {}
        self.totals = Bands()
        self.unpriced: set[Name] = set()

    def add(self, name: Name, payload: ModelUsage) -> None:
        """Take a row of a group.

        Raises:
            FoldError: A total is beyond 2^53-1.
        """
        self.groups.setdefault(name, Bands()).add(payload)
        self.totals.add(payload)

    def groups_json(self) -> list[JsonObject]:
        """The groups, by name in the order of code points."""
        return [
            {**dict(name), "bands": self.groups[name].to_json()} for name in sorted(self.groups)
        ]


def tally(
    rows: Iterable[UsageRow],
    by: By,
    zone: tzinfo = UTC,
    price: Callable[[UsageRow], ModelUsage] | None = None,
) -> Tally:
    """Sum rows of any runs, given in any order.

    Args:
        rows: The rows.
        by: What makes a group.
        zone: Where a day begins.
        price: What an estimated row comes to once a price is stated for it; it is asked row by
            row, since prices depend on a call's size and time.
    Raises:
        FoldError: A total is beyond 2^53-1.
    """
    found = Tally()
    for row in rows:
        payload = row.payload
        if price is not None and payload.billing_status == "estimated":
            payload = price(row)
            if payload.billing_status == "estimated":
                found.unpriced.add(model_of(payload))
        found.add(_name(row, by, zone), payload)
    return found


def _name(row: UsageRow, by: By, zone: tzinfo) -> Name:
    match by:
        case "model":
            return model_of(row.payload)
        case "step":
            return _step_of(row.payload)
        case "run":
            return (("runId", row.run_id),)
        case "day":
            return (("day", row.written_at.astimezone(zone).date().isoformat()),)


def model_of(payload: ModelUsage) -> Name:
    """The model that a row is of."""
    return (("provider", payload.provider), ("model", payload.model))


def _step_of(payload: ModelUsage) -> Name:
    return () if payload.step_id is UNSET else (("stepId", payload.step_id),)


@dataclass(frozen=True, slots=True)
class UsageProjection:
    """What one run used: together, by model, and by step."""

    run_id: str
    models: Tally
    steps: Tally

    def to_bytes(self) -> bytes:
        """The bytes that ``JSON.stringify`` would write, in UTF-8."""
        totals = self.models.totals.to_json()
        nothing = msgspec.to_builtins(Sum())
        return as_stringified(
            {
                "runId": self.run_id,
                "totals": {band: totals.get(band, nothing) for band in BANDS},
                "models": self.models.groups_json(),
                "steps": self.steps.groups_json(),
            }
        )


def project_usage(events: Iterable[TrajectoryEvent]) -> UsageProjection:
    """Fold events, given in any order, into what their run used.

    Raises:
        FoldError: As of ``project``.
    Source: docs/usage.md.
    """
    return fold(events, UsageFold)


class UsageFold:
    """What a run used, of events that come in order."""

    def __init__(self) -> None:
        self._run_id = ""
        self._models, self._steps = Tally(), Tally()

    def take(self, run_id: str, events: Iterable[Event]) -> None:
        """Fold events of a run, whose payloads are values of their kinds.

        Raises:
            FoldError: A total is beyond 2^53-1.
        """
        self._run_id = run_id
        for event in events:
            if isinstance(event.payload, ModelUsage):
                self._models.add(model_of(event.payload), event.payload)
                self._steps.add(_step_of(event.payload), event.payload)

    def finish(self) -> UsageProjection:
        """The projection of the events taken so far."""
        return UsageProjection(self._run_id, self._models, self._steps)
