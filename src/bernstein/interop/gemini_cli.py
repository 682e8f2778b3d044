"""What Gemini CLI did in a session: its session files, its stream of ``-p``, recorded answers.

A session is one JSON document, or a record a line where a message that is written again stands for
the one before. A file of recorded answers has no requests: neither prompts nor results are told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.interop.counts import counts_of, first_of, usage_inclusive
from bernstein.interop.members import key_of, kind_of, objects_of, part_of
from bernstein.interop.telling import Telling
from bernstein.interop.transcript import Transcript
from bernstein.wire.reported import reported_in_response

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bernstein.canonical import JsonObject
    from bernstein.interop.records import Records
    from bernstein.recording.answer import Usage

_PROVIDER = "google"
_NOTES = frozenset({"info", "error", "warning"})
_STREAM = frozenset({"init", "message", "tool_use", "tool_result", "error", "result"})


def is_gemini_cli(records: Records) -> bool:
    """Whether a file is one of Gemini CLI's."""
    first = records.values[0] if records.values else {}
    is_session = "sessionId" in first and ("projectHash" in first or "messages" in first)
    is_stream = kind_of(first) == "init" and "session_id" in first and "model" in first
    return is_session or is_stream or _is_answers(records.values)


def _is_answers(values: list[JsonObject]) -> bool:
    return any("method" in value and "response" in value for value in values[:10])


def read_gemini_cli(records: Records) -> Iterator[Transcript]:
    """The one run that a session, a stream or a file of recorded answers tells."""
    telling = Telling()
    first = records.values[0] if records.values else {}
    if _is_answers(records.values):
        telling.records = len(records.values)
        for number, record in enumerate(records.values):
            _take_answer(record, number, telling)
    elif kind_of(first) == "init":
        telling.records = len(records.values)
        telling.is_whole = any(kind_of(record) == "result" for record in records.values)
        taking = _Stream(telling)
        for record in records.values:
            taking.take(record)
    else:
        messages = _messages(records.values)
        telling.records = max(len(messages), len(records.values) - (records.whole is not None))
        for number, message in enumerate(messages):
            _take_message(message, number, telling)
    yield telling.finish("gemini-cli", records.data, bad_lines=records.bad_lines)


def _messages(values: list[JsonObject]) -> list[JsonObject]:
    """The messages of a session, each as it was written last, where it was written first."""
    found: dict[object, JsonObject] = {}
    for value in values:
        changed = part_of(value, "$set")  # of the session: what it is, or all of its messages
        for holder in (value, changed):
            for message in objects_of(holder.get("messages")):
                found[key_of(message.get("id")) or len(found)] = message
        if "type" in value or not ("sessionId" in value or "$rewindTo" in value or changed):
            found[key_of(value.get("id")) or len(found)] = value
    return list(found.values())


def _take_message(message: JsonObject, number: int, telling: Telling) -> None:
    kind = kind_of(message)
    if kind == "user":
        telling.say(message.get("content"))
    elif kind in {"gemini", "model", "assistant"}:
        telling.answer(_PROVIDER, message.get("model"))
        if isinstance(tokens := message.get("tokens"), dict):
            telling.use(_PROVIDER, message.get("model"), _tokens(tokens))
        for place, call in enumerate(objects_of(message.get("toolCalls"))):
            _take_call(call, key_of(call.get("id")) or f"{number}/{place}", telling)
    elif kind not in _NOTES:
        telling.pass_over()


def _tokens(tokens: JsonObject) -> Usage | None:
    """The counts of a message of a session."""
    counts = counts_of(tokens, "input", "tool", "cached", "output", "thoughts")
    if counts is None:
        return None
    total_in, tool, cached, out, thoughts = counts
    return usage_inclusive(total_in + tool, cached, out + thoughts)


def _take_call(call: JsonObject, key: str, telling: Telling) -> None:
    telling.propose(key, call.get("name"), call.get("args"))
    status = call.get("status")
    if status == "cancelled":
        telling.deny(key, "user", "refused")
    result = first_of(call, "result", "resultDisplay")
    if result is not None:
        telling.say(result)
        telling.result(key, result, ok=status in ("success", None))


class _Stream:
    """Takes the events of ``-p --output-format stream-json`` in their order."""

    def __init__(self, telling: Telling) -> None:
        self._telling = telling
        self._model: str | None = None
        self._text = ""

    def take(self, event: JsonObject) -> None:
        """Take one event."""
        telling, key = self._telling, key_of(event.get("tool_id"))
        match kind_of(event):
            case "init":
                self._model = event.get("model")
            case "message" if event.get("role") == "user":
                telling.say(event.get("content"))
            case "message":
                telling.answer(_PROVIDER, self._model)
                self._text += str(event.get("content") or "")
            case "tool_use":
                telling.answer(_PROVIDER, self._model)
                telling.propose(key, event.get("tool_name"), event.get("parameters"))
            case "tool_result":
                telling.say(event.get("output"))
                is_ok = event.get("status") == "success"
                telling.result(key, event.get("output"), ok=is_ok)
            case "result":
                self._end(event)
            case kind if kind not in _STREAM:
                telling.pass_over()

    def _end(self, event: JsonObject) -> None:
        telling = self._telling
        telling.output = self._text or None
        if event.get("status") != "success":
            telling.status, telling.reason = "failed", "agent_failed"
        stats = part_of(event, "stats")
        counts = counts_of(stats, "input_tokens", "cached", "output_tokens")
        if stats:
            used = None if counts is None else usage_inclusive(*counts)
            telling.use(_PROVIDER, self._model, used)


def _take_answer(record: JsonObject, number: int, telling: Telling) -> None:
    """A row of recorded answers: the pieces of one stream, or one answer."""
    said = record.get("response")
    values = objects_of(said if isinstance(said, list) else [said])
    if "method" not in record or not values:
        if "method" not in record:
            telling.pass_over()
        return
    counts: JsonObject = {}
    model = None
    place = 0
    for value in values:
        counts = part_of(value, "usageMetadata") or counts
        model = value.get("modelVersion") or model
        for candidate in objects_of(value.get("candidates"))[:1]:
            for part in objects_of(part_of(candidate, "content").get("parts")):
                if call := part_of(part, "functionCall"):
                    telling.propose((number, place), call.get("name"), call.get("args"))
                    place += 1
    if counts:
        telling.use(_PROVIDER, model, _metadata(counts))
    telling.report(reported_in_response("generate", "", None, values))


def _metadata(counts: JsonObject) -> Usage | None:
    names = ("promptTokenCount", "cachedContentTokenCount", "candidatesTokenCount")
    found = counts_of(counts, *names, "thoughtsTokenCount", "toolUsePromptTokenCount")
    if found is None:
        return None
    total_in, cached, out, thoughts, tool = found
    return usage_inclusive(total_in + tool, cached, out + thoughts)
