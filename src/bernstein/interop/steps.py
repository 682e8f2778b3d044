"""The steps of a run that somebody else told: a tree below its session, and ids for it.

A key is what the file calls a step; an id is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bernstein.interop.members import is_own_id

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from bernstein.canonical import JsonValue

SESSION = "session"
# What a step can be said to be: no text of a file's is a label.
LABELS = frozenset(
    {
        *("agent", "sub-agent", "workflow", "task", "tool", "subtask"),
        *("init", "solvers", "solver", "scorers", "scorer", "branch", "handoff"),
    }
)
_MAX_DEPTH = 64  # what is nested deeper stands there


@dataclass(slots=True, eq=False)
class Step:
    """A step.

    Attributes:
        key, step_id: What the file and what we call it.
        parent, depth, children: Its place in the tree.
        calls: How many tools it has asked for.
        said: What goes to the model with its next call.
        is_open: Whether it has not ended.
    """

    key: Hashable
    step_id: str
    parent: Step | None
    depth: int
    children: list[Step] = field(default_factory=list)
    calls: int = 0
    said: list[JsonValue] = field(default_factory=list)
    is_open: bool = True


class Steps:
    """The steps of one run; the key None is its session's."""

    def __init__(self) -> None:
        self.root = Step(None, SESSION, None, 0)
        self._steps: dict[Hashable, Step] = {None: self.root}
        self._ids = {SESSION}

    def at(self, key: Hashable) -> Step:
        """The step of this key, or the session."""
        return self._steps.get(key, self.root)

    def has(self, key: Hashable) -> bool:
        """Whether there is a step of this key."""
        return key in self._steps

    def be_session(self, key: Hashable) -> None:
        """Let a key stand for the session."""
        self._steps.setdefault(key, self.root)

    def begin(self, key: Hashable, parent: Hashable, own_id: JsonValue) -> Step | None:
        """A new step, or None where it began before; ``own_id``: as of ``free_id``."""
        if key in self._steps:
            return None
        above = self.at(parent)
        if above.depth >= _MAX_DEPTH and above.parent is not None:
            above = above.parent
        step_id = self.free_id(own_id, f"{above.step_id}/{len(above.children) + 1}")
        self._steps[key] = step = Step(key, step_id, above, above.depth + 1)
        above.children.append(step)
        return step

    def free_id(self, own_id: JsonValue, otherwise: str) -> str:
        """An id that nothing has yet: the one that an export of ours says, or the next."""
        found: str = own_id if is_own_id(own_id) and own_id not in self._ids else otherwise
        while found in self._ids:  # an export can say what would be the next
            found += "+"
        self._ids.add(found)
        return found

    def close(self, step: Step) -> Iterator[Step]:
        """Those of a step and the steps below it that end with it, from below."""
        for child in reversed(step.children):
            yield from self.close(child)
        if step.is_open:
            step.is_open = False
            yield step
