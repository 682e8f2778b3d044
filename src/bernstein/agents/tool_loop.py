"""The built-in agent with tools: asks a model, does what it asks for, and tells it what came of it.

It ends with the first answer that asks for no tool. A model that takes no tools (the embedded one)
is told of them in words, and answers in JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from bernstein.agents.builtin import BadAnswerError
from bernstein.agents.tools import ToolOutput, describe_tool
from bernstein.canonical import JsonObject, canonical_bytes, decode_strict, utf8
from bernstein.capture.llm import aask
from bernstein.errors import BudgetError, CanonicalError
from bernstein.recording.answer import ToolCall
from bernstein.recording.key import LlmCall

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from bernstein.capture.program import CallScope
    from bernstein.recording.answer import LlmAnswer

# Does what a model asks for at once; one output a call, in their order.
Use: TypeAlias = "Callable[[Sequence[ToolCall]], Awaitable[list[ToolOutput]]]"

_MAX_TOKENS, _MAX_TOKENS_LOCAL = 8192, 160
_TOLD_CHARS_LOCAL = 600


@dataclass(frozen=True, slots=True)
class ToolBrief:
    """All that the model is told of a task, and how it is asked.

    Attributes:
        system: Who it is, and how it is to go about it.
        prompt: The task.
        tools: The names of the tools that it is told of.
        max_turns: How often it is asked at most.
        provider, model, temperature, max_tokens: How it is asked.
        max_retries: How often a call that failed is made again.
    """

    system: str
    prompt: str
    tools: tuple[str, ...]
    max_turns: int
    provider: str
    model: str
    temperature: float | None
    max_tokens: int | None
    max_retries: int


async def work_with_tools(brief: ToolBrief, scope: CallScope, use: Use) -> str:
    """Let a model work until it asks for no tool any more; gives its last words.

    Raises:
        BudgetError: It asks for tools more often than it may.
        BadAnswerError: It answers with what nothing can be made of.
        ProviderError, ReplayMissError: See ``call_llm``.
    """
    form = _Words(brief) if brief.provider == "local" else _Tools(brief)
    for _ in range(brief.max_turns):
        call = LlmCall(
            model=brief.model,
            prompt=None,
            provider=brief.provider,
            temperature=brief.temperature,
            max_tokens=brief.max_tokens or form.max_tokens,
            more=form.request(),
        )
        answer = await aask(call, scope, brief.max_retries)
        calls = form.calls_in(answer)
        if not calls:
            return answer.text
        form.tell(answer, calls, await use(calls))
    raise BudgetError(f"the model asked for tools in {brief.max_turns} turns: raise `max_turns:`")


class _Tools:
    """A conversation with a model that takes tools."""

    max_tokens = _MAX_TOKENS

    def __init__(self, brief: ToolBrief) -> None:
        self._brief = brief
        self._messages: list[JsonObject] = [{"role": "user", "content": brief.prompt}]
        self._count = 0

    def request(self) -> JsonObject:
        """What reaches the provider beside model and bounds."""
        tools = [describe_tool(name) for name in self._brief.tools]
        return {"system": self._brief.system, "tools": tools, "messages": list(self._messages)}

    def calls_in(self, answer: LlmAnswer) -> Sequence[ToolCall]:
        """The tools that an answer asks for."""
        return answer.tool_calls

    def tell(
        self, answer: LlmAnswer, calls: Sequence[ToolCall], outputs: Sequence[ToolOutput]
    ) -> None:
        """Go on with an answer, and with what came of its calls."""
        ids = [f"call-{self._count + number}" for number in range(1, len(calls) + 1)]
        self._count += len(calls)
        asked = [
            {"id": id_, "name": call.name, "args": call.args}
            for id_, call in zip(ids, calls, strict=True)
        ]
        self._messages.append({"role": "assistant", "content": answer.text, "tool_calls": asked})
        self._messages += [
            {"role": "tool", "tool_call_id": id_, "name": call.name, "content": output.text}
            for id_, call, output in zip(ids, calls, outputs, strict=True)
        ]


class _Words:
    """A conversation with a model that answers in JSON: with a tool, or that it is done."""

    max_tokens = _MAX_TOKENS_LOCAL

    def __init__(self, brief: ToolBrief) -> None:
        self._brief = brief
        self._tools = [describe_tool(name) for name in brief.tools]
        lines = [f"{tool['name']}: {tool['description']}" for tool in self._tools]
        told = "\n".join([brief.system, "Answer in JSON. Tools:", *lines])
        self._system = f'{told}\nWhen all is done answer {{"done": "what you did"}}.'
        self._messages: list[JsonObject] = [{"role": "user", "content": brief.prompt}]

    def request(self) -> JsonObject:
        """What reaches the provider beside model and bounds."""
        kinds = [
            _object({"tool": {"const": tool["name"]}, "arguments": _all_of(tool["parameters"])})
            for tool in self._tools
        ]
        schema = {"anyOf": [*kinds, _object({"done": {"type": "string", "maxLength": 200}})]}
        # Its context is short: the task, and what came last.
        messages = [self._messages[0], *self._messages[1:][-2:]]
        form = {"type": "json_object", "schema": schema}
        return {"system": self._system, "messages": messages, "response_format": form}

    def calls_in(self, answer: LlmAnswer) -> Sequence[ToolCall]:
        """The tool that an answer asks for.

        Raises:
            BadAnswerError: It was cut at its bound.
        """
        try:
            decode_strict(utf8(answer.text))
        except CanonicalError as error:
            raise BadAnswerError("the model gave no whole JSON") from error
        return asked_in_words(answer.text)

    def tell(
        self, answer: LlmAnswer, calls: Sequence[ToolCall], outputs: Sequence[ToolOutput]
    ) -> None:
        """Go on with an answer, and with what came of its call."""
        self._messages.append({"role": "assistant", "content": answer.text})
        told = "\n".join(
            f"{call.name}: {output.text[:_TOLD_CHARS_LOCAL]}"
            for call, output in zip(calls, outputs, strict=True)
        )
        self._messages.append({"role": "user", "content": told})


def asked_in_words(text: str) -> tuple[ToolCall, ...]:
    """The tool that an answer in words asks for, where it asks for one."""
    try:
        value = decode_strict(utf8(text))
    except CanonicalError:
        return ()
    if not isinstance(value, dict) or not isinstance(value.get("tool"), str):
        return ()
    return (ToolCall(value["tool"], canonical_bytes(value.get("arguments")).decode()),)


def _object(properties: JsonObject) -> JsonObject:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _all_of(parameters: JsonObject) -> JsonObject:
    """The parameters of a tool that have to be given; a short text is the most that it makes."""
    needed = {name: parameters["properties"][name] for name in parameters["required"]}
    bounded = {
        name: said | {"maxLength": 200} if said["type"] == "string" else said
        for name, said in needed.items()
    }
    return _object(bounded)
