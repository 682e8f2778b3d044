"""Runs a plan from its first decision to its report, recording or replaying.

Rule: rows that follow from one outcome are written together, and in a replay when the score says
that it is their lane's turn; so the order of rows decides everything, and nothing else does.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import traceback
from typing import TYPE_CHECKING, Literal

from bernstein.agents.registry import choose_installed, find_adapter
from bernstein.canonical import digest_of
from bernstein.capture.gateway.launcher import Launcher
from bernstein.capture.models.base import parse_model_name
from bernstein.capture.models.registry import find_provider
from bernstein.capture.run import OpenRun
from bernstein.chain.compare import Comparison
from bernstein.errors import BernsteinError, ReplayMissError, UsageError
from bernstein.events import trajectory as event
from bernstein.files import remove_tree
from bernstein.runner.decompose import Task
from bernstein.runner.plan import CLIS
from bernstein.runner.report import Observer, RunOptions, RunReport
from bernstein.runner.schedule import Decided, Schedule, StageDone, Transition, Unit
from bernstein.runner.units import Units, model_of
from bernstein.runner.workspace import (
    Workspace,
    folder_in_place,
    make_workspace,
    restore_workspace,
)
from bernstein.settings import wants_tracebacks

if TYPE_CHECKING:
    from bernstein.events.trajectory import ErrorCode
    from bernstein.rundir import SddDir
    from bernstein.runner.plan import Plan
    from bernstein.runner.units import Brief
    from bernstein.settings import Settings

AGENT_ID = "bernstein"
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
        self._run = OpenRun(
            sdd,
            settings,
            {"kind": "plan", "plan": {"name": plan.name, "value": plan.to_json()}, "auto": auto},
            follows_score=True,
            has_agents=plan.has_agents,
            goes_on=options.goes_on,
        )
        self._run.budget_credits = plan.budget_credits
        if plan.has_agents:
            self._run.guard = "netns" if options.is_isolated else "proxy"
        self._schedule = Schedule(plan)
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
                bound_s = _PARK_S if self._plan.asks else None
                await asyncio.wait(
                    self._tasks, timeout=bound_s, return_when=asyncio.FIRST_COMPLETED
                )
                if len(self._units.waiting) == len(self._tasks) > 0 and not self._options.waits:
                    return await self._park()
            if run.resumed is not None and run.resumed.problem is not None:
                raise run.resumed.problem
            return self._end()
        except UsageError:
            if run.resumed is not None and run.resumed.problem is not None:
                remove_tree(run.dir.agents)
                run.leave()
            raise
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    # --- begin and end

    async def _park(self) -> RunReport:
        """Leave the run as it is: all that is left of it waits for an operator."""
        waiting = [call.call_id for call in self._units.waiting.values()]
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        remove_tree(self._run.dir.agents)
        self._run.park()
        return self._report("parked", 2, None, waiting)

    def _begin(self) -> None:
        run = self._run
        try:
            if self._options.model:
                run.default_model = parse_model_name(self._options.model)
            own = [step for step in self._plan.steps if not step.has_agent]
            if run.source is None:
                for name in sorted({model_of(run, self._options, step) for step in own}):
                    find_provider(*name)
            for step in self._plan.steps:
                if step.has_agent:
                    find_adapter(step.cli, step.command)
            runs_programs = self._plan.has_agents or self._plan.has_tools
            if runs_programs and self._options.is_isolated:
                Launcher(is_isolated=True).close()  # it can be done here, or nothing is begun
            reruns = self._plan.has_tools and self._options.tools == "rerun"
            if (self._plan.has_agents or reruns) and not self._options.trusts:
                # Isolated ones too: they have no network, and all of the user's files.
                run.refuse_untrusted()
            self._workspace = self._make_workspace()
            self._units = Units(
                run,
                self._plan,
                self._options,
                self._observer,
                self._schedule,
                self._workspace.path,
                self._settings.keys_dir,
            )
        except BernsteinError:
            if run.resumed is None:
                run.discard()
            else:
                run.leave()
            raise
        self._observer.run_opened(run.dir.run_id, self._plan)
        run.describe({"tree": self._workspace.tree_digest, "isolated": self._options.is_isolated})
        run.append(event.RUN_STARTED, event.run_started(AGENT_ID, digest_of(self._plan.to_json())))
        self._apply(self._schedule.start())

    def _make_workspace(self) -> Workspace:
        if self._run.resumed is not None:
            return restore_workspace(self._run.dir)
        if self._options.in_place:
            return folder_in_place(self._options.folder)
        return make_workspace(self._run.dir, self._options.folder)

    def _end(self) -> RunReport:
        run, status, reason = self._run, self._final_status(), self._final_reason()
        if status != "completed":
            self._apply(self._schedule.cancel(self._missed))
        produced = self._units.produced.digests
        output = digest_of(produced) if produced else None
        remove_tree(run.dir.agents)
        run.append_end(status, reason, output)
        run.close(status)
        if isinstance(self._error, UsageError):
            raise self._error
        comparison = run.comparison()
        report = self._report(status, self._exit_code(status, comparison), comparison, [])
        run.retain()
        return report

    def _report(
        self,
        status: event.RunStatus | Literal["parked"],
        exit_code: int,
        comparison: Comparison | None,
        waiting: list[str],
    ) -> RunReport:
        run, produced = self._run, self._units.produced.digests
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
            failures=self._units.failures,
            artifacts=dict(sorted(produced.items())),
            calls=run.call_count,
            input_tokens=run.input_tokens,
            output_tokens=run.output_tokens,
            credits=run.spent_credits,
            coverage=run.coverage(),
            comparison=comparison,
            miss=run.store.first_miss,
            has_other_tree=self._has_other_tree(),
            has_other_plan=self._has_other_plan(),
            seal_problem=run.seal_problem,
            notes=self._units.notes(),
            context_note=run.context.note(),
            waiting=waiting,
        )

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
                            f"stage/{stage.stage_id}",
                            stage.name,
                            digest_of(self._units.produced.digests),
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
        brief = self._units.prepare(unit)
        task = asyncio.get_running_loop().create_task(
            self._work(unit, brief), name=unit.step.step_id
        )
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

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
            self._units.failures.append(str(error))
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
        transitions = await self._units.outcome(unit, brief)
        ticket = self._run.score.turn(unit.unit_id)
        if not ticket.done():
            await asyncio.wrap_future(ticket)
        with self._run.rows():
            self._apply(transitions())


def _auto_agent(sdd: SddDir, settings: Settings) -> str:
    """What `auto` stands for: in a replay as it was recorded, else what is installed."""
    if settings.replay_run_id is None:
        return choose_installed()
    # A recording that says nothing of it is from when `auto` was the built-in agent.
    recorded = sdd.find_recording(settings.replay_run_id).read_info().get("auto")
    return recorded if recorded in CLIS else "builtin"
