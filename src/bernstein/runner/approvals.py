"""Who lets a tool run that a plan asks somebody about: an operator, or the recorded decision."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bernstein.chain.read import load_replay_events, payload_of
from bernstein.events import trajectory as event
from bernstein.seal.approvals import RowRef, find_approval, start_approved

if TYPE_CHECKING:
    from pathlib import Path

    from bernstein.rundir import RunDir, SddDir
    from bernstein.runner.tool_step import Proposed

_POLL_S = 0.25


class Decided(NamedTuple):
    """What was said, and by whom."""

    is_approved: bool
    actor: str


class Approvals:
    """The decisions on the tools of one run."""

    poll_s = _POLL_S

    def __init__(self, sdd: SddDir, keys_dir: Path, run: RunDir, source: RunDir | None) -> None:
        """Take decisions of ``source``, where it is a replay, else those that operators sign."""
        self._sdd = sdd
        self._keys_dir = keys_dir
        self._run = run
        self._recorded = None if source is None else _read_decisions(source.journal)

    @property
    def are_recorded(self) -> bool:
        """Whether all that is ever said stands in a recording."""
        return self._recorded is not None

    def find(self, call: Proposed) -> Decided | None:
        """What is said to a call, or None while nobody has said anything."""
        if self._recorded is not None:
            return self._recorded.get(call.call_id)
        said = find_approval(self._sdd, self._keys_dir, self._row(call))
        return None if said is None else Decided(said.decision == "approved", said.actor)

    def begin(self, call: Proposed) -> bool:
        """Whether an approved call may run now: it has not before."""
        if self._recorded is not None:
            return True
        return start_approved(self._sdd, self._keys_dir, self._row(call))

    def _row(self, call: Proposed) -> RowRef:
        return RowRef(self._run.run_id, call.seq, call.event_hash)


def _read_decisions(journal: Path) -> dict[str, Decided]:
    found: dict[str, Decided] = {}
    for row in load_replay_events(journal):
        if row.event in {event.TOOL_APPROVED, event.TOOL_DENIED}:
            said = payload_of(row)
            is_approved = row.event == event.TOOL_APPROVED
            found.setdefault(said["toolCallId"], Decided(is_approved, said["actor"]))
    return found
