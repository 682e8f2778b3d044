"""Does the units of a plan: makes tasks of a step, does a task, looks at what a step promised.

Rule: what follows from an outcome is handed back, to be written when it is the unit's turn.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, cast

import msgspec

from bernstein.agents.builtin import Artifact, BadAnswerError, TaskBrief, do_task
from bernstein.canonical import digest_of
from bernstein.capture.llm import aask
from bernstein.capture.models.base import ModelName, parse_model_name
from bernstein.capture.program import CallScope
from bernstein.errors import (
    BernsteinError,
    BudgetError,
    ProviderError,
    UnsafePathError,
    WorkspaceError,
)
from bernstein.events import trajectory as event
from bernstein.runner.approvals import Approvals
from bernstein.runner.decompose import (
    Task,
    decompose_call,
    max_tasks,
    parse_tasks,
    single_task,
)
from bernstein.runner.produced import Produced
from bernstein.runner.schedule import Decided, Schedule, Transition, Unit
from bernstein.runner.signals import file_signal_problem, run_command
from bernstein.settings import provider_secrets
from bernstein.wire.secrets import Redactor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bernstein.capture.run import OpenRun
    from bernstein.events.trajectory import AgentOutcome, ErrorCode
    from bernstein.runner.agent_step import AgentAttempt, AgentResult, AgentSteps
    from bernstein.runner.plan import Plan, Step
    from bernstein.runner.report import Observer, RunOptions
    from bernstein.runner.tool_step import Proposed, ToolAttempt, ToolSteps
    from bernstein.runner.workspace import AgentCopy

# What a unit is told, fixed when it starts; or what keeps it from being done.
Brief: TypeAlias = "TaskBrief | AgentAttempt | ToolAttempt | BernsteinError | None"
# Writes what follows from an outcome; called in the unit's turn.
Outcome: TypeAlias = "Callable[[], list[Transition]]"
_CODES: dict[AgentOutcome, ErrorCode] = {
    "failed": "agent_failed",
    "killed": "agent_failed",
    "cancelled": "cancelled",
    "timeout": "timeout",
    "context_exhausted": "context_exhausted",
}
_CALL_RETRIES = 2


@dataclass
class Units:
    """The units of one run of a plan.

    Attributes:
        workspace: The run's.
        keys_dir: Where the user's keys lie, which no agent sees.
        failures: A line on each unit that failed for good.
    """

    run: OpenRun
    plan: Plan
    options: RunOptions
    observer: Observer
    schedule: Schedule
    workspace: Path
    keys_dir: Path
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make what the agents and the tools of the plan need."""
        self.produced = Produced(self.run, self.plan, self.workspace)
        self._agents = self._make_agents() if self.plan.has_agents else None
        self._tools = self._make_tools() if self.plan.has_tools else None

    @property
    def waiting(self) -> dict[str, Proposed]:
        """The calls that an operator has to decide on, by the task that waits."""
        return {} if self._tools is None else self._tools.waiting

    def notes(self) -> list[str]:
        """What a user is told of agents and tools at the end of the run."""
        notes = [] if self._agents is None else self._agents.notes()
        differing = [] if self._tools is None else self._tools.differing
        return [
            *notes,
            *(f"{call_id} gave another result when it ran again" for call_id in differing),
        ]

    def _make_agents(self) -> AgentSteps:
        from bernstein.runner.agent_step import AgentSteps  # noqa: PLC0415 - a server is heavy

        return AgentSteps(
            self.run,
            self.plan,
            self.workspace,
            Redactor(provider_secrets()),
            self.options.is_isolated,
            self._hidden(),
            self._own_source(),
        )

    def _make_tools(self) -> ToolSteps:
        from bernstein.runner.tool_step import ToolSteps  # noqa: PLC0415 - where a plan has them

        run = self.run
        return ToolSteps(
            run,
            self.plan,
            self.workspace,
            Redactor(provider_secrets()),
            self.options.is_isolated,
            tuple(self._hidden()),
            self._own_source(),
            self.options.tools,
            Approvals(run.sdd, self.keys_dir, run.dir, run.source),
        )

    def _hidden(self) -> list[Path]:
        """What an isolated agent finds empty."""
        run = self.run
        hidden = [run.sdd.path, self.keys_dir]
        return hidden if run.source is None else [*hidden, run.source.path]

    def _own_source(self) -> Path | None:
        """Where in the folder the recording lies, if it does: a saved one was not there then."""
        source, folder = self.run.source, self.options.folder.resolve()
        if source is None or not source.path.resolve().is_relative_to(folder):
            return None
        return source.path.resolve().relative_to(folder)

    def prepare(self, unit: Unit) -> Brief:
        """What a unit is told, fixed in its row's turn and not when its request is made."""
        if unit.task is None:
            return None
        if not unit.step.is_one_task:
            return self._brief(unit, unit.task)
        try:
            if not unit.step.has_agent:
                assert self._tools is not None
                return self._tools.prepare(unit, model_of(self.run, self.options, unit.step))
            assert self._agents is not None
            attempt = self._agents.prepare(unit)
        except BernsteinError as error:
            return error  # raised in its task
        self.run.append(event.AGENT_STARTED, attempt.started(), unit.unit_id)
        return attempt

    async def outcome(self, unit: Unit, brief: Brief) -> Outcome:
        """Do a unit; gives what then tells the schedule, well or not."""
        code: ErrorCode
        try:
            return await self._outcome(unit, brief)
        except ProviderError as error:
            code, detail = "provider_error", str(error)
        except BadAnswerError as error:
            code, detail = "bad_answer", str(error)
        except BudgetError as error:
            code, detail = "budget_exceeded", str(error).split("\n", 1)[0]
        except UnsafePathError as error:
            code, detail = "file_refused", str(error)
        return lambda: self._failed(unit, code, detail)

    def _failed(self, unit: Unit, code: ErrorCode, detail: str) -> list[Transition]:
        self.observer.unit_ended(unit, code, detail)
        transitions = self.schedule.failed(unit, code, detail)
        if not any(isinstance(t, Decided) and t.decision == "retry" for t in transitions):
            self.failures.append(f"{unit.unit_id}: {code}: {detail}")
        return transitions

    async def _outcome(self, unit: Unit, brief: Brief) -> Outcome:
        """Do the unit's work; what is returned tells the schedule, once it is the lane's turn."""
        scope = CallScope(self.run, unit.unit_id, unit.unit_id)
        if isinstance(brief, BernsteinError):
            raise brief
        if unit.task is not None and unit.step.has_agent:
            result = await self._run_agent(unit, cast("AgentAttempt", brief))
            return lambda: self._agent_done(unit, result)
        if unit.task is not None and unit.step.tools:
            copy = await self._use_tools(cast("ToolAttempt", brief))
            return lambda: self._tools_done(unit, copy)
        if unit.kind == "decompose" and unit.step.is_one_task:
            # A whole step is one task to it: how it goes about it is its own business.
            return lambda: self._decomposed(unit, [single_task(unit.step)])
        if unit.kind == "decompose":
            tasks = await self._decompose(unit.step, scope)
            return lambda: self._decomposed(unit, tasks)
        if isinstance(brief, TaskBrief):
            artifacts = await do_task(brief, self.workspace, scope)
            return lambda: self._task_done(unit, artifacts)
        broken = await self._check(unit, scope)
        if broken:
            return lambda: self._failed(unit, "signal_failed", "; ".join(broken))
        return lambda: self._done(unit)

    async def _run_agent(self, unit: Unit, attempt: AgentAttempt) -> AgentResult:
        """Run an agent to its end, and chain what was seen of it in its turn."""
        score, ended = self.run.score, None
        score.go_away()
        try:
            ended = await attempt.work()
        except BaseException:
            # Cancelled, or after a miss: what was seen is chained all the same.
            attempt.finish(None)
            raise
        finally:
            score.come_back()
        await self._turn(unit.unit_id)
        result = attempt.finish(ended)
        if result.outcome == "cancelled":
            await self._turn(unit.unit_id)  # which does not come: the run is cancelled here
        return result

    async def _use_tools(self, attempt: ToolAttempt) -> AgentCopy:
        try:
            await attempt.work()
        except BaseException:
            attempt.copy.remove()
            raise
        return attempt.copy

    def _tools_done(self, unit: Unit, copy: AgentCopy) -> list[Transition]:
        """Bring over what was done with tools."""
        try:
            self.produced.bring_over(unit.unit_id, copy)
        except (UnsafePathError, WorkspaceError) as error:
            return self._failed(unit, "file_refused", str(error).split("\n", 1)[0])
        finally:
            copy.remove()
        return self._done(unit)

    def _agent_done(self, unit: Unit, result: AgentResult) -> list[Transition]:
        """Bring over what an agent changed, and say how the unit ended."""
        code = _CODES.get(result.outcome)
        try:
            if code is None:
                self.produced.bring_over(unit.unit_id, result.copy)
        except (UnsafePathError, WorkspaceError) as error:
            return self._failed(unit, "file_refused", str(error).split("\n", 1)[0])
        finally:
            result.copy.remove()
        return self._done(unit) if code is None else self._failed(unit, code, result.detail)

    def _decomposed(self, unit: Unit, tasks: list[Task]) -> list[Transition]:
        self.observer.unit_ended(unit, None, "")
        self.produced.expect(tasks)
        step_id = unit.step.step_id
        self.run.append(
            event.STEP_DECOMPOSED,
            event.step_decomposed(step_id, len(tasks), digest_of(msgspec.to_builtins(tasks))),
            step_id,
        )
        return self.schedule.decomposed(unit, tasks)

    def _task_done(self, unit: Unit, artifacts: list[Artifact]) -> list[Transition]:
        """Put a task's files into the workspace: now, in its turn, so in the order of the rows."""
        try:
            self.produced.write(unit.unit_id, artifacts)
        except UnsafePathError as error:
            return self._failed(unit, "file_refused", str(error))
        return self._done(unit)

    def _done(self, unit: Unit) -> list[Transition]:
        self.observer.unit_ended(unit, None, "")
        return self.schedule.done(unit)

    async def _turn(self, lane: str) -> None:
        ticket = self.run.score.turn(lane)
        if not ticket.done():
            await asyncio.wrap_future(ticket)

    async def _decompose(self, step: Step, scope: CallScope) -> list[Task]:
        name = model_of(self.run, self.options, step)
        bound = max_tasks(step, name.provider)
        answer = await aask(decompose_call(self.plan, step, name), scope, _CALL_RETRIES)
        tasks = parse_tasks(answer.text, step, bound)
        if tasks is None:
            raise BadAnswerError(
                'the model gave no tasks for this step; expected {"tasks":[{"id":"t1",…}]}, got '
                + repr(answer.text[:80])
            )
        return tasks

    def _brief(self, unit: Unit, task: Task) -> TaskBrief:
        step, name = unit.step, model_of(self.run, self.options, unit.step)
        return TaskBrief(
            plan=self.plan.name,
            constraints=self.plan.constraints,
            role=step.role,
            step=step.title,
            description=step.description,
            task=task.title,
            files=task.files,
            earlier=self.produced.earlier(step, task),
            feedback=unit.feedback,
            scope=step.scope,
            provider=name.provider,
            model=name.model,
            temperature=step.temperature,
            max_tokens=step.max_tokens,
            max_retries=_CALL_RETRIES,
        )

    async def _check(self, unit: Unit, scope: CallScope) -> list[str]:
        """Look at each completion signal; a line for each that does not hold."""
        broken = []
        for index, signal_ in enumerate(unit.step.signals):
            result = None
            if signal_.runs_command:
                result = await run_command(signal_.command, self.workspace, self.run, scope.lane)
            # A look at a file waits for its turn: other steps may write the same file.
            await self._turn(unit.unit_id)
            if result is None:
                why = file_signal_problem(signal_, self.workspace)
            else:
                why = result.problem(signal_.command)
            with self.run.rows():
                self.run.append(
                    event.SIGNAL_CHECKED,
                    event.signal_checked(
                        unit.step.step_id,
                        index,
                        signal_.type,
                        holds=not why,
                        result=None if result is None else result.digest(),
                    ),
                    unit.unit_id,
                )
            if why:
                broken.append(why)
        return broken


def model_of(run: OpenRun, options: RunOptions, step: Step) -> ModelName:
    """The model that is asked for a step of the built-in agent."""
    if step.model is None or options.model:
        return run.default_model
    return parse_model_name(step.model)
