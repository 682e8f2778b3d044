"""A model that answers from a file: it can delay, fail, stream, and answer by pattern.

answers:
  - match: "Split one step"         # a plan asks for each step's tasks first
    text: '{"tasks":[{"id":"t1","title":"write it","files":[1],"depends_on":[]}]}'
  - match: "haiku about (\\w+)"     # a regular expression, searched for in the prompt
    text: "old pond {1}, call {n}"  # {0} the match, {1} its groups, {n} how often (from 1)
    delay_s: [0, 0.05]              # seconds, or a range to draw from
    times: 2                        # after that the next rule that matches
  - match: "flaky"
    fail: {class: RateLimitError, status: 429, text: slow down}
    times: 1
  - stream: ["one ", "two"]         # the text's pieces, whether streamed or not
    usage: {input: 12, output: 2}
    tool_calls: [{name: bash, args: '{"cmd": "ls"}'}]
"""

from __future__ import annotations

import asyncio
import random
import re
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from bernstein.errors import ModelUnavailableError, ProviderError
from bernstein.recording.answer import Chunk, LlmAnswer, ToolCall, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from bernstein.recording.key import LlmCall

# Delays are meant to differ from run to run, whatever seed the run has.
_delays = random.SystemRandom()


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a scripted call fails."""

    error_class: str = msgspec.field(name="class", default="APIError")
    status: int | None = None
    text: str = "scripted failure"
    after_chunks: int = 0


class Tokens(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The usage that a scripted call reports: tokens, and micro-dollars."""

    input: int = 0
    output: int = 0
    credits: int = 0

    def as_usage(self) -> Usage:
        """The same as a recorded usage; it is priced by the script where it costs."""
        if not self.credits:
            return Usage(self.input, self.output, "estimated")
        return Usage(
            self.input, self.output, "priced", credits=self.credits, price_book_version="scripted"
        )


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of ``answers``."""

    match: str = ""
    text: str = ""
    stream: list[str] | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] = []
    delay_s: float | list[float] = 0.0
    fail: Failure | None = None
    times: int | None = None
    stop_reason: str | None = "stop"
    usage: Tokens = Tokens()


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A script's file."""

    answers: list[Rule]


@dataclass
class _Use:
    rule: Rule
    pattern: re.Pattern[str]
    count: int = field(default=0)


class ScriptedProvider:
    """Answers by the first rule that matches and is not used up; safe for threads."""

    def __init__(self, script: Script) -> None:
        self._uses = [_Use(rule, re.compile(rule.match, re.DOTALL)) for rule in script.answers]
        self._lock = threading.Lock()

    @classmethod
    def from_file(cls, path: Path) -> ScriptedProvider:
        """Read a script (YAML or JSON).

        Raises:
            ModelUnavailableError: There is none, or it is not a script.
        """
        import yaml  # noqa: PLC0415 - only a scripted run needs it here

        try:
            loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
            value: Any = yaml.load(path.read_text("utf-8"), Loader=loader)  # noqa: S506 - it is safe
            return cls(msgspec.convert(value, Script))
        except OSError as error:
            raise ModelUnavailableError(
                f"the script {str(path)!r} cannot be read: {error.strerror}\n"
                "  name it from the working directory: --model scripted:answers.yaml"
            ) from error
        except (yaml.YAMLError, msgspec.ValidationError, re.error, UnicodeDecodeError) as error:
            raise ModelUnavailableError(f"{path} is not a script: {error}") from error

    async def ask(self, call: LlmCall, seed: int | None) -> AsyncIterator[Chunk | LlmAnswer]:
        """See ``Provider.ask``."""
        del seed
        rule, text, pieces = self._pick(call)
        delay = rule.delay_s
        await asyncio.sleep(_delays.uniform(*delay) if isinstance(delay, list) else delay)
        chunks: list[tuple[str, int]] = []
        if call.is_streamed:
            for kind, piece in pieces:
                if rule.fail is not None and len(chunks) >= rule.fail.after_chunks:
                    break
                chunks.append((kind, len(piece)))
                yield Chunk(kind, piece)
        if rule.fail is not None:
            raise ProviderError(rule.fail.error_class, rule.fail.status, rule.fail.text)
        yield LlmAnswer(
            text,
            tool_calls=tuple(rule.tool_calls),
            usage=rule.usage.as_usage(),
            stop_reason=rule.stop_reason,
            reasoning=rule.reasoning,
            chunks=tuple(chunks) if call.is_streamed else None,
        )

    def _pick(self, call: LlmCall) -> tuple[Rule, str, list[tuple[str, str]]]:
        prompt = call.key_prompt
        with self._lock:
            for use in self._uses:
                found = use.pattern.search(prompt)
                if found and (use.rule.times is None or use.count < use.rule.times):
                    use.count += 1
                    count = use.count
                    break
            else:
                raise ProviderError("NoScriptedAnswer", 404, "no rule of the script matches")
        rule = use.rule

        def fill(template: str) -> str:
            values = {"n": str(count), "0": found[0]}
            values |= {str(i): group or "" for i, group in enumerate(found.groups(), 1)}
            return re.sub(r"\{(\w+)\}", lambda m: values.get(m[1], m[0]), template)

        texts = [fill(piece) for piece in rule.stream or re.findall(r"\S+\s*|\s+", rule.text)]
        text = "".join(texts) if rule.stream else fill(rule.text)
        pieces = [("reasoning", rule.reasoning)] if rule.reasoning else []
        pieces += [("text", piece) for piece in texts]
        pieces += [(f"tool/{n}", tool.args) for n, tool in enumerate(rule.tool_calls)]
        return rule, text, pieces
