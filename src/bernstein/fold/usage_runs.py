"""Which runs are counted when usage is summed, and what is said of those that are not.

Rule: a run is counted whole or not at all, and each one left out is named with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from bernstein.chain.read import payload_of
from bernstein.chain.verify import checked_rows
from bernstein.errors import BernsteinError
from bernstein.events.entry import GENESIS
from bernstein.events.payloads import FoldError, ModelUsage, payload_from
from bernstein.events.trajectory import MODEL_USAGE
from bernstein.fold.usage import UsageRow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bernstein.events.entry import JournalEntry
    from bernstein.rundir import RunDir

_A_DAY = timedelta(days=1)


class LeftOut(NamedTuple):
    """A run that is not counted, and why: the run that it equals, or what is wrong with it."""

    run_id: str
    why: str


@dataclass(slots=True)
class CountedRuns:
    """What of some runs is counted.

    Attributes:
        run_ids: The runs that are.
        rows: Their rows.
        served: Replays, which spent nothing.
        partly_live: Replays that could ask live; their rows do not say what was served.
        equal: Runs with the head of one that is counted, and which.
        broken: Runs that cannot be counted, and why.
    """

    run_ids: list[str] = field(default_factory=list)
    rows: list[UsageRow] = field(default_factory=list)
    served: list[str] = field(default_factory=list)
    partly_live: list[str] = field(default_factory=list)
    equal: list[LeftOut] = field(default_factory=list)
    broken: list[LeftOut] = field(default_factory=list)


def count_runs(runs: Iterable[RunDir], *, with_replays: bool) -> CountedRuns:
    """Read the usage of runs, each journal once.

    Of runs with equal heads the one whose id comes first is counted. A replay has its source's
    head, and is no such run.

    Args:
        runs: The runs; one that is given twice is one.
        with_replays: Whether replays are counted, each as often as it was played.
    """
    found, of_head = CountedRuns(), dict[str, str]()
    for run in _in_order(runs):
        try:
            info = run.read_info()
            is_replay = info.get("source_run") is not None
            if is_replay and not with_replays:
                (found.partly_live if info.get("records") else found.served).append(run.run_id)
                continue
            head, rows = _read(run)
        except (BernsteinError, OSError) as error:
            found.broken.append(LeftOut(run.run_id, _reason(error)))
            continue
        if not is_replay and head != GENESIS:
            if head in of_head:
                found.equal.append(LeftOut(run.run_id, of_head[head]))
                continue
            of_head[head] = run.run_id
        found.run_ids.append(run.run_id)
        found.rows += rows
    return found


def _in_order(runs: Iterable[RunDir]) -> list[RunDir]:
    return sorted({run.path: run for run in runs}.values(), key=lambda run: (run.run_id, run.path))


def _read(run: RunDir) -> tuple[str, list[UsageRow]]:
    """The head of a run's journal, and its usage.

    Raises:
        RecordingError: The chain does not hold.
        FoldError: A row of usage is none, or its time is.
        OSError: The journal cannot be read.
    """
    head, rows = GENESIS, []
    for entry in checked_rows(run.journal):
        head = entry.event_hash
        if entry.event != MODEL_USAGE:
            continue
        payload = payload_from(MODEL_USAGE, payload_of(entry))
        assert isinstance(payload, ModelUsage)
        rows.append(UsageRow(run.run_id, _time_of(entry), payload))
    return head, rows


def _time_of(entry: JournalEntry) -> datetime:
    """When a row was written; days of it can be told in any zone.

    Raises:
        FoldError: It is no time: the chain does not cover it.
    """
    try:
        time = datetime.fromisoformat(entry.ts)
        _ = time - _A_DAY, time + _A_DAY  # else it is no day in some zone
    except (ValueError, OverflowError) as error:
        raise FoldError(f"row {entry.index} was written at no time: {entry.ts}") from error
    return time


def _reason(error: BernsteinError | OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "it has no journal"
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return str(error).split("\n", 1)[0]
