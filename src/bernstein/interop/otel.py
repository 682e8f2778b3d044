"""Traces of OpenTelemetry with the attributes of generative AI: ``gen_ai.*``, newer and older.

Exports in OTLP's JSON, and spans as objects by themselves. Agents and workflows are steps; of calls
within calls, as two libraries report them, the innermost counts. Contents are told only where
whoever wrote the trace asked for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bernstein.interop.counts import first_of
from bernstein.interop.members import inline, key_of, objects_of, parsed, part_of
from bernstein.interop.otel_values import PROVIDERS, attributes_of, usage_of
from bernstein.interop.spans import walk
from bernstein.interop.stated import STATED, body_or_ref, stated_approval, stated_code
from bernstein.interop.steps import SESSION
from bernstein.interop.telling import Telling
from bernstein.interop.transcript import Transcript

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bernstein.canonical import JsonObject, JsonValue
    from bernstein.interop.records import Records

_CALLS = frozenset(
    {"chat", "text_completion", "generate_content", "completion", "responses", "embeddings"}
)
_STEPS = frozenset({"invoke_agent", "invoke_workflow", "workflow", "agent", "task"})
_TOOLS = frozenset({"execute_tool", "tool"})
_PREFIXES = ("gen_ai.", "llm.", "traceloop.")


class _Span(NamedTuple):
    """A span, whichever of the forms it came in."""

    name: tuple[JsonValue, str] | None
    parent: tuple[JsonValue, str] | None
    attributes: JsonObject
    events: list[JsonObject]
    is_error: bool


def is_otel(record: JsonObject) -> bool:
    """Whether a record is an export, or a span with attributes of generative AI."""
    if "resourceSpans" in record or "resource_spans" in record:
        return True
    return any(name.startswith(_PREFIXES) for name in attributes_of(record.get("attributes")))


def read_otel(records: Records) -> Iterator[Transcript]:
    """The one run that the traces of a file tell."""
    spans = [_span(found) for record in records.values for found in _spans(record)]
    telling = Telling()
    telling.records = len(spans)
    above: dict[int, int | None] = {}
    asks: set[int] = set()  # calls that have a call within them
    visits = list(walk([(span.name, span.parent) for span in spans]))
    for visit in visits:
        if visit.is_begin:
            above[visit.place] = visit.above
            if _operation(spans[visit.place]) in _CALLS:
                outer = visit.above
                while outer is not None and outer not in asks:
                    asks.add(outer)
                    outer = above[outer]
    steps: dict[int | None, int | None] = {None: None}
    for place, outer, is_begin in visits:
        operation = _operation(spans[place])
        if is_begin:
            steps[place] = steps[outer]
            if operation in _STEPS:
                _begin(place, spans[place], steps, telling)
            elif operation in _TOOLS:
                _take_tool(place, spans[place], steps[outer], telling)
            elif operation in _CALLS and place not in asks:
                _take_call(spans[place], steps[outer], telling)
            elif not operation:
                telling.pass_over()
        elif operation in _STEPS:
            telling.end(place, ok=not spans[place].is_error)
    yield telling.finish("otel", records.data, bad_lines=records.bad_lines)


def _begin(place: int, span: _Span, steps: dict[int | None, int | None], telling: Telling) -> None:
    said = span.attributes.get(f"{STATED}.step")
    if said == SESSION or f"{STATED}.run.status" in span.attributes:
        telling.be_session(place)
    else:
        label = "workflow" if "workflow" in _operation(span) else "agent"
        telling.begin(place, steps[place], said, label=label)
    steps[place] = place
    status = span.attributes.get(f"{STATED}.run.status")
    if status in ("failed", "cancelled"):
        telling.status = status


def _spans(record: JsonObject) -> Iterator[JsonObject]:
    """The spans of an export, or the one that the record is."""
    exported = record.get("resourceSpans", record.get("resource_spans"))
    if exported is None:
        yield record
        return
    for resource in objects_of(exported):
        names = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans")
        for scope in objects_of(first_of(resource, *names)):
            yield from objects_of(scope.get("spans"))


def _span(value: JsonObject) -> _Span:
    context = part_of(value, "context")
    trace = first_of(value, "traceId", "trace_id") or context.get("trace_id")
    span = first_of(value, "spanId", "span_id") or context.get("span_id")
    parent = first_of(value, "parentSpanId", "parent_span_id", "parent_id", "parentId")
    trace_key = key_of(trace)
    name, parent_name = key_of(span), key_of(parent)
    attributes = attributes_of(value.get("attributes"))
    status = part_of(value, "status")
    code = first_of(status, "code", "status_code")
    return _Span(
        None if name is None else (trace_key, name),
        None if parent_name is None else (trace_key, parent_name),
        attributes,
        objects_of(value.get("events")),
        code in (2, "ERROR", "STATUS_CODE_ERROR") or "error.type" in attributes,
    )


def _operation(span: _Span) -> str:
    """What a span is; empty for one that is nothing of generative AI."""
    said = first_of(
        span.attributes, "gen_ai.operation.name", "traceloop.span.kind", "llm.request.type"
    )
    if isinstance(said, str):
        return said
    return "chat" if "gen_ai.request.model" in span.attributes else ""


# --- calls of models


def _take_call(span: _Span, step: int | None, telling: Telling) -> None:
    found = span.attributes
    said = inline(first_of(found, "gen_ai.provider.name", "gen_ai.system"))
    provider = next((ours for ours, theirs in PROVIDERS.items() if theirs == said), said)
    model = first_of(found, "gen_ai.request.model", "gen_ai.response.model", "llm.request.model")
    prompt = body_or_ref(_as_metadata(found), "prompt", _prompt(span))
    if prompt is not None:
        telling.ask(provider, model, prompt, step)
    if any(name.startswith(("gen_ai.usage.", "llm.usage.")) for name in found):
        telling.use(provider, model, usage_of(found), step)


def _prompt(span: _Span) -> JsonValue:
    """What the model was asked, in any of the places where that was written."""
    found = span.attributes
    whole = first_of(found, "gen_ai.input.messages", "gen_ai.prompt", "traceloop.entity.input")
    if whole is not None:
        system = found.get("gen_ai.system_instructions")
        return parsed(whole) if system is None else [parsed(system), parsed(whole)]
    numbered = {name: text for name, text in found.items() if name.startswith("gen_ai.prompt.")}
    if numbered:
        return numbered
    said = [
        {"name": event.get("name"), "attributes": attributes_of(event.get("attributes"))}
        for event in span.events
        if event.get("name") in _SAID
    ]
    return said or None


# Events of a span that hold what the model was asked.
_SAID = (
    *("gen_ai.content.prompt", "gen_ai.system.message", "gen_ai.user.message"),
    *("gen_ai.assistant.message", "gen_ai.tool.message"),
    "gen_ai.client.inference.operation.details",
)


# --- tools


def _take_tool(place: int, span: _Span, step: int | None, telling: Telling) -> None:
    found = span.attributes
    said = _as_metadata(found)
    name = first_of(found, "gen_ai.tool.name", "traceloop.entity.name")
    asked = first_of(found, "gen_ai.tool.call.arguments", "traceloop.entity.input")
    args = body_or_ref(said, "args", asked)
    own_id = found.get("gen_ai.tool.call.id") if f"{STATED}.args.digest" in found else None
    telling.propose(place, name, args, step, own_id)
    if approval := stated_approval(said):
        if approval.outcome == "approved":
            telling.approve(place, approval.actor)
        else:
            telling.deny(place, approval.actor, approval.reason)
    if found.get(f"{STATED}.noResult") is True:
        return
    came = first_of(found, "gen_ai.tool.call.result", "traceloop.entity.output")
    result = body_or_ref(said, "result", came)
    telling.result(place, result, ok=not span.is_error, exit_code=stated_code(said))


def _as_metadata(found: JsonObject) -> JsonObject:
    """The attributes of our own exports as the metadata of other formats."""
    said: JsonObject = {}
    for name in ("args", "result", "prompt"):
        digest, size = found.get(f"{STATED}.{name}.digest"), found.get(f"{STATED}.{name}.bytes")
        if digest is not None:
            said[name] = {"digest": digest, "byteLength": size}
    said["exitCode"] = found.get(f"{STATED}.exitCode")
    names = ("outcome", "actor", "reason")
    said["approval"] = {name: found.get(f"{STATED}.approval.{name}") for name in names}
    return {"metadata": {STATED: said}}
