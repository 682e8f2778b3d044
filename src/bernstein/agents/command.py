"""Any command as the agent of a step: the argument list of the plan, its places filled in."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bernstein.agents.observed import AgentBrief, Reader
    from bernstein.events.provider_state import MutationKind, Seen

PLACES = (
    "prompt",
    "description",
    "title",
    "role",
    "step_id",
    "files",
    "model",
    "workspace",
    "home",
    "tmp",
)
# A brace that is meant as one is written twice.
_PLACE = re.compile(r"\{\{|\}\}|\{([a-z_]*)\}")


class CommandAdapter:
    """Runs the argument list of a step."""

    name = "command"
    provider: str | None = None
    read: Reader | None = None
    sight: dict[MutationKind, Seen] = {}  # noqa: RUF012 - nothing is seen of it

    def __init__(self, template: Sequence[str], profile: str) -> None:
        """Use a step's ``command``, and the profile for the client that it names."""
        self._template = template
        self.profile = profile

    def argv(self, brief: AgentBrief) -> list[str]:
        """The command that does a step."""
        values = {name: getattr(brief, name) for name in PLACES}
        values |= {"files": " ".join(brief.files), "model": brief.model or ""}
        return [_filled(argument, values) for argument in self._template]

    def as_request(self, result: str) -> Any:
        """What a tool gave, as it is."""
        return {"result": result}


def unknown_place(argument: str) -> str | None:
    """The first place of an argument that nothing is filled into; None without one."""
    names = ((found[0], found[1]) for found in _PLACE.finditer(argument))
    return next((text for text, name in names if name is not None and name not in PLACES), None)


def _filled(argument: str, values: dict[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        return found[0][0] if found[1] is None else values[found[1]]

    return _PLACE.sub(value, argument)
