"""A run of ours as what other formats have: spans of steps, of models and of tools.

The usage of a call has no id: it goes to the oldest call without one in its lane, step and model.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from bernstein.canonical import JsonObject, JsonValue
from bernstein.chain.read import payload_of
from bernstein.events import trajectory as event
from bernstein.events.entry import GENESIS
from bernstein.events.payloads import KINDS, payload_from

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from bernstein.events.entry import JournalEntry

# A body by the digest that stands in a payload; None where it is not here.
Bodies: TypeAlias = "Callable[[JsonObject], JsonValue]"


@dataclass(slots=True)
class StepSpan:
    """A step, from its row to that of its end."""

    index: int
    begun: str
    payload: JsonObject
    ended: str | None = None
    is_error: bool = False


@dataclass(slots=True)
class ModelSpan:
    """A call of a model; its payload has no prompt where only its usage is told."""

    index: int
    begun: str
    payload: JsonObject
    usage: JsonObject | None = None
    ended: str | None = None


@dataclass(slots=True)
class ToolSpan:
    """A tool, from its proposal to its result."""

    index: int
    begun: str
    payload: JsonObject
    approval: JsonObject | None = None
    result: JsonObject | None = None
    ended: str | None = None


@dataclass(frozen=True, slots=True)
class StepEnd:
    """Where a step ended."""

    step: StepSpan


@dataclass(slots=True)
class Story:
    """A run.

    Attributes:
        run_id, agent_id, status: Of the run; it is running where it has no last row.
        head: The hash of its last row.
        begun, ended: The times of its first and last row.
        parts: Steps, ends of steps, models and tools, in the order in which they began.
    """

    run_id: str
    agent_id: str = ""
    status: str = "running"
    head: str = GENESIS
    begun: str = "1970-01-01T00:00:00.000000Z"
    ended: str = "1970-01-01T00:00:00.000000Z"
    parts: list[StepSpan | StepEnd | ModelSpan | ToolSpan] = field(default_factory=list)


def story_of(rows: Iterable[JournalEntry], run_id: str) -> Story:
    """The story that the rows of a journal tell, in their order.

    Raises:
        FoldError: A row has not the members of its kind.
    """
    teller = _Teller(Story(run_id))
    for row in rows:
        teller.take(row)
    return teller.story


class _Teller:
    def __init__(self, story: Story) -> None:
        self.story = story
        self._steps: dict[str, StepSpan] = {}
        self._tools: dict[str, ToolSpan] = {}
        self._unanswered: dict[Hashable, deque[ModelSpan]] = {}

    def take(self, row: JournalEntry) -> None:
        """Take one row."""
        if row.event in KINDS:
            payload_from(row.event, payload_of(row))
        story = self.story
        if row.index == 0:
            story.begun = row.ts
        story.ended, story.head = row.ts, row.event_hash
        match row.event:
            case event.RUN_STARTED:
                story.agent_id = payload_of(row)["agentId"]
            case event.RUN_FINISHED:
                story.status = payload_of(row)["status"]
            case event.STEP_STARTED:
                step = StepSpan(row.index, row.ts, payload_of(row))
                self._steps.setdefault(step.payload["stepId"], step)
                story.parts.append(step)
            case event.STEP_FINISHED:
                self._end_step(row)
            case event.MODEL_CALL | event.MODEL_USAGE:
                self._take_model(row)
            case event.TOOL_PROPOSED:
                tool = ToolSpan(row.index, row.ts, payload_of(row))
                self._tools.setdefault(tool.payload["toolCallId"], tool)
                story.parts.append(tool)
            case event.TOOL_APPROVED | event.TOOL_DENIED | event.TOOL_RESULT:
                self._take_tool(row)

    def _end_step(self, row: JournalEntry) -> None:
        payload = payload_of(row)
        step = self._steps.get(payload["stepId"])
        if step is not None and step.ended is None:
            step.ended, step.is_error = row.ts, payload["status"] == "error"
            self.story.parts.append(StepEnd(step))

    def _take_model(self, row: JournalEntry) -> None:
        payload = payload_of(row)
        key = (row.lane, payload.get("stepId"), payload["provider"], payload["model"])
        waiting = self._unanswered.setdefault(key, deque())
        if row.event == event.MODEL_CALL:
            call = ModelSpan(row.index, row.ts, payload)
            waiting.append(call)
            self.story.parts.append(call)
            return
        if not waiting:
            names = ("stepId", "provider", "model")
            alone = {name: payload[name] for name in names if name in payload}
            self.story.parts.append(call := ModelSpan(row.index, row.ts, alone))
        else:
            call = waiting.popleft()
        call.usage, call.ended = payload, row.ts

    def _take_tool(self, row: JournalEntry) -> None:
        payload = payload_of(row)
        tool = self._tools.get(payload["toolCallId"])
        if tool is None:
            return
        if row.event == event.TOOL_RESULT:
            if tool.result is None:
                tool.result, tool.ended = payload, row.ts
        elif tool.approval is None:
            outcome = "approved" if row.event == event.TOOL_APPROVED else "denied"
            names = ("actor", "reason")
            said = {name: payload[name] for name in names if name in payload}
            tool.approval = {"outcome": outcome, **said}
