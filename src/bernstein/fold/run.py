"""Folds a run's events into what it did: status, step tree, usage by band, checkpoints.

Rule: events are put in the order of ``seq`` before they are folded, so a shuffled batch gives the
same bytes; and every member is always written in the same order.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bernstein.canonical import MAX_DEPTH, MAX_INT, JsonObject, canonical_bytes
from bernstein.chain.read import load_replay_events, payload_of
from bernstein.errors import UsageError
from bernstein.events import trajectory as event

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

BANDS = ("metered", "priced", "estimated", "unsupported")
_COUNTS = ("inputTokens", "outputTokens", "cachedInputTokens", "credits")


class FoldError(UsageError):
    """Events that contradict each other: no run can have made them."""


@dataclass(frozen=True, slots=True)
class TrajectoryEvent:
    """One event of a run; ``seq`` is the journal's index."""

    seq: int
    run_id: str
    kind: str
    payload: JsonObject


@dataclass(frozen=True, slots=True)
class RunProjection:
    """What a run did, as JSON values in the order in which ``to_bytes`` writes them."""

    run_id: str
    status: str
    steps: list[JsonObject]
    usage_totals: dict[str, dict[str, int]]
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
        text = json.dumps(self.to_json(), ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8", "backslashreplace")  # a lone surrogate, as stringify has it


def read_events(journal: Path, run_id: str) -> Iterator[TrajectoryEvent]:
    """The rows of a journal as events, in file order."""
    for entry in load_replay_events(journal):
        yield TrajectoryEvent(entry.index, run_id, entry.event, payload_of(entry))


def in_order(events: Iterable[TrajectoryEvent]) -> list[TrajectoryEvent]:
    """The events by ``seq``, equal ones once.

    Raises:
        FoldError: Two different events have one ``seq``, or there are events of two runs.
    """
    ordered: list[TrajectoryEvent] = []
    for found in sorted(events, key=lambda item: item.seq):
        if ordered and found.run_id != ordered[0].run_id:
            raise FoldError(f"events of two runs: {ordered[0].run_id!r} and {found.run_id!r}")
        if ordered and found.seq == ordered[-1].seq:
            if _identity(found) != _identity(ordered[-1]):
                raise FoldError(f"two different events have seq {found.seq}")
            continue
        ordered.append(found)
    return ordered


def project(events: Iterable[TrajectoryEvent]) -> RunProjection:
    """Fold events, given in any order, into what their run did.

    Raises:
        FoldError: They contradict each other: see ``in_order``; also a second start of one step,
            and a total beyond 2^53-1.
    Source: docs/spec.md, "Rows of a plan's run".
    """
    fold = _RunFold()
    for item in in_order(events):
        fold.apply(item)
    return fold.finish()


def start_fold(run_id: str = "") -> _RunFold:
    """A fold of a run to feed event by event, in order."""
    return _RunFold(run_id)


def _identity(item: TrajectoryEvent) -> tuple[str, bytes]:
    return item.kind, canonical_bytes(item.payload)


@dataclass
class _RunFold:
    run_id: str = ""
    status: str = "pending"
    roots: list[JsonObject] = field(default_factory=list)
    nodes: dict[str, JsonObject] = field(default_factory=dict)
    levels: dict[str, int] = field(default_factory=dict)
    checkpoints: list[JsonObject] = field(default_factory=list)
    totals: dict[str, dict[str, int]] = field(
        default_factory=lambda: {band: dict.fromkeys(_COUNTS, 0) for band in BANDS}
    )

    def apply(self, item: TrajectoryEvent) -> None:
        """Fold one event.

        Raises:
            FoldError: It contradicts those before it, or has not the members of its kind.
        """
        try:
            self._apply(item)
        except (KeyError, TypeError, AttributeError) as error:
            raise FoldError(f"event {item.seq} is not a {item.kind}: {error!r}") from error

    def _apply(self, item: TrajectoryEvent) -> None:
        self.run_id = item.run_id
        payload = item.payload
        match item.kind:
            case event.RUN_STARTED:
                self.status = "running"
            case event.RUN_FINISHED:
                self.status = payload["status"]
            case event.STEP_STARTED:
                self._start(payload)
            case event.STEP_FINISHED:
                if (node := self.nodes.get(payload["stepId"])) is not None:
                    node["status"] = payload["status"]
            case event.MODEL_USAGE:
                self._add(payload)
            case event.CHECKPOINT:
                mark: JsonObject = {"checkpointId": payload["checkpointId"]}
                if "label" in payload:
                    mark["label"] = payload["label"]
                self.checkpoints.append({**mark, "seq": item.seq})
            case _:
                pass

    def _start(self, payload: JsonObject) -> None:
        step_id = payload["stepId"]
        if step_id in self.nodes:
            raise FoldError(f"step {step_id!r} starts twice")
        node: dict[str, Any] = {"stepId": step_id}
        if "parentStepId" in payload:
            node["parentStepId"] = payload["parentStepId"]
        node["depth"] = payload["depth"]
        if "label" in payload:
            node["label"] = payload["label"]
        node |= {"status": "running", "children": []}
        parent = self.nodes.get(payload.get("parentStepId", ""))
        self.nodes[step_id] = node
        self.levels[step_id] = level = 1 + self.levels.get(payload.get("parentStepId", ""), 0)
        if level > MAX_DEPTH:
            raise FoldError(f"step {step_id!r} is nested more than {MAX_DEPTH} deep")
        (self.roots if parent is None else parent["children"]).append(node)

    def _add(self, payload: JsonObject) -> None:
        totals = self.totals[payload["billingStatus"]]
        for name in _COUNTS:
            totals[name] += payload.get(name, 0)
            if totals[name] > MAX_INT:
                raise FoldError(f"the total of {name} is beyond 2^53-1")

    def finish(self) -> RunProjection:
        return RunProjection(self.run_id, self.status, self.roots, self.totals, self.checkpoints)
