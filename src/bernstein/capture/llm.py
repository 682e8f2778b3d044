"""``call_llm`` and its kin: ask a model, or serve its recorded answer."""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from bernstein.capture.drive import adrive, drive
from bernstein.capture.models.base import ModelName, parse_model_name
from bernstein.capture.policy import with_retries
from bernstein.capture.scope import current_scope
from bernstein.errors import UsageError
from bernstein.recording.answer import Chunk, LlmAnswer
from bernstein.recording.key import LlmCall

if TYPE_CHECKING:
    from bernstein.capture.program import CallScope

REQUEST_MEMBERS = (
    "messages",
    "system",
    "tools",
    "tool_choice",
    "response_format",
    "grammar",
    "stop",
    "seed",
    "top_p",
    "reasoning",
    "stream",
    "headers",
)
_ARGUMENTS = ("model", "provider", "temperature", "max_tokens", "max_retries")


def make_call(
    default: ModelName,
    prompt: str | None = None,
    *,
    model: str | None = None,
    provider: str | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    **more: object,
) -> LlmCall:
    """The call that these arguments mean, to ``default`` where none names a model."""
    for key in more:
        if key not in REQUEST_MEMBERS:
            near = difflib.get_close_matches(key, [*REQUEST_MEMBERS, *_ARGUMENTS], 1)
            hint = (
                f"did you mean {near[0]!r}?" if near else f"expected {', '.join(REQUEST_MEMBERS)}"
            )
            raise UsageError(f"a call has no {key!r}; {hint}")
    name = default
    if model is not None:
        name = parse_model_name(model) if provider is None else ModelName(provider, model)
    elif provider is not None:
        name = parse_model_name(provider)
    return LlmCall(
        model=name.model,
        prompt=prompt,
        provider=name.provider,
        temperature=None if temperature is None else float(temperature),
        max_tokens=max_tokens,
        more={key: value for key, value in more.items() if value is not None},
    )


def call_llm(
    prompt: str | None = None,
    *,
    model: str | None = None,
    provider: str | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    max_retries: int = 0,
    **more: object,
) -> LlmAnswer:
    """Ask a model, or serve its recorded answer.

    Args:
        prompt: The text to answer; or give ``messages``.
        model: The model's id, alone or as ``provider:name``; default: the configured one.
        provider: local, scripted, openai, anthropic or google.
        temperature: As the provider takes it; an int is made a float.
        max_tokens: The answer's bound.
        max_retries: How often to ask again after a failure that asking again can mend. Each
            attempt is recorded, and a replay repeats it without waiting.
        more: Anything else that reaches the provider: messages, system, tools, tool_choice,
            response_format, grammar (embedded model only), stop, seed, top_p, reasoning, headers.
    Returns:
        The answer.
    Raises:
        ReplayMissError: A strict replay has no (further) answer for this call.
        ProviderError: The provider failed, now or when it was recorded.
        ModelUnavailableError: The model cannot be asked from here.
    """
    scope_ = current_scope()
    call = make_call(
        scope_.run.default_model,
        prompt,
        model=model,
        provider=provider,
        temperature=temperature,
        max_tokens=max_tokens,
        **more,
    )
    return ask(call, scope_, max_retries)


async def acall_llm(
    prompt: str | None = None,
    *,
    model: str | None = None,
    provider: str | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    max_retries: int = 0,
    **more: object,
) -> LlmAnswer:
    """``call_llm`` for tasks."""
    scope_ = current_scope()
    call = make_call(
        scope_.run.default_model,
        prompt,
        model=model,
        provider=provider,
        temperature=temperature,
        max_tokens=max_tokens,
        **more,
    )
    return await aask(call, scope_, max_retries)


def stream_llm(prompt: str | None = None, **arguments: Any) -> Iterator[Chunk | LlmAnswer]:
    """``call_llm`` in pieces: yields each Chunk as it comes, and the LlmAnswer last."""
    scope_, max_retries = current_scope(), arguments.pop("max_retries", 0)
    call = make_call(scope_.run.default_model, prompt, **arguments, stream=True)
    return drive(with_retries(call, scope_, max_retries))


def astream_llm(prompt: str | None = None, **arguments: Any) -> AsyncIterator[Chunk | LlmAnswer]:
    """``stream_llm`` for tasks."""
    scope_, max_retries = current_scope(), arguments.pop("max_retries", 0)
    call = make_call(scope_.run.default_model, prompt, **arguments, stream=True)
    return adrive(with_retries(call, scope_, max_retries))


def ask(call: LlmCall, scope_: CallScope, max_retries: int = 0) -> LlmAnswer:
    """Ask for a call that is already made, in a scope that is already known."""
    *_, answer = drive(with_retries(call, scope_, max_retries))
    assert isinstance(answer, LlmAnswer)
    return answer


async def aask(call: LlmCall, scope_: CallScope, max_retries: int = 0) -> LlmAnswer:
    """``ask`` for tasks."""
    items = [item async for item in adrive(with_retries(call, scope_, max_retries))]
    answer = items[-1]
    assert isinstance(answer, LlmAnswer)
    return answer
