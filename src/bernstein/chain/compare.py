"""Compares a replay's journal with its score, the recorded journal that it plays from."""

from __future__ import annotations

from hashlib import sha256
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from bernstein.chain.read import content_hash, load_replay_events, placeless_hash
from bernstein.events.entry import GENESIS, JournalEntry
from bernstein.events.trajectory import PROVIDER_STATE_MUTATION

if TYPE_CHECKING:
    from pathlib import Path

COUNTS_ALONE = "token counts that a client tells of itself, which follow its timing and paths"
Relation: TypeAlias = Literal["identical", "equivalent", "diverged"]
DivergenceReason: TypeAlias = Literal["payload", "event", "order", "missing", "extra"]


class Comparison(msgspec.Struct, frozen=True):
    """How two journals relate.

    Attributes:
        relation: identical (equal heads), equivalent (each lane is equal, only their interleaving
            differs, or token counts that a client tells of itself) or diverged.
        head: The head of the second journal.
        step_index: The first row that differs, from 0; None where none does.
        reason: missing: the replay lacks the row; extra: the recording does.
        recorded: The recorded row there, as ``event`` and lane.
        replayed: The replayed row there.
        in_counts: Whether such counts differ.
    """

    relation: Relation
    head: str
    step_index: int | None = None
    reason: DivergenceReason | None = None
    recorded: JournalEntry | None = None
    replayed: JournalEntry | None = None
    in_counts: bool = False

    def line(self) -> str:
        """The comparison's line, as it stands on standard error after a replay."""
        if self.relation == "identical":
            return f"replay identical head={self.head}"
        if self.relation == "equivalent":
            differs = (
                f"but for {COUNTS_ALONE}" if self.in_counts else "the lanes interleave otherwise"
            )
            return (
                f"replay equivalent head={self.head}: every lane is equal, {differs}, "
                f"from step {self.step_index}"
            )
        return (
            f"replay diverged at step {self.step_index}: {self.reason}: "
            f"recorded {_name(self.recorded)}, replayed {_name(self.replayed)}"
        )


def compare_journals(recorded: Path, replayed: Path) -> Comparison:
    """Compare two journals whose chains hold, row by row, and lane by lane where rows differ."""
    head = GENESIS
    first: Comparison | None = None
    lanes: dict[str, _LaneDigest] = {}
    pairs = zip_longest(load_replay_events(recorded), load_replay_events(replayed))
    for index, (left, right) in enumerate(pairs):
        if right is not None:
            head = right.event_hash
        if first is None and (left is None or right is None or left.event_hash != right.event_hash):
            first = Comparison("diverged", head, index, _reason(left, right), left, right)
        for row, side in ((left, 0), (right, 1)):
            if row is not None:
                lanes.setdefault(row.lane, _LaneDigest()).add(row, side)
    if first is None:
        return Comparison("identical", head)
    relation: Relation = (
        "equivalent" if all(lane.is_equal for lane in lanes.values()) else "diverged"
    )
    reason = "order" if relation == "equivalent" else first.reason
    in_counts = not all(lane.is_equal_in_counts for lane in lanes.values())
    return msgspec.structs.replace(
        first, relation=relation, head=head, reason=reason, in_counts=in_counts
    )


def _name(row: JournalEntry | None) -> str:
    if row is None:
        return "no row"
    return f"{row.event} {row.payload_hash[:12]}" + (f" in {_shown(row.lane)}" if row.lane else "")


def _shown(lane: str) -> str:
    return lane[:24] if len(lane) == 64 and "/" not in lane else lane


def _reason(left: JournalEntry | None, right: JournalEntry | None) -> DivergenceReason:
    if right is None:
        return "missing"
    if left is None:
        return "extra"
    if left.lane != right.lane:
        return "order"
    return "event" if left.event != right.event else "payload"


class _LaneDigest:
    """Running hashes of one lane's rows, for each side with counts and without: constant memory."""

    def __init__(self) -> None:
        self._sides = (sha256(), sha256())
        self._counted = (sha256(), sha256())

    def add(self, row: JournalEntry, side: int) -> None:
        content = content_hash(row)
        self._sides[side].update(f"{row.event}\n{content}\n".encode())
        if row.event == PROVIDER_STATE_MUTATION:
            self._counted[side].update(placeless_hash(row).encode())

    @property
    def is_equal(self) -> bool:
        return self._sides[0].digest() == self._sides[1].digest()

    @property
    def is_equal_in_counts(self) -> bool:
        return self._counted[0].digest() == self._counted[1].digest()
