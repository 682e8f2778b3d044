"""Reads a plan from YAML, every error with file, line and column."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any

import msgspec

from bernstein.agents.command import PLACES, unknown_place
from bernstein.agents.tools import TOOL_NAMES
from bernstein.errors import PlanError
from bernstein.runner.plan import CLIS, Plan, Signal, Stage, Step
from bernstein.tree import PRIVATE_FOLDERS
from bernstein.yaml_node import Node, listed, parse_yaml

if TYPE_CHECKING:
    from pathlib import Path

    from bernstein.canonical import JsonObject

MAX_AGENTS = 64
MAX_COMMAND_BYTES = 64 * 1024
LEVELS = {"scope": ("small", "medium", "large"), "complexity": ("low", "medium", "high")}


def load_plan(path: Path) -> Plan:
    """Read a plan's file.

    Raises:
        PlanError: It cannot be read, or it is not a plan.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PlanError(
            f"the plan cannot be read: {error.strerror}\n"
            "  give the path of a plan: bernstein run plan.yaml",
            file=str(path),
        ) from error
    return parse_plan(data, str(path))


def parse_plan(data: bytes, file: str) -> Plan:
    """The plan that ``data`` spells; ``file`` is what its errors name.

    Raises:
        PlanError: It is not a plan.
    """
    root = parse_yaml(data, file, "plan", PlanError)
    if root is None:
        raise PlanError("the plan is empty; it needs stages, or a goal", file=file)
    return _plan(root)


_PLAN_KEYS = (
    "name",
    "description",
    "goal",
    "constraints",
    "cli",
    "budget",
    "max_agents",
    "retries",
    "model",
    "temperature",
    "max_tokens",
    "files",
    "command",
    "timeout",
    "tools",
    "approve",
    "max_turns",
    "stages",
)
_STAGE_KEYS = ("name", "description", "depends_on", "steps")
_STEP_KEYS = (
    "title",
    "role",
    "scope",
    "complexity",
    "priority",
    "description",
    "files",
    "depends_on",
    "cli",
    "model",
    "temperature",
    "max_tokens",
    "retries",
    "command",
    "timeout",
    "tools",
    "approve",
    "max_turns",
    "completion_signals",
)
# What each signal type needs beside its type; `run` is another word for `command`.
_SIGNAL_KEYS = {
    "path_exists": ("path",),
    "file_contains": ("path", "contains"),
    "test_passes": ("command",),
    "command": ("command",),
}


def _plan(root: Node) -> Plan:
    m = root.members(_PLAN_KEYS)
    if "goal" not in m and "stages" not in m:
        root.fail("the plan needs stages, or a goal that the model makes tasks of")
    if "goal" in m and "stages" in m:
        m["goal"].fail("a plan has stages or a goal, not both")
    if "files" in m and "stages" in m:
        m["files"].fail("files stand at the steps; at the top only beside a goal")
    defaults = _step_settings(m, {"cli": "builtin"})
    goal = m["goal"].line_of_text() if "goal" in m else None
    stages = _stages(m["stages"], defaults) if goal is None else (_goal_stage(m, goal, defaults),)
    return Plan(
        name=m["name"].line_of_text() if "name" in m else (goal or "plan"),
        description=m["description"].text().strip() if "description" in m else "",
        goal=goal,
        constraints=tuple(n.line_of_text() for n in m["constraints"].texts())
        if "constraints" in m
        else (),
        budget_credits=m["budget"].micro_dollars() if "budget" in m else None,
        max_agents=m["max_agents"].integer(1, MAX_AGENTS) if "max_agents" in m else 4,
        stages=stages,
    )


def _step_settings(m: dict[str, Node], defaults: JsonObject) -> JsonObject:
    """The settings that a plan gives to its steps and that a step may give itself."""
    settings = dict(defaults)
    if "cli" in m:
        settings["cli"] = m["cli"].choice(CLIS)
    if "command" in m:
        settings["command"] = _command(m["command"])
    if "timeout" in m:
        settings["timeout_s"] = m["timeout"].integer(1, 7 * 24 * 3600)
    if "model" in m:
        settings["model"] = m["model"].line_of_text()
    if "temperature" in m:
        settings["temperature"] = m["temperature"].number(0, 2)
    if "max_tokens" in m:
        settings["max_tokens"] = m["max_tokens"].integer(1, 2**20)
    if "retries" in m:
        settings["retries"] = m["retries"].integer(0, 20)
    for name in ("tools", "approve"):
        if name in m:
            settings[name] = _tool_names(m[name])
    if "max_turns" in m:
        settings["max_turns"] = m["max_turns"].integer(1, 1000)
    return settings


def _tool_names(node: Node) -> tuple[str, ...]:
    """Names of tools, in the order of their kinds: their order in the plan means nothing."""
    named = [item.choice(TOOL_NAMES) for item in node.texts()]
    return tuple(name for name in TOOL_NAMES if name in named)


def _for_its_agent(settings: JsonObject, where: Node) -> JsonObject:
    """The settings of one step: what is for another agent than its own is left out."""
    if settings["cli"] not in {"builtin", "auto"}:
        settings = {n: v for n, v in settings.items() if n not in {"tools", "approve", "max_turns"}}
    if settings["cli"] == "command":
        if not settings.get("command"):
            where.fail("`cli: command` needs a `command:`, a list of arguments")
        return settings
    return {name: value for name, value in settings.items() if name != "command"}


def _command(node: Node) -> tuple[str, ...]:
    """The argument list that an agent's command is made of."""
    parts = node.texts()
    if not parts:
        node.fail("command: expected a list of arguments, the program first")
    for part in parts:
        if (place := unknown_place(part.text())) is not None:
            part.fail(
                f"nothing is filled in for {place}; there are "
                f"{listed(f'{{{name}}}' for name in PLACES)} (a brace is written twice)"
            )
    arguments = tuple(part.text() for part in parts)
    if sum(len(argument.encode()) for argument in arguments) > MAX_COMMAND_BYTES:
        node.fail(f"command: at most {MAX_COMMAND_BYTES} bytes; put it into a script")
    return arguments


def _goal_stage(m: dict[str, Node], goal: str, settings: JsonObject) -> Stage:
    step = Step(
        step_id="goal",
        title=goal,
        complexity="high",
        files=_files(m),
        **_for_its_agent(settings, m["goal"]),
    )
    return Stage("goal", "goal", "", (), (step,))


def _files(m: dict[str, Node]) -> tuple[str, ...]:
    if "files" not in m:
        return ()
    files = []
    for node in m["files"].texts():
        path = node.line_of_text()
        parts = path.rstrip("/").split("/")
        if path.startswith("/") or not parts[0] or any(p in {"..", "."} for p in parts):
            node.fail(f"{node.what}: expected a path inside the workspace; got {path!r}")
        if any(p.lower() in PRIVATE_FOLDERS for p in parts):
            node.fail(f"{node.what}: {path!r} lies in a folder that is not a step's to write in")
        if len(path.encode()) > 1024 or any(len(p.encode()) > 255 for p in parts):
            node.fail(f"{node.what}: a path has at most 1024 bytes, and 255 between two slashes")
        if path not in files:
            files.append(path)
    return tuple(files)


class _Draft(msgspec.Struct):
    """A step that is read but whose dependencies are still names."""

    node: Node
    members: dict[str, Any]
    step_id: str
    stage: int


def _stages(node: Node, defaults: JsonObject) -> tuple[Stage, ...]:
    nodes = node.items()
    if not nodes:
        node.fail("stages: expected at least one stage")
    taken: set[str] = set()
    stages: list[tuple[str, str, dict[str, Node], Node]] = []
    drafts: list[_Draft] = []
    for number, stage_node in enumerate(nodes):
        m = stage_node.members(_STAGE_KEYS, required=("name", "steps"))
        name = m["name"].line_of_text()
        if any(name == other for _, other, _, _ in stages):
            m["name"].fail(f"name: there is a stage {name!r} already")
        stage_id = _unique(_slug(name, f"stage-{number + 1}", 40), taken)
        stages.append((stage_id, name, m, stage_node))
        if not (step_nodes := m["steps"].items()):
            m["steps"].fail(f"steps: stage {name!r} needs at least one step")
        for place, step_node in enumerate(step_nodes):
            sm = step_node.members(_STEP_KEYS, required=("title",))
            slug = _slug(sm["title"].line_of_text(), f"step-{place + 1}", 60)
            step_id = _unique(f"{stage_id}/{slug}", taken)
            drafts.append(_Draft(step_node, sm, step_id, number))
    stage_needs = [_stage_needs(m, name, stages) for _, name, m, _ in stages]
    _refuse_cycles(stage_needs, [s[3] for s in stages], [s[1] for s in stages], "stage")
    needs = [_step_needs(draft, number, drafts, stage_needs) for number, draft in enumerate(drafts)]
    _refuse_cycles(needs, [d.node for d in drafts], [d.step_id for d in drafts], "step")
    steps = [
        _step(draft, tuple(drafts[n].step_id for n in needs[number]), defaults)
        for number, draft in enumerate(drafts)
    ]
    return tuple(
        Stage(
            stage_id,
            name,
            m["description"].text().strip() if "description" in m else "",
            tuple(stages[n][0] for n in stage_needs[number]),
            tuple(s for s, d in zip(steps, drafts, strict=True) if d.stage == number),
        )
        for number, (stage_id, name, m, _) in enumerate(stages)
    )


def _stage_needs(
    m: dict[str, Node], own: str, stages: list[tuple[str, str, dict[str, Node], Node]]
) -> list[int]:
    names = [name for _, name, _, _ in stages]
    needs = []
    for node in m["depends_on"].texts() if "depends_on" in m else ():
        wanted = node.line_of_text()
        if wanted == own:
            node.fail(f"depends_on: stage {own!r} depends on itself")
        if wanted not in names:
            node.fail(f"depends_on: there is no stage {wanted!r}; {_nearest(wanted, names)}")
        needs.append(names.index(wanted))
    return sorted(set(needs))


def _step_needs(
    draft: _Draft, number: int, drafts: list[_Draft], stage_needs: list[list[int]]
) -> list[int]:
    """Places of the steps that this one waits for: those it names, and its stage's stages'."""
    needs = {n for n, other in enumerate(drafts) if other.stage in stage_needs[draft.stage]}
    nodes = draft.members["depends_on"].texts() if "depends_on" in draft.members else ()
    for node in nodes:
        wanted = node.line_of_text()
        found = [
            n
            for n, other in enumerate(drafts)
            if wanted in (other.step_id, other.members["title"].line_of_text())
        ]
        same_stage = [n for n in found if drafts[n].stage == draft.stage]
        match same_stage or found:
            case [only] if only == number:
                node.fail(f"depends_on: step {wanted!r} depends on itself")
            case [only]:
                needs.add(only)
            case []:
                titles = [other.members["title"].line_of_text() for other in drafts]
                node.fail(f"depends_on: there is no step {wanted!r}; {_nearest(wanted, titles)}")
            case several:
                ids = listed(drafts[n].step_id for n in several)
                node.fail(f"depends_on: {wanted!r} names several steps; give one of {ids}")
    return sorted(needs)


def _nearest(wanted: str, names: list[str]) -> str:
    near = difflib.get_close_matches(wanted, names, 1)
    return f"did you mean {near[0]!r}?" if near else f"there are {listed(map(repr, names[:8]))}"


def _refuse_cycles(needs: list[list[int]], nodes: list[Node], names: list[str], what: str) -> None:
    done: set[int] = set()
    while len(done) < len(needs):
        ready = [n for n in range(len(needs)) if n not in done and done.issuperset(needs[n])]
        if not ready:
            circle = [n for n in range(len(needs)) if n not in done]
            nodes[circle[0]].fail(
                f"these {what}s wait for each other: {listed(names[n] for n in circle)}"
            )
        done.update(ready)


def _step(draft: _Draft, depends_on: tuple[str, ...], defaults: JsonObject) -> Step:
    m: dict[str, Node] = draft.members
    settings = _for_its_agent(_step_settings(m, defaults), m.get("cli", draft.node))
    if "command" in m and settings["cli"] != "command":
        m["command"].fail(f"`command:` is for `cli: command`; this step has {settings['cli']!r}")
    for name in ("tools", "approve", "max_turns"):
        if name in m and settings["cli"] not in {"builtin", "auto"}:
            m[name].fail(
                f"`{name}:` is for the built-in agent; this step has `cli: {settings['cli']}`"
            )
    for name in settings.get("approve", ()):
        if name not in settings.get("tools", ()):
            where = m.get("approve", draft.node)
            where.fail(f"approve: {name} is none of the step's tools; name it in `tools:` too")
    for name, levels in LEVELS.items():
        if name in m:
            settings[name] = m[name].choice(levels)
    if "priority" in m:
        settings["priority"] = m["priority"].integer(0, 1000)
    return Step(
        step_id=draft.step_id,
        title=m["title"].line_of_text(),
        description=m["description"].text().strip() if "description" in m else "",
        role=m["role"].line_of_text() if "role" in m else "",
        files=_files(m),
        depends_on=depends_on,
        signals=tuple(_signal(node) for node in m["completion_signals"].items())
        if "completion_signals" in m
        else (),
        **settings,
    )


def _signal(node: Node) -> Signal:
    m = node.members(("type", "path", "contains", "command", "run"), required=("type",))
    kind = m["type"].choice(_SIGNAL_KEYS)
    if "run" in m:
        if "command" in m:
            m["run"].fail("give `command` or `run`, not both: they are one")
        m["command"] = m.pop("run")
    for name in _SIGNAL_KEYS[kind]:
        if name not in m:
            node.fail(f"a signal of type {kind} needs a {name!r}")
    if "command" in m and len(m["command"].text().encode()) > MAX_COMMAND_BYTES:
        m["command"].fail(f"command: at most {MAX_COMMAND_BYTES} bytes; put it into a script")
    for name, member in m.items():
        if name != "type" and name not in _SIGNAL_KEYS[kind]:
            member.fail(
                f"a signal of type {kind} has no {name!r}; it has {listed(_SIGNAL_KEYS[kind])}"
            )
    return Signal(**{name: member.text() for name, member in m.items()})


def _slug(text: str, fallback: str, length: int) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:length].strip("-")
    return slug or fallback


def _unique(slug: str, taken: set[str]) -> str:
    name, number = slug, 2
    while name in taken:
        name = f"{slug}-{number}"
        number += 1
    taken.add(name)
    return name
