"""What Claude Code says of its own context: events of its stream, and rows of its transcripts.

The stream spells members in snake case, a transcript in camel case; members that are not known are
kept in the report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.events.provider_state import MutationKind, Seen
from bernstein.interop.counts import counts_of, usage_of_counts
from bernstein.interop.members import inline
from bernstein.wire.reported import Report, count_tokens, reported_in_response

if TYPE_CHECKING:
    from bernstein.canonical import JsonObject, JsonValue
    from bernstein.recording.answer import Usage

# Subtypes of system events that say that the context was changed.
_SUBTYPES: dict[str, MutationKind] = {
    "compact_boundary": "compaction",
    "microcompact_boundary": "microcompaction",
    "model_refusal_fallback": "model_fallback",
    "memory_recall": "memory_injection",
    "conversation_reset": "context_reset",
}

NO_MODEL = "<synthetic>"  # a model's name where the client speaks
_CACHED = ("cache_creation_input_tokens", "cache_read_input_tokens")
_STREAM = Seen("observed", "stream-json")
# What of its context the stream shows.
SIGHT: dict[MutationKind, Seen] = {
    "compaction": _STREAM,
    "model_fallback": _STREAM,
    "retraction": _STREAM,
    "context_reset": _STREAM,
    "memory_injection": _STREAM,
}

# A transcript is written row by row, and has no last one; the client's clearing of old tool
# results stands in it alone.
SIGHT_OF_TRANSCRIPTS: dict[MutationKind, Seen] = {
    kind: Seen("observed", "transcript") for kind in (*SIGHT, "microcompaction")
}


def reports_of(event: JsonObject) -> list[Report]:
    """What one event, or one row of a transcript, reports."""
    kind = event.get("type")
    subtype = event.get("subtype") if kind == "system" else kind
    found: list[Report] = []
    if isinstance(subtype, str) and subtype in _SUBTYPES:
        found.append(Report(_SUBTYPES[subtype], event, _tokens(event)))
        if event.get("retracted_message_uuids") or event.get("retractedMessageUuids"):
            found.append(Report("retraction", event))
    elif kind == "assistant" and event.get("supersedes"):
        found.append(Report("retraction", event))
    elif kind == "stream_event" and isinstance(inner := event.get("event"), dict):
        # Only there, and only with partial messages, does the stream show what the server edits.
        found += reported_in_response("messages", "", None, [inner])
    return found


def usage_of(event: JsonObject) -> tuple[str | None, str, Usage | None] | None:
    """Message id, model and counts of an assistant's row; the counts None where they are none.

    One message is written as several rows, with rising counts: the last of an id is its own. A row
    without an id is a message by itself. What the client says in the model's place is no message.
    """
    message = event.get("message")
    if role_of(event) != "assistant" or not isinstance(message, dict):
        return None
    said, message_id, model = message.get("usage"), message.get("id"), message.get("model")
    if not isinstance(said, dict) or model == NO_MODEL:
        return None
    counts = counts_of(said, "input_tokens", "output_tokens", *_CACHED)
    usage = None
    if counts is not None:
        sent, answered, written, cached = counts
        usage = usage_of_counts(sent + written, cached, answered)
    return message_id if isinstance(message_id, str) else None, inline(model), usage


def role_of(event: JsonObject) -> JsonValue:
    """Whose message a row is; rows of some versions say so in the message alone."""
    message = event.get("message")
    role = message.get("role") if isinstance(message, dict) else None
    return event.get("type", role)


def _tokens(event: JsonObject) -> dict[str, int]:
    """Counts of a boundary, whatever its version: some stand beside the metadata."""
    names = ("compact_metadata", "compactMetadata", "microcompact_metadata", "microcompactMetadata")
    metadata: JsonObject = next(
        (event[name] for name in names if isinstance(event.get(name), dict)), {}
    )
    return count_tokens(
        before=_first(metadata, "pre_tokens", "preTokens"),
        after=_first(metadata, "post_tokens", "postTokens"),
        cleared=_first(metadata, "cumulative_dropped_tokens", "tokens_saved", "tokensSaved"),
    )


def _first(metadata: JsonObject, *names: str) -> JsonValue:
    return next((metadata[name] for name in names if name in metadata), None)
