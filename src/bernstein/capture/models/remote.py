"""Providers on the network, asked through pydantic-ai with their own SDKs.

The SDKs' retries are off: a retry is ours, and each attempt is a row of the recording.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bernstein.errors import ModelUnavailableError, ProviderError
from bernstein.recording.answer import Chunk, LlmAnswer, ToolCall
from bernstein.settings import PROVIDER_KEYS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.settings import ModelSettings

    from bernstein.canonical import JsonObject
    from bernstein.recording.key import LlmCall

    Closer = Callable[[], Awaitable[None]]

_TIMEOUT_S = 600.0
# Members of a request that pydantic-ai's settings have under another name, or the same.
_SETTINGS = {
    "stop": "stop_sequences",
    "top_p": "top_p",
    "tool_choice": "tool_choice",
    "headers": "extra_headers",
    "reasoning": "thinking",
    "seed": "seed",
}
_KNOWN = {*_SETTINGS, "messages", "system", "tools", "response_format", "stream"}


class RemoteProvider:
    """Asks one model of openai, anthropic or google."""

    def __init__(self, provider: str, model: str) -> None:
        """Make the SDK's client.

        Raises:
            ModelUnavailableError: Its packages or its key are missing.
        """
        self._provider = provider
        self._model_name = model
        self._model, self._close = _make_model(provider, model)

    async def aclose(self) -> None:
        """Close the client's connections."""
        await self._close()

    async def ask(self, call: LlmCall, seed: int | None) -> AsyncIterator[Chunk | LlmAnswer]:
        """See ``Provider.ask``."""
        from pydantic_ai.exceptions import AgentRunError, UserError  # noqa: PLC0415

        messages, settings, parameters = _request(call, seed)
        try:
            if not call.is_streamed:
                yield self._answer(await self._model.request(messages, settings, parameters), None)
                return
            async with self._model.request_stream(messages, settings, parameters) as stream:
                chunks: list[tuple[str, int]] = []
                tools: dict[int, int] = {}
                async for event in stream:
                    if (chunk := _chunk(event, tools)) is not None:
                        chunks.append((chunk.kind, len(chunk.text)))
                        yield chunk
                yield self._answer(stream.get(), tuple(chunks))
        except UserError as error:
            raise ModelUnavailableError(str(error)) from error
        except AgentRunError as error:
            raise _failure(error) from error
        except _below_http() as error:
            raise ProviderError(type(error).__name__, None, str(error)) from error

    def _answer(
        self, response: ModelResponse, chunks: tuple[tuple[str, int], ...] | None
    ) -> LlmAnswer:
        from bernstein.capture.pricing import priced  # noqa: PLC0415 - live calls alone need it

        texts: dict[str, list[str]] = {"text": [], "thinking": []}
        calls = []
        for part in response.parts:
            if part.part_kind in texts:
                texts[part.part_kind].append(str(getattr(part, "content", None) or ""))
            elif part.part_kind == "tool-call":
                args = part.args
                text = args if isinstance(args, str) else json.dumps(args or {})
                calls.append(ToolCall(part.tool_name, text))
        usage = response.usage
        details = response.provider_details or {}
        reason = details.get("finish_reason") or response.finish_reason
        refusal = details.get("refusal")
        return LlmAnswer(
            "".join(texts["text"]),
            tool_calls=tuple(calls),
            usage=priced(
                self._provider,
                response.model_name or self._model_name,
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cached_tokens=usage.cache_read_tokens,
                cache_write_tokens=usage.cache_write_tokens,
            ),
            stop_reason=None if reason is None else str(reason),
            refusal=None if refusal is None else str(refusal),
            reasoning="".join(texts["thinking"]) or None,
            chunks=chunks,
        )


def _make_model(provider: str, model: str) -> tuple[Model, Closer]:
    try:
        return {"openai": _openai, "anthropic": _anthropic, "google": _google}[provider](model)
    except ImportError as error:
        raise ModelUnavailableError(
            f"asking {provider} needs packages that are not installed ({error.name})\n"
            "  install them: pip install 'bernstein-replay[providers]'"
        ) from error
    except Exception as error:
        # Each SDK has its own exception for a missing key; all of them are the user's to mend.
        if type(error).__name__ in {"OpenAIError", "AnthropicError", "UserError", "ValueError"}:
            keys = " or ".join(PROVIDER_KEYS[provider])
            raise ModelUnavailableError(
                f"{provider} cannot be asked: {error}\n  set its key: {keys}; or ask another "
                "model: --model local"
            ) from error
        raise


def _openai(model: str) -> tuple[Model, Closer]:
    from openai import AsyncOpenAI  # noqa: PLC0415
    from pydantic_ai.models.openai import OpenAIChatModel  # noqa: PLC0415
    from pydantic_ai.providers.openai import OpenAIProvider  # noqa: PLC0415

    client = AsyncOpenAI(max_retries=0, timeout=_TIMEOUT_S)
    return OpenAIChatModel(model, provider=OpenAIProvider(openai_client=client)), client.close


def _anthropic(model: str) -> tuple[Model, Closer]:
    from anthropic import AsyncAnthropic  # noqa: PLC0415
    from pydantic_ai.models.anthropic import AnthropicModel  # noqa: PLC0415
    from pydantic_ai.providers.anthropic import AnthropicProvider  # noqa: PLC0415

    client = AsyncAnthropic(max_retries=0, timeout=_TIMEOUT_S)
    if client.api_key is None and client.auth_token is None:
        # The client itself notices only when it is asked.
        raise ValueError("set ANTHROPIC_API_KEY")
    made = AnthropicModel(model, provider=AnthropicProvider(anthropic_client=client))
    return made, client.close


def _google(model: str) -> tuple[Model, Closer]:
    import httpx2  # noqa: PLC0415
    from pydantic_ai.models.google import GoogleModel  # noqa: PLC0415
    from pydantic_ai.providers.google import GoogleProvider  # noqa: PLC0415

    # One of our own: of one that it is given the provider's client closes no connection.
    http = httpx2.AsyncClient(timeout=_TIMEOUT_S)
    provider = GoogleProvider(http_client=http)

    async def close() -> None:
        await provider.client.aio.aclose()
        await http.aclose()

    return GoogleModel(model, provider=provider), close


def _request(
    call: LlmCall, seed: int | None
) -> tuple[list[ModelMessage], ModelSettings, ModelRequestParameters]:
    from pydantic_ai.messages import ModelRequest, SystemPromptPart  # noqa: PLC0415
    from pydantic_ai.models import ModelRequestParameters  # noqa: PLC0415
    from pydantic_ai.output import OutputObjectDefinition  # noqa: PLC0415
    from pydantic_ai.settings import ModelSettings  # noqa: PLC0415
    from pydantic_ai.tools import ToolDefinition  # noqa: PLC0415

    if unknown := call.more.keys() - _KNOWN:
        raise ModelUnavailableError(
            f"{call.provider} takes no {', '.join(sorted(unknown))}; only the embedded model does"
        )
    messages: list[ModelMessage] = []
    if system := call.more.get("system"):
        messages.append(ModelRequest([SystemPromptPart(system)]))
    for message in call.more.get("messages") or [{"role": "user", "content": call.prompt}]:
        messages.append(_message(message))
    settings: JsonObject = {"timeout": _TIMEOUT_S}
    if seed is not None and call.provider in {"openai", "google"}:
        settings["seed"] = seed
    settings |= {name: call.more[key] for key, name in _SETTINGS.items() if key in call.more}
    if call.temperature is not None:
        settings["temperature"] = call.temperature
    if call.max_tokens is not None:
        settings["max_tokens"] = call.max_tokens
    schema = (call.more.get("response_format") or {}).get("json_schema")
    tools = [
        ToolDefinition(
            name=tool["name"],
            description=tool.get("description"),
            parameters_json_schema=tool.get("parameters", {"type": "object", "properties": {}}),
        )
        for tool in call.more.get("tools", ())
    ]
    parameters = ModelRequestParameters(
        function_tools=tools,
        output_mode="native" if schema else "text",
        output_object=OutputObjectDefinition(json_schema=schema) if schema else None,
    )
    return messages, ModelSettings(**settings), parameters  # type: ignore[typeddict-item]


def _message(message: JsonObject) -> ModelMessage:
    """A message of a call as the library has it.

    Raises:
        ModelUnavailableError: It is none that can be sent from here.
    """
    from pydantic_ai.messages import (  # noqa: PLC0415
        ModelRequest,
        ModelResponse,
        SystemPromptPart,
        TextPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )

    content = message.get("content")
    match message.get("role"):
        case "assistant" if isinstance(content, str):
            asked = [
                ToolCallPart(call["name"], call["args"], tool_call_id=call["id"])
                for call in message.get("tool_calls", ())
            ]
            return ModelResponse([TextPart(content), *asked] if content else asked)
        case "tool" if isinstance(content, str):
            name, id_ = message["name"], message["tool_call_id"]
            return ModelRequest([ToolReturnPart(name, content, tool_call_id=id_)])
        case "system" if isinstance(content, str):
            return ModelRequest([SystemPromptPart(content)])
        case "user" if isinstance(content, str):
            return ModelRequest([UserPromptPart(content)])
    raise ModelUnavailableError(
        "a message is {role: system|user|assistant|tool, content: text} here; use the "
        "provider's SDK for more"
    )


def _chunk(event: Any, tools: dict[int, int]) -> Chunk | None:
    """The piece of text that a stream's event carries, or None."""
    kind = getattr(event, "event_kind", "")
    if kind == "part_start":
        part = event.part
        if part.part_kind == "tool-call":
            tools[event.index] = len(tools)
            args = part.args if isinstance(part.args, str) else ""
            return Chunk(f"tool/{tools[event.index]}", args) if args else None
        name = {"text": "text", "thinking": "reasoning"}.get(part.part_kind)
        return Chunk(name, part.content) if name and part.content else None
    if kind == "part_delta":
        delta = event.delta
        if delta.part_delta_kind == "tool_call":
            args = delta.args_delta
            if isinstance(args, str) and args:
                return Chunk(f"tool/{tools.setdefault(event.index, len(tools))}", args)
            return None
        name = {"text": "text", "thinking": "reasoning"}.get(delta.part_delta_kind)
        return Chunk(name, delta.content_delta) if name and delta.content_delta else None
    return None


def _failure(error: Exception) -> ProviderError:
    """A pydantic-ai failure as ours: the SDK's own name, status and text."""
    cause = error.__cause__ or error
    status = getattr(error, "status_code", None)
    body = getattr(error, "body", None)
    text = json.dumps(body, sort_keys=True, default=str) if body else str(error)
    return ProviderError(type(cause).__name__, status if isinstance(status, int) else None, text)


def _below_http() -> tuple[type[Exception], ...]:
    """Failures of the connection that reach us as the HTTP client's own exceptions."""
    import httpx2  # noqa: PLC0415 - the SDKs brought it

    return (httpx2.HTTPError, ConnectionError, TimeoutError)
