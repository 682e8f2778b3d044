"""A step that a program of others does: its copy of the workspace, its gateway, what is chained.

What it asks is chained as it asks; what its output shows is chained once it has ended, however that
came, and before anything that follows from it.
"""

from __future__ import annotations

import re
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bernstein.agents.observed import AgentBrief, LineReader, Observed
from bernstein.agents.process import AgentProcess, Ended
from bernstein.agents.registry import find_adapter
from bernstein.canonical import (
    DigestRef,
    JsonObject,
    canonical_bytes,
    digest_of,
    digest_of_bytes,
    spelled_json,
)
from bernstein.capture.gateway.launcher import FIXED
from bernstein.capture.gateway.seat import Seat, SeatOptions
from bernstein.events import trajectory as event
from bernstein.recording.session_events import append_events
from bernstein.runner.recorded_agents import RecordedAgent, read_recorded_agents
from bernstein.runner.workspace import make_agent_copy
from bernstein.wire.folders import each_open_text
from bernstein.wire.profile import load_profile
from bernstein.wire.reported import mutation_of_report, spellable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bernstein.agents.observed import Adapter, ToolUse
    from bernstein.canonical import JsonValue
    from bernstein.capture.run import OpenRun
    from bernstein.events.trajectory import AgentOutcome
    from bernstein.runner.plan import Plan, Step
    from bernstein.runner.schedule import Unit
    from bernstein.runner.workspace import AgentCopy
    from bernstein.wire.secrets import Redactor

# What clients and providers say when the context is full.
_FULL = re.compile(
    r"prompt is too long|context[ _](?:window|length)[ _](?:is )?exceed|ran out of room", re.I
)
_SETTLE_S = 5.0  # how long what a recorded agent printed before its end is waited for


@dataclass(frozen=True, slots=True)
class AgentResult:
    """How an agent ended.

    Attributes:
        outcome: In one word.
        detail: A line on why it failed, the same in a replay; empty where it did not.
        copy: The workspace that it worked in.
    """

    outcome: AgentOutcome
    detail: str
    copy: AgentCopy


@dataclass
class AgentSteps:
    """The agents of one run of a plan."""

    run: OpenRun
    plan: Plan
    workspace: Path
    redactor: Redactor
    is_isolated: bool
    hidden: list[Path]
    left_out: Path | None
    seats: dict[str, Seat] = field(default_factory=dict)
    recorded: dict[tuple[str, int], RecordedAgent] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read what the recording says of them."""
        if self.run.source is not None:
            self.recorded = read_recorded_agents(self.run.source.journal)

    def notes(self) -> list[str]:
        """What a user is told of the agents at the end of the run."""
        said = []
        for lane, seat in self.seats.items():
            left = sorted(seat.kept_home.left_out)
            said += [f"{lane}: ~/{path} is too large to be kept: not copied" for path in left]
            said += [
                f"{lane}: {host} was reached for and refused ({count}x): it is not recorded"
                for host, count in seat.refused.items()
            ]
            if seat.player is not None and seat.player.hold.has_expired:
                said.append(f"{lane}: a request that was recorded did not come in its order")
        return said

    def prepare(self, unit: Unit) -> AgentAttempt:
        """Make what one attempt needs, in its turn: it sees the files that are there now.

        Raises:
            BernsteinError: It cannot be made.
        """
        step, lane = unit.step, unit.unit_id
        adapter = find_adapter(step.cli, step.command)
        copy = make_agent_copy(self.run.dir, self.workspace, lane, self.left_out)
        if lane not in self.seats:
            options = SeatOptions(
                lane=lane,
                is_isolated=self.is_isolated,
                folder=copy.path,
                rerun="run the plan with BERNSTEIN_REPLAY_RUN_ID unset",
            )
            profile = load_profile(adapter.profile)
            self.seats[lane] = Seat(self.run, self.redactor, profile, options)
        seat = self.seats[lane]
        places = {"cwd": str(copy.path), "home": str(seat.home), "tmp": str(seat.tmp)}
        at = FIXED if self.is_isolated else places
        brief = AgentBrief(
            prompt=agent_prompt(self.plan, step, unit.feedback),
            description=step.description,
            title=step.title,
            role=step.role,
            step_id=step.step_id,
            files=step.files,
            model=_model_for(adapter, step.model),
            workspace=at["cwd"],
            home=at["home"],
            tmp=at["tmp"],
        )
        recorded = self.recorded.get((lane, unit.attempt), RecordedAgent())
        return AgentAttempt(self, unit, _Made(adapter, seat, copy, brief, recorded))


class _Made(NamedTuple):
    """What was made for one attempt."""

    adapter: Adapter
    seat: Seat
    copy: AgentCopy
    brief: AgentBrief
    recorded: RecordedAgent


class AgentAttempt:
    """One attempt of an agent at a step."""

    def __init__(self, steps: AgentSteps, unit: Unit, made: _Made) -> None:
        self._run = steps.run
        self._unit = unit
        self._adapter, self._seat, self._copy, brief, self._recorded = made
        self._argv = self._adapter.argv(brief)
        self._seen = Observed()
        self._lines = LineReader(self._adapter.read, self._seen)
        self._told = 0  # reports that are in the runtime's file
        self._begun_requests = self._seat.wire.request_count
        self._settled_s: float | None = None
        if self._seat.player is not None:
            ends = self._recorded.end_signal is not None
            last = self._begun_requests + self._recorded.requests
            self._seat.player.ends_after = last if ends else None
        history = self._copy.history
        self._process = AgentProcess(
            self._seat,
            self._copy.path,
            steps.hidden,
            [] if history is None else [history],
            is_isolated=steps.is_isolated,
        )

    def started(self) -> JsonObject:
        """The payload of its first row."""
        prepare = self._seat.wire.terms.folders.to_variables
        policy, profile = self._seat.policy, self._seat.profile
        fingerprint: JsonObject = {
            "agent": self._adapter.name,
            "argv": [prepare(argument) for argument in self._argv],
            "profile": {"name": profile.name, "version": profile.version},
            "compaction": None if policy is None else policy.to_json(),
        }
        return event.agent_started(
            self._unit.step.step_id,
            self._adapter.name,
            self._unit.attempt,
            digest_of(fingerprint),
        )

    async def work(self) -> Ended:
        """Run it to its end.

        Raises:
            ReplayMissError: It asked for what was not recorded.
            UsageError: It cannot be started.
        """
        ended = await self._process.run(
            self._argv, self._unit.step.timeout_s, self._take, self._end_with
        )
        self._lines.end()
        self._tell_reports()
        if self._run.is_strict and self._run.store.first_miss is not None:
            raise self._run.store.first_miss
        return ended

    def _take(self, data: bytes) -> None:
        self._lines.feed(data)
        self._tell_reports()

    def _tell_reports(self) -> None:
        """Append what changed the context to the session's file, in the order of observation."""
        fresh = self._seen.reports[self._told :]
        if not fresh:
            return
        self._told += len(fresh)
        encrypts = self._run.store.own_blobs.encrypts
        rows: list[JsonObject] = [
            {
                "run_id": self._run.dir.run_id,
                "lane": self._unit.unit_id,
                "kind": report.kind,
                # In an encrypted run nothing that was said stands in the clear.
                "event": digest_of(spellable(said)).to_json() if encrypts else spellable(said),
            }
            for report, said in fresh
        ]
        append_events(
            self._run.sdd.provider_state,
            str(self._seen.session_id or self._run.dir.run_id),
            (self._redacted(canonical_bytes(row)) for row in rows),
        )

    def _redacted(self, data: bytes) -> bytes:
        text = data.decode("utf-8", "surrogateescape")
        return self._seat.wire.redactor.body(text).encode("utf-8", "surrogateescape")

    def _end_with(self) -> int | None:
        """The signal that ends it: after a miss, and where a recorded one was ended."""
        if self._run.is_strict and self._run.store.first_miss is not None:
            return self._after(signal.SIGTERM, is_ready=False)
        if not self._run.is_strict or self._recorded.end_signal is None:
            return None
        requests = self._seat.wire.request_count - self._begun_requests
        if requests < self._recorded.requests or self._seat.is_serving:
            return None
        tools = self._seen.tools.values()
        ended = sum(use.is_denied or use.ok is not None for use in tools)
        seen = len(tools) + ended + len(self._seen.reports)
        return self._after(self._recorded.end_signal, is_ready=seen >= self._recorded.seen)

    def _after(self, number: int, *, is_ready: bool) -> int | None:
        """``number``, once all is there that was to come, or has not come in time."""
        now_s = time.monotonic()
        self._settled_s = self._settled_s or now_s
        return number if is_ready or now_s - self._settled_s > _SETTLE_S else None

    # --- what is chained

    def finish(self, ended: Ended | None) -> AgentResult:
        """Chain what was seen of it and how it ended; None: it was cancelled with its run."""
        run, lane, step_id = self._run, self._unit.unit_id, self._unit.step.step_id
        if ended is None:
            self._lines.end()
            self._tell_reports()
        outcome, code = self._outcome(ended)
        terms = self._seat.wire.terms
        mutations = [
            mutation_of_report(report, terms.profile, terms.folders.to_variables)
            for report, _ in self._seen.reports
        ]
        finished = event.agent_finished(step_id, self._unit.attempt, outcome, code)
        with run.rows():
            tools = list(self._tool_rows())
            if tools or mutations:
                run.append_all(tools, lane, mutations)
            run.append(event.AGENT_FINISHED, finished, lane)
        is_whole = self._adapter.read is None or self._seen.is_whole
        run.context.sights.client_ended(self._client, self._adapter.sight, is_whole=is_whole)
        self._keep_output(outcome)
        return AgentResult(outcome, self._detail(outcome, code), self._copy)

    @property
    def _client(self) -> str:
        return f"client/{self._adapter.name}"

    def _outcome(self, ended: Ended | None) -> tuple[AgentOutcome, int | None]:
        recorded = self._recorded
        if ended is None or (recorded.outcome == "cancelled" and self._settled_s is not None):
            return "cancelled", None
        was_up = recorded.outcome == "timeout" and self._settled_s is not None
        if ended.was_timed_out or was_up:
            return "timeout", None
        if ended.code < 0:
            was_asked = recorded.outcome == "failed" and self._settled_s is not None
            return "failed" if was_asked else "killed", 128 - ended.code
        is_whole = self._adapter.read is None or self._seen.is_whole
        if ended.code == 0 and is_whole and not self._seen.is_error:
            return "ok", 0
        policy = self._seat.policy
        is_suppressed = policy is not None and policy.suppresses
        if is_suppressed and _FULL.search(self._seen.text):
            return "context_exhausted", ended.code
        return "failed", ended.code

    def _detail(self, outcome: AgentOutcome, code: int | None) -> str:
        """A line on a failure; what may differ in a replay is not in it."""
        name = self._adapter.name
        said = self._seat.wire.redactor.text(self._seen.text.strip())
        said = self._seat.wire.terms.folders.to_variables(said).split("\n", 1)[0][:200]
        line = "".join(char if char.isprintable() else " " for char in said)
        match outcome:
            case "ok":
                return ""
            case "timeout":
                return f"{name} took longer than {self._unit.step.timeout_s} s"
            case "context_exhausted":
                return (
                    f"{name} stopped, since its context is full and the run's seed asks it not to "
                    f"compact: {line}"
                )
            case "failed" if code == 0 and not self._seen.is_whole:
                return f"{name} ended with 0, and its output before its last event"
        return f"{name} ended with {code}" + (f": {line}" if line else "")

    def _tool_rows(self) -> Iterator[tuple[str, JsonObject]]:
        lane, attempt = self._unit.unit_id, self._unit.attempt
        for number, use in enumerate(self._seen.ordered_tools(), 1):
            call_id = f"{lane}/{attempt}/call-{number}"
            args = each_open_text(spellable(use.args), self._seat.wire.terms.folders.to_variables)
            yield (
                event.TOOL_PROPOSED,
                event.tool_proposed(self._unit.step.step_id, call_id, use.name, digest_of(args)),
            )
            if use.is_denied:
                yield event.TOOL_DENIED, event.tool_decided(call_id, self._client)
            elif use.ok is not None:
                yield event.TOOL_APPROVED, event.tool_decided(call_id, self._client)
                result = event.tool_result(
                    call_id, self._result_ref(use), ok=use.ok, exit_code=use.exit_code
                )
                yield event.TOOL_RESULT, result

    def _result_ref(self, use: ToolUse) -> DigestRef:
        """The digest of a tool's result, as it is once the profile has taken out what varies."""
        terms, result = self._seat.wire.terms, use.result
        text = result if isinstance(result, str) else _texts(spellable(result))
        body = self._adapter.as_request(text)
        return digest_of(terms.profile.normalise(body, terms.folders.to_variables))

    def _keep_output(self, outcome: AgentOutcome) -> None:
        """Keep what it printed, and name it in ``run.json``."""
        run, blobs = self._run, self._run.store.own_blobs
        said: JsonObject = {
            "attempt": self._unit.attempt,
            "outcome": outcome,
            "session_id": self._seen.session_id,
            "bad_lines": self._seen.bad_lines,
        }
        for name, file in (("output", self._process.stdout), ("errors", self._process.stderr)):
            printed, left_out = file.ends()
            file.file.close()
            data = self._redacted(printed)
            if left_out:
                said[f"{name}_left_out_bytes"] = left_out
            if blobs.encrypts:
                said[name] = blobs.put_encrypted(digest_of_bytes(data), data).to_json()
            else:
                said[name] = blobs.put(data).to_json()
        run.describe_attempt(self._unit.unit_id, said)


def _texts(result: JsonValue) -> str:
    """The texts of a result that is a list of blocks; else its spelling."""
    if isinstance(result, list) and all(
        isinstance(block, dict) and block.get("type") == "text" for block in result
    ):
        return "\n".join(str(block.get("text")) for block in result)
    return "" if result is None else spelled_json(result)


def _model_for(adapter: Adapter, model: str | None) -> str | None:
    """The model that a plan names for an agent; one of another provider is not for it."""
    provider, colon, name = (model or "").partition(":")
    if not colon:
        return model
    return name if adapter.provider in {None, provider} else None


def agent_prompt(plan: Plan, step: Step, feedback: str) -> str:
    """What an agent is told to do."""
    lines = [f"You are the {step.role} engineer." if step.role else "You are an engineer."]
    lines.append(f"Plan: {plan.name}")
    lines.append(f"Step: {step.title}")
    if step.description:
        lines.append(step.description)
    if plan.constraints:
        lines.append("Constraints: " + "; ".join(plan.constraints))
    if step.files:
        lines.append("Write these files: " + ", ".join(step.files))
    if feedback:
        lines.append(f"The last attempt was not accepted: {feedback}")
    lines.append("Work in the current folder. Nobody answers questions: decide, do it, and end.")
    return "\n".join(lines)
