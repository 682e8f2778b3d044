"""What a model answered, or how it failed, as a value that is recorded, served and chained."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from bernstein.canonical import DigestRef, JsonObject, digest_of
from bernstein.errors import ProviderError

ChunkKind: TypeAlias = str  # "text", "reasoning" or "tool/<n>", the n-th tool call's arguments


class ToolCall(msgspec.Struct, frozen=True):
    """A tool call that the model proposed; ``args`` is the string that the model gave."""

    name: str
    args: str


class Usage(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a call used. Tokens are counts, ``credits`` micro-dollars rounded up.

    ``input_tokens`` excludes cached tokens, whatever the provider's habit.
    """

    input_tokens: int
    output_tokens: int
    billing_status: Literal["metered", "priced", "estimated", "unsupported"]
    cached_input_tokens: int = 0
    credits: int = 0
    price_book_version: str | None = None

    def to_json(self) -> JsonObject:
        """The members of a ``model.usage`` row, and of a recording row's usage."""
        value: JsonObject = {
            "inputTokens": self.input_tokens,
            "outputTokens": self.output_tokens,
            "cachedInputTokens": self.cached_input_tokens,
            "credits": self.credits,
            "billingStatus": self.billing_status,
        }
        if self.price_book_version is not None:
            value["priceBookVersion"] = self.price_book_version
        return value


class Chunk(msgspec.Struct, frozen=True):
    """A piece of a streamed answer: text of one kind, in order of arrival."""

    kind: ChunkKind
    text: str


class LlmAnswer(msgspec.Struct, frozen=True):
    """A model's answer.

    Attributes:
        text: The text; empty is an answer too.
        tool_calls: The tool calls, in the model's order.
        usage: What the call used, or None where the provider said nothing.
        stop_reason: The provider's word for why it stopped, or None.
        refusal: The refusal's text, or None.
        reasoning: The reasoning that was shown, or None.
        chunks: Kind and length in characters of each piece, where it was streamed.
        is_incomplete: The reader of the stream left before its end.
    """

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None
    stop_reason: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    chunks: tuple[tuple[ChunkKind, int], ...] | None = None
    is_incomplete: bool = False

    def to_outcome(self) -> JsonObject:
        """The ``outcome`` member of a recording row; what is empty by default is left out."""
        value: JsonObject = {"text": self.text}
        if self.tool_calls:
            value["tool_calls"] = [{"name": c.name, "args": c.args} for c in self.tool_calls]
        if self.usage is not None:
            value["usage"] = self.usage.to_json()
        for name in ("stop_reason", "refusal", "reasoning"):
            if (item := getattr(self, name)) is not None:
                value[name] = item
        if self.chunks is not None:
            value["chunks"] = [list(chunk) for chunk in self.chunks]
        if self.is_incomplete:
            value["incomplete"] = True
        return {"ok": value}

    def digest(self) -> DigestRef:
        """The DigestRef that a ``model.answer`` row carries."""
        # JCS {text, toolCalls [{name, args}], stopReason, refusal}
        return digest_of(
            {
                "text": self.text,
                "toolCalls": [{"name": c.name, "args": c.args} for c in self.tool_calls],
                "stopReason": self.stop_reason,
                "refusal": self.refusal,
            }
        )

    def pieces(self) -> list[Chunk]:
        """The streamed pieces again, cut where they were cut."""
        source = {"text": self.text, "reasoning": self.reasoning or ""}
        source |= {f"tool/{n}": call.args for n, call in enumerate(self.tool_calls)}
        at = dict.fromkeys(source, 0)
        pieces = []
        for kind, length in self.chunks or (("text", len(self.text)),):
            start = at.get(kind, 0)
            pieces.append(Chunk(kind, source.get(kind, "")[start : start + length]))
            at[kind] = start + length
        return pieces


class LlmFailure(msgspec.Struct, frozen=True):
    """A provider's failure; ``partial`` holds what had been streamed before it."""

    error_class: str
    status: int | None
    text: str
    partial: LlmAnswer | None = None

    def to_outcome(self) -> JsonObject:
        """The ``outcome`` member of a recording row."""
        value: JsonObject = {"class": self.error_class, "status": self.status, "text": self.text}
        if self.partial is not None:
            value["partial"] = self.partial.to_outcome()["ok"]
        return {"error": value}

    def digest(self) -> DigestRef:
        """The DigestRef that a ``model.answer`` row carries."""
        # JCS {class, status, text}
        return digest_of({"class": self.error_class, "status": self.status, "text": self.text})

    def as_error(self) -> ProviderError:
        """The exception that the caller sees, now as in the recording."""
        return ProviderError(self.error_class, self.status, self.text)


Outcome: TypeAlias = LlmAnswer | LlmFailure


def outcome_from(value: JsonObject) -> Outcome:
    """The outcome that a recording row holds.

    Raises:
        msgspec.ValidationError, KeyError, TypeError: It holds none.
    """
    if "error" in value:
        failure = value["error"]
        partial = failure.get("partial")
        return LlmFailure(
            failure["class"],
            failure["status"],
            failure["text"],
            None if partial is None else _answer_from(partial),
        )
    return _answer_from(value["ok"])


def _answer_from(value: JsonObject) -> LlmAnswer:
    known = {name: item for name, item in value.items() if name != "incomplete"}
    return msgspec.convert(
        {**known, "is_incomplete": value.get("incomplete", False)}, LlmAnswer, strict=True
    )
