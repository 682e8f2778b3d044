"""One sample of a log of Inspect's: spans and older steps, calls of models, tools, approvals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.canonical import DigestRef
from bernstein.events.provider_state import MutationKind, Seen
from bernstein.interop.counts import counts_of, usage_inclusive, usage_of_counts
from bernstein.interop.inspect_pool import Pool
from bernstein.interop.members import body_bytes, inline, key_of, objects_of, part_of
from bernstein.interop.stated import body_or_ref, stated, stated_approval, stated_code
from bernstein.interop.steps import SESSION
from bernstein.interop.telling import Telling
from bernstein.interop.transcript import Transcript
from bernstein.wire.reported import Report, count_tokens

if TYPE_CHECKING:
    from collections.abc import Hashable

    from bernstein.canonical import JsonObject, JsonValue
    from bernstein.interop.records import Records
    from bernstein.recording.answer import Usage

_PASSED = frozenset(
    {
        *("sample_init", "sample_limit", "state", "store", "info", "logger", "input", "sandbox"),
        *("score", "score_edit", "error", "branch", "interrupt", "checkpoint", "anchor", "review"),
    }
)
_COMPACTIONS: dict[str, MutationKind] = {"trim": "truncation", "edit": "tool_result_clearing"}
_APPROVERS = frozenset({"human", "auto"})


def read_sample(
    sample: JsonObject, model: JsonValue, part: str, *, is_bad: bool = False
) -> Transcript:
    """The run that a sample tells; ``model`` is that of its evaluation."""
    older = part_of(sample, "transcript")
    events = objects_of(sample.get("events") or older.get("events"))
    taking = _Taking(sample, older)
    telling = taking.telling
    if events:
        taking.take_all(events, None)
        telling.records = len(events)
    else:
        messages = objects_of(sample.get("messages"))
        taking.take_messages(messages, model)
        taking.take_totals(part_of(sample, "model_usage"))
        telling.records = len(messages)
    if sample.get("error"):
        telling.status, telling.reason = "failed", "agent_failed"
    elif stated(sample).get("status") == "cancelled":
        telling.status, telling.reason = "cancelled", "cancelled"
    return telling.finish(
        "inspect",
        body_bytes(sample),
        part=part,
        sight=taking.sight,
        bad_lines=(1,) if is_bad else (),
    )


def read_events(events: list[JsonObject], records: Records) -> Transcript:
    """The run that a bare list of events tells."""
    taking = _Taking({}, {})
    taking.take_all(events, None)
    taking.telling.records = len(events)
    return taking.telling.finish(
        "inspect", records.data, bad_lines=records.bad_lines, sight=taking.sight
    )


class _Taking:
    """Takes the events of one sample in their order."""

    def __init__(self, sample: JsonObject, older: JsonObject) -> None:
        self.telling = Telling()
        self.sight: dict[MutationKind, Seen] = {}
        self._pool = Pool(sample, older)
        self._open: dict[JsonValue, Hashable] = {}  # calls without a result, by the file's id
        self._stack: list[Hashable] = []  # older steps
        self._number = 0

    def take_all(self, events: list[JsonObject], above: Hashable) -> None:
        """Take events that are within the step ``above``."""
        for event in events:
            self._number += 1
            self._take(event, above)

    def _take(self, event: JsonObject, above: Hashable) -> None:
        telling, name = self.telling, event.get("event")
        span = key_of(event.get("span_id"))
        step = span if telling.has_step(span) and span else (self._stack or [above])[-1]
        match name:
            case "span_begin":
                key, parent = key_of(event.get("id")), key_of(event.get("parent_id"))
                if stated(event).get("step") == SESSION:
                    telling.be_session(key)
                elif key is not None:
                    outer = parent or (self._stack or [above])[-1]
                    own_id, label = stated(event).get("step"), event.get("type")
                    telling.begin(key, outer, own_id, label=label)
            case "span_end":
                telling.end(key_of(event.get("id")), ok=not stated(event).get("isError"))
            case "step":
                self._take_step(event, above)
            case "model":
                self._take_model(event, step)
            case "tool":
                self._take_tool(event, step)
            case "subtask":
                inner = ("within", self._number)
                telling.begin(inner, step, label="subtask")
                self.take_all(objects_of(event.get("events")), inner)
                telling.end(inner)
            case "approval":
                self._take_approval(event)
            case "compaction":
                self._take_compaction(event)
            case _ if not isinstance(name, str) or name not in _PASSED:
                telling.pass_over()

    def _take_step(self, event: JsonObject, above: Hashable) -> None:
        """An older step: its end closes the one that began last."""
        if event.get("action") == "begin":
            key = ("step", self._number)
            self.telling.begin(key, (self._stack or [above])[-1], label=event.get("type"))
            self._stack.append(key)
        elif self._stack:
            self.telling.end(self._stack.pop())

    # --- the model

    def _take_model(self, event: JsonObject, step: Hashable) -> None:
        if event.get("cache") == "read":
            return  # nobody was asked
        said = stated(event)
        provider, model = _names(event.get("model"))
        if "provider" in said:
            provider, model = inline(said["provider"]), inline(said.get("model"))
        prompt = body_or_ref(event, "prompt", self._pool.input_of(event))
        output = part_of(event, "output")
        if not said.get("usageOnly"):
            self.telling.ask(provider, model, prompt, step)
        if isinstance(usage := output.get("usage"), dict):
            self.telling.use(provider, model, _usage(usage), step)
        for choice in objects_of(output.get("choices"))[:1]:
            for call in objects_of(part_of(choice, "message").get("tool_calls")):
                self._propose(call, step)

    def _propose(self, call: JsonObject, step: Hashable) -> Hashable:
        self._number += 1
        call_id = key_of(call.get("id"))
        key = ("call", self._number)
        asked = self._pool.put_back(call.get("arguments"))
        args = body_or_ref(call, "args", asked)
        if isinstance(asked, dict) and isinstance(args, DigestRef):
            args = body_or_ref(call, "args", asked.get("input"))  # ours, and not an object
        own_id = call_id if "args" in stated(call) else None
        self.telling.propose(key, call.get("function"), args, step, own_id)
        if call_id is not None:
            self._open[call_id] = key
        return key

    # --- tools

    def _take_tool(self, event: JsonObject, step: Hashable) -> None:
        key = self._open.pop(key_of(event.get("id")), None)
        if key is None:
            key = self._propose(event, step)
            self._open.pop(key_of(event.get("id")), None)
        inner = objects_of(event.get("events"))
        if inner:
            within = ("within", self._number)
            self.telling.begin(within, step, label="tool")
            self.take_all(inner, within)
            self.telling.end(within)
        if said := stated_approval(event):
            self._decide(key, said.outcome, said.actor, said.reason)
        error = part_of(event, "error")
        if error.get("type") == "approval" and not said:
            self.telling.deny(key, "approver", "refused")
        if event.get("pending") or stated(event).get("noResult"):
            return
        came = event.get("result")
        if error and not stated(event):
            came = error
        result = body_or_ref(event, "result", self._pool.put_back(came))
        is_ok = not error and not event.get("failed")
        self.telling.result(key, result, ok=is_ok, exit_code=stated_code(event))

    def _take_approval(self, event: JsonObject) -> None:
        key = self._open.get(key_of(part_of(event, "call").get("id")))
        approver = event.get("approver")
        actor = approver if isinstance(approver, str) and approver in _APPROVERS else "approver"
        match event.get("decision"):
            case "approve" | "modify":
                self.telling.approve(key, actor)
            case "reject" | "terminate":
                self.telling.deny(key, actor, "refused")

    def _decide(self, key: Hashable, outcome: str, actor: str, reason: str | None) -> None:
        if outcome == "approved":
            self.telling.approve(key, actor)
        else:
            self.telling.deny(key, actor, reason)  # type: ignore[arg-type]

    # --- the rest

    def _take_compaction(self, event: JsonObject) -> None:
        kind = _COMPACTIONS.get(str(event.get("type")), "compaction")
        tokens = count_tokens(before=event.get("tokens_before"), after=event.get("tokens_after"))
        self.sight[kind] = Seen("observed", "log")
        self.telling.report([Report(kind, event, tokens)])

    def take_messages(self, messages: list[JsonObject], model: JsonValue) -> None:
        """Take the messages of a sample without events."""
        provider, name = _names(model)
        for message in messages:
            content = self._pool.put_back(message.get("content"))
            if message.get("role") == "assistant":
                self.telling.answer(provider, name)
                for call in objects_of(message.get("tool_calls")):
                    self._propose(call, None)
                continue
            self.telling.say(content)
            if message.get("role") == "tool":
                key = self._open.pop(key_of(message.get("tool_call_id")), None)
                self.telling.result(key, content, ok=not message.get("error"))

    def take_totals(self, totals: JsonObject) -> None:
        """Take what each model used in a sample without events."""
        for name, usage in totals.items():
            if isinstance(usage, dict):
                self.telling.use(*_names(name), _usage(usage))


def _names(model: JsonValue) -> tuple[str, str]:
    """Provider and model of a name such as ``openai/gpt-5``."""
    said = model if isinstance(model, str) else ""
    provider, _, name = said.partition("/")
    return (provider, name) if name else ("", said)


def _usage(said: JsonObject) -> Usage | None:
    """The counts of a call; cached tokens are apart, unless the total says that they are not."""
    names = ("input_tokens_cache_read", "input_tokens_cache_write")
    counts = counts_of(said, "input_tokens", "output_tokens", *names)
    if counts is None:
        return None
    sent, out, cached, written = counts
    if cached and said.get("total_tokens") == sent + out:
        return usage_inclusive(sent, cached, out)
    return usage_of_counts(sent + written, cached, out)
