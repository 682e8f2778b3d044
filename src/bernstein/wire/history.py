"""Whether a client's request goes on from the one before, or changed what stood in it.

A client that makes its history shorter says so to nobody: its output can be silent, and a provider
sees a new conversation. What gives it away is that the messages are no extension any more.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from bernstein.canonical import (
    JsonObject,
    JsonValue,
    canonical_bytes,
    digest_of,
    sha256_hex,
    spelled_json,
)
from bernstein.wire.reported import Report, reported_in_request

if TYPE_CHECKING:
    from bernstein.events.provider_state import MutationKind
    from bernstein.wire.key import Match
    from bernstein.wire.protocol import Kind

# How much of a key names a lane below a step's.
KEY_LANE_CHARS = 16
# Where the requests of each kind have their history.
_MESSAGES = {
    "messages": "messages",
    "chat": "messages",
    "responses": "input",
    "generate": "contents",
}
FOLLOWED_KINDS = frozenset(_MESSAGES)
_SETUP = ("model", "system", "instructions", "systemInstruction")
# Marks of the client that come and go with the last message: no part of what was said.
_UNSAID = frozenset({"cache_control", "id", "status"})
# What stands first where a client goes on from a summary: the words of Claude Code and of Codex.
_SUMMARY = re.compile(
    r"This session is being continued from a previous conversation"
    r"|Another language model started to solve this problem"
)
_HELD = ("previous_response_id", "conversation", "previous_interaction_id")
_REMEMBERED = 8  # conversations of one lane and setup
_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>\s*", re.DOTALL)
_CLEARED_BY_CLIENT = "[Old tool result content cleared]"
_RESULTS = frozenset({"tool_result", "function_call_output", "custom_tool_call_output"})
_THOUGHTS = frozenset({"thinking", "redacted_thinking", "reasoning"})


def request_reports(
    kind: Kind, path: str, match: Match, lane: str, histories: Histories
) -> list[Report]:
    """All that a request shows: what it refers to, and what its client took out of its history.

    A lane that is named after the request itself says nothing of a conversation.
    """
    reports = reported_in_request(kind, path, match.body)
    if is_key_lane(lane, match.key):
        return reports
    return [*reports, *histories.follow(lane, kind, match.body)]


def is_key_lane(lane: str, key: str) -> bool:
    """Whether a lane is named after the key of its requests: the client names none."""
    name = lane.rsplit("/", 1)[-1]
    return len(name) >= KEY_LANE_CHARS and key.startswith(name)


class Histories:
    """The last request of each conversation, by the lane of the client that leads it."""

    def __init__(self) -> None:
        self._heads: dict[tuple[str, str], list[list[JsonValue]]] = {}

    def follow(self, lane: str, kind: Kind, body: JsonValue) -> list[Report]:
        """Note a request of a lane; a report where it is no extension of the one before."""
        if kind not in _MESSAGES or not isinstance(body, dict):
            return []
        said = body.get(_MESSAGES[kind])
        if not isinstance(said, list) or any(body.get(name) for name in _HELD):
            return []  # what is held by the server is not in the request
        # Another system prompt: a request beside the conversation. Tools come and go in one.
        setup = canonical_bytes([body.get(name) for name in _SETUP])
        heads = self._heads.setdefault((lane, sha256_hex(setup)), [])
        now = [item for item in map(_plain_message, said) if item is not None]
        for place, head in enumerate(heads):
            if now[: len(head)] == head:
                # The one that goes on is the last: the next is held against it first.
                heads.insert(0, now)
                del heads[place + 1]
                return []
        before = heads[0] if heads else None
        if before is None or (_begins_anew(before, now) and not _is_summary(now)):
            heads.insert(0, now)
            del heads[_REMEMBERED:]
            return []
        heads[0] = now
        return [_changed(before, now)]


def _begins_anew(before: list[JsonValue], now: list[JsonValue]) -> bool:
    """Whether a request has nothing of the one before: another conversation, or a new one."""
    return not now or (before[:1] != now[:1] and len(now) == 1)


def _is_summary(now: list[JsonValue]) -> bool:
    return _SUMMARY.search(spelled_json(now[:1])) is not None


def _changed(before: list[JsonValue], now: list[JsonValue]) -> Report:
    same = 0
    while same < min(len(before), len(now)) and before[same] == now[same]:
        same += 1
    shown: JsonObject = {
        "messages_before": len(before),
        "messages_after": len(now),
        "messages_kept": same,
        "dropped": digest_of(before[same:]).to_json(),
        "added": digest_of(now[same:]).to_json(),
    }
    return Report(_kind(before, now), {"history": shown})


def _kind(before: list[JsonValue], now: list[JsonValue]) -> MutationKind:
    if len(now) >= len(before):
        as_far = now[: len(before)]
        if _without_thoughts(before) == _without_thoughts(as_far):
            return "thinking_clearing"
        if _without_results(before) == _without_results(as_far):
            was_client = any(_CLEARED_BY_CLIENT in str(message) for message in as_far)
            return "microcompaction" if was_client else "tool_result_clearing"
    for dropped in range(1, len(before)):
        rest = before[dropped:]
        if now[: len(rest)] == rest or (before[0] == now[0] and now[1 : len(rest) + 1] == rest):
            return "truncation"
    # What was long is short, and goes on: its place was taken by a summary.
    return "compaction" if len(now) < len(before) else "context_reset"


def _blocks(message: JsonValue) -> list[Any]:
    """The blocks of a message; an item that has none is its own block."""
    found = message if isinstance(message, dict) else {}
    content = found.get("content", found.get("parts"))
    return content if isinstance(content, list) else [message]


def _is_of(block: Any, kinds: frozenset[str]) -> bool:
    return isinstance(block, dict) and block.get("type") in kinds


def _without_thoughts(messages: list[JsonValue]) -> list[list[Any]]:
    return [[b for b in _blocks(one) if not _is_of(b, _THOUGHTS)] for one in messages]


def _without_results(messages: list[JsonValue]) -> list[list[Any]]:
    return [[None if _is_of(b, _RESULTS) else b for b in _blocks(one)] for one in messages]


def _plain_message(message: JsonValue) -> JsonValue:
    """A message in one spelling: a text by itself is a list with one block."""
    if isinstance(message, dict) and isinstance(message.get("content"), str):
        message = {**message, "content": [{"type": "text", "text": message["content"]}]}
    return _without_marks(message)


def _without_marks(value: JsonValue) -> JsonValue:
    """A message without what the client hangs on whichever is last; None where nothing is left."""
    if isinstance(value, str):
        return _REMINDER.sub("", value) if "<system-reminder>" in value else value
    if isinstance(value, list):
        kept = (_without_marks(item) for item in value)
        return [item for item in kept if item is not None]
    if isinstance(value, dict):
        out: JsonObject = {
            name: _without_marks(item) for name, item in value.items() if name not in _UNSAID
        }
        if out.get("type") == "text" and isinstance(out.get("text"), str):
            return out if out["text"].strip() else None
        return out
    return value
