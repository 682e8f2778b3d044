"""Makes a transcript of what a reader finds in a file.

Rule 1: ids are ours, by place and order; none of the file's is in a payload.
Rule 2: what a user or a model wrote is a body. Names of tools, models and providers are inline.
Rule 3: the order is that in the file; no time is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bernstein.canonical import MAX_INT, JsonObject, JsonValue
from bernstein.events import trajectory as event
from bernstein.interop.members import inline, parsed
from bernstein.interop.steps import LABELS, SESSION, Step, Steps
from bernstein.interop.transcript import Told, Transcript, told
from bernstein.recording.answer import Usage
from bernstein.wire.reported import Report

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from bernstein.events.provider_state import MutationKind, Seen
    from bernstein.events.trajectory import DenialReason


@dataclass(slots=True)
class _Used:
    """The usage of one message, which later rows of the same message correct."""

    payload: JsonObject
    usage: Usage


class Telling:
    """Gathers what a reader finds, in the order in which it finds it."""

    def __init__(self) -> None:
        self._steps = Steps()
        self._events: list[Told | Report | _Used] = [
            Told(event.STEP_STARTED, event.step_started(SESSION, None, 0, None))
        ]
        self._calls: dict[Hashable, tuple[str, Step]] = {}
        self._ended: set[str] = set()
        self._decided: set[str] = set()
        self._asked: set[Hashable] = set()
        self._used: dict[Hashable, _Used] = {}
        self.records = 0
        self.unknown = 0
        self.bad_counts = 0
        self.strays = 0
        self.status: event.RunStatus = "completed"
        self.reason: event.ErrorCode | None = None
        self.output: JsonValue = None
        self.is_whole = True

    # --- steps; a key is what the file calls one, None its session

    def begin(
        self,
        key: Hashable,
        parent: Hashable = None,
        own_id: JsonValue = None,
        *,
        label: JsonValue = None,
    ) -> None:
        """A step began; one that began already goes on.

        Args:
            key, parent: What the file calls it and the step that it is in.
            own_id: The id that it had in the run of ours that the file was exported from.
            label: What it is; only a word of ``LABELS`` stands in the row.
        """
        step = self._steps.begin(key, parent, own_id)
        if step is not None and step.parent is not None:
            known = label if isinstance(label, str) and label in LABELS else None
            above = step.parent.step_id
            payload = event.step_started(step.step_id, above, step.depth, known)
            self._events.append(Told(event.STEP_STARTED, payload))

    def be_session(self, key: Hashable) -> None:
        """What the file calls by this key is its session itself."""
        self._steps.be_session(key)

    def has_step(self, key: Hashable) -> bool:
        """Whether such a step began."""
        return self._steps.has(key)

    def end(self, key: Hashable, *, ok: bool = True) -> None:
        """A step ended, and with it those below it; one that did not begin is passed over."""
        step = self._steps.at(key)
        if step is not self._steps.root:
            self._close(step, None if ok else "agent_failed")

    def _close(self, step: Step, code: event.ErrorCode | None) -> None:
        for ended in self._steps.close(step):
            payload = event.step_finished(ended.step_id, code if ended is step else None)
            self._events.append(Told(event.STEP_FINISHED, payload))

    # --- the model

    def say(self, value: JsonValue, step: Hashable = None) -> None:
        """Something goes to the model with the next call."""
        self._steps.at(step).said.append(value)

    def answer(
        self, provider: str, model: JsonValue, step: Hashable = None, key: Hashable = None
    ) -> None:
        """The model answered, once for a ``key``: it was asked what was said since the last time.

        Where nothing was, what it was asked is not told.
        """
        at = self._steps.at(step)
        if key is not None and key in self._asked:
            return
        self._asked.add(key)
        if at.said:
            self.ask(provider, model, at.said, step)
            at.said = []

    def ask(
        self, provider: str, model: JsonValue, prompt: JsonValue, step: Hashable = None
    ) -> None:
        """The model was asked ``prompt``."""
        payload = self._of_model(step, provider, model)
        self._events.append(told(event.MODEL_CALL, payload, "prompt", prompt))

    def _of_model(self, step: Hashable, provider: str, model: JsonValue) -> JsonObject:
        return {
            "stepId": self._steps.at(step).step_id,
            "provider": provider,
            "model": inline(model),
        }

    def use(
        self,
        provider: str,
        model: JsonValue,
        usage: Usage | None,
        step: Hashable = None,
        key: Hashable = None,
    ) -> None:
        """What a message used, once for a ``key``, as it was told last; None: no counts."""
        if usage is None:
            self.bad_counts += 1
            return
        payload = self._of_model(step, provider, model)
        used = self._used.get(key)
        if key is not None and used is not None:
            used.usage = usage
            return
        self._used[key] = used = _Used(payload, usage)
        self._events.append(used)

    # --- tools; a key is what the file calls a call

    def propose(
        self,
        key: Hashable,
        name: JsonValue,
        args: JsonValue,
        step: Hashable = None,
        own_id: JsonValue = None,
    ) -> None:
        """A tool was asked for; one that is told twice counts once. ``own_id`` as of ``begin``."""
        if key is not None and key in self._calls:
            return
        at = self._steps.at(step)
        at.calls += 1
        call_id = self._steps.free_id(own_id, f"{at.step_id}/tool-{at.calls}")
        if key is not None:  # without one nothing can say what came of it
            self._calls[key] = (call_id, at)
        payload = {"stepId": at.step_id, "toolCallId": call_id, "name": inline(name)}
        self._events.append(told(event.TOOL_PROPOSED, payload, "args", parsed(args)))

    def knows(self, key: Hashable) -> bool:
        """Whether such a tool was asked for."""
        return key in self._calls

    def approve(self, key: Hashable, actor: str) -> None:
        """It may run; ``actor`` is one of a few words of ours."""
        self._decide(event.TOOL_APPROVED, key, {"actor": actor})

    def deny(self, key: Hashable, actor: str, reason: DenialReason | None = None) -> None:
        """It may not."""
        because = {} if reason is None else {"reason": reason}
        self._decide(event.TOOL_DENIED, key, {"actor": actor, **because})

    def _decide(self, kind: str, key: Hashable, said: JsonObject) -> None:
        call_id, _ = self._calls.get(key, (None, None))
        if call_id is not None and call_id not in self._decided:
            self._decided.add(call_id)
            self._events.append(Told(kind, {"toolCallId": call_id, **said}))

    def result(
        self, key: Hashable, result: JsonValue, *, ok: bool, exit_code: JsonValue = None
    ) -> None:
        """What it gave; the first result of a call counts."""
        call_id, _ = self._calls.get(key, (None, None))
        if call_id is None:
            self.strays += 1
        elif call_id not in self._ended:
            self._ended.add(call_id)
            payload: JsonObject = {"toolCallId": call_id, "ok": ok}
            if type(exit_code) is int and abs(exit_code) <= MAX_INT:
                payload["exitCode"] = exit_code
            self._events.append(told(event.TOOL_RESULT, payload, "result", result))

    def step_of(self, key: Hashable) -> Hashable:
        """The key of the step that asked for a tool; None where that is the session or unknown."""
        _, at = self._calls.get(key, (None, self._steps.root))
        return at.key

    # --- the whole

    def report(self, reports: list[Report]) -> None:
        """The context was changed."""
        self._events += reports

    def pass_over(self) -> None:
        """A record is of no kind that is known."""
        self.unknown += 1

    def finish(
        self,
        kind: str,
        kept: bytes,
        bad_lines: tuple[int, ...] = (),
        sight: Mapping[MutationKind, Seen] | None = None,
        part: str = "",
    ) -> Transcript:
        """What was told; open steps end with it. The arguments are members of a transcript."""
        code = None if self.status == "completed" else (self.reason or "agent_failed")
        self._close(self._steps.root, code)
        events = self._within_totals()
        return Transcript(
            kind,
            events,
            self.records,
            kept,
            status=self.status,
            reason=None if self.status == "completed" else self.reason,
            output=self.output,
            unknown=self.unknown,
            bad_counts=self.bad_counts,
            strays=self.strays,
            is_whole=self.is_whole,
            bad_lines=bad_lines,
            sight=sight or {},
            part=part,
        )

    def _within_totals(self) -> tuple[Told | Report, ...]:
        """The events, without the usage that would take a total beyond what can be counted."""
        totals = [0, 0, 0]
        found: list[Told | Report] = []
        for item in self._events:
            if not isinstance(item, _Used):
                found.append(item)
                continue
            usage = item.usage
            more = (usage.input_tokens, usage.output_tokens, usage.cached_input_tokens)
            sums = [total + count for total, count in zip(totals, more, strict=True)]
            if max(sums) > MAX_INT:
                self.bad_counts += 1
            else:
                totals = sums
                found.append(Told(event.MODEL_USAGE, {**item.payload, **usage.to_json()}))
        return tuple(found)
