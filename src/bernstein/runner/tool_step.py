"""A step that the built-in agent does with tools: its copy of the workspace, and who lets them run.

Rule: a tool is proposed, then let run or not, then started, then its result is chained; each of
these rows is on disk before what follows it. A tool that was started is never run again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from bernstein.agents.builtin import BadAnswerError
from bernstein.agents.shell import Shell
from bernstein.agents.tool_loop import ToolBrief, work_with_tools
from bernstein.agents.tools import (
    TOOL_NAMES,
    ToolError,
    ToolOutput,
    checked_arguments,
    parse_arguments,
    run_file_tool,
)
from bernstein.canonical import DigestRef, JsonValue, digest_of
from bernstein.capture.program import CallScope
from bernstein.errors import RecordingError, ReplayMissError, WorkspaceError
from bernstein.events import trajectory as event
from bernstein.recording.fixtures import STEP_TOOL
from bernstein.runner.tool_results import (
    StepToolResult,
    key_of,
    make_again,
    recorded_result,
    result_of,
)
from bernstein.runner.workspace import Change, folder_of_agent, make_agent_copy
from bernstein.seal.approvals import POLICY
from bernstein.tree import file_digest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bernstein.capture.models.base import ModelName
    from bernstein.capture.run import OpenRun
    from bernstein.recording.answer import ToolCall
    from bernstein.runner.approvals import Approvals, Decided
    from bernstein.runner.plan import Plan
    from bernstein.runner.report import ToolsMode
    from bernstein.runner.schedule import Unit
    from bernstein.runner.workspace import AgentCopy
    from bernstein.wire.secrets import Redactor

_UNKNOWN = "unknown"  # the name of a tool that there is not: what a model calls it is its own text
_CALL_RETRIES = 2
_SYSTEM = (
    "You are the {role} of the plan {plan}. You work in a workspace of files, with tools; paths "
    "are relative to it. Do the task with them, and when it is done say in a line what you did."
)


class Proposed(NamedTuple):
    """A tool that a model asks for.

    Attributes:
        call_id: Ours: the task, and how many of its calls came before.
        name: Its name, where there is such a tool.
        arguments: As JSON where they are, else the model's text.
        args: Their digest.
        seq: The row that proposes it, and that row's hash.
    """

    call_id: str
    name: str
    arguments: JsonValue
    args: DigestRef
    seq: int
    event_hash: str


@dataclass
class ToolSteps:
    """The steps with tools of one run of a plan.

    Attributes:
        mode: Whether a replay gives tools' recorded results, or runs them again and compares.
        approvals: Who lets a tool run that the plan has somebody asked about.
        waiting: The calls that nobody has decided on yet, by the task that waits.
        differing: The calls whose result was another one when they were run again.
    """

    run: OpenRun
    plan: Plan
    workspace: Path
    redactor: Redactor
    is_isolated: bool
    hidden: tuple[Path, ...]
    left_out: Path | None
    mode: ToolsMode
    approvals: Approvals
    waiting: dict[str, Proposed] = field(default_factory=dict)
    differing: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def prepare(self, unit: Unit, name: ModelName) -> ToolAttempt:
        """Make what one attempt needs, in its turn: it sees the files that are there now.

        Raises:
            BernsteinError: It cannot be made.
        """
        step = unit.step
        copy = make_agent_copy(self.run.dir, self.workspace, unit.unit_id, self.left_out)
        brief = ToolBrief(
            system=_SYSTEM.format(role=step.role or "engineer", plan=self.plan.name),
            prompt=_prompt(self.plan, unit),
            tools=step.tools,
            max_turns=step.max_turns,
            provider=name.provider,
            model=name.model,
            temperature=step.temperature,
            max_tokens=step.max_tokens,
            max_retries=_CALL_RETRIES,
        )
        return ToolAttempt(self, unit, copy, brief)


class ToolAttempt:
    """One attempt at a step with tools."""

    def __init__(self, steps: ToolSteps, unit: Unit, copy: AgentCopy, brief: ToolBrief) -> None:
        self.copy = copy
        self._steps = steps
        self._run = steps.run
        self._unit = unit
        self._lane = unit.unit_id
        self._brief = brief
        self._files = dict(copy.base)  # as they were after the last tool
        folder = folder_of_agent(steps.run.dir, unit.unit_id)
        history = copy.history
        self._shell = Shell(
            steps.run.dir.run_id,
            copy.path,
            folder / "home",
            folder / "tmp",
            steps.is_isolated,
            steps.hidden,
            () if history is None else (history,),
        )

    async def work(self) -> None:
        """Work until the model asks for no tool any more.

        Raises:
            BadAnswerError: A declared file is not there.
            BudgetError, ProviderError, ReplayMissError: See ``work_with_tools``.
        """
        scope = CallScope(self._run, self._lane, self._lane)
        await work_with_tools(self._brief, scope, self._use)
        for path in self._unit.step.files:
            if not (self.copy.path / path).exists():
                raise BadAnswerError(f"the model did not write {path}")

    async def _use(self, calls: Sequence[ToolCall]) -> list[ToolOutput]:
        await self._turn()
        with self._run.rows():
            proposed = [self._propose(call) for call in calls]
        # One after the other, in the model's order: what each finds does not depend on luck.
        return [await self._do(call) for call in proposed]

    def _propose(self, call: ToolCall) -> Proposed:
        number = self._steps.counts.get(self._lane, 0) + 1
        self._steps.counts[self._lane] = number
        call_id = f"{self._lane}/c{number}"
        given = parse_arguments(call.args)
        arguments: JsonValue = call.args if given is None else given
        name = call.name if call.name in TOOL_NAMES else _UNKNOWN
        args = digest_of(arguments if name != _UNKNOWN else [call.name, arguments])
        payload = event.tool_proposed(self._lane, call_id, name, args)
        row = self._run.append(event.TOOL_PROPOSED, payload, self._lane)
        return Proposed(call_id, name, arguments, args, row.index, row.event_hash)

    async def _do(self, call: Proposed) -> ToolOutput:
        step = self._unit.step
        if call.name not in step.tools:
            await self._chain(
                event.TOOL_DENIED, event.tool_decided(call.call_id, POLICY, "not_allowed")
            )
            return ToolOutput(f"there is no such tool; there are {', '.join(step.tools)}", ok=False)
        decided = await self._decision(call) if call.name in step.approve else None
        if decided is not None and not decided.is_approved:
            payload = event.tool_decided(call.call_id, decided.actor, "refused")
            await self._chain(event.TOOL_DENIED, payload)
            return ToolOutput("somebody was asked whether it may run, and refused", ok=False)
        actor = POLICY if decided is None else decided.actor
        await self._chain(event.TOOL_APPROVED, event.tool_decided(call.call_id, actor))
        result, told = await self._result(call)
        payload = event.tool_result(
            call.call_id, result.digest(), ok=result.ok, exit_code=result.exitCode
        )
        await self._chain(event.TOOL_RESULT, payload)
        return told.output

    async def _decision(self, call: Proposed) -> Decided:
        """What somebody says to a call, once they have said it."""
        approvals = self._steps.approvals
        while (decided := approvals.find(call)) is None:
            if approvals.are_recorded:
                what = f"nobody had decided on {call.call_id} when the recorded run ended"
                self._miss(what, "let that run go on first: bernstein run --resume RUN", "")
            self._steps.waiting[self._lane] = call
            await asyncio.sleep(approvals.poll_s)
        self._steps.waiting.pop(self._lane, None)
        return decided

    async def _chain(self, name: str, payload: dict[str, JsonValue]) -> bool:
        """Chain a row in its turn; whether it is new, and not one of a run that goes on."""
        await self._turn()
        with self._run.rows():
            return self._run.is_new(self._run.append(name, payload, self._lane))

    async def _turn(self) -> None:
        ticket = self._run.score.turn(self._lane)
        if not ticket.done():
            await asyncio.wrap_future(ticket)

    # --- results

    async def _result(self, call: Proposed) -> tuple[StepToolResult, StepToolResult]:
        """Run a tool, or give what was recorded of it: what is chained, and what the model is told.

        They are two where a replay runs the tool again, and it gives something else.
        """
        run, key = self._run, key_of(call.name, call.arguments)
        is_new = await self._chain(event.TOOL_STARTED, event.tool_started(call.call_id))
        fixture = run.fixtures.take(STEP_TOOL, key, self._lane) if run.has_recording else None
        recorded = None if fixture is None else recorded_result(fixture.response)
        if recorded is not None and run.resumed is not None:
            self._make_again(recorded)
            return recorded, recorded
        is_asked = call.name in self._unit.step.approve
        runs = recorded is None or self._steps.mode == "rerun"
        if runs and is_new and is_asked and not self._steps.approvals.begin(call):
            is_new = False
        if recorded is None and not is_new:
            # The run ended while it ran, and nobody knows how far it came.
            output = ToolOutput("the run ended while this ran; it was not run again", ok=False)
            result = result_of(output, (), self.copy.path)
        elif recorded is not None and self._steps.mode == "recorded":
            self._make_again(recorded)
            result = recorded
        else:
            if recorded is None and run.source is not None:
                what = f"no recorded result of the tool {call.call_id} ({call.name})"
                self._miss(what, "record again with BERNSTEIN_REPLAY_RUN_ID unset", key)
            result = await self._live(call)
        if run.records:
            run.fixtures.record(STEP_TOOL, key, self._lane, result.to_json())
        if recorded is not None and result != recorded:
            self._steps.differing.append(call.call_id)
        return result, recorded or result

    def _make_again(self, recorded: StepToolResult) -> None:
        if recorded.is_partial:
            raise RecordingError(
                "a tool changed more files than are kept in a recording\n"
                "  replay it with --tools rerun"
            )
        make_again(recorded, self.copy.path)
        # Or what the next command is said to have changed has these too.
        for change in recorded.changes:
            self._note(change.path)

    def _miss(self, what: str, advice: str, key: str) -> None:
        """Count a miss; raised where the replay is strict."""
        miss = ReplayMissError(
            f"replay miss: {what}\n  {advice}",
            key=key,
            model="",
            reason="never_recorded",
        )
        self._run.store.register_miss(miss, self._lane)

    async def _live(self, call: Proposed) -> StepToolResult:
        changes: list[Change] = []
        try:
            given = call.arguments if isinstance(call.arguments, dict) else None
            arguments = checked_arguments(call.name, given)
            if call.name == "run_command":
                output = await self._shell.run(arguments["command"], arguments["timeout_s"])
                changes = self.copy.since(self._files)
                self._files = self.copy.now()
            else:
                output = run_file_tool(call.name, arguments, self.copy.path)
        except (ToolError, WorkspaceError) as error:
            output = ToolOutput(str(error), ok=False)
        if output.written:
            changes = [Change(output.written, "changed")]
            self._note(output.written)
        text = self._steps.redactor.text(output.text)
        return result_of(ToolOutput(text, output.ok, output.exit_code), changes, self.copy.path)

    def _note(self, path: str) -> None:
        """Note how a file is now."""
        self._files.pop(path, None)
        digest = file_digest(self.copy.path / path)
        self._files |= {} if digest is None else {path: digest}


def _prompt(plan: Plan, unit: Unit) -> str:
    step = unit.step
    lines = [f"Task: {step.title}"]
    if step.description:
        lines.append(step.description)
    if plan.constraints:
        lines.append("Constraints: " + "; ".join(plan.constraints))
    if step.files:
        lines.append("Files that you are to write: " + ", ".join(step.files))
    if unit.feedback:
        lines.append(f"The last attempt was not accepted: {unit.feedback}")
    return "\n".join(lines)
