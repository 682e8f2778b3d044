"""Folds a run's events into the tools that were asked for: who let each run, and what came of it.

It reads the same events as ``bernstein.fold.run`` and shares no state with it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import UNSET

from bernstein.events.payloads import (
    BodyRef,
    FoldError,
    ToolApproved,
    ToolDenied,
    ToolProposed,
    ToolResult,
)
from bernstein.fold.order import fold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bernstein.canonical import JsonObject
    from bernstein.fold.source import Event, TrajectoryEvent


class Approval(msgspec.Struct, frozen=True, gc=False):
    """Whether a tool was let run, by whom, and where that stands."""

    outcome: Literal["approved", "denied"]
    actor: str
    seq: int
    reason: str | None = None


class ToolOutcome(msgspec.Struct, frozen=True, gc=False):
    """Whether a tool did it, and where that stands."""

    ok: bool
    seq: int
    exit_code: int | None = None


class ProposedCall(msgspec.Struct, gc=False):
    """A tool that was asked for; in flight while it has neither approval nor result."""

    tool_call_id: str
    step_id: str
    name: str
    args: BodyRef
    proposed_seq: int
    approval: Approval | None = None
    result: ToolOutcome | None = None

    def to_json(self) -> JsonObject:
        """The call in its wire names, in the order in which they are written."""
        args: JsonObject = {"digest": self.args.digest, "byteLength": self.args.byte_length}
        if self.args.enc_ref is not UNSET:
            args["encRef"] = self.args.enc_ref
        value: JsonObject = {
            "toolCallId": self.tool_call_id,
            "stepId": self.step_id,
            "name": self.name,
            "args": args,
            "proposedSeq": self.proposed_seq,
        }
        if (said := self.approval) is not None:
            value["approval"] = {"outcome": said.outcome, "actor": said.actor, "seq": said.seq}
            if said.reason is not None:
                value["approval"]["reason"] = said.reason
        if (came := self.result) is not None:
            value["result"] = {"ok": came.ok, "seq": came.seq}
            if came.exit_code is not None:
                value["result"]["exitCode"] = came.exit_code
        return value


def project_tool_calls(events: Iterable[TrajectoryEvent]) -> list[ProposedCall]:
    """Fold events, given in any order, into their tool calls, in the order of proposal.

    The first approval and the first result of a call count; one without a proposal is dropped.

    Args:
        events: As of ``project``.
    Raises:
        FoldError: As of ``project``; also a second proposal of one call.
    Source: docs/spec.md, "Rows of a plan's run".
    """
    return fold(events, ToolCallFold)


def tool_calls_bytes(calls: Iterable[ProposedCall]) -> bytes:
    """The bytes that ``JSON.stringify`` would write of a list of calls, in UTF-8."""
    value = [call.to_json() for call in calls]
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


class ToolCallFold:
    """The tool calls of events that come in order."""

    def __init__(self) -> None:
        self._calls: dict[str, ProposedCall] = {}
        self._handlers: dict[type, Callable[[int, Any], None]] = {
            ToolProposed: self._propose,
            ToolApproved: self._approve,
            ToolDenied: self._deny,
            ToolResult: self._end,
        }

    def take(self, run_id: str, events: Iterable[Event]) -> None:
        """Fold events of a run, whose payloads are values of their kinds.

        Raises:
            FoldError: A call is proposed twice.
        """
        del run_id
        handler_of = self._handlers.get
        for event in events:
            handler = handler_of(type(event.payload))
            if handler is not None:
                handler(event.seq, event.payload)

    def finish(self) -> list[ProposedCall]:
        """The calls of the events taken so far."""
        return list(self._calls.values())

    def _propose(self, seq: int, payload: ToolProposed) -> None:
        call_id = payload.tool_call_id
        if call_id in self._calls:
            raise FoldError(f"event {seq}: call {call_id!r} is proposed twice")
        self._calls[call_id] = ProposedCall(
            call_id, payload.step_id, payload.name, payload.args, seq
        )

    def _approve(self, seq: int, payload: ToolApproved) -> None:
        self._decide(payload.tool_call_id, Approval("approved", payload.actor, seq))

    def _deny(self, seq: int, payload: ToolDenied) -> None:
        reason = None if payload.reason is UNSET else payload.reason
        self._decide(payload.tool_call_id, Approval("denied", payload.actor, seq, reason))

    def _decide(self, call_id: str, approval: Approval) -> None:
        call = self._calls.get(call_id)
        if call is not None and call.approval is None:
            call.approval = approval

    def _end(self, seq: int, payload: ToolResult) -> None:
        call = self._calls.get(payload.tool_call_id)
        if call is not None and call.result is None:
            code = None if payload.exit_code is UNSET else payload.exit_code
            call.result = ToolOutcome(payload.ok, seq, code)
