"""One line of a report, and how its two times are taken."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

ROUNDS = 7


class Figure(NamedTuple):
    """One line of the report; times in seconds for one unit of work."""

    name: str
    goal: float | str
    floor: str
    floor_s: float
    code_s: float

    @property
    def ratio(self) -> float:
        """How many times the floor."""
        return self.code_s / self.floor_s


def best(
    floor: Callable[[], None], code: Callable[[], None], units: int, rounds: int = ROUNDS
) -> tuple[float, float]:
    """The best time a unit of each, run in turn."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for side, work in enumerate((floor, code)):
            start = time.perf_counter()
            work()
            times[side].append((time.perf_counter() - start) / units)
    return min(times[0]), min(times[1])


def drop(_: object) -> None:
    """Nothing: what was done is not looked at."""
