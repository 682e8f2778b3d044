"""Which agents there are, and which of them are installed here."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from bernstein.agents import claude, codex, gemini
from bernstein.agents.command import CommandAdapter
from bernstein.errors import UsageError
from bernstein.wire.profile import profile_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bernstein.agents.observed import Adapter

# In the order in which `auto` looks for them.
CLIENTS: dict[str, Adapter] = {adapter.name: adapter for adapter in (claude, codex, gemini)}
BUILTIN = "builtin"


def choose_installed() -> str:
    """What `auto` means here: the first client that is installed, else the built-in agent."""
    return next((name for name in CLIENTS if shutil.which(name)), BUILTIN)


def find_adapter(name: str, command: Sequence[str]) -> Adapter:
    """The adapter of an agent by its name; ``command`` is what `command` runs.

    Raises:
        UsageError: Its program is not installed.
    """
    program = command[0] if name == "command" else name
    if shutil.which(program) is None:
        advice = "install it, or choose another agent with `cli:` in the plan"
        if name == "command":
            advice = "name a program behind `command:` in the plan"
        raise UsageError(f"there is no program {program}\n  {advice}")
    if name == "command":
        return CommandAdapter(command, profile_for(command))
    return CLIENTS[name]
