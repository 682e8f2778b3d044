"""A run as one trace of OpenTelemetry: OTLP's JSON, with the attributes of generative AI.

Ids are made of the head and of each row's place, and times are those of the rows: a run gives the
same bytes each time. Bodies stand by their digests, under names of ours.
"""

from __future__ import annotations

import calendar
import re
import time
from typing import TYPE_CHECKING

from bernstein.canonical import JsonObject, JsonValue, canonical_bytes, sha256_hex
from bernstein.interop.otel_values import PROVIDERS, spelled_attributes
from bernstein.interop.story import ModelSpan, StepSpan, Story, ToolSpan
from bernstein.version import __version__

if TYPE_CHECKING:
    from bernstein.interop.story import Bodies

_INTERNAL, _CLIENT = 1, 3  # kinds of spans
_ERROR = 2  # a status
_TS = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(\d{6})Z")


def to_otel(story: Story, bodies: Bodies | None) -> bytes:
    """The trace of a run.

    Args:
        story: The run.
        bodies: Where contents are from; None leaves them out.
    """
    spans = _Spans(story, bodies)
    scope = {"name": "bernstein", "version": __version__}
    resource = spelled_attributes({"service.name": "bernstein"})
    exported = {
        "resourceSpans": [
            {
                "resource": {"attributes": resource},
                "scopeSpans": [{"scope": scope, "spans": spans.all()}],
            }
        ]
    }
    return canonical_bytes(exported) + b"\n"


class _Spans:
    """Makes the spans of one run."""

    def __init__(self, story: Story, bodies: Bodies | None) -> None:
        self._story = story
        self._bodies = bodies
        # sha256("bernstein.otel.trace.v1\n" + head), its first 16 bytes
        self._trace = sha256_hex(f"bernstein.otel.trace.v1\n{story.head}".encode())[:32]
        self._steps: dict[str, str] = {}

    def _id(self, name: str) -> str:
        # sha256("bernstein.otel.span.v1\n" + head + "\n" + name), its first 8 bytes
        return sha256_hex(f"bernstein.otel.span.v1\n{self._story.head}\n{name}".encode())[:16]

    def all(self) -> list[JsonValue]:
        """The run's own span, and those of its parts in their order."""
        found: list[JsonValue] = [self._run()]
        for part in self._story.parts:
            match part:
                case StepSpan():
                    found.append(self._step(part))
                case ModelSpan():
                    found.append(self._model(part))
                case ToolSpan():
                    found.append(self._tool(part))
        return found

    def _span(
        self,
        name: str,
        span_id: str,
        parent: str | None,
        times: tuple[str, str | None],
        attributes: JsonObject,
        *,
        kind: int = _INTERNAL,
        is_error: bool = False,
    ) -> JsonObject:
        begun, ended = times
        span: JsonObject = {
            "traceId": self._trace,
            "spanId": span_id,
            "name": name,
            "kind": kind,
            "startTimeUnixNano": _nanos(begun),
            "endTimeUnixNano": _nanos(ended or begun),
            "attributes": spelled_attributes(attributes),
        }
        if parent is not None:
            span["parentSpanId"] = parent
        if is_error:
            span["status"] = {"code": _ERROR}
        return span

    def _run(self) -> JsonObject:
        story = self._story
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": story.agent_id,
            "error.type": "_OTHER" if story.status == "failed" else None,
            "bernstein.run.id": story.run_id,
            "bernstein.run.head": story.head,
            "bernstein.run.status": story.status,
        }
        name = f"invoke_agent {story.agent_id}"
        times = (story.begun, story.ended)
        is_error = story.status == "failed"
        return self._span(name, self._id("run"), None, times, attributes, is_error=is_error)

    def _parent(self, step_id: str | None) -> str:
        return self._steps.get(step_id or "", self._id("run"))

    def _step(self, step: StepSpan) -> JsonObject:
        step_id = step.payload["stepId"]
        span_id = self._id(str(step.index))
        parent = self._parent(step.payload.get("parentStepId"))
        self._steps.setdefault(step_id, span_id)
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.id": step_id,
            "gen_ai.agent.name": step.payload.get("label", step_id),
            "error.type": "_OTHER" if step.is_error else None,
            "bernstein.step": step_id,
        }
        return self._span(
            f"invoke_agent {step_id}",
            span_id,
            parent,
            (step.begun, step.ended),
            attributes,
            is_error=step.is_error,
        )

    def _model(self, call: ModelSpan) -> JsonObject:
        said, prompt = call.payload, call.payload.get("prompt")
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": PROVIDERS.get(said["provider"], said["provider"]) or None,
            "gen_ai.request.model": said["model"] or None,
            **_ref("prompt", prompt),
        }
        if call.usage is not None:
            cached = call.usage.get("cachedInputTokens", 0)
            attributes |= {
                "gen_ai.usage.input_tokens": call.usage["inputTokens"] + cached,
                "gen_ai.usage.output_tokens": call.usage["outputTokens"],
                "gen_ai.usage.cache_read.input_tokens": cached,
            }
        if (text := self._text(prompt)) is not None:
            part = {"role": "user", "parts": [{"type": "text", "content": text}]}
            attributes["gen_ai.input.messages"] = canonical_bytes([part]).decode()
        return self._span(
            f"chat {said['model']}".rstrip(),
            self._id(str(call.index)),
            self._parent(said.get("stepId")),
            (call.begun, call.ended),
            attributes,
            kind=_CLIENT,
        )

    def _tool(self, tool: ToolSpan) -> JsonObject:
        said, result = tool.payload, tool.result
        ref = None if result is None else result["result"]
        is_error = result is not None and not result["ok"]
        attributes: JsonObject = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": said["name"],
            "gen_ai.tool.call.id": said["toolCallId"],
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.arguments": self._text(said["args"]),
            "gen_ai.tool.call.result": self._text(ref),
            "error.type": "_OTHER" if is_error else None,
            "bernstein.exitCode": None if result is None else result.get("exitCode"),
            "bernstein.noResult": True if result is None else None,
            **_ref("args", said["args"]),
            **_ref("result", ref),
        }
        for name, value in (tool.approval or {}).items():
            attributes[f"bernstein.approval.{name}"] = value
        return self._span(
            f"execute_tool {said['name']}",
            self._id(str(tool.index)),
            self._parent(said["stepId"]),
            (tool.begun, tool.ended),
            attributes,
            is_error=is_error,
        )

    def _text(self, ref: JsonValue) -> str | None:
        """A body as text, where bodies are asked for and it is here."""
        if self._bodies is None or ref is None:
            return None
        return as_text(self._bodies(ref))


def as_text(body: JsonValue) -> str | None:
    """A body as text: the one that it is, else its canonical JSON."""
    return body if body is None or isinstance(body, str) else canonical_bytes(body).decode()


def _ref(name: str, ref: JsonValue) -> JsonObject:
    if ref is None:
        return {}
    digest = {f"bernstein.{name}.digest": ref["digest"]}
    return {**digest, f"bernstein.{name}.bytes": ref["byteLength"]}


def _nanos(ts: str) -> str:
    """A row's time in nanoseconds since 1970."""
    found = _TS.fullmatch(ts)
    if found is None:
        return "0"
    seconds = calendar.timegm(time.strptime(found[1], "%Y-%m-%dT%H:%M:%S"))
    return str((seconds * 1_000_000 + int(found[2])) * 1000)
