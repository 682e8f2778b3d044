"""How much two texts share at their ends: the cheap measure for splices and for likeness."""

from __future__ import annotations


def shared_ends(old: str, new: str) -> tuple[int, int]:
    """Characters that the two texts share at their start, and of the rest at their end."""
    head = _shared_start(old, new)
    rest = min(len(old), len(new)) - head
    if rest == 0:
        return head, 0
    return head, _shared_start(old[-rest:][::-1], new[-rest:][::-1])


def _shared_start(left: str, right: str) -> int:
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    # Halve on slices, which compare at the speed of memcmp.
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
