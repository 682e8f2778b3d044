"""Which request of which provider is which, by its method and path."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, TypeAlias

from bernstein.canonical import JsonValue

Kind: TypeAlias = Literal[
    "messages", "chat", "responses", "generate", "compact", "count_tokens", "embeddings", "other"
]
# Kinds whose answers are a model's words; the others are chained as plain exchanges.
MODEL_KINDS: frozenset[Kind] = frozenset({"messages", "chat", "responses", "generate"})
# Kinds whose answers can report a change to the model's context.
READ_KINDS: frozenset[Kind] = MODEL_KINDS | {"compact"}


class Provider(NamedTuple):
    """A provider by name: the variables that name its base URL, and where it is without one.

    A variable stands with what clients that read it take for granted behind the base URL.
    """

    name: str
    variables: dict[str, str]
    default: str


PROVIDERS = {
    provider.name: provider
    for provider in (
        Provider(
            "anthropic",
            # The second is litellm's, the third LangChain's.
            {"ANTHROPIC_BASE_URL": "", "ANTHROPIC_API_BASE": "", "ANTHROPIC_API_URL": ""},
            "https://api.anthropic.com",
        ),
        Provider(
            "openai",
            {"OPENAI_BASE_URL": "", "OPENAI_API_BASE": ""},
            "https://api.openai.com/v1",
        ),
        Provider(
            "google",
            {"GOOGLE_GEMINI_BASE_URL": "", "GEMINI_API_BASE": "/v1beta"},
            "https://generativelanguage.googleapis.com",
        ),
    )
}

_BY_END: tuple[tuple[str, Kind], ...] = (
    ("/v1/messages", "messages"),
    ("/v1/messages/count_tokens", "count_tokens"),
    ("/chat/completions", "chat"),
    ("/responses", "responses"),
    ("/responses/compact", "compact"),
    ("/embeddings", "embeddings"),
    (":generateContent", "generate"),
    (":streamGenerateContent", "generate"),
)
_MODEL_IN_PATH = re.compile(r"/models/([^/:]+):")


def kind_of(method: str, path: str) -> Kind:
    """What a request asks for."""
    if method == "POST":
        for end, kind in _BY_END:
            if path.endswith(end):
                return kind
    return "other"


def model_of(path: str, body: JsonValue) -> str:
    """The model that a request names, or the empty string."""
    if isinstance(body, dict) and isinstance(body.get("model"), str):
        model: str = body["model"]
        return model
    found = _MODEL_IN_PATH.search(path)
    return found[1] if found else ""


def error_body(provider: str, message: str) -> JsonValue:
    """An error in the shape that the provider's clients read; for a status 400."""
    if provider == "anthropic":
        return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
    if provider == "google":
        return {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}
    return {
        "error": {
            "message": message,
            "type": "invalid_request_error",
            "param": None,
            "code": "replay_miss",
        }
    }
