r"""The replay key: one SHA-256 over every input that determines an answer.

Scheme ``page.v1`` serves a call of the five inputs alone, ``request.v1`` any other. The run's seed
and what an adapter adds by itself are in neither.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Literal, TypeAlias

from bernstein.canonical import (
    MAX_INT,
    DigestRef,
    JsonObject,
    canonical_bytes,
    digest_of_bytes,
    join_surrogates,
    utf8,
)
from bernstein.errors import UsageError

KeyScheme: TypeAlias = Literal["page.v1", "request.v1"]
KEY_SCHEMES = ("page.v1", "request.v1")

MAX_TEMPERATURE = 100
_REQUEST_PREFIX = "bernstein.request.v1\n"


@dataclass(frozen=True)
class LlmCall:
    """A request to a model.

    Attributes:
        model: The model's id, without NUL.
        prompt: The caller's text; None where ``more`` has messages instead.
        provider: The provider's name, without NUL.
        temperature: A float, or None where the provider's default holds.
        max_tokens: The answer's bound, or None.
        more: Everything else that reaches the provider (messages, system, tools, tool_choice,
            response_format, grammar, stop, seed, top_p, reasoning, stream, headers); what is
            absent is not in it.
    """

    model: str
    prompt: str | None
    provider: str
    temperature: float | None = None
    max_tokens: int | None = None
    more: JsonObject = field(default_factory=dict)

    def __post_init__(self) -> None:
        if "\0" in self.model or "\0" in self.provider:
            raise UsageError("a model or provider name holds a NUL; it would blur the replay key")
        heat, bound = self.temperature, self.max_tokens
        if heat is not None and not (type(heat) in (int, float) and 0 <= heat <= MAX_TEMPERATURE):
            raise UsageError(f"temperature {heat!r}: expected a number from 0 to {MAX_TEMPERATURE}")
        if bound is not None and not (type(bound) is int and 0 <= bound <= MAX_INT):
            raise UsageError(f"max_tokens {bound!r}: expected a whole number")
        # A high surrogate and a low one are one character, here as in what is written.
        for name in ("model", "prompt", "provider"):
            text = getattr(self, name)
            if text is not None and not text.isascii():
                object.__setattr__(self, name, join_surrogates(text))
        if self.prompt is None and "messages" not in self.more:
            raise UsageError("a call needs a prompt or messages")

    @property
    def key_scheme(self) -> KeyScheme:
        """Which scheme the key is made by.

        A prompt that begins as the other scheme's does is keyed by that one, so that the two can
        never meet.
        """
        is_page = not self.more and not (self.prompt or "").startswith(_REQUEST_PREFIX)
        return "page.v1" if is_page else "request.v1"

    @property
    def is_streamed(self) -> bool:
        """Whether the answer is asked for in chunks."""
        return bool(self.more.get("stream"))

    @cached_property
    def key_prompt(self) -> str:
        """The text that stands for the whole request in the key, and in the recording."""
        if self.key_scheme == "page.v1":
            assert self.prompt is not None
            return self.prompt
        # "bernstein.request.v1\n" + JCS of all that reaches the provider, absent members absent
        request = self.more if self.prompt is None else {**self.more, "prompt": self.prompt}
        return _REQUEST_PREFIX + canonical_bytes(request).decode("utf-8")

    @cached_property
    def key(self) -> str:
        """The replay key, 64 hex digits."""
        return replay_key(
            self.model, self.key_prompt, self.provider, self.temperature, self.max_tokens
        )

    def prompt_ref(self) -> DigestRef:
        """The DigestRef that a ``model.call`` row carries."""
        return digest_of_bytes(utf8(self.key_prompt))


def replay_key(
    model: str, prompt: str, provider: str, temperature: float | None, max_tokens: int | None
) -> str:
    """The key of a request, 64 hex digits; for ``request.v1`` give its prompt form.

    Source: docs/spec.md, "Replay key".
    """
    # sha256(model NUL prompt NUL provider NUL repr(temperature) NUL max_tokens); + 0.0 turns -0.0
    # into 0.0 and an int into a float.
    heat = "None" if temperature is None else repr(float(temperature) + 0.0)
    return sha256(
        f"{model}\0{prompt}\0{provider}\0{heat}\0{max_tokens}".encode("utf-8", "surrogatepass")
    ).hexdigest()
