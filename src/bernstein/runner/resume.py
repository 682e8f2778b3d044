"""What a run that goes on needs of its own beginning: its plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.canonical import convert
from bernstein.errors import CanonicalError, RecordingError, UsageError
from bernstein.runner.plan import Plan

if TYPE_CHECKING:
    from bernstein.rundir import RunDir


def recorded_plan(run: RunDir) -> Plan:
    """The plan of a run that is to go on.

    Raises:
        UsageError: It is no run of a plan, or agents of others take part in it.
        RecordingError: Its plan is damaged.
    """
    plan = plan_of(run)
    agents = sorted({step.cli for step in plan.steps if step.has_agent})
    if agents:
        raise UsageError(
            f"run {run.run_id} has steps of {', '.join(agents)}: a program of others cannot go on\n"
            "  run the plan again"
        )
    return plan


def plan_of(run: RunDir) -> Plan:
    """The plan that a run was recorded with.

    Raises:
        UsageError: It is no run of a plan.
        RecordingError: Its plan is damaged.
    """
    value = (run.read_info().get("plan") or {}).get("value")
    if value is None:
        raise UsageError(f"run {run.run_id} is no run of a plan: only these ask, and can go on")
    try:
        return convert(value, Plan)
    except CanonicalError as error:
        raise RecordingError(f"the plan of run {run.run_id} is damaged: {error}") from error
