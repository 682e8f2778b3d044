"""Runs a plan from its first decision to its report, recording or replaying.

Rule: rows that follow from one outcome are written together, and in a replay when the score says
that it is their lane's turn; so the order of rows decides everything, and nothing else does.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import traceback
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import msgspec

from bernstein.agents.builtin import (
    Artifact,
    BadAnswerError,
    TaskBrief,
    do_task,
)
from bernstein.agents.registry import choose_installed, find_adapter
from bernstein.canonical import digest_of
from bernstein.capture.gateway.launcher import Launcher
from bernstein.capture.llm import aask
from bernstein.capture.models.base import ModelName, parse_model_name
from bernstein.capture.models.registry import find_provider
from bernstein.capture.program import CallScope
from bernstein.capture.run import OpenRun
from bernstein.chain.compare import Comparison
from bernstein.errors import (
    BernsteinError,
    BudgetError,
    ProviderError,
    ReplayMissError,
    UnsafePathError,
    UsageError,
    WorkspaceError,
)
from bernstein.events import trajectory as event
from bernstein.files import remove_tree
from bernstein.runner.approvals import Approvals
from bernstein.runner.decompose import (
    Task,
    decompose_call,
    max_tasks,
    parse_tasks,
    single_task,
)
from bernstein.runner.plan import CLIS
from bernstein.runner.produced import Produced
from bernstein.runner.report import Observer, RunOptions, RunReport
from bernstein.runner.schedule import Decided, Schedule, StageDone, Transition, Unit
from bernstein.runner.signals import file_signal_problem, run_command
from bernstein.runner.workspace import (
    Workspace,
    folder_in_place,
    make_workspace,
    restore_workspace,
)
from bernstein.settings import provider_secrets, wants_tracebacks
from bernstein.wire.secrets import Redactor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bernstein.events.trajectory import AgentOutcome, ErrorCode
    from bernstein.rundir import SddDir
    from bernstein.runner.agent_step import AgentAttempt, AgentResult, AgentSteps
    from bernstein.runner.plan import Plan, Step
    from bernstein.runner.tool_step import Proposed, ToolAttempt, ToolSteps
    from bernstein.runner.workspace import AgentCopy
    from bernstein.settings import Settings

AGENT_ID = "bernstein"
Brief: TypeAlias = "TaskBrief | AgentAttempt | ToolAttempt | BernsteinError | None"
_CODES: dict[AgentOutcome, ErrorCode] = {
    "failed": "agent_failed",
    "killed": "agent_failed",
    "cancelled": "cancelled",
    "timeout": "timeout",
    "context_exhausted": "context_exhausted",
}
_CALL_RETRIES = 2
_PARK_S = 0.2  # how often it is looked whether all that is left waits for an operator


class PlanRun:
    """One execution of a plan."""

    def __init__(
        self, plan: Plan, sdd: SddDir, settings: Settings, options: RunOptions, observer: Observer
    ) -> None:
        self._settings = settings
        self._options = options
        self._observer = observer
        auto = _auto_agent(sdd, settings)
        self._plan = plan = plan.with_agents(auto)
        self._has_agents = any(step.has_agent for step in plan.steps)
        self._asks = any(step.approve for step in plan.steps)
        self._has_tools = any(step.tools and not step.has_agent for step in plan.steps)
        self._agents: AgentSteps | None = None
        self._tools: ToolSteps | None = None
        self._run = OpenRun(
            sdd,
            settings,
            {"kind": "plan", "plan": {"name": plan.name, "value": plan.to_json()}, "auto": auto},
            follows_score=True,
            has_agents=self._has_agents,
            goes_on=options.goes_on,
        )
        self._run.budget_credits = plan.budget_credits
        if self._has_agents:
            self._run.guard = "netns" if options.is_isolated else "proxy"
        self._schedule = Schedule(plan)
        self._failures: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: BernsteinError | None = None
        self._missed: str | None = None
        self._caught_signal: int | None = None

    async def execute(self) -> RunReport:
        """Run to the end and report.

        Raises:
            UsageError: The run could not begin, or a model could not be asked; its journal says
                ``failed``.
        """
        loop = asyncio.get_running_loop()
        is_main = threading.current_thread() is threading.main_thread()
        signals = (signal.SIGINT, signal.SIGTERM) if is_main else ()
        for number in signals:
            loop.add_signal_handler(number, self._on_signal, number)
        run = self._run
        source = run.source
        recorded = source.read_info().get("signal") if source is not None else None
        self._run.score.on_cancel = lambda: loop.call_soon_threadsafe(self._end_alike, recorded)
        try:
            self._begin()
            while self._tasks:
                bound_s = _PARK_S if self._asks else None
                await asyncio.wait(
                    self._tasks, timeout=bound_s, return_when=asyncio.FIRST_COMPLETED
                )
                if len(self._waiting) == len(self._tasks) > 0 and not self._options.waits:
                    return await self._park()
            if run.resumed is not None and run.resumed.problem is not None:
                run.park()
                raise run.resumed.problem
            return self._end()
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    # --- begin and end

    @property
    def _waiting(self) -> dict[str, Proposed]:
        """The calls that an operator has to decide on, by the task that waits."""
        return {} if self._tools is None else self._tools.waiting

    async def _park(self) -> RunReport:
        """Leave the run as it is: all that is left of it waits for an operator."""
        waiting = [call.call_id for call in self._waiting.values()]
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._clear_agents()
        self._run.park()
        return self._report("parked", 2, waiting)

    def _begin(self) -> None:
        run = self._run
        try:
            if self._options.model:
                run.default_model = parse_model_name(self._options.model)
            own = [step for step in self._plan.steps if not step.has_agent]
            if run.source is None:
                for name in sorted({self._model_of(step) for step in own}):
                    find_provider(*name)
            for step in self._plan.steps:
                if step.has_agent:
                    find_adapter(step.cli, step.command)
            if self._has_agents and self._options.is_isolated:
                Launcher(is_isolated=True).close()  # it can be done here, or nothing is begun
            if self._has_agents and not self._options.trusts:
                # Isolated ones too: they have no network, and all of the user's files.
                run.refuse_untrusted()
            self._workspace = self._make_workspace()
            self._produced = Produced(run, self._plan, self._workspace.path)
            self._agents = self._make_agents() if self._has_agents else None
            self._tools = self._make_tools() if self._has_tools else None
        except BernsteinError:
            if run.resumed is None:
                run.discard()
            else:
                run.park()
            raise
        self._observer.run_opened(run.dir.run_id, self._plan)
        run.describe({"tree": self._workspace.tree_digest, "isolated": self._options.is_isolated})
        run.append(event.RUN_STARTED, event.run_started(AGENT_ID, digest_of(self._plan.to_json())))
        self._apply(self._schedule.start())

    def _make_agents(self) -> AgentSteps:
        from bernstein.runner.agent_step import AgentSteps  # noqa: PLC0415 - a server is heavy

        return AgentSteps(
            self._run,
            self._plan,
            self._workspace.path,
            Redactor(provider_secrets()),
            self._options.is_isolated,
            self._hidden(),
            self._own_source(),
        )

    def _make_tools(self) -> ToolSteps:
        from bernstein.runner.tool_step import ToolSteps  # noqa: PLC0415 - where a plan has them

        run, keys_dir = self._run, self._settings.keys_dir
        return ToolSteps(
            run,
            self._plan,
            self._workspace.path,
            Redactor(provider_secrets()),
            self._options.is_isolated,
            tuple(self._hidden()),
            self._own_source(),
            self._options.tools,
            Approvals(run.sdd, keys_dir, run.dir, run.source),
        )

    def _hidden(self) -> list[Path]:
        """What an isolated agent finds empty."""
        run = self._run
        hidden = [run.sdd.path, self._settings.keys_dir]
        return hidden if run.source is None else [*hidden, run.source.path]

    def _clear_agents(self) -> None:
        """Take away the folders in which agents worked."""
        remove_tree(self._run.dir.agents)

    def _own_source(self) -> Path | None:
        """Where in the folder the recording lies, if it does: a saved one was not there then."""
        source, folder = self._run.source, self._options.folder.resolve()
        if source is None or not source.path.resolve().is_relative_to(folder):
            return None
        return source.path.resolve().relative_to(folder)

    def _make_workspace(self) -> Workspace:
        if self._run.resumed is not None:
            return restore_workspace(self._run.dir)
        if self._options.in_place:
            return folder_in_place(self._options.folder)
        return make_workspace(self._run.dir, self._options.folder)

    def _model_of(self, step: Step) -> ModelName:
        if step.model is None or self._options.model:
            return self._run.default_model
        return parse_model_name(step.model)

    def _end(self) -> RunReport:
        run, status, reason = self._run, self._final_status(), self._final_reason()
        if status != "completed":
            self._apply(self._schedule.cancel(self._missed))
        produced = self._produced.digests
        output = digest_of(produced) if produced else None
        self._clear_agents()
        run.append_end(status, reason, output)
        run.close(status)
        if isinstance(self._error, UsageError):
            raise self._error
        comparison = run.comparison()
        report = self._report(status, self._exit_code(status, comparison), [])
        run.retain()
        return report

    def _report(
        self, status: event.RunStatus | Literal["parked"], exit_code: int, waiting: list[str]
    ) -> RunReport:
        run, produced = self._run, self._produced.digests
        statuses = self._schedule.statuses()
        return RunReport(
            run_id=run.dir.run_id,
            run_path=run.dir.path,
            workspace=self._workspace.path,
            status=status,
            exit_code=exit_code,
            head=run.head,
            rows=run.row_count,
            steps=[
                (step.step_id, step.title, *statuses[step.step_id]) for step in self._plan.steps
            ],
            failures=self._failures,
            artifacts=dict(sorted(produced.items())),
            calls=run.call_count,
            input_tokens=run.input_tokens,
            output_tokens=run.output_tokens,
            credits=run.spent_credits,
            coverage=run.coverage(),
            comparison=run.comparison(),
            miss=run.store.first_miss,
            has_other_tree=self._has_other_tree(),
            has_other_plan=self._has_other_plan(),
            seal_problem=run.seal_problem,
            notes=self._notes(),
            context_note=run.context.note(),
            waiting=waiting,
        )

    def _notes(self) -> list[str]:
        notes = [] if self._agents is None else self._agents.notes()
        differing = [] if self._tools is None else self._tools.differing
        return [
            *notes,
            *(f"{call_id} gave another result when it ran again" for call_id in differing),
        ]

    def _has_other_tree(self) -> bool:
        recorded = self._run.source.read_info().get("tree") if self._run.source else None
        return recorded is not None and recorded != self._workspace.tree_digest

    def _has_other_plan(self) -> bool:
        recorded = self._run.source.read_info().get("plan") if self._run.source else None
        if recorded is None or "value" not in recorded:
            return False
        return digest_of(recorded["value"]) != digest_of(self._plan.to_json())

    def _final_status(self) -> event.RunStatus:
        if self._caught_signal is not None:
            return "cancelled"
        well = all(status == "ok" for status, _ in self._schedule.statuses().values())
        return "completed" if well and self._error is None else "failed"

    def _final_reason(self) -> ErrorCode | None:
        if self._caught_signal is not None:
            return "cancelled"
        if self._run.store.first_miss is not None or isinstance(self._error, ReplayMissError):
            return "replay_miss"
        return self._schedule.first_error

    def _exit_code(self, status: event.RunStatus, comparison: Comparison | None) -> int:
        if self._run.store.first_miss is not None or isinstance(self._error, ReplayMissError):
            return ReplayMissError.exit_code
        if self._caught_signal is not None:
            return 128 + self._caught_signal
        if status != "completed" or self._run.seal_problem is not None:
            return 1
        if comparison is None or self._settings.allow_live_miss:
            return 0
        fails = {"diverged", "equivalent"} if self._options.exact else {"diverged"}
        return int(comparison.relation in fails)

    # --- units

    def _apply(self, transitions: list[Transition]) -> None:
        """Write the rows of decisions, together, and start what they start."""
        with self._run.rows():
            for transition in transitions:
                if isinstance(transition, StageDone):
                    stage = transition.stage
                    self._run.append(
                        event.CHECKPOINT,
                        event.checkpoint(
                            f"stage/{stage.stage_id}", stage.name, digest_of(self._produced.digests)
                        ),
                    )
                else:
                    self._write_decision(transition)

    def _write_decision(self, made: Decided) -> None:
        run, lane = self._run, made.subject
        after = {
            "after": sorted(u for u in self._schedule.running),
            "subject": made.subject,
            "closes": made.closes,
            "attempt": made.attempt,
        }
        run.decisions.append(made.decision, made.subject, made.attempt, after)
        run.append(
            event.DECISION_MADE,
            event.decision_made(made.decision, made.subject, made.attempt),
            lane,
        )
        if isinstance(made.opens, Task):
            parent = made.subject.rsplit("/", 1)[0]
            run.append(event.STEP_STARTED, event.step_started(lane, parent, 1, None), lane)
        elif made.opens is not None:
            run.append(
                event.STEP_STARTED, event.step_started(lane, None, 0, made.opens.title), lane
            )
        if made.closes is not None:
            code = None if made.closes == "ok" else made.closes
            run.append(event.STEP_FINISHED, event.step_finished(lane, code), lane)
        if made.starts is not None:
            self._start(made.starts)

    def _start(self, unit: Unit) -> None:
        self._observer.unit_started(unit)
        self._run.score.enter()
        # What the task is told is fixed here, in the row's turn, not when its request is made.
        brief: Brief = None
        if unit.task is not None and unit.step.has_agent:
            brief = self._prepare_agent(unit)
        elif unit.task is not None and unit.step.tools:
            brief = self._prepare_tools(unit)
        elif unit.task is not None:
            brief = self._brief(unit, unit.task)
        task = asyncio.get_running_loop().create_task(
            self._work(unit, brief), name=unit.step.step_id
        )
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _prepare_agent(self, unit: Unit) -> AgentAttempt | BernsteinError:
        """What an agent's attempt needs; what keeps it from being made is raised in its task."""
        assert self._agents is not None
        try:
            attempt = self._agents.prepare(unit)
        except BernsteinError as error:
            return error
        self._run.append(event.AGENT_STARTED, attempt.started(), unit.unit_id)
        return attempt

    def _prepare_tools(self, unit: Unit) -> ToolAttempt | BernsteinError:
        """What an attempt with tools needs; what keeps it from being made is raised in its task."""
        assert self._tools is not None
        try:
            return self._tools.prepare(unit, self._model_of(unit.step))
        except BernsteinError as error:
            return error

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._run.score.leave()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            if self._error is None and isinstance(error, ReplayMissError):
                self._missed = task.get_name()
            self._stop(error)

    def _stop(self, error: BaseException) -> None:
        """End the run early: a miss, a model that cannot be asked, or a fault of ours."""
        if isinstance(error, OSError):
            where = f"{error.filename}: " if error.filename else ""
            error = BernsteinError(f"{where}{error.strerror or error}")
        if not isinstance(error, BernsteinError):
            if wants_tracebacks():
                traceback.print_exception(error)
            error = BernsteinError(
                f"a fault of bernstein: {type(error).__name__}: {error}\n"
                "  see where with BERNSTEIN_DEBUG=1, and report it"
            )
        if not isinstance(error, ReplayMissError):
            self._failures.append(str(error))
        self._error = self._error or error
        for task in self._tasks:
            task.cancel()

    def _end_alike(self, recorded: int | None) -> None:
        """End as the recording did: by a signal, or by what went wrong then."""
        if recorded is not None:
            self._on_signal(recorded)
        else:
            self._stop(BernsteinError("the recorded run ended here, by what went wrong then"))

    def _on_signal(self, number: int) -> None:
        self._caught_signal = number
        self._run.describe({"signal": int(number)})
        for task in self._tasks:
            task.cancel()

    async def _work(self, unit: Unit, brief: Brief) -> None:
        """Do a unit, then write what follows from its outcome."""
        code: ErrorCode
        try:
            transitions = await self._outcome(unit, brief)
        except ProviderError as error:
            code, detail = "provider_error", str(error)
        except BadAnswerError as error:
            code, detail = "bad_answer", str(error)
        except BudgetError as error:
            code, detail = "budget_exceeded", str(error).split("\n", 1)[0]
        except UnsafePathError as error:
            code, detail = "file_refused", str(error)
        else:
            await self._turn(unit.unit_id)
            with self._run.rows():
                self._apply(transitions())
            return
        await self._turn(unit.unit_id)
        self._apply(self._failed(unit, code, detail))

    def _failed(self, unit: Unit, code: ErrorCode, detail: str) -> list[Transition]:
        self._observer.unit_ended(unit, code, detail)
        transitions = self._schedule.failed(unit, code, detail)
        if not any(isinstance(t, Decided) and t.decision == "retry" for t in transitions):
            self._failures.append(f"{unit.unit_id}: {code}: {detail}")
        return transitions

    async def _outcome(self, unit: Unit, brief: Brief) -> Callable[[], list[Transition]]:
        """Do the unit's work; what is returned tells the schedule, once it is the lane's turn."""
        scope = CallScope(self._run, unit.unit_id, unit.unit_id)
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
            artifacts = await do_task(brief, self._workspace.path, scope)
            return lambda: self._task_done(unit, artifacts)
        broken = await self._check(unit, scope)
        if broken:
            return lambda: self._failed(unit, "signal_failed", "; ".join(broken))
        return lambda: self._done(unit)

    async def _run_agent(self, unit: Unit, attempt: AgentAttempt) -> AgentResult:
        """Run an agent to its end, and chain what was seen of it in its turn."""
        score, ended = self._run.score, None
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
            self._produced.bring_over(unit.unit_id, copy)
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
                self._produced.bring_over(unit.unit_id, result.copy)
        except (UnsafePathError, WorkspaceError) as error:
            return self._failed(unit, "file_refused", str(error).split("\n", 1)[0])
        finally:
            result.copy.remove()
        return self._done(unit) if code is None else self._failed(unit, code, result.detail)

    def _decomposed(self, unit: Unit, tasks: list[Task]) -> list[Transition]:
        self._observer.unit_ended(unit, None, "")
        self._produced.expect(tasks)
        step_id = unit.step.step_id
        self._run.append(
            event.STEP_DECOMPOSED,
            event.step_decomposed(step_id, len(tasks), digest_of(msgspec.to_builtins(tasks))),
            step_id,
        )
        return self._schedule.decomposed(unit, tasks)

    def _task_done(self, unit: Unit, artifacts: list[Artifact]) -> list[Transition]:
        """Put a task's files into the workspace: now, in its turn, so in the order of the rows."""
        try:
            self._produced.write(unit.unit_id, artifacts)
        except UnsafePathError as error:
            return self._failed(unit, "file_refused", str(error))
        return self._done(unit)

    def _done(self, unit: Unit) -> list[Transition]:
        self._observer.unit_ended(unit, None, "")
        return self._schedule.done(unit)

    async def _turn(self, lane: str) -> None:
        ticket = self._run.score.turn(lane)
        if not ticket.done():
            await asyncio.wrap_future(ticket)

    async def _decompose(self, step: Step, scope: CallScope) -> list[Task]:
        name = self._model_of(step)
        bound = max_tasks(step, name.provider)
        answer = await aask(decompose_call(self._plan, step, name), scope, _CALL_RETRIES)
        tasks = parse_tasks(answer.text, step, bound)
        if tasks is None:
            raise BadAnswerError(
                'the model gave no tasks for this step; expected {"tasks":[{"id":"t1",…}]}, got '
                + repr(answer.text[:80])
            )
        return tasks

    def _brief(self, unit: Unit, task: Task) -> TaskBrief:
        step, name = unit.step, self._model_of(unit.step)
        return TaskBrief(
            plan=self._plan.name,
            constraints=self._plan.constraints,
            role=step.role,
            step=step.title,
            description=step.description,
            task=task.title,
            files=task.files,
            earlier=self._produced.earlier(step, task),
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
                result = await run_command(
                    signal_.command, self._workspace.path, self._run, scope.lane
                )
            # A look at a file waits for its turn: other steps may write the same file.
            await self._turn(unit.unit_id)
            if result is None:
                why = file_signal_problem(signal_, self._workspace.path)
            else:
                why = result.problem(signal_.command)
            with self._run.rows():
                self._run.append(
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


def _auto_agent(sdd: SddDir, settings: Settings) -> str:
    """What `auto` stands for: in a replay as it was recorded, else what is installed."""
    if settings.replay_run_id is None:
        return choose_installed()
    # A recording that says nothing of it is from when `auto` was the built-in agent.
    recorded = sdd.find_recording(settings.replay_run_id).read_info().get("auto")
    return recorded if recorded in CLIS else "builtin"
