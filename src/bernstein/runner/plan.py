"""A plan as frozen values; what ``plan_file`` reads."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

if TYPE_CHECKING:
    from bernstein.canonical import JsonObject

Cli: TypeAlias = Literal["auto", "builtin", "claude", "codex", "gemini", "command"]
CLIS = ("auto", "builtin", "claude", "codex", "gemini", "command")


# How long an agent may take for a step, and how often a model may ask for tools in one.
DEFAULT_TIMEOUT_S = 1800
DEFAULT_MAX_TURNS = 20


class Signal(msgspec.Struct, frozen=True, omit_defaults=True):
    """A completion signal; which members it has depends on its type."""

    type: str
    path: str = ""
    contains: str = ""
    command: str = ""

    @property
    def runs_command(self) -> bool:
        """Whether it holds when a command succeeds, rather than by a look at a file."""
        return self.type in {"test_passes", "command"}


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step of a plan; ``step_id`` is its lane: the stage's name and its own, as slugs."""

    step_id: str
    title: str
    description: str = ""
    role: str = ""
    scope: str = "medium"
    complexity: str = "medium"
    priority: int = 2
    files: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    cli: str = "builtin"
    model: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    retries: int = 0
    signals: tuple[Signal, ...] = ()
    command: tuple[str, ...] = ()
    timeout_s: int = DEFAULT_TIMEOUT_S
    tools: tuple[str, ...] = ()
    approve: tuple[str, ...] = ()
    max_turns: int = DEFAULT_MAX_TURNS

    @property
    def is_one_task(self) -> bool:
        """Whether it is done as a whole, and not made tasks of: how is whose business does it."""
        return self.has_agent or bool(self.tools)

    @property
    def has_agent(self) -> bool:
        """Whether a program of others does it."""
        return self.cli not in {"builtin", "auto"}


class Stage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stage: steps that may run side by side once the stages it depends on are done."""

    stage_id: str
    name: str
    description: str
    depends_on: tuple[str, ...]
    steps: tuple[Step, ...]


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """A whole plan; ``budget_credits`` is in micro-dollars."""

    name: str
    description: str = ""
    goal: str | None = None
    constraints: tuple[str, ...] = ()
    budget_credits: int | None = None
    max_agents: int = 4
    stages: tuple[Stage, ...] = ()

    @property
    def steps(self) -> tuple[Step, ...]:
        """Every step, in the plan's order."""
        return tuple(step for stage in self.stages for step in stage.steps)

    @property
    def has_agents(self) -> bool:
        """Whether programs of others do any of its steps."""
        return any(step.has_agent for step in self.steps)

    @property
    def has_tools(self) -> bool:
        """Whether the built-in agent has tools in any of its steps."""
        return any(step.tools and not step.has_agent for step in self.steps)

    @property
    def asks(self) -> bool:
        """Whether somebody is asked about any of its tools."""
        return any(step.approve for step in self.steps)

    def with_agents(self, auto: str) -> Plan:
        """The plan with ``auto`` replaced by what it stands for."""
        # A default is left out of the plan's value where it is the very same object.
        auto = sys.intern(auto)
        stages = tuple(
            replace(
                stage,
                steps=tuple(
                    replace(step, cli=auto) if step.cli == "auto" else step for step in stage.steps
                ),
            )
            for stage in self.stages
        )
        return replace(self, stages=stages)

    def to_json(self) -> JsonObject:
        """The plan's value, without how it was spelled: what ``run.started`` is digested over."""
        value: JsonObject = msgspec.to_builtins(self)
        return value
