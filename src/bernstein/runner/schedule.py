"""What is done next: a pure state machine from outcomes to decisions.

Rule: what it decides depends on the plan and on the order of outcomes alone, never on a clock, so a
replay that feeds the outcomes in recorded order gets the recorded decisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from bernstein.events.trajectory import Decision, ErrorCode
    from bernstein.runner.decompose import Task
    from bernstein.runner.plan import Plan, Stage, Step

UnitKind: TypeAlias = Literal["decompose", "task", "check"]
_FINAL: frozenset[ErrorCode] = frozenset({"budget_exceeded", "cancelled", "replay_miss"})


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of work that takes one of the plan's slots.

    Attributes:
        unit_id: The lane its rows are in: the step's, or the task's.
        kind: decompose a step, do a task, or check a step's completion signals.
        attempt: From 1.
        feedback: What the attempt before left to mend, or "".
    """

    unit_id: str
    kind: UnitKind
    step: Step
    task: Task | None
    attempt: int
    feedback: str = ""


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision, what it opens or closes, and the unit it starts."""

    decision: Decision
    subject: str
    attempt: int
    opens: Step | Task | None = None
    closes: ErrorCode | Literal["ok"] | None = None
    starts: Unit | None = None


@dataclass(frozen=True, slots=True)
class StageDone:
    """Every step of a stage is done and well."""

    stage: Stage


Transition: TypeAlias = Decided | StageDone


@dataclass
class _StepState:
    step: Step
    stage: Stage
    status: Literal["waiting", "running", "ok", "error"] = "waiting"
    error: ErrorCode | None = None
    tasks: dict[str, _TaskState] | None = None
    attempt: int = 1
    feedback: str = ""
    busy: int = 0  # units of this step that are queued or run
    is_closed: bool = False


@dataclass
class _TaskState:
    task: Task
    status: Literal["waiting", "queued", "ok", "error"] = "waiting"
    attempt: int = 1
    was_opened: bool = False


class Schedule:
    """The state of a plan that runs; every method returns the transitions in their order."""

    def __init__(self, plan: Plan) -> None:
        self._steps = {
            step.step_id: _StepState(step, stage) for stage in plan.stages for step in stage.steps
        }
        self._stages_done: set[str] = set()
        self._slots = plan.max_agents
        self.running: dict[str, Unit] = {}
        self._queue: list[Unit] = []

    def start(self) -> list[Transition]:
        """The first decisions."""
        return self._settle([])

    def decomposed(self, unit: Unit, tasks: list[Task]) -> list[Transition]:
        """A step has been made tasks of."""
        self._free(unit)
        state = self._steps[unit.step.step_id]
        state.tasks = {task.task_id: _TaskState(task) for task in tasks}
        return self._settle([])

    def done(self, unit: Unit) -> list[Transition]:
        """A task is done, or a step's signals hold."""
        self._free(unit)
        state = self._steps[unit.step.step_id]
        if unit.task is not None:
            assert state.tasks is not None
            state.tasks[unit.unit_id].status = "ok"
        else:
            state.status = "ok"
        return self._settle([Decided("finish", unit.unit_id, unit.attempt, closes="ok")])

    def failed(self, unit: Unit, code: ErrorCode, feedback: str) -> list[Transition]:
        """A unit failed: it is tried again as the plan says, then its step fails."""
        self._free(unit)
        state = self._steps[unit.step.step_id]
        may_retry = state.status == "running" and code not in _FINAL
        if may_retry and unit.attempt <= unit.step.retries:
            return self._settle([self._retry(state, unit, feedback)])
        out: list[Transition] = []
        if unit.task is not None and state.tasks is not None:
            state.tasks[unit.unit_id].status = "error"
            out.append(Decided("finish", unit.unit_id, unit.attempt, closes=code))
        if state.status == "running":
            state.status, state.error = "error", code
            dropped = [queued for queued in self._queue if queued.step is unit.step]
            self._queue = [queued for queued in self._queue if queued.step is not unit.step]
            state.busy -= len(dropped)
            if not state.busy:
                # Before any consequence elsewhere: a unit's first row is always in its own lane.
                self._close_failed(state, out)
        return self._settle(out)

    def cancel(self, missed: str | None = None) -> list[Transition]:
        """End everything that runs; ``missed`` is the step whose replay missed, if one did."""
        out: list[Transition] = []
        for unit in self.running.values():
            if unit.task is not None:
                out.append(Decided("cancel", unit.unit_id, unit.attempt, closes="cancelled"))
        for state in self._steps.values():
            if state.status == "running":
                is_missed = state.step.step_id == missed
                code: ErrorCode = "replay_miss" if is_missed else "cancelled"
                state.status, state.error = "error", code
                out.append(Decided("cancel", state.step.step_id, state.attempt, closes=code))
        self.running.clear()
        self._queue.clear()
        return out

    @property
    def first_error(self) -> ErrorCode | None:
        """The code of the first step, in the plan's order, that failed by itself."""
        codes = [state.error for state in self._steps.values() if state.error is not None]
        return next((c for c in codes if c != "dependency_failed"), codes[0] if codes else None)

    def statuses(self) -> dict[str, tuple[str, ErrorCode | None]]:
        """Each step's status and, where it failed, its code."""
        return {step_id: (state.status, state.error) for step_id, state in self._steps.items()}

    # --- inside

    def _free(self, unit: Unit) -> None:
        del self.running[unit.unit_id]
        self._steps[unit.step.step_id].busy -= 1

    def _retry(self, state: _StepState, unit: Unit, feedback: str) -> Decided:
        attempt = unit.attempt + 1
        again = Unit(unit.unit_id, unit.kind, unit.step, unit.task, attempt, feedback)
        if unit.kind == "check":
            # Its signals do not hold: all tasks of the step are done again.
            assert state.tasks is not None
            state.attempt, state.feedback = attempt, feedback
            for task in state.tasks.values():
                task.status, task.attempt = "waiting", attempt
        else:
            self._enqueue(again, 0)
            if unit.task is not None and state.tasks is not None:
                state.tasks[unit.unit_id].attempt = attempt
        return Decided("retry", unit.unit_id, attempt)

    def _settle(self, out: list[Transition]) -> list[Transition]:
        """Draw every consequence: fail dependants, close steps, queue and start what is ready."""
        while self._spread(out):
            pass
        self._queue.sort(key=lambda unit: (unit.step.priority, unit.attempt > 1))
        while self._queue and len(self.running) < self._slots:
            unit = self._queue.pop(0)
            self.running[unit.unit_id] = unit
            out.append(self._started(unit))
        return out

    def _started(self, unit: Unit) -> Decided:
        state = self._steps[unit.step.step_id]
        opens: Step | Task | None = None
        if unit.kind == "decompose" and unit.attempt == 1:
            opens = unit.step
        elif unit.task is not None and state.tasks is not None:
            task = state.tasks[unit.unit_id]
            if not task.was_opened:
                opens = unit.task
                task.was_opened = True
        return Decided("schedule", unit.unit_id, unit.attempt, opens=opens, starts=unit)

    def _spread(self, out: list[Transition]) -> bool:
        """One round of consequences; False when there was none."""
        changed = False
        for state in self._steps.values():
            if state.status == "waiting":
                changed |= self._spread_waiting(state, out)
            elif state.status == "running":
                changed |= self._spread_running(state)
            elif state.status == "error" and not state.busy and not state.is_closed:
                self._close_failed(state, out)
                changed = True
        for state in self._steps.values():
            stage = state.stage
            if stage.stage_id not in self._stages_done and all(
                self._steps[step.step_id].status == "ok" for step in stage.steps
            ):
                self._stages_done.add(stage.stage_id)
                out.append(StageDone(stage))
        return changed

    def _spread_waiting(self, state: _StepState, out: list[Transition]) -> bool:
        needed = [self._steps[step_id].status for step_id in state.step.depends_on]
        if "error" in needed:
            state.status, state.error = "error", "dependency_failed"
            state.tasks = None
            out.append(Decided("skip", state.step.step_id, 1, opens=state.step))
            return True
        if all(status == "ok" for status in needed):
            state.status = "running"
            self._enqueue(Unit(state.step.step_id, "decompose", state.step, None, 1))
            return True
        return False

    def _spread_running(self, state: _StepState) -> bool:
        if state.tasks is None:
            return False
        if all(task.status == "ok" for task in state.tasks.values()):
            if state.busy:
                return False
            self._enqueue(Unit(state.step.step_id, "check", state.step, None, state.attempt))
            return True
        changed = False
        for task_id, task in state.tasks.items():
            ready = all(state.tasks[need].status == "ok" for need in task.task.depends_on)
            if task.status == "waiting" and ready:
                task.status = "queued"
                self._enqueue(
                    Unit(task_id, "task", state.step, task.task, task.attempt, state.feedback)
                )
                changed = True
        return changed

    def _enqueue(self, unit: Unit, place: int | None = None) -> None:
        self._steps[unit.step.step_id].busy += 1
        self._queue.insert(len(self._queue) if place is None else place, unit)

    def _close_failed(self, state: _StepState, out: list[Transition]) -> None:
        """The end of a failed step, once nothing of it runs any more."""
        state.is_closed = True
        out.append(Decided("finish", state.step.step_id, state.attempt, closes=state.error))
