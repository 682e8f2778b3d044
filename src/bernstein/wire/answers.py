"""What a provider's response says: text, tool calls, usage, why it stopped; or how it failed.

The same for a plain response and for the same answer as a stream of events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from bernstein.canonical import JsonObject, JsonValue, canonical_bytes, decode_strict
from bernstein.errors import CanonicalError
from bernstein.recording.answer import LlmAnswer, LlmFailure, Outcome, ToolCall, Usage
from bernstein.wire.protocol import Kind


def read_answer(kind: Kind, status: int, body: bytes, *, is_whole: bool) -> Outcome | None:
    """The outcome that a response to a model call holds.

    Args:
        kind: What was asked for.
        status: The HTTP status.
        body: The decoded body, plain or an event stream.
        is_whole: False where the connection was cut.
    Returns:
        None where this is no answer of a shape that is known.
    """
    if status >= 400:
        return read_failure(status, body)
    try:
        values = list(read_values(body))
    except CanonicalError:
        return None
    return outcome_of(kind, values, is_whole=is_whole)


def read_failure(status: int, body: bytes) -> LlmFailure | None:
    """The failure that a response of status 400 or more says; None where it has no known shape."""
    try:
        return _failure(status, decode_strict(body))
    except CanonicalError:
        return LlmFailure(f"Status{status}", status, _text(body))
    except (KeyError, TypeError, AttributeError, IndexError, ValueError):
        return None


def outcome_of(kind: Kind, values: list[JsonObject], *, is_whole: bool) -> Outcome | None:
    """The outcome that the values of a body hold: see ``read_answer`` and ``read_values``."""
    if not values:
        return None
    try:
        answer = _READERS[kind](values)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, CanonicalError):
        return None
    if isinstance(answer, LlmAnswer) and not is_whole:
        return LlmFailure("ConnectionCut", None, "the connection was cut", partial=answer)
    return answer


def read_values(body: bytes) -> Iterator[JsonObject]:
    """The JSON objects of a body: one, a list of them, or one for each event of a stream.

    Raises:
        CanonicalError: It holds something else.
    """
    start = body.lstrip()[:1]
    if start == b"{":
        yield decode_strict(body)
    elif start == b"[":
        yield from decode_strict(body)
    else:
        for data in events(body):
            if data != b"[DONE]":
                yield decode_strict(data)


def readable_values(body: bytes) -> list[JsonObject]:
    """Those objects of a body of which some event cannot be read."""
    found: list[JsonObject] = []
    for data in events(body):
        with suppress(CanonicalError):
            value = decode_strict(data)
            if isinstance(value, dict):
                found.append(value)
    return found


def events(body: bytes) -> Iterator[bytes]:
    """The data of each whole server-sent event of a stream."""
    data: list[bytes] = []
    for line in body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"):
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif not line and data:
            yield b"\n".join(data)
            data = []


def _failure(status: int, value: JsonValue) -> LlmFailure:
    found = value[0] if isinstance(value, list) and value else value
    error = found.get("error", found) if isinstance(found, dict) else found
    if not isinstance(error, dict):
        return LlmFailure(f"Status{status}", status, str(error))
    kind = error.get("type") or error.get("status") or error.get("code") or f"Status{status}"
    return LlmFailure(str(kind), status, str(error.get("message", "")))


def _text(body: bytes) -> str:
    return body.decode("utf-8", "replace")[:2000]


def _spelled(args: JsonValue) -> str:
    """The arguments of a tool call as text: the string that the model gave, else JCS."""
    return args if isinstance(args, str) else canonical_bytes(args).decode()


def _usage(tokens_in: int, tokens_out: int, cached: int) -> Usage:
    return Usage(
        input_tokens=_whole(max(tokens_in, 0)),
        output_tokens=_whole(tokens_out),
        cached_input_tokens=_whole(cached),
        billing_status="estimated",
    )


def _whole(count: float) -> int:
    """A count that is spelled with a point; what is no whole number stays, and is refused."""
    return int(count) if isinstance(count, float) and count.is_integer() else count  # type: ignore[return-value]


# --- Anthropic


def _messages(values: list[JsonObject]) -> Outcome:
    blocks: dict[int, dict[str, Any]] = {}
    usage: dict[str, int] = {}
    stop: str | None = None
    for value in values:
        match value["type"]:
            case "message":
                blocks = dict(enumerate(value["content"]))
                usage, stop = value.get("usage") or {}, value.get("stop_reason")
            case "message_start":
                usage = dict(value["message"].get("usage") or {})
            case "content_block_start":
                blocks[value["index"]] = {**value["content_block"], "json": ""}
            case "content_block_delta":
                _add_delta(blocks[value["index"]], value["delta"])
            case "message_delta":
                stop = value["delta"].get("stop_reason") or stop
                usage |= {k: v for k, v in (value.get("usage") or {}).items() if v is not None}
            case "error":
                error = value["error"]
                return LlmFailure(error["type"], None, error.get("message", ""))
    ordered = [blocks[n] for n in sorted(blocks)]
    tools = [b for b in ordered if b["type"] in {"tool_use", "server_tool_use"}]
    return LlmAnswer(
        text="".join(b.get("text", "") for b in ordered if b["type"] == "text"),
        tool_calls=tuple(
            ToolCall(b["name"], b["json"] if b.get("json") else _spelled(b.get("input", {})))
            for b in tools
        ),
        usage=messages_usage(usage) if usage else None,
        stop_reason=stop,
        reasoning="".join(b.get("thinking", "") for b in ordered) or None,
    )


def messages_usage(usage: JsonObject) -> Usage:
    """The counts of an answer of Anthropic's, where ``input_tokens`` leaves out cached ones."""
    written = usage.get("cache_creation_input_tokens") or 0
    return _usage(
        (usage.get("input_tokens") or 0) + written,
        usage.get("output_tokens") or 0,
        usage.get("cache_read_input_tokens") or 0,
    )


def _add_delta(block: dict[str, Any], delta: JsonObject) -> None:
    match delta["type"]:
        case "text_delta":
            block["text"] = block.get("text", "") + delta["text"]
        case "input_json_delta":
            block["json"] = block.get("json", "") + delta["partial_json"]
        case "thinking_delta":
            block["thinking"] = block.get("thinking", "") + delta["thinking"]


# --- OpenAI chat completions


def _chat(values: list[JsonObject]) -> Outcome:
    text, refusal, reasoning, stop = "", "", "", None
    calls: dict[int, list[str]] = {}
    usage: Usage | None = None
    for value in values:
        if "error" in value:
            return _failure(200, value)
        if value.get("usage"):
            usage = _chat_usage(value["usage"])
        for choice in value.get("choices", [])[:1]:
            # Some send an empty delta beside the message of a plain answer.
            names = ("message", "delta") if len(values) == 1 else ("delta", "message")
            part = choice.get(names[0]) or choice.get(names[1]) or {}
            said, thought = _content(part.get("content"))
            text += said
            reasoning += thought
            refusal += part.get("refusal") or ""
            reasoning += part.get("reasoning_content") or part.get("reasoning") or ""
            stop = choice.get("finish_reason") or stop
            if function := part.get("function_call"):  # as it was before there were several
                known = calls.setdefault(-1, ["", ""])
                known[0] += function.get("name") or ""
                known[1] += function.get("arguments") or ""
            for place, call in enumerate(part.get("tool_calls") or []):
                # By index, not by id: only the first piece of a call carries the id.
                known = calls.setdefault(call.get("index", place), ["", ""])
                known[0] += call.get("function", {}).get("name") or ""
                known[1] += call.get("function", {}).get("arguments") or ""
    if not any("choices" in value for value in values):
        raise ValueError("no choices")
    return LlmAnswer(
        text=text,
        tool_calls=tuple(ToolCall(*calls[n]) for n in sorted(calls)),
        usage=usage,
        stop_reason=stop,
        refusal=refusal or None,
        reasoning=reasoning or None,
    )


def _content(content: JsonValue) -> tuple[str, str]:
    """Text and reasoning of a message's content: a text, or a list of parts."""
    if not isinstance(content, list):
        return content or "", ""
    thoughts = [part.get("thinking") or [] for part in content]
    return (
        "".join(part.get("text") or "" for part in content),
        "".join(piece.get("text") or "" for thought in thoughts for piece in thought),
    )


def _chat_usage(usage: JsonObject) -> Usage:
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return _usage(
        (usage.get("prompt_tokens") or 0) - cached, usage.get("completion_tokens") or 0, cached
    )


# --- OpenAI responses


def _responses(values: list[JsonObject]) -> Outcome:
    items: dict[int, JsonObject] = {}
    final: JsonObject = {}
    for value in values:
        kind = value.get("type", "")
        if "output" in value and kind in {"", "response"}:
            final = value
        elif kind == "response.output_item.done":
            items[value["output_index"]] = value["item"]
        elif kind in {"response.completed", "response.incomplete", "response.failed"}:
            final = value["response"]
        elif kind == "error":
            return LlmFailure(str(value.get("code") or "error"), None, value.get("message") or "")
    if final.get("status") == "failed" or final.get("error"):
        error = final.get("error") or {}
        return LlmFailure(str(error.get("code") or "failed"), None, error.get("message") or "")
    if not (final or items):
        raise ValueError("no output")
    # What came item by item is what the client has acted on; the last event may leave it out.
    output = [items[n] for n in sorted(items)] or final.get("output") or []
    text, refusal, reasoning, calls = "", "", "", []
    for item in output:
        for part in item.get("content") or []:
            text += part.get("text") or "" if part.get("type") == "output_text" else ""
            refusal += part.get("refusal") or ""
        if item.get("type") == "reasoning":
            reasoning += "".join(s.get("text", "") for s in item.get("summary") or [])
        elif item.get("type") in {"function_call", "custom_tool_call"}:
            calls.append(ToolCall(item["name"], item.get("arguments") or item.get("input") or ""))
    usage = final.get("usage") or {}
    cached = (usage.get("input_tokens_details") or {}).get("cached_tokens") or 0
    return LlmAnswer(
        text=text,
        tool_calls=tuple(calls),
        usage=_usage(
            (usage.get("input_tokens") or 0) - cached, usage.get("output_tokens") or 0, cached
        )
        if usage
        else None,
        stop_reason=(final.get("incomplete_details") or {}).get("reason") or final.get("status"),
        refusal=refusal or None,
        reasoning=reasoning or None,
    )


# --- Gemini


def _generate(values: list[JsonObject]) -> Outcome:
    text, reasoning, stop = "", "", None
    calls: list[ToolCall] = []
    usage: Usage | None = None
    for value in values:
        if "error" in value:
            return _failure(200, value)
        for candidate in value.get("candidates", [])[:1]:
            for part in (candidate.get("content") or {}).get("parts") or []:
                if part.get("thought"):
                    reasoning += part.get("text") or ""
                else:
                    text += part.get("text") or ""
                if call := part.get("functionCall"):
                    calls.append(ToolCall(call["name"], _spelled(call.get("args") or {})))
            stop = candidate.get("finishReason") or stop
        stop = (value.get("promptFeedback") or {}).get("blockReason") or stop
        if counts := value.get("usageMetadata"):
            cached = counts.get("cachedContentTokenCount") or 0
            out = (counts.get("candidatesTokenCount") or 0) + (
                counts.get("thoughtsTokenCount") or 0
            )
            usage = _usage((counts.get("promptTokenCount") or 0) - cached, out, cached)
    return LlmAnswer(
        text=text,
        tool_calls=tuple(calls),
        usage=usage,
        stop_reason=None if stop is None else str(stop),
        reasoning=reasoning or None,
    )


_READERS: dict[Kind, Callable[[list[JsonObject]], Outcome]] = {
    "messages": _messages,
    "chat": _chat,
    "responses": _responses,
    "generate": _generate,
}
