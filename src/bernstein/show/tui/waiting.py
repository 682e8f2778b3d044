"""The calls of a run that wait for somebody, told while its rows come.

Rule: what is told here is for the eye. Who decides is shown what ``show.decide`` reads then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bernstein.errors import BernsteinError
from bernstein.runner.resume import plan_of
from bernstein.seal.approvals import RowRef, find_approval

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from bernstein.rundir import RunDir, SddDir


@dataclass(frozen=True, slots=True)
class Undecided:
    """A call that is proposed, and on which no row decides."""

    call_id: str
    name: str
    step_id: str
    row: RowRef


class Waiting:
    """Which of a run's undecided calls its plan asks about, without those decided on by now."""

    def __init__(self, sdd: SddDir, keys_dir: Path, run: RunDir) -> None:
        self.calls: list[Undecided] = []
        self._sdd = sdd
        self._keys_dir = keys_dir
        self._run = run
        self._asks: dict[str, frozenset[str]] | None = None
        self._seen: object = None

    def look(self, undecided: Iterable[Undecided]) -> None:
        """Look at the audit chain, where it or the calls are others than before."""
        asked = [call for call in undecided if call.name in self._asks_of(call)]
        seen = (asked, mark_of(self._sdd.audit) if asked else None)
        if seen == self._seen:
            return
        try:
            self.calls = [call for call in asked if not self._is_decided(call)]
        except (BernsteinError, OSError):
            self.calls = asked
        self._seen = seen

    def _is_decided(self, call: Undecided) -> bool:
        return find_approval(self._sdd, self._keys_dir, call.row) is not None

    def _asks_of(self, call: Undecided) -> frozenset[str]:
        """The tools that the plan asks about in the step of a call."""
        if self._asks is None:
            try:
                steps = plan_of(self._run).steps
                self._asks = {step.step_id: frozenset(step.approve) for step in steps}
            except BernsteinError:
                self._asks = {}
        return self._asks.get(call.step_id.rpartition("/")[0], frozenset())


def mark_of(path: Path) -> tuple[int, int] | None:
    """What is another where somebody wrote into a file."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size
