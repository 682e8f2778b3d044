"""What requests and responses show of a change to the model's context.

A provider's compaction is in no list of applied edits: it shows as a content block or an output
item, and in the usage of its own iteration. What is not reported at all is not here: see
``bernstein.wire.sight`` for what cannot be seen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bernstein.canonical import JsonObject, JsonValue, digest_of
from bernstein.events.provider_state import Mutation, MutationKind
from bernstein.wire.protocol import Kind, model_of

if TYPE_CHECKING:
    from bernstein.wire.profile import Profile

MAX_COUNT = 2**53 - 1
# What labels a member as the state before, in the spelling of streams and of transcripts.
_BEFORE = re.compile(r"(?:pre|before)(?:_|[A-Z])")
# What Gemini CLI takes for its history: notes may stand before it, and nothing behind it.
_SUMMARY_OF_GEMINI = re.compile(r"<state_snapshot>.*</state_snapshot>\s*\Z", re.DOTALL)
_COMPACTED_ITEMS = frozenset({"compaction", "compaction_summary"})


@dataclass(frozen=True, slots=True)
class Report:
    """One sign that the context was changed.

    Attributes:
        kind: What was done.
        payload: The report as it came, unknown members and all.
        tokens: Counts in it: ``before``, ``after``, ``cleared``.
    """

    kind: MutationKind
    payload: JsonObject
    tokens: dict[str, int] = field(default_factory=dict)


def mutation_of_report(report: Report, profile: Profile, prepare: Callable[[str], str]) -> Mutation:
    """What a report comes to, once the profile has renamed its ids and dropped its times.

    ``prepare`` makes of each text of it the one that is chained.
    """
    payload = spellable(profile.normalise_report(report.payload, prepare))
    before = before_members(payload)
    return Mutation(
        report.kind,
        None if before is None else digest_of(before).digest,
        digest_of(payload).digest,
        report.tokens,
        digest_of(without_counts(payload)).digest if report.tokens else None,
    )


def spellable(value: JsonValue) -> JsonValue:
    """A report with its numbers that no canonical JSON spells as texts: none is refused."""
    if isinstance(value, dict):
        return {name: spellable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [spellable(item) for item in value]
    if type(value) is int:
        return str(value) if abs(value) > MAX_COUNT else value
    if type(value) is float:
        has_none = not math.isfinite(value) or MAX_COUNT < abs(value) < 1e21
        return repr(value) if has_none else value
    return value


def before_members(value: JsonValue) -> JsonValue:
    """What of a report is labelled as the state before, each member in its place; None without."""
    if not isinstance(value, dict):
        return None
    found: JsonObject = {}
    for name, item in value.items():
        kept = item if _BEFORE.match(name) else before_members(item)
        if kept is not None:
            found[name] = kept
    return found or None


def without_counts(value: JsonValue) -> JsonValue:
    """A report without its counts of tokens."""
    if isinstance(value, dict):
        return {
            name: without_counts(item)
            for name, item in value.items()
            if not name.lower().endswith("tokens")
        }
    return [without_counts(item) for item in value] if isinstance(value, list) else value


def count_tokens(**counts: JsonValue) -> dict[str, int]:
    """Those counts that are counts; what is none stays in the report alone."""
    return {
        name: count
        for name, count in counts.items()
        if type(count) is int and 0 <= count <= MAX_COUNT
    }


# --- requests


def reported_in_request(kind: Kind, path: str, body: JsonValue) -> list[Report]:
    """References of a request to what the server holds, or has left of the history."""
    if not isinstance(body, dict):
        return []
    if kind == "messages":
        return [
            Report("held_state_reference", {"message": place, "content_block": block})
            for place, block in _history_blocks(body)
            if block.get("type") == "compaction"
        ]
    if not (kind in {"responses", "compact"} or path.endswith("/interactions")):
        return []
    names = ("previous_response_id", "conversation", "previous_interaction_id")
    found = [Report("held_state_reference", {name: body[name]}) for name in names if body.get(name)]
    items = body.get("input")
    for place, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict) and item.get("type") in _COMPACTED_ITEMS:
            found.append(Report("held_state_reference", {"input": place, "item": item}))
    return found


def _history_blocks(body: JsonObject) -> Iterator[tuple[int, JsonObject]]:
    messages = body.get("messages")
    for place, message in enumerate(messages if isinstance(messages, list) else ()):
        content = message.get("content") if isinstance(message, dict) else None
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict):
                yield place, block


# --- responses


def reported_in_response(
    kind: Kind, path: str, asked: JsonValue, values: Sequence[JsonObject]
) -> list[Report]:
    """What the JSON objects of a response report, in their order.

    Args:
        kind: What was asked for.
        path: The request's path; it can name the model.
        asked: The request's body.
        values: The one object of a plain response, or those of a stream's events.
    """
    reader = _READERS.get(kind)
    found = [] if reader is None else list(reader([v for v in values if isinstance(v, dict)]))
    tier = asked.get("service_tier") if isinstance(asked, dict) else None
    return [*found, *_other_model(model_of(path, asked), tier, values)]


class _Message:
    """An answer of Anthropic's as far as its events have told; an odd event takes nothing away."""

    def __init__(self) -> None:
        self.blocks: dict[int, JsonObject] = {}
        self.edits: list[JsonObject] = []
        self.iterations: list[JsonObject] = []
        self.sent: list[JsonValue] = []  # the counts of input, as they were corrected

    def take(self, value: JsonObject) -> None:
        """Take one event, or a whole message."""
        message = _object(value.get("message")) if value.get("type") == "message_start" else value
        usage = _object(message.get("usage"))
        if usage:
            self.iterations = _objects(usage.get("iterations")) or self.iterations
            self.sent.append(usage.get("input_tokens"))
        management = _object(message.get("context_management"))
        self.edits = _objects(management.get("applied_edits")) or self.edits
        match value.get("type"):
            case "message" | "message_start":
                content = message.get("content")
                for place, block in enumerate(content if isinstance(content, list) else ()):
                    self.blocks[place] = _object(block)
            case "content_block_start":
                self.blocks[self._place(value, len(self.blocks))] = _object(
                    value.get("content_block")
                )
            case "content_block_delta":
                delta = _object(value.get("delta"))
                if delta.get("type") == "compaction_delta":
                    place = self._place(value, max(self.blocks, default=0))
                    more = {name: part for name, part in delta.items() if name != "type"}
                    self.blocks[place] = _joined(self.blocks.get(place, {}), more)

    @staticmethod
    def _place(value: JsonObject, otherwise: int) -> int:
        index = value.get("index")
        return index if type(index) is int else otherwise


def _object(value: JsonValue) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _objects(value: JsonValue) -> list[JsonObject]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _in_messages(values: Sequence[JsonObject]) -> Iterator[Report]:
    said = _Message()
    for value in values:
        said.take(value)
    yield from (_edit(edit) for edit in said.edits)
    rounds = [it for it in said.iterations if it.get("type") == "compaction"]
    blocks = [block for _, block in sorted(said.blocks.items())]
    compacted = [block for block in blocks if block.get("type") == "compaction"]
    # With neither content it failed, and nothing was done.
    done = [
        block
        for block in compacted
        if block.get("content") is not None or block.get("encrypted_content") is not None
    ]
    after = next(
        (it.get("input_tokens") for it in said.iterations if it.get("type") == "message"), None
    )
    if after is None and len(said.sent) > 1:
        after = said.sent[-1]
    # A round of it without any block took place all the same.
    for place in range(max(len(done), len(rounds) if done or not compacted else 0)):
        report: JsonObject = {}
        if place < len(done):
            report["content_block"] = done[place]
        if place < len(rounds):
            report["iteration"] = rounds[place]
        first = said.sent[0] if said.sent else None
        before = _object(report.get("iteration")).get("input_tokens", first)
        yield Report("compaction", report, count_tokens(before=before, after=after))
    for block in blocks:
        if block.get("type") == "fallback":
            yield Report("model_fallback", {"content_block": block})


def _joined(block: JsonObject, delta: JsonObject) -> JsonObject:
    """A block with what a delta adds: texts go on, anything else is set."""
    out = dict(block)
    for name, part in delta.items():
        known = out.get(name)
        out[name] = known + part if isinstance(known, str) and isinstance(part, str) else part
        if part is None:
            out[name] = known
    return out


_EDITS: tuple[tuple[str, MutationKind], ...] = (
    ("clear_tool_uses", "tool_result_clearing"),
    ("clear_thinking", "thinking_clearing"),
    ("compact", "compaction"),
)


def _edit(edit: JsonObject) -> Report:
    """An applied edit; one of a type that is not known took something away all the same."""
    name = str(edit.get("type", ""))
    kinds = (kind for start, kind in _EDITS if name.startswith(start))
    kind: MutationKind = next(kinds, "truncation")
    return Report(kind, edit, count_tokens(cleared=edit.get("cleared_input_tokens")))


def _in_responses(values: Sequence[JsonObject]) -> Iterator[Report]:
    found: dict[str, list[JsonObject]] = {"done": [], "added": [], "final": []}
    for value in values:
        kind = str(value.get("type", ""))
        if kind.startswith("response.output_item."):
            items = [_object(value.get("item"))]
            name = kind.rsplit(".", 1)[1]
        else:
            inner = _object(value.get("response")) or value
            items, name = _objects(inner.get("output")), "final"
        if compacted := [item for item in items if item.get("type") in _COMPACTED_ITEMS]:
            known = found.setdefault(name, [])
            found[name] = compacted if name == "final" else [*known, *compacted]
    # The opaque content differs from event to event: each item counts once, as it was done.
    for item in found["done"] or found["final"] or found["added"]:
        yield Report("compaction", {"item": item})


def _in_generated(values: Sequence[JsonObject]) -> Iterator[Report]:
    """The summary that a client asked for, to go on with it in place of the history."""
    text = "".join(
        str(part.get("text") or "")
        for value in values
        for candidate in _objects(value.get("candidates"))[:1]
        for part in _objects(_object(candidate.get("content")).get("parts"))
        if not part.get("thought")
    )
    if _SUMMARY_OF_GEMINI.search(text):
        yield Report("compaction", {"summary": text})


_READERS: dict[Kind, Callable[[Sequence[JsonObject]], Iterator[Report]]] = {
    "messages": _in_messages,
    "responses": _in_responses,
    "compact": _in_responses,
    "generate": _in_generated,
}


# --- another model than the one that was asked for


def _other_model(
    asked: str, wanted_tier: JsonValue, values: Sequence[JsonObject]
) -> Iterator[Report]:
    answered, tier = None, None
    for value in values:
        inner = _object(value.get("response")) or _object(value.get("message")) or value
        answered = inner.get("model") or inner.get("modelVersion") or answered
        tier = inner.get("service_tier") or tier
    if asked and isinstance(answered, str) and not is_same_model(asked, answered):
        yield Report("model_fallback", {"asked": asked, "answered": answered})
    if wanted_tier and tier and wanted_tier not in {"auto", tier}:
        yield Report("model_fallback", {"asked_tier": wanted_tier, "answered_tier": tier})


# What a name ends in that says when its model was made.
_DATE = re.compile(
    r"[-@](?:\d{4}-\d\d-\d\d|\d{8}|\d{4}|\d\d-\d\d|\d\d-\d{4})(?=$|[-:@.])|-v\d+:\d+$|-00\d$"
)
_WORD = re.compile(r"[a-z]+|\d+[a-z]*")
# Words that tell one model of a family from another.
_SIZES = frozenset(
    {"nano", "micro", "mini", "lite", "small", "medium", "large", "xl", "max", "ultra", "plus"}
    | {"pro", "flash", "turbo", "instant", "haiku", "sonnet", "opus", "codex", "coder", "chat"}
    | {"reasoner", "reasoning", "thinking", "non", "research", "search", "audio", "realtime"}
)


def is_same_model(asked: str, answered: str) -> bool:
    """Whether an answer's model is the one that was asked for, by an alias or a dated name.

    Words may be added or left out (a vendor, ``preview``, where it runs), but none that names a
    size, and no number: those are of another model.
    """
    one, other = _words(asked), _words(answered)
    if not set(one) & set(other):
        return asked == answered
    if any(word in _SIZES for word in set(one) ^ set(other)):
        return False
    numbers = [word for word in one if _is_number(word)]
    # A name without a number, or that says "latest", leaves it to the provider.
    is_open = not numbers or "latest" in one
    return is_open or numbers == [word for word in other if _is_number(word)]


def _words(name: str) -> list[str]:
    plain = name.rsplit("/", 1)[-1].lower().removesuffix(".gguf")
    words: list[str] = _WORD.findall(_DATE.sub("", plain))
    return words


def _is_number(word: str) -> bool:
    """Whether a word is a version or a size; a context's length and a point zero are not."""
    return word[0].isdigit() and word != "0" and not re.fullmatch(r"\d+k", word)
