"""What the OpenAI Agents SDK writes: the state of a run, of any version, and exported traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.errors import RecordingError
from bernstein.interop.counts import openai_usage
from bernstein.interop.members import inline, key_of, kind_of, objects_of, part_of
from bernstein.interop.spans import walk
from bernstein.interop.telling import Telling
from bernstein.interop.transcript import Transcript

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bernstein.canonical import JsonObject, JsonValue
    from bernstein.interop.records import Records

_VERSION = "$schemaVersion"
_STEPS = frozenset({"agent"})
# Spans around others, and what is neither a model nor a tool.
_PASSED = frozenset(
    {
        *("task", "turn", "custom", "guardrail", "handoff", "mcp_tools"),
        *("speech", "speech_group", "transcription"),
    }
)


def is_openai_agents(record: JsonObject) -> bool:
    """Whether a record is a state, or an exported trace or span."""
    return _VERSION in record or record.get("object") in ("trace", "trace.span")


def read_openai_agents(records: Records) -> Iterator[Transcript]:
    """The one run that a state tells, or that traces tell.

    Raises:
        RecordingError: A state that holds no run.
    """
    telling = Telling()
    first = records.values[0] if records.values else {}
    if _VERSION in first:
        _State(first, telling).take()
    else:
        _take_traces(records.values, telling)
    yield telling.finish("openai-agents", records.data, bad_lines=records.bad_lines)


class _State:
    """The serialized state of one run."""

    def __init__(self, state: JsonObject, telling: Telling) -> None:
        self._state = state
        self._telling = telling
        self._names: dict[str, str] = {}  # of the tools that were asked for, by call

    def take(self) -> None:
        """Take all of it: answers in their order, each with what came of its tools.

        Raises:
            RecordingError: It holds no run.
        """
        state, telling = self._state, self._telling
        if not isinstance(state.get("model_responses"), list):
            version = inline(str(state[_VERSION]))
            raise RecordingError(f"this is no state of a run (it says version {version})")
        items = objects_of(state.get("session_items")) or objects_of(state.get("generated_items"))
        responses = objects_of(state["model_responses"])
        telling.records = len(items) + len(responses)
        telling.say(state.get("original_input"))
        outputs = [item for item in items if kind_of(item).endswith("output_item")]
        waiting = {self._call_of(item): item for item in reversed(outputs)}
        for response in responses:
            self._take_response(response, waiting)
        for item in items:
            self._take_item(item, waiting)
        self._take_approvals()
        usage = part_of(part_of(state, "context"), "usage")
        if not responses and usage.get("requests"):
            telling.use("", None, openai_usage(usage))
        step = part_of(state, "current_step")
        if kind_of(step) == "next_step_final_output":
            telling.output = part_of(step, "data").get("output")

    @staticmethod
    def _call_of(item: JsonObject) -> str | None:
        raw = part_of(item, "raw_item")
        return key_of(raw.get("call_id")) or key_of(raw.get("id"))

    def _take_response(self, response: JsonObject, waiting: dict[str | None, JsonObject]) -> None:
        self._telling.answer("", None)
        if usage := part_of(response, "usage"):
            self._telling.use("", None, openai_usage(usage))
        calls = [self._propose(item) for item in objects_of(response.get("output"))]
        for call in calls:
            if call is not None and call in waiting:
                self._end(call, waiting.pop(call))

    def _propose(self, raw: JsonObject) -> str | None:
        if not kind_of(raw).endswith("_call"):
            return None
        call = key_of(raw.get("call_id")) or key_of(raw.get("id"))
        if call is not None:
            name = raw.get("name") or kind_of(raw).removesuffix("_call")
            self._names[call] = inline(name)
            names = ("arguments", "input", "action", "operation", "query")
            args = next((raw[name] for name in names if name in raw), None)
            self._telling.propose(call, name, args)
        return call

    def _take_item(self, item: JsonObject, waiting: dict[str | None, JsonObject]) -> None:
        match kind_of(item):
            case "tool_call_item" | "handoff_call_item" | "tool_approval_item":
                self._propose(part_of(item, "raw_item"))
            case "tool_call_output_item" | "handoff_output_item":
                call = self._call_of(item)
                if call in waiting:
                    self._end(call, waiting.pop(call))
            case "":
                self._telling.pass_over()

    def _end(self, call: str | None, item: JsonObject) -> None:
        result = part_of(item, "raw_item").get("output", item.get("output"))
        self._telling.say(result)
        self._telling.result(call, result, ok=True)

    def _take_approvals(self) -> None:
        approvals = part_of(part_of(self._state, "context"), "approvals")
        for call, name in self._names.items():
            said = approvals.get(name)
            if not isinstance(said, dict):
                continue
            # What is said of one call goes before what is said of all.
            if _names_it(said.get("rejected"), call):
                self._telling.deny(call, "user", "refused")
            elif _names_it(said.get("approved"), call) or said.get("approved") is True:
                self._telling.approve(call, "user")
            elif said.get("rejected") is True:
                self._telling.deny(call, "user", "refused")


def _names_it(said: JsonValue, call: str) -> bool:
    return isinstance(said, list) and call in said


# --- traces


def _take_traces(values: list[JsonObject], telling: Telling) -> None:
    spans = [value for value in values if value.get("object") == "trace.span"]
    telling.records = len(values)
    telling.unknown = sum(not is_openai_agents(value) for value in values)
    links = [(key_of(span.get("id")), key_of(span.get("parent_id"))) for span in spans]
    steps: dict[int | None, int | None] = {None: None}
    for place, outer, is_begin in walk(links):
        span = spans[place]
        data = part_of(span, "span_data")
        if not is_begin:
            if kind_of(data) in _STEPS:
                telling.end(place, ok=not span.get("error"))
            continue
        steps[place] = steps[outer]
        if kind_of(data) in _STEPS:
            telling.begin(place, steps[outer], label="agent")
            steps[place] = place
        else:
            _take_span(place, span, data, steps[outer], telling)


def _take_span(
    place: int, span: JsonObject, data: JsonObject, step: int | None, telling: Telling
) -> None:
    kind, usage = kind_of(data), data.get("usage")
    if kind == "function":
        telling.propose(place, data.get("name"), data.get("input"), step)
        telling.result(place, data.get("output"), ok=not span.get("error"))
    elif kind in {"generation", "response"}:
        provider = "openai" if kind == "response" else ""
        asked = data.get("input")
        if asked is not None:
            telling.ask(provider, data.get("model"), asked, step)
        if isinstance(usage, dict):
            telling.use(provider, data.get("model"), openai_usage(usage), step)
    elif kind not in _PASSED:
        telling.pass_over()
