"""Spans as a tree, whatever order a file has them in: most are written when they end."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence


class Visit(NamedTuple):
    """A step of a walk: a span begins, or ends.

    Attributes:
        place: The span's place in the file.
        above: The place of the span that it is in, or None.
        is_begin: Whether it begins.
    """

    place: int
    above: int | None
    is_begin: bool


def walk(links: Sequence[tuple[Hashable, Hashable]]) -> Iterator[Visit]:
    """Each span behind the one that it is in, else in the file's order; times are not looked at.

    A span whose parent is not there is one by itself, and so is the first of a ring.

    Args:
        links: The id of each span and of its parent, None where it has none.
    """
    places: dict[Hashable, int] = {}
    for place, (name, _) in enumerate(links):
        if name is not None:
            places.setdefault(name, place)
    parents = [None if parent is None else places.get(parent) for _, parent in links]
    below: dict[int | None, list[int]] = {}
    for place, parent in enumerate(parents):
        below.setdefault(parent if parent != place else None, []).append(place)
    seen: set[int] = set()
    # Those in a ring are below nobody that is walked: the first of them begins it.
    for root in [*below.get(None, []), *range(len(links))]:
        waiting = [] if root in seen else [Visit(root, None, is_begin=True)]
        while waiting:
            visit = waiting.pop()
            if visit.is_begin:
                if visit.place in seen:
                    continue
                seen.add(visit.place)
                waiting.append(visit._replace(is_begin=False))
                inner = reversed(below.get(visit.place, []))
                waiting += [Visit(child, visit.place, is_begin=True) for child in inner]
            yield visit
