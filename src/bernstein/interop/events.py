"""What files of others say of a changed context: streams and transcripts of clients, bare answers.

A line that is no JSON is counted, and the lines behind it are read all the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bernstein.canonical import JsonObject, JsonValue
from bernstein.interop.claude_code import reports_of, usage_of
from bernstein.interop.codex import reports_of as codex_reports_of
from bernstein.interop.records import read_records
from bernstein.recording.answer import Usage
from bernstein.wire.protocol import Kind
from bernstein.wire.reported import Report, count_tokens, reported_in_response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# How the first event of a provider's stream, and a plain body, say whose they are.
_STARTS: dict[str, Kind] = {
    "message_start": "messages",
    "response.created": "responses",
    "response.completed": "responses",
}
_BODIES: dict[tuple[str, str], Kind] = {
    ("type", "message"): "messages",
    ("object", "response"): "responses",
    ("object", "response.compaction"): "compact",
}


@dataclass(slots=True)
class EventFile:
    """What a file of events says.

    Attributes:
        events: How many it holds.
        bad_lines: The lines that are none, from 1.
        reports: The changes of the context that they report, in their order.
        usage: Model and counts of each message of Claude Code's, by its id, as last told.
        bad_counts: How many messages told counts that are none: they count for nothing.
        answers: The kinds of the provider's answers among them.
        is_of_claude: Whether they are Claude Code's.
        is_transcript: Whether they are its transcript, and not its stream.
        is_whole: Whether a client's last event is there.
    """

    events: int = 0
    bad_lines: list[int] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    usage: dict[str | int, tuple[str, Usage]] = field(default_factory=dict)
    bad_counts: int = 0
    answers: set[Kind] = field(default_factory=set)
    is_of_claude: bool = False
    is_transcript: bool = False
    is_whole: bool = False


def read_event_file(data: bytes) -> EventFile:
    """Read a file of events: JSON, a line each, or server-sent events."""
    records = read_records(data)
    values = records.values
    found = EventFile(len(values), list(records.bad_lines))
    answer: list[JsonObject] = []
    kind: Kind | None = None
    for value in values:
        starts = _STARTS.get(str(value.get("type")))
        if starts is not None and not (kind == starts == "responses"):
            found.reports += _of_answer(kind, answer)
            kind, answer = starts, []
            found.answers.add(starts)
        if kind is not None and _goes_on(kind, value):
            answer.append(value)
            continue
        found.reports += _of_answer(kind, answer)
        kind, answer = None, []
        found.reports += _of_one(value, found)
    found.reports += _of_answer(kind, answer)
    return found


def _objects(value: JsonValue) -> Iterator[JsonObject]:
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, dict):
            yield item


def _goes_on(kind: Kind, value: JsonObject) -> bool:
    """Whether an event belongs to the answer that has begun."""
    name = str(value.get("type", ""))
    if kind == "responses":
        return name.startswith("response.") or name == "error"
    return name.startswith(("message_", "content_block_")) or name in {"ping", "error"}


def _of_answer(kind: Kind | None, answer: list[JsonObject]) -> list[Report]:
    return reported_in_response(kind, "", None, answer) if kind is not None and answer else []


def _of_one(value: JsonObject, found: EventFile) -> list[Report]:
    """What an event by itself reports: a client's, a plain body, a row of recorded answers."""
    for (name, said), kind in _BODIES.items():
        if value.get(name) == said and _is_body(value):
            found.answers.add(kind)
            return reported_in_response(kind, "", None, [value])
    answers = value.get("response") if "method" in value else None
    if "candidates" in value:
        answers = value
    if answers is not None:
        found.answers.add("generate")
        return reported_in_response("generate", "", None, list(_objects(answers)))
    if (told := usage_of(value)) is not None:
        message_id, model, usage = told
        if usage is None:
            found.bad_counts += 1
        else:
            # A message without an id is one by itself.
            found.usage[message_id or len(found.usage)] = (model, usage)
    found.is_of_claude |= "session_id" in value or "sessionId" in value
    found.is_transcript |= "sessionId" in value
    found.is_whole |= value.get("type") == "result"
    return reports_of(value) or [report for read in _OTHERS for report in read(value)]


def _is_body(value: JsonObject) -> bool:
    """Whether it is an answer of a provider: others have messages of that name too."""
    return isinstance(value.get("content", value.get("output")), list) and "model" in value


def _pi(value: JsonObject) -> Iterator[Report]:
    if value.get("type") == "compaction" and "summary" in value:
        yield Report("compaction", value, count_tokens(before=value.get("tokensBefore")))


def _omnigent(value: JsonObject) -> Iterator[Report]:
    if value.keys() >= {"summary", "last_item_id", "token_count"}:
        yield Report("compaction", value, count_tokens(after=value["token_count"]))


_OTHERS: tuple[Callable[[JsonObject], Iterator[Report]], ...] = (
    codex_reports_of,
    _pi,
    _omnigent,
)
