"""A row of a thread as one line for people, and whether it tells of a failure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bernstein.canonical import decode_strict
from bernstein.events import trajectory as event
from bernstein.fold.words import plain

if TYPE_CHECKING:
    from bernstein.canonical import JsonObject
    from bernstein.fold.thread import StreamEvent

_TOLD = (
    "stepId",
    "toolCallId",
    "name",
    "model",
    "decision",
    "status",
    "outcome",
    "errorCode",
    "reason",
    "actor",
    "ok",
    "exitCode",
    "path",
    "kind",
)


def told_row(row: StreamEvent) -> str:
    """A row's place, time, lane and event, and what of its payload people ask for.

    It is one line, and nothing of it controls a terminal.
    """
    value = decode_strict(row.data)
    where = f" {row.lane}" if row.lane else ""
    said = told_payload(value["payload"])
    return plain(f"{row.index:>6} {value['ts'][11:19]}{where} {row.event} {said}".rstrip())


def told_payload(payload: JsonObject, *left_out: str) -> str:
    """What of a payload people ask for, as ``name=value``; it may hold controls."""
    return " ".join(
        f"{name}={payload[name] if isinstance(payload[name], str) else json.dumps(payload[name])}"
        for name in _TOLD
        if name in payload and name not in left_out
    )


def failure_of(kind: str, payload: dict[str, Any]) -> bool:
    """Whether a row tells that something failed, or was refused."""
    match kind:
        case event.RUN_FINISHED:
            return payload.get("status") != "completed"
        case event.STEP_FINISHED:
            return payload.get("status") != "ok"
        case event.MODEL_ANSWER:
            return payload.get("outcome") == "error"
        case event.AGENT_FINISHED:
            return payload.get("outcome") != "ok"
        case event.TOOL_RESULT:
            return payload.get("ok") is False or bool(payload.get("exitCode"))
        case event.TOOL_DENIED:
            return True
        case event.SIGNAL_CHECKED:
            return payload.get("holds") is False
        case event.PROVIDER_STATE_MUTATION:
            return payload.get("flagged") is True
        case _:
            return False
