"""Tool results in Anthropic's messages, whose order and reminders follow the speed of the tools."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeGuard

from bernstein.canonical import JsonObject, JsonValue


def sorted_results(messages: JsonValue) -> JsonValue:
    """``messages`` with the results of each in the order of the calls in the message before.

    The last of several carries a cache mark, and blanks at its end where no reminder follows: both
    are left out, since which one is last follows the speed of the tools.
    """
    if not isinstance(messages, list):
        return messages
    out: list[JsonValue] = []
    order: dict[str, int] = {}
    for message in messages:
        blocks = _blocks(message)
        results = [block for block in blocks if _is_result(block)]
        if len(results) > 1:
            ranked = sorted(results, key=lambda block: order.get(block["tool_use_id"], len(order)))
            bare = [
                _result_without({k: v for k, v in b.items() if k != "cache_control"}, str.rstrip)
                for b in ranked
            ]
            others = [block for block in blocks if not _is_result(block)]
            out.append({**message, "content": [*bare, *others]})
        else:
            out.append(message)
        calls = [b for b in blocks if isinstance(b, dict) and b.get("type") == "tool_use"]
        order = {str(call.get("id")): place for place, call in enumerate(calls)}
    return out


def hoisted(messages: JsonValue, pattern: re.Pattern[str]) -> JsonValue:
    """``messages`` with what the pattern finds in a message's results moved to its end."""
    if not isinstance(messages, list):
        return messages
    return [_hoisted_in(message, pattern) for message in messages]


def _hoisted_in(message: JsonValue, pattern: re.Pattern[str]) -> JsonValue:
    moved: list[JsonValue] = []

    def without(text: str) -> str:
        found = pattern.findall(text)
        if not found:
            return text
        moved.extend({"type": "text", "text": match} for match in found)
        return pattern.sub("", text).rstrip()

    blocks = [_result_without(b, without) if _is_result(b) else b for b in _blocks(message)]
    return {**message, "content": [*blocks, *moved]} if moved else message


def _result_without(block: JsonObject, without: Callable[[str], str]) -> JsonObject:
    content = block.get("content")
    if isinstance(content, str):
        return {**block, "content": without(content)}
    if not isinstance(content, list):
        return block
    kept: list[JsonValue] = []
    for part in content:
        if not (isinstance(part, dict) and isinstance(part.get("text"), str)):
            kept.append(part)
            continue
        text = without(part["text"])
        if text or text == part["text"]:
            kept.append({**part, "text": text})
    return {**block, "content": kept}


def _blocks(message: JsonValue) -> list[JsonValue]:
    content = message.get("content") if isinstance(message, dict) else None
    return content if isinstance(content, list) else []


def _is_result(block: JsonValue) -> TypeGuard[JsonObject]:
    return (
        isinstance(block, dict)
        and block.get("type") == "tool_result"
        and isinstance(block.get("tool_use_id"), str)
    )
