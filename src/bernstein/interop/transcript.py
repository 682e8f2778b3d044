"""What a file of somebody else's tells of a run, as a value: events, bodies, reports.

Rule 1: ids are ours, by place and order; none of the file's is in a payload.
Rule 2: what a user or a model wrote is a body. Names of tools, models and providers are inline.
Rule 3: the order is that in the file; no time is read.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bernstein.canonical import (
    MAX_INT,
    DigestRef,
    JsonObject,
    JsonValue,
    canonical_bytes,
    decode_strict,
    utf8,
)
from bernstein.errors import CanonicalError
from bernstein.events import trajectory as event
from bernstein.recording.answer import Usage
from bernstein.wire.reported import Report, spellable

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from bernstein.events.payloads import DenialReason
    from bernstein.events.provider_state import MutationKind, Seen

SESSION = "session"
_MAX_DEPTH = 64  # of steps: what is nested deeper stands there
_MAX_NAME_CHARS = 128
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]{0,127}")
_NO_NAME = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Told:
    """One event that a file tells.

    Attributes:
        kind: One of the eleven kinds.
        payload: What it says; without its bodies.
        bodies: Those, by the member whose digest stands in the payload.
    """

    kind: str
    payload: JsonObject
    bodies: Mapping[str, JsonValue] = field(default_factory=dict)


def told(kind: str, payload: JsonObject, name: str, body: JsonValue) -> Told:
    """An event with a body, or with the reference to one that is not in the file."""
    if isinstance(body, DigestRef):
        return Told(kind, {**payload, name: body.to_json()})
    return Told(kind, payload, {name: body})


@dataclass(frozen=True, slots=True)
class Transcript:
    """A run as a file tells it.

    Attributes:
        kind: The kind of the file.
        part: Which of several runs of the file it is; empty where it is the only one.
        events: What happened, and between it what changed the context, in the file's order.
        status, reason, output: How it ended, as far as that is told; else completed.
        records: How many records the file holds.
        unknown: How many of those are of no kind that is known.
        bad_lines: The lines that are no record, from 1.
        bad_counts: How many reports of tokens hold what is no count: they count for nothing.
        strays: How many results of tools came that nobody had asked for.
        kept: What the run keeps of the file.
        sight: What of a changed context such a file shows.
        is_whole: Whether the file came to its end.
        agent_id: Whose run it is, where that is not the kind.
    """

    kind: str
    events: tuple[Told | Report, ...]
    records: int
    kept: bytes
    part: str = ""
    status: event.RunStatus = "completed"
    reason: event.ErrorCode | None = None
    output: JsonValue = None
    unknown: int = 0
    bad_lines: tuple[int, ...] = ()
    bad_counts: int = 0
    strays: int = 0
    sight: Mapping[MutationKind, Seen] = field(default_factory=dict)
    is_whole: bool = True
    agent_id: str | None = None


@dataclass(slots=True)
class _Step:
    key: Hashable
    step_id: str
    parent: _Step | None
    depth: int
    calls: int = 0
    children: list[_Step] = field(default_factory=list)
    is_open: bool = True
    said: list[JsonValue] = field(default_factory=list)  # since the model was asked last


@dataclass(slots=True)
class _Used:
    """The usage of one message, which later rows of the same message correct."""

    payload: JsonObject
    usage: Usage


class Telling:
    """Gathers what a reader finds, in the order in which it finds it."""

    def __init__(self) -> None:
        self._root = _Step(None, SESSION, None, 0)
        self._steps: dict[Hashable, _Step] = {None: self._root}
        self._events: list[Told | Report | _Used] = [
            Told(event.STEP_STARTED, event.step_started(SESSION, None, 0, None))
        ]
        self._calls: dict[Hashable, tuple[str, _Step]] = {}
        self._ids = {SESSION}
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

    def begin(self, key: Hashable, parent: Hashable = None, own_id: JsonValue = None) -> None:
        """A step began; one that began already goes on.

        ``own_id`` is the id that it had in the run of ours that the file was exported from.
        """
        if key in self._steps:
            return
        above = self._steps.get(parent, self._root)
        if above.depth >= _MAX_DEPTH and above.parent is not None:
            above = above.parent
        number = len(above.children) + 1
        step_id = self._free_id(own_id, f"{above.step_id}/{number}")
        step = _Step(key, step_id, above, above.depth + 1)
        self._steps[key] = step
        above.children.append(step)
        payload = event.step_started(step.step_id, above.step_id, step.depth, None)
        self._events.append(Told(event.STEP_STARTED, payload))

    def _free_id(self, own_id: JsonValue, otherwise: str) -> str:
        """An id that nothing has yet: the one that an export of ours says, or the next."""
        found: str = own_id if is_own_id(own_id) and own_id not in self._ids else otherwise
        while found in self._ids:  # an export can say what would be the next
            found += "+"
        self._ids.add(found)
        return found

    def be_session(self, key: Hashable) -> None:
        """What the file calls by this key is its session itself."""
        self._steps.setdefault(key, self._root)

    def end(self, key: Hashable, *, ok: bool = True) -> None:
        """A step ended, and with it those below it; one that did not begin is passed over."""
        step = self._steps.get(key)
        if step is not None and step is not self._root:
            self._close(step, None if ok else "agent_failed")

    def has_step(self, key: Hashable) -> bool:
        """Whether such a step began."""
        return key in self._steps

    def _close(self, step: _Step, code: event.ErrorCode | None) -> None:
        if not step.is_open:
            return
        step.is_open = False
        for child in reversed(step.children):
            self._close(child, None)
        self._events.append(Told(event.STEP_FINISHED, event.step_finished(step.step_id, code)))

    # --- the model

    def say(self, value: JsonValue, step: Hashable = None) -> None:
        """Something goes to the model with the next call."""
        self._at(step).said.append(value)

    def answer(
        self, provider: str, model: JsonValue, step: Hashable = None, key: Hashable = None
    ) -> None:
        """The model answered, once for a ``key``: it was asked what was said since the last time.

        Where nothing was, what it was asked is not told.
        """
        at = self._at(step)
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
        return {"stepId": self._at(step).step_id, "provider": provider, "model": inline(model)}

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
        at = self._at(step)
        at.calls += 1
        call_id = self._free_id(own_id, f"{at.step_id}/tool-{at.calls}")
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
        _, at = self._calls.get(key, (None, self._root))
        return at.key

    def _at(self, key: Hashable) -> _Step:
        return self._steps.get(key, self._root)

    # --- the whole

    def report(self, reports: list[Report]) -> None:
        """The context was changed."""
        self._events += reports

    def pass_over(self) -> None:
        """A record is of no kind that is known."""
        self.unknown += 1

    def finish(self, kind: str, kept: bytes, **more: object) -> Transcript:
        """What was told; steps that are open end with it."""
        code = None if self.status == "completed" else (self.reason or "agent_failed")
        self._close(self._root, code)
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
            **more,  # type: ignore[arg-type]
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


def inline(value: JsonValue) -> str:
    """A name as it may stand in a payload: one line of at most 128 characters."""
    return _NO_NAME.sub("\ufffd", value[:_MAX_NAME_CHARS]) if isinstance(value, str) else ""


def is_own_id(value: JsonValue) -> bool:
    """Whether a value can be an id or a name of ours: no text that somebody wrote."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def key_of(value: JsonValue) -> str | None:
    """An id of the file's as a key; None where it is none."""
    return value if isinstance(value, str) and value else None


def parsed(args: JsonValue) -> JsonValue:
    """The arguments of a tool: those that are JSON in a text are that JSON."""
    if isinstance(args, str) and args.lstrip()[:1] in {"{", "["}:
        try:
            return decode_strict(utf8(args))
        except CanonicalError:
            return args
    return args


def body_bytes(value: JsonValue) -> bytes:
    """The bytes of a body: its canonical JSON, or where it has none what comes closest."""
    try:
        return canonical_bytes(spellable(value))
    except CanonicalError:  # deeper than that allows, or an infinity
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def part_of(value: JsonValue, name: str) -> JsonObject:
    """A member that is an object; an empty one where it is none."""
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def objects_of(value: JsonValue) -> list[JsonObject]:
    """The objects of a list; none where it is no list."""
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def kind_of(record: JsonObject) -> str:
    """What type a record says that it is; empty where it says none."""
    found = record.get("type")
    return found if isinstance(found, str) else ""
