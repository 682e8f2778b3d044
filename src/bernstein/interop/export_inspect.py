"""A run as a log of Inspect's: one sample, whose events are steps, models and tools.

Bodies stand by their digests, in the metadata of each event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.canonical import JsonObject, JsonValue, canonical_bytes
from bernstein.interop.export_otel import as_text
from bernstein.interop.stated import STATED
from bernstein.interop.story import ModelSpan, StepEnd, StepSpan, Story, ToolSpan
from bernstein.version import __version__
from bernstein.wire.reported import spellable

if TYPE_CHECKING:
    from bernstein.interop.story import Bodies

VERSION = 2  # of the format
_STATUS = {"completed": "success", "failed": "error", "cancelled": "cancelled"}
_ERROR = {"message": "the run failed", "traceback": "", "traceback_ansi": ""}


def to_inspect(story: Story, bodies: Bodies | None) -> bytes:
    """The log of a run; ``bodies``: where contents are from, None leaves them out."""
    events = [event for part in story.parts if (event := _event(part, bodies)) is not None]
    models = [part for part in story.parts if isinstance(part, ModelSpan)]
    model = next((_model_name(call) for call in models), "none/none")
    name = story.agent_id or "run"
    log = {
        "version": VERSION,
        "status": _STATUS.get(story.status, "started"),
        "eval": {
            "eval_id": story.head[:22],
            "run_id": story.run_id,
            "created": story.begun,
            "task": name,
            "task_id": name,
            "task_version": 0,
            "dataset": {"name": "bernstein", "samples": 1, "sample_ids": [1], "shuffled": False},
            "model": model,
            "model_args": {},
            "config": {"epochs": 1},
            "packages": {"bernstein": __version__},
        },
        "plan": {"name": "plan", "steps": []},
        "results": {
            "total_samples": 1,
            "completed_samples": int(story.status == "completed"),
            "scores": [],
        },
        "stats": {
            "started_at": story.begun,
            "completed_at": story.ended,
            "model_usage": _totals(models),
        },
        "samples": [_sample(story, model, events, models)],
    }
    if story.status == "failed":
        log["error"] = _ERROR
    return canonical_bytes(spellable(log)) + b"\n"


def _sample(
    story: Story, model: str, events: list[JsonObject], models: list[ModelSpan]
) -> JsonObject:
    said = {"runId": story.run_id, "head": story.head, "status": story.status}
    sample = {
        "id": 1,
        "epoch": 1,
        "input": "",
        "target": "",
        "messages": [],
        "output": {"model": model, "choices": []},
        "scores": {},
        "metadata": {STATED: said},
        "store": {},
        "events": events,
        "model_usage": _totals(models),
        "attachments": {},
    }
    return {**sample, "error": _ERROR} if story.status == "failed" else sample


def _event(
    part: StepSpan | StepEnd | ModelSpan | ToolSpan, bodies: Bodies | None
) -> JsonObject | None:
    match part:
        case StepSpan():
            return _step(part)
        case StepEnd():
            ended = part.step.ended or part.step.begun
            return {
                **_base("span_end", ended, None, {"isError": part.step.is_error}),
                "id": part.step.payload["stepId"],
            }
        case ModelSpan():
            return _model(part, bodies)
        case ToolSpan():
            return _tool(part, bodies)


def _base(event: str, ts: str, step_id: str | None, said: JsonObject) -> JsonObject:
    base: JsonObject = {"event": event, "timestamp": ts, "working_start": 0}
    if step_id is not None:
        base["span_id"] = step_id
    kept = {name: value for name, value in said.items() if value is not None}
    return {**base, "metadata": {STATED: kept}} if kept else base


def _step(step: StepSpan) -> JsonObject:
    said = step.payload
    event: JsonObject = {
        **_base("span_begin", step.begun, said["stepId"], {"step": said["stepId"]}),
        "id": said["stepId"],
        "type": "agent",
        "name": said.get("label", said["stepId"]),
    }
    if "parentStepId" in said:
        event["parent_id"] = said["parentStepId"]
    return event


def _model_name(call: ModelSpan) -> str:
    said = call.payload
    return f"{said['provider'] or 'none'}/{said['model'] or 'none'}"


def _model(call: ModelSpan, bodies: Bodies | None) -> JsonObject:
    said, prompt = call.payload, call.payload.get("prompt")
    name = _model_name(call)
    text = None if bodies is None or prompt is None else as_text(bodies(prompt))
    output: JsonObject = {"model": said["model"], "choices": []}
    if call.usage is not None:
        output["usage"] = _usage(call.usage)
    names = {"provider": said["provider"], "model": said["model"]}
    usage_only = True if prompt is None else None
    stated = {**names, "prompt": prompt, "usageOnly": usage_only}
    return {
        **_base("model", call.begun, said.get("stepId"), stated),
        "model": name,
        "input": [] if text is None else [{"role": "user", "content": text}],
        "tools": [],
        "tool_choice": "auto",
        "config": {},
        "output": output,
    }


def _usage(said: JsonObject) -> JsonObject:
    sent, out, cached = (
        said["inputTokens"],
        said["outputTokens"],
        said.get("cachedInputTokens", 0),
    )
    return {
        "input_tokens": sent,
        "output_tokens": out,
        "total_tokens": sent + out + cached,
        "input_tokens_cache_read": cached,
    }


def _totals(models: list[ModelSpan]) -> JsonObject:
    """What each model used."""
    totals: dict[str, JsonObject] = {}
    for call in models:
        if call.usage is not None:
            total = totals.setdefault(_model_name(call), {})
            for name, count in _usage(call.usage).items():
                total[name] = total.get(name, 0) + count
    return totals


def _tool(tool: ToolSpan, bodies: Bodies | None) -> JsonObject:
    said, came = tool.payload, tool.result
    args: JsonValue = None if bodies is None else bodies(said["args"])
    result = None if bodies is None or came is None else as_text(bodies(came["result"]))
    stated = {
        "args": said["args"],
        "approval": tool.approval,
        "result": None if came is None else came["result"],
        "exitCode": None if came is None else came.get("exitCode"),
        "noResult": True if came is None else None,
    }
    event: JsonObject = {
        **_base("tool", tool.begun, said["stepId"], stated),
        "type": "function",
        "id": said["toolCallId"],
        "function": said["name"],
        "arguments": args if isinstance(args, dict) else {} if args is None else {"input": args},
        "result": result or "",
        "events": [],
    }
    if tool.ended is not None:
        event["completed"] = tool.ended
    if came is None and tool.approval is None:
        event["pending"] = True
    if came is not None and not came["ok"]:
        event["error"] = {"type": "unknown", "message": result or ""}
    return event
