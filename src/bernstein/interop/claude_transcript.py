"""What Claude Code did in a session: its transcripts, and its stream of ``-p``.

A sub-agent is a step below that of the call that started it. In a transcript its rows are marked
and name no call: there it is a step below the session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.interop.claude_code import (
    NO_MODEL,
    SIGHT,
    SIGHT_OF_TRANSCRIPTS,
    reports_of,
    role_of,
    usage_of,
)
from bernstein.interop.members import inline, key_of, objects_of
from bernstein.interop.telling import Telling
from bernstein.interop.transcript import Transcript

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from bernstein.canonical import JsonObject
    from bernstein.interop.records import Records

# Records that tell of neither a message, a tool nor the context.
_PASSED = frozenset(
    {
        *("summary", "progress", "queue-operation", "file-history-snapshot", "stream_event"),
        *("rate_limit_event", "control_request", "control_response", "control_cancel_request"),
        *("tool_progress", "tool_use_summary", "auth_status", "keep_alive", "conversation_reset"),
        *("last-prompt", "custom-title", "ai-title", "agent-name", "mode", "permission-mode"),
        *("pr-link", "tag", "prompt_suggestion", "streamlined_text"),
    }
)
_PROVIDER = "anthropic"


def is_claude_code(record: JsonObject) -> bool:
    """Whether a record is one of Claude Code's."""
    has_message = isinstance(record.get("message"), dict)
    has_session = "session_id" in record or "sessionId" in record
    match record.get("type"):
        case "user" | "assistant":
            return has_message
        case "system" | "result" | "attachment" | "summary" | "stream_event":
            return has_session
        case None:
            return has_session and has_message
    return False


def read_claude_code(records: Records) -> Iterator[Transcript]:
    """The one run that a transcript or a stream tells."""
    telling = Telling()
    is_transcript = any("sessionId" in record for record in records.values)
    is_over = False
    for record in records.values:
        _take(record, telling)
        is_over = is_over or record.get("type") == "result"
    telling.records = len(records.values)
    telling.is_whole = is_transcript or is_over
    yield telling.finish(
        "claude-code",
        records.data,
        bad_lines=records.bad_lines,
        sight=SIGHT_OF_TRANSCRIPTS if is_transcript else SIGHT,
    )


def _take(record: JsonObject, telling: Telling) -> None:
    step = _step_of(record, telling)
    match role_of(record):
        case "user":
            _take_user(record, telling, step)
        case "assistant":
            _take_assistant(record, telling, step)
        case "attachment":
            telling.say(record.get("attachment"), step)
        case "system" if record.get("subtype") == "permission_denied":
            telling.deny(key_of(record.get("tool_use_id")), "client", "refused")
        case "system":
            pass
        case "result":
            _take_end(record, telling)
        case kind if not isinstance(kind, str) or kind not in _PASSED:
            telling.pass_over()
    telling.report(reports_of(record))


def _step_of(record: JsonObject, telling: Telling) -> Hashable:
    """The step of a record, which begins with its first."""
    parent_call = key_of(record.get("parent_tool_use_id"))
    if parent_call is not None:
        telling.begin(parent_call, telling.step_of(parent_call), label="sub-agent")
        return parent_call
    if record.get("isSidechain") is True:
        sidechain = ("sidechain", key_of(record.get("agentId")))
        telling.begin(sidechain, label="sub-agent")
        return sidechain
    return None


def _take_user(record: JsonObject, telling: Telling, step: Hashable) -> None:
    message = record.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    if content is not None:
        telling.say(content, step)
    _take_results(objects_of(content), telling)


def _take_results(blocks: list[JsonObject], telling: Telling) -> None:
    for block in blocks:
        if str(block.get("type")).endswith("tool_result"):
            call = key_of(block.get("tool_use_id"))
            is_ok = not block.get("is_error")
            telling.result(call, block.get("content"), ok=is_ok)
            telling.end(call, ok=is_ok)


def _take_assistant(record: JsonObject, telling: Telling, step: Hashable) -> None:
    message = record.get("message")
    if not isinstance(message, dict):
        return
    key = key_of(message.get("id"))
    used = usage_of(record)
    if message.get("model") != NO_MODEL:
        telling.answer(_PROVIDER, message.get("model"), step, key)
    blocks = objects_of(message.get("content"))
    if used is not None:
        telling.use(_PROVIDER, inline(message.get("model")), used[2], step, key)
    for block in blocks:
        if str(block.get("type")).endswith("tool_use"):
            telling.propose(key_of(block.get("id")), block.get("name"), block.get("input"), step)
    _take_results(blocks, telling)  # of tools that the provider runs


def _take_end(record: JsonObject, telling: Telling) -> None:
    """The last event of a stream; a failed run says "success" too, as its subtype."""
    for denial in objects_of(record.get("permission_denials")):
        telling.deny(key_of(denial.get("tool_use_id")), "client", "refused")
    telling.output = record.get("result")
    if record.get("is_error") or str(record.get("subtype")).startswith("error"):
        telling.status, telling.reason = "failed", "agent_failed"
