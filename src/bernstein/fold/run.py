"""Folds a run's events into what it did: status, step tree, usage by band, checkpoints.

Rule: events are put in the order of ``seq`` before they are folded, so a shuffled batch gives the
same bytes; and every member is always written in the same order.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from bernstein.canonical import MAX_DEPTH, MAX_INT, JsonObject, JsonValue
from bernstein.events.payloads import (
    BANDS,
    Checkpoint,
    FoldError,
    ModelUsage,
    RunFinished,
    RunStarted,
    StepFinished,
    StepStarted,
)
from bernstein.fold.order import fold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bernstein.events.trajectory import BillingStatus
    from bernstein.fold.source import Event, TrajectoryEvent

_COUNTS = ("inputTokens", "outputTokens", "cachedInputTokens", "credits")


@dataclass(frozen=True, slots=True)
class RunProjection:
    """What a run did, as JSON values in the order in which ``to_bytes`` writes them."""

    run_id: str
    status: str
    steps: list[JsonObject]
    usage_totals: dict[BillingStatus, dict[str, int]]
    checkpoints: list[JsonObject]

    def to_json(self) -> JsonObject:
        """The projection in its wire names."""
        return {
            "runId": self.run_id,
            "status": self.status,
            "steps": self.steps,
            "usageTotals": self.usage_totals,
            "checkpoints": self.checkpoints,
        }

    def to_bytes(self) -> bytes:
        """The bytes that ``JSON.stringify`` would write, in UTF-8."""
        return as_stringified(self.to_json())


def as_stringified(value: JsonValue) -> bytes:
    """The bytes that ``JSON.stringify`` writes of a value without floats, in UTF-8."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # A lone surrogate is escaped there.
    return text.encode("utf-8", "backslashreplace")


def project(events: Iterable[TrajectoryEvent]) -> RunProjection:
    """Fold events, given in any order, into what their run did.

    Args:
        events: Of one run: in memory, or an ``EventFile``. Equal ones count once. While they come
            in order one is in memory at a time.
    Returns:
        The projection; an empty log is a pending run without an id.
    Raises:
        FoldError: One is no event, or they contradict each other: two with one ``seq``, two runs,
            a second start of one step, a total beyond 2^53-1.
    Source: docs/spec.md, "Rows of a plan's run".
    """
    return fold(events, RunFold)


class RunFold:
    """What a run did, of events that come in order."""

    def __init__(self) -> None:
        self._run_id = ""
        self._status: str = "pending"
        self._roots: list[JsonObject] = []
        self._nodes: dict[str, JsonObject] = {}
        self._levels: dict[str, int] = {}
        self._totals = {band: dict.fromkeys(_COUNTS, 0) for band in BANDS}
        self._checkpoints: list[JsonObject] = []
        self._handlers: dict[type, Callable[[int, Any], None]] = {
            RunStarted: self._begin_run,
            RunFinished: self._end_run,
            StepStarted: self._begin_step,
            StepFinished: self._end_step,
            ModelUsage: self._add,
            Checkpoint: self._mark,
        }

    def take(self, run_id: str, events: Iterable[Event]) -> None:
        """Fold events of a run, whose payloads are values of their kinds.

        Raises:
            FoldError: One contradicts those before it.
        """
        self._run_id = run_id
        handler_of = self._handlers.get
        for event in events:
            handler = handler_of(type(event.payload))
            if handler is not None:
                handler(event.seq, event.payload)

    def finish(self) -> RunProjection:
        """The projection of the events taken so far."""
        return RunProjection(
            self._run_id, self._status, self._roots, self._totals, self._checkpoints
        )

    def _begin_run(self, seq: int, payload: RunStarted) -> None:
        del seq, payload
        self._status = "running"

    def _end_run(self, seq: int, payload: RunFinished) -> None:
        del seq
        self._status = payload.status

    def _begin_step(self, seq: int, payload: StepStarted) -> None:
        step_id, parent_id = payload.step_id, payload.parent_step_id
        if step_id in self._nodes:
            raise FoldError(f"event {seq}: step {step_id!r} starts twice")
        node: JsonObject = {"stepId": step_id}
        if parent_id is not UNSET:
            node["parentStepId"] = parent_id
        node["depth"] = payload.depth
        if payload.label is not UNSET:
            node["label"] = payload.label
        node |= {"status": "running", "children": []}
        parent = None if parent_id is UNSET else self._nodes.get(parent_id)
        level = 1 if parent is None else self._levels[parent["stepId"]] + 1
        if level > MAX_DEPTH:
            raise FoldError(f"event {seq}: step {step_id!r} is nested more than {MAX_DEPTH} deep")
        self._nodes[step_id], self._levels[step_id] = node, level
        (self._roots if parent is None else parent["children"]).append(node)

    def _end_step(self, seq: int, payload: StepFinished) -> None:
        del seq
        if (node := self._nodes.get(payload.step_id)) is not None:
            node["status"] = payload.status

    def _add(self, seq: int, payload: ModelUsage) -> None:
        totals = self._totals[payload.billing_status]
        totals["inputTokens"] += payload.input_tokens
        totals["outputTokens"] += payload.output_tokens
        if payload.cached_input_tokens is not UNSET:
            totals["cachedInputTokens"] += payload.cached_input_tokens
        totals["credits"] += payload.credits
        if max(totals.values()) > MAX_INT:
            name = max(totals, key=totals.__getitem__)
            raise FoldError(f"event {seq}: the total of {name} is beyond 2^53-1")

    def _mark(self, seq: int, payload: Checkpoint) -> None:
        mark: JsonObject = {"checkpointId": payload.checkpoint_id}
        if payload.label is not UNSET:
            mark["label"] = payload.label
        self._checkpoints.append({**mark, "seq": seq})
