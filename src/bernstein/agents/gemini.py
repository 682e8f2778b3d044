"""Gemini CLI as the agent of a step. Its output says nothing of its context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bernstein.agents.observed import Observed, ToolUse

if TYPE_CHECKING:
    from bernstein.agents.observed import AgentBrief
    from bernstein.canonical import JsonObject
    from bernstein.events.provider_state import MutationKind, Seen

name = "gemini"
profile = "gemini-cli"
provider: str | None = "google"
sight: dict[MutationKind, Seen] = {}


def argv(brief: AgentBrief) -> list[str]:
    """The command that does a step: its events a line each, its tools allowed."""
    model = ["-m", brief.model] if brief.model else []
    return [
        *("gemini", "-p", brief.prompt, "--output-format", "stream-json"),
        *(*model, "--approval-mode", "yolo"),
    ]


def as_request(result: str) -> Any:
    """A request body that holds a tool's result."""
    response = {"name": "tool", "response": {"output": result}}
    return {"contents": [{"role": "user", "parts": [{"functionResponse": response}]}]}


def read(event: JsonObject, seen: Observed) -> None:
    """Take one event of its output."""
    match event.get("type"):
        case "init":
            seen.session_id = str(event.get("session_id"))
        case "tool_use":
            use = ToolUse(event["tool_id"], event["tool_name"], event.get("parameters"))
            seen.propose(use)
        case "tool_result" if event.get("tool_id") in seen.tools:
            use = seen.tools[event["tool_id"]]
            use.ok, use.result = event.get("status") == "success", event.get("output")
        case "message" if event.get("role") == "assistant":
            seen.text += str(event.get("content") or "")
        case "result":
            seen.is_whole, seen.is_error = True, event.get("status") != "success"
            seen.text = str((event.get("error") or {}).get("message") or seen.text)
