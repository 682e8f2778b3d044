"""Codex as the agent of a step. Its output says nothing of its context: the wire does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bernstein.agents.observed import Observed, ToolUse
from bernstein.interop.codex_items import ITEM_ARGS, item_outcome

if TYPE_CHECKING:
    from bernstein.agents.observed import AgentBrief
    from bernstein.canonical import JsonObject
    from bernstein.events.provider_state import MutationKind, Seen

name = "codex"
profile = "codex"
provider: str | None = "openai"
sight: dict[MutationKind, Seen] = {}


def argv(brief: AgentBrief) -> list[str]:
    """The command that does a step: its events a line each."""
    model = ["--model", brief.model] if brief.model else []
    return ["codex", "exec", "--json", "--skip-git-repo-check", *model, brief.prompt]


def as_request(result: str) -> Any:
    """A request body that holds a tool's result."""
    return {"input": [{"type": "function_call_output", "call_id": "call", "output": result}]}


def read(event: JsonObject, seen: Observed) -> None:
    """Take one event of its output."""
    match event.get("type"):
        case "thread.started":
            seen.session_id = str(event["thread_id"])
        case "item.started" | "item.completed":
            _take_item(event["item"], seen, is_over=event["type"] == "item.completed")
        case "turn.completed":
            seen.is_whole, seen.is_error = True, False
        case "turn.failed" | "error":
            seen.is_whole = seen.is_error = True
            error = event.get("error") or event
            seen.text = str(error.get("message") or "")


def _take_item(item: JsonObject, seen: Observed, *, is_over: bool) -> None:
    if item["type"] == "agent_message":
        seen.text = str(item.get("text") or "")
    if item["type"] not in ITEM_ARGS:
        return
    args = {key: item[key] for key in ITEM_ARGS[item["type"]] if key in item}
    seen.propose(ToolUse(item["id"], item["type"], args))
    if is_over:
        use, came = seen.tools[item["id"]], item_outcome(item)
        use.is_denied, use.ok = came.is_denied, came.is_ok
        use.result, use.exit_code = came.result, came.exit_code
