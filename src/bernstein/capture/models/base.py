"""What it means to ask a model, and which model is meant."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from bernstein.errors import ModelUnavailableError
from bernstein.recording.answer import Chunk, LlmAnswer

if TYPE_CHECKING:
    from bernstein.recording.key import LlmCall
    from bernstein.settings import Settings

LOCAL_MODEL = "smollm2-135m"
# What is asked where a provider has a key and no model is named.
DEFAULT_MODELS = {
    "anthropic": "claude-sonnet-5-5",
    "openai": "gpt-5.4-mini",
    "google": "gemini-3.8-flash",
}
PROVIDERS = ("local", "scripted", *DEFAULT_MODELS)


class ModelName(NamedTuple):
    """A provider and the id of one of its models."""

    provider: str
    model: str

    def __str__(self) -> str:
        return f"{self.provider}:{self.model}"


class Provider(Protocol):
    """Somebody who answers calls, on the loop of ``portal``."""

    def ask(self, call: LlmCall, seed: int | None) -> AsyncIterator[Chunk | LlmAnswer]:
        """Ask once, without retries: chunks where the call is streamed, then the answer.

        Raises:
            ProviderError: The provider failed.
            ModelUnavailableError: It cannot be asked from here.
        """
        ...


def parse_model_name(text: str) -> ModelName:
    """The model that ``provider:name`` means; a name alone is a model of ``openai``.

    Raises:
        ModelUnavailableError: The provider is unknown, or no name follows it.
    """
    provider, colon, model = text.partition(":")
    if not colon:
        if text in PROVIDERS:
            provider, model = text, _default_of(text)
        else:
            provider, model = _provider_of(text), text
    if provider not in PROVIDERS:
        raise ModelUnavailableError(
            f"there is no provider {provider!r}; expected one of {', '.join(PROVIDERS)}\n"
            f"  for a server that speaks OpenAI's protocol: --model openai:{model} with "
            "OPENAI_BASE_URL and OPENAI_API_KEY"
        )
    if not model:
        raise ModelUnavailableError(f"{text!r} names no model\n  give one as provider:name")
    return ModelName(provider, model)


def _default_of(provider: str) -> str:
    return LOCAL_MODEL if provider == "local" else DEFAULT_MODELS.get(provider, "")


# How the names of well-known models begin.
_FAMILIES = {
    "gpt-": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
    "claude": "anthropic",
    "opus": "anthropic",
    "sonnet": "anthropic",
    "haiku": "anthropic",
    "gemini": "google",
    "smollm": "local",
}


def _provider_of(model: str) -> str:
    for start, provider in _FAMILIES.items():
        if model.startswith(start):
            return provider
    raise ModelUnavailableError(
        f"nobody knows whose model {model!r} is\n  name it as provider:name, for example "
        f"openai:{model}; the providers are {', '.join(PROVIDERS)}"
    )


def default_model(settings: Settings) -> ModelName:
    """The model of the first provider that has a key, else the embedded one."""
    for provider in settings.configured_providers:
        return ModelName(provider, DEFAULT_MODELS[provider])
    return ModelName("local", LOCAL_MODEL)
