"""What a model answered, or how it failed, as a value that is recorded, served and chained."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from bernstein.canonical import (
    MAX_INT,
    DigestRef,
    JsonObject,
    convert,
    decode_strict,
    digest_of,
    join_surrogates,
)
from bernstein.errors import ModelUnavailableError, ProviderError

UNAVAILABLE = "ModelUnavailableError"  # the class of a call that could not be made at all
ChunkKind: TypeAlias = str  # "text", "reasoning" or "tool/<n>", the n-th tool call's arguments


class ToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call that the model proposed; ``args`` is the string that the model gave."""

    name: str
    args: str

    def __post_init__(self) -> None:
        for name in ("name", "args"):
            text = getattr(self, name)
            if not text.isascii():
                msgspec.structs.force_setattr(self, name, join_surrogates(text))


class Usage(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """What a call used. Tokens are counts, ``credits`` micro-dollars rounded up.

    ``input_tokens`` excludes cached tokens, whatever the provider's habit.
    """

    input_tokens: int
    output_tokens: int
    billing_status: Literal["metered", "priced", "estimated", "unsupported"]
    cached_input_tokens: int = 0
    credits: int = 0
    price_book_version: str | None = None

    def __post_init__(self) -> None:
        for count in (
            self.input_tokens,
            self.output_tokens,
            self.cached_input_tokens,
            self.credits,
        ):
            if type(count) is not int or not 0 <= count <= MAX_INT:
                raise ValueError(f"{count} tokens or credits: no call can have used that")

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


class LlmAnswer(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
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
    is_incomplete: bool = msgspec.field(name="incomplete", default=False)

    def __post_init__(self) -> None:
        for name in ("text", "reasoning", "refusal"):
            text = getattr(self, name)
            if text is not None and not text.isascii():
                msgspec.structs.force_setattr(self, name, join_surrogates(text))
        if self.chunks is not None:
            self._check_chunks(self.chunks)

    def _check_chunks(self, chunks: tuple[tuple[ChunkKind, int], ...]) -> None:
        """Refuse pieces that do not make up the answer: a reader would get another text."""
        left = {"text": len(self.text), "reasoning": len(self.reasoning or "")}
        left |= {f"tool/{n}": len(call.args) for n, call in enumerate(self.tool_calls)}
        for kind, length in chunks:
            if length < 0 or left.get(kind, 0) < length:
                raise ValueError(f"a piece of {length} characters of {kind} is not in the answer")
            left[kind] -= length
        if left["text"] or (left["reasoning"] and self.is_incomplete):
            raise ValueError("the pieces of a streamed answer do not make up its text")

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
        chunks = (("text", len(self.text)),) if self.chunks is None else self.chunks
        for kind, length in chunks:
            start = at.get(kind, 0)
            pieces.append(Chunk(kind, source.get(kind, "")[start : start + length]))
            at[kind] = start + length
        return pieces


class LlmFailure(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A provider's failure; ``partial`` holds what had been streamed before it."""

    error_class: str = msgspec.field(name="class")
    status: int | None
    text: str
    partial: LlmAnswer | None = None

    def digest(self) -> DigestRef:
        """The DigestRef that a ``model.answer`` row carries."""
        # JCS {class, status, text}
        return digest_of({"class": self.error_class, "status": self.status, "text": self.text})

    def as_error(self) -> ProviderError | ModelUnavailableError:
        """The exception that the caller sees, now as in the recording."""
        if self.error_class == UNAVAILABLE:
            return ModelUnavailableError(self.text)
        return ProviderError(self.error_class, self.status, self.text)


Outcome: TypeAlias = LlmAnswer | LlmFailure


class StoredOutcome(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The ``outcome`` member of a recording row: ``ok``, ``error``, or a blob's DigestRef."""

    ok: LlmAnswer | None = None
    error: LlmFailure | None = None
    digest: str | None = None
    byteLength: int | None = None  # noqa: N815 - its name on the wire
    encRef: str | None = None  # noqa: N815

    @property
    def ref(self) -> DigestRef | None:
        """The DigestRef that stands in the outcome's place, if one does."""
        if self.digest is None or self.byteLength is None:
            return None
        return DigestRef(self.digest, self.byteLength, self.encRef)


def to_stored(outcome: Outcome) -> StoredOutcome:
    """The stored form of an outcome, its text in it."""
    if isinstance(outcome, LlmAnswer):
        return StoredOutcome(ok=outcome)
    return StoredOutcome(error=outcome)


_decode = msgspec.json.Decoder(StoredOutcome).decode


def parse_stored(data: bytes | msgspec.Raw) -> StoredOutcome:
    """The outcome that a row holds.

    Raises:
        CanonicalError: It holds none.
    """
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # A lone surrogate, which msgspec refuses, or damage, which the strict reader names.
        return convert(decode_strict(bytes(data)), StoredOutcome)
