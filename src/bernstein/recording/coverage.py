"""How much of a recording a replay used, recounted from the files rather than from the caller."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable


# What keeps a replay from the network. python: an audit hook on this process's own sockets; proxy:
# a child is pointed at a proxy that refuses; netns: a child has no other network; none: nothing.
Guard: TypeAlias = Literal["python", "proxy", "netns", "none"]


class Answered(NamedTuple):
    """An answer as a recording and a journal both have it."""

    lane: str
    key: str
    digest: str


class Coverage(NamedTuple):
    """Counts of one replay; ``unused`` lists the recorded answers that nobody asked for."""

    hits: int
    misses: int
    strict_violations: int
    unused: tuple[Answered, ...]
    recorded: int
    is_strict: bool
    guard: Guard

    def line(self) -> str:
        """The coverage line, as it stands on standard error."""
        return (
            f"replay-coverage hits={self.hits} misses={self.misses} "
            f"strict_violations={self.strict_violations} unused={len(self.unused)} "
            f"recorded={self.recorded} strict={str(self.is_strict).lower()} guard={self.guard}"
        )

    @property
    def is_complete(self) -> bool:
        """Whether every recorded answer was served and nothing else was asked for."""
        return not (self.misses or self.unused)


def recount(
    recorded: Iterable[Answered],
    answered: Iterable[Answered],
    misses: Iterable[bool],
    *,
    is_strict: bool,
    guard: Guard,
) -> Coverage:
    """Count a replay's coverage.

    Args:
        recorded: The answers of the recording.
        answered: The ``model.answer`` rows of the new run's journal.
        misses: For each row of the new run's ``misses.jsonl``, whether it was strict.
        is_strict: Whether the replay was hermetic.
        guard: Which guard kept it from the network.
    """
    left = Counter(recorded)
    total = left.total()
    hits = 0
    for answer in answered:
        if left[answer] > 0:
            left[answer] -= 1
            hits += 1
    missed = list(misses)
    return Coverage(
        hits=hits,
        misses=len(missed),
        strict_violations=sum(missed),
        unused=tuple(left.elements()),
        recorded=total,
        is_strict=is_strict,
        guard=guard,
    )
