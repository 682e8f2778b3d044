"""The items of ``codex exec --json`` that are tools: what was asked for, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from bernstein.canonical import JsonObject, JsonValue

# The members of an item that say what was asked for; the others tell what came of it.
ITEM_ARGS: dict[str, tuple[str, ...]] = {
    "command_execution": ("command",),
    "file_change": ("changes",),
    "mcp_tool_call": ("server", "tool", "arguments"),
    "web_search": ("query",),
}


class ItemOutcome(NamedTuple):
    """What came of an item that is a tool."""

    is_denied: bool
    is_ok: bool
    result: JsonValue
    exit_code: int | None


def item_outcome(item: JsonObject) -> ItemOutcome:
    """What came of an item that has ended."""
    status, code = item.get("status"), item.get("exit_code")
    return ItemOutcome(
        status == "declined",
        status not in ("failed", "declined"),
        item.get("aggregated_output", item.get("result")),
        code if type(code) is int else None,
    )
