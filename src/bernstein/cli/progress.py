"""Shows a run while it runs: a live table on a terminal, plain lines elsewhere; on stderr."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from bernstein.events.trajectory import ErrorCode
    from bernstein.runner.plan import Plan
    from bernstein.runner.report import Observer
    from bernstein.runner.schedule import Unit

_VERBS = {"decompose": "planning", "task": "working", "check": "checking"}


class _Silent:
    """Shows nothing."""

    def run_opened(self, run_id: str, plan: Plan) -> None:
        """See ``Observer``."""

    def unit_started(self, unit: Unit) -> None:
        """See ``Observer``."""

    def unit_ended(self, unit: Unit, code: ErrorCode | None, detail: str) -> None:
        """See ``Observer``."""


class _Lines(_Silent):
    """One line for each thing that happens."""

    def run_opened(self, run_id: str, plan: Plan) -> None:
        sys.stderr.write(f"run {run_id}: {plan.name}, {len(plan.steps)} steps\n")

    def unit_started(self, unit: Unit) -> None:
        again = f" (attempt {unit.attempt})" if unit.attempt > 1 else ""
        sys.stderr.write(f"  {unit.unit_id}: {_VERBS[unit.kind]}{again}\n")

    def unit_ended(self, unit: Unit, code: ErrorCode | None, detail: str) -> None:
        if code is not None:
            sys.stderr.write(f"  {unit.unit_id}: {code}: {detail}\n")


class _Live(_Silent):
    """A table that is drawn again as steps go on."""

    def __init__(self, plan: Plan) -> None:
        from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
        from rich.live import Live  # noqa: PLC0415

        self._plan = plan
        self._title = plan.name
        self._state = {step.step_id: "" for step in plan.steps}
        self._began_s: dict[str, float] = {}
        self.live = Live(
            get_renderable=self._table,
            console=Console(stderr=True),
            refresh_per_second=8,
            transient=True,
        )

    def run_opened(self, run_id: str, plan: Plan) -> None:
        self._title = f"{plan.name} ({run_id})"

    def unit_started(self, unit: Unit) -> None:
        step_id = unit.step.step_id
        self._began_s.setdefault(step_id, time.monotonic())
        what = f" {unit.unit_id.rsplit('/', 1)[1]}" if unit.kind == "task" else ""
        self._state[step_id] = _VERBS[unit.kind] + what

    def unit_ended(self, unit: Unit, code: ErrorCode | None, detail: str) -> None:
        if code is not None:
            self._state[unit.step.step_id] = f"{code}: {detail}"
        elif unit.kind == "check":
            self._state[unit.step.step_id] = "done"

    def _table(self) -> Table:
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        table = Table(title=Text(self._title), box=None)
        for name in ("step", "state", "s"):
            table.add_column(name)
        for step_id, state in self._state.items():
            began_s = self._began_s.get(step_id)
            running = state.startswith(tuple(_VERBS.values()))
            spent = f"{time.monotonic() - began_s:.1f}" if began_s and running else ""
            table.add_row(Text(step_id), Text(state), spent)
        return table


@contextmanager
def make_observer(plan: Plan, *, quiet: bool) -> Iterator[Observer]:
    """The observer that suits the terminal."""
    if quiet:
        yield _Silent()
    elif sys.stderr.isatty():
        shown = _Live(plan)
        with shown.live:
            yield shown
    else:
        yield _Lines()
