"""Claude Code as the agent of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bernstein.agents.observed import Observed, ToolUse
from bernstein.interop.claude_code import SIGHT, reports_of

if TYPE_CHECKING:
    from bernstein.agents.observed import AgentBrief
    from bernstein.canonical import JsonObject

name = "claude"
profile = "claude-code"
provider: str | None = "anthropic"
sight = SIGHT
# No tool that reaches the network by itself: in a replay tools run again.
_TOOLS = "Bash Edit Write NotebookEdit Read Glob Grep Task TodoWrite"


def argv(brief: AgentBrief) -> list[str]:
    """The command that does a step: its events a line each, its tools allowed."""
    model = ["--model", brief.model] if brief.model else []
    return [
        *("claude", "-p", brief.prompt, "--output-format", "stream-json", "--verbose"),
        *(*model, "--permission-mode", "acceptEdits", "--allowedTools", _TOOLS),
    ]


def as_request(result: str) -> Any:
    """A request body that holds a tool's result."""
    block = {"type": "tool_result", "tool_use_id": "call", "content": result}
    return {"messages": [{"role": "user", "content": [block]}]}


def read(event: JsonObject, seen: Observed) -> None:
    """Take one event of its stream."""
    seen.reports += [(report, event) for report in reports_of(event)]
    if isinstance(event.get("session_id"), str):
        seen.session_id = seen.session_id or event["session_id"]
    match event.get("type"):
        case "assistant" | "user":
            for block in _blocks(event):
                _take_block(block, event.get("parent_tool_use_id"), seen)
        case "result":
            seen.is_whole = True
            # A failed run says "success" too, as its subtype.
            seen.is_error = bool(event.get("is_error"))
            seen.text = str(event.get("result") or event.get("subtype") or "")
            for denial in event.get("permission_denials") or ():
                _deny(str(denial.get("tool_use_id")), seen)
        case "system" if event.get("subtype") == "permission_denied":
            _deny(str(event.get("tool_use_id")), seen)


def _blocks(event: JsonObject) -> list[JsonObject]:
    content = (event.get("message") or {}).get("content")
    return [b for b in content if isinstance(b, dict)] if isinstance(content, list) else []


def _take_block(block: JsonObject, parent: str | None, seen: Observed) -> None:
    if block.get("type") == "tool_use":
        seen.propose(ToolUse(block["id"], block["name"], block.get("input"), parent))
    elif block.get("type") == "tool_result" and block.get("tool_use_id") in seen.tools:
        use = seen.tools[block["tool_use_id"]]
        use.ok, use.result = not block.get("is_error"), block.get("content")


def _deny(call_id: str, seen: Observed) -> None:
    if call_id in seen.tools:
        seen.tools[call_id].is_denied = True
