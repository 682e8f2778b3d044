"""What a run is asked for, who watches it, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from bernstein.chain.compare import Comparison
from bernstein.errors import ReplayMissError
from bernstein.events import trajectory as event
from bernstein.recording.coverage import Coverage

if TYPE_CHECKING:
    from bernstein.events.trajectory import ErrorCode
    from bernstein.rundir import RunDir
    from bernstein.runner.plan import Plan
    from bernstein.runner.schedule import Unit


# In a replay: what tools gave is told as recorded, or they are run again and compared.
ToolsMode: TypeAlias = Literal["recorded", "rerun"]


class Observer(Protocol):
    """Somebody who watches a run; called on the run's loop, must not block."""

    def run_opened(self, run_id: str, plan: Plan) -> None:
        """The run has a folder."""

    def unit_started(self, unit: Unit) -> None:
        """A unit of work starts."""

    def unit_ended(self, unit: Unit, code: ErrorCode | None, detail: str) -> None:
        """A unit of work ended, well or with a code and a line on why."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """How a run ended.

    Attributes:
        run_id, head, rows: The run, its journal's head and length.
        status: completed, failed or cancelled; parked where it waits for an operator.
        exit_code: 0; 1 a step failed or the replay diverged; 2 parked; 3 a strict miss; 130 or 143.
        steps: For each step of the plan its id, title, status and code.
        failures: A line on each unit that failed for good.
        artifacts: Files that tasks wrote, by path.
        calls, input_tokens, output_tokens, credits: Of the answers, served ones too.
        coverage, comparison: Of a replay.
        miss: The miss that ended a strict replay.
        seal_problem: What kept the run from being sealed.
        notes: What is to be known of the agents.
        waiting: The calls of a parked run that an operator has to decide on.
        context_note: A line on changes of the context that were to be suppressed, or "".
        has_other_plan: The plan of a replay is not the recorded one.
        has_other_tree: The folder of a replay is not as it was when the run was recorded.
    """

    run_id: str
    run_path: Path
    workspace: Path
    status: event.RunStatus | Literal["parked"]
    exit_code: int
    head: str
    rows: int
    steps: list[tuple[str, str, str, ErrorCode | None]]
    failures: list[str]
    artifacts: dict[str, str]
    calls: int
    input_tokens: int
    output_tokens: int
    credits: int
    coverage: Coverage | None
    comparison: Comparison | None
    miss: ReplayMissError | None
    has_other_tree: bool
    has_other_plan: bool
    seal_problem: str | None
    notes: list[str]
    context_note: str
    waiting: list[str]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the command line says beside the plan.

    Attributes:
        model: A model for every step of the built-in agent.
        in_place: Whether the run works in the folder itself.
        exact: Whether another interleaving diverges too.
        trusts: Whether a recording drives agents that nobody whom this user trusts has sealed.
        is_isolated: Whether agents are kept in namespaces of their own.
        tools: What a replay does with tools.
        waits: Whether it waits for an operator, and does not park.
        goes_on: The run, where one that was parked or ended early goes on.
        folder: The folder that the run works on.
    """

    model: str | None = None
    in_place: bool = False
    exact: bool = False
    trusts: bool = False
    is_isolated: bool = False
    tools: ToolsMode = "recorded"
    waits: bool = False
    goes_on: RunDir | None = None
    folder: Path = field(default_factory=Path.cwd)
