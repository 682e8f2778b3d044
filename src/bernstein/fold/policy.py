"""Reads a policy of scores from YAML: what a run may do. Every error has file, line and column.

Rule: a policy says at least one thing, and only what it says is scored.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from bernstein.canonical import MAX_INT, JsonObject, canonical_bytes, sha256_hex
from bernstein.errors import PolicyError
from bernstein.yaml_node import Node, parse_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

BudgetOf: TypeAlias = Literal["credits", "tokens", "tool_calls", "steps"]

_KEYS = ("version", "allowed_tools", "repeats", "approvals", "budget")
_REPEATS_KEYS = ("allowed", "except")
_APPROVALS_KEYS = ("needed_for", "approvers")
_BUDGET_KEYS: tuple[BudgetOf, ...] = ("credits", "tokens", "tool_calls", "steps")


class ToolNames(msgspec.Struct, frozen=True):
    """Names of tools, and beginnings of names: ``mcp__docs__*``."""

    names: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()

    def __contains__(self, name: object) -> bool:
        """Whether a tool is one of them."""
        return name in self.names or (isinstance(name, str) and name.startswith(self.prefixes))

    def to_json(self) -> list[str]:
        """Them as a policy has them, sorted."""
        return sorted([*self.names, *(f"{prefix}*" for prefix in self.prefixes)])


class Repeats(msgspec.Struct, frozen=True):
    """How many needless repeats are allowed, and the tools for which a repeat is none."""

    allowed: int = 0
    exempt: ToolNames = ToolNames()


class Approvals(msgspec.Struct, frozen=True):
    """The tools that run only once they are approved, and who may; None: anybody."""

    needed_for: ToolNames = ToolNames()
    approvers: frozenset[str] | None = None


class ScorePolicy(msgspec.Struct, frozen=True):
    """What a run may do; what is None or absent is not scored.

    Attributes:
        allowed_tools: The tools that it may ask for.
        repeats: How often it may ask again for what it has.
        approvals: Which tools are approved first, and by whom.
        budget: The most that it may use: credits in micro-dollars, the others as counts.
    """

    allowed_tools: ToolNames | None = None
    repeats: Repeats | None = None
    approvals: Approvals | None = None
    budget: dict[BudgetOf, int] = {}

    def to_json(self) -> JsonObject:
        """The policy in one spelling, whatever the order and spelling of its file."""
        value: JsonObject = {"version": 1}
        if self.allowed_tools is not None:
            value["allowed_tools"] = self.allowed_tools.to_json()
        if (repeats := self.repeats) is not None:
            value["repeats"] = {"allowed": repeats.allowed, "except": repeats.exempt.to_json()}
        if (approvals := self.approvals) is not None:
            value["approvals"] = {"needed_for": approvals.needed_for.to_json()}
            if approvals.approvers is not None:
                value["approvals"]["approvers"] = sorted(approvals.approvers)
        if self.budget:
            value["budget"] = dict(self.budget)
        return value

    def digest(self) -> str:
        """What names the policy, 64 hex digits."""
        # sha256(JCS of to_json)
        return sha256_hex(canonical_bytes(self.to_json()))

    @classmethod
    def load(cls, path: Path | str) -> ScorePolicy:
        """Read a policy's file.

        Raises:
            PolicyError: It cannot be read, or it is not a policy.
        """
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise PolicyError(
                f"the policy cannot be read: {error.strerror}\n"
                "  give the path of a policy: bernstein score RUN --policy policy.yaml",
                file=str(path),
            ) from error
        return parse_policy(data, str(path))

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> ScorePolicy:
        """The policy that a value spells, with the keys of a file.

        Raises:
            PolicyError: It is not a policy; the place is that in its JSON, indented by two.
        """
        try:
            data = json.dumps(value, indent=2, ensure_ascii=False).encode()
        except (TypeError, ValueError) as error:
            raise PolicyError(f"not a policy: {error}", file="policy") from error
        return parse_policy(data, "policy")


def parse_policy(data: bytes, file: str) -> ScorePolicy:
    """The policy that ``data`` spells; ``file`` is what its errors name.

    Raises:
        PolicyError: It is not a policy.
    Source: docs/scores.md, "The policy".
    """
    root = parse_yaml(data, file, "policy", PolicyError)
    if root is None:
        raise PolicyError(_SAYS_NOTHING, file=file)
    m = _members(root, _KEYS)
    if "version" in m:
        m["version"].integer(1, 1)
    policy = ScorePolicy(
        _tools(m["allowed_tools"]) if "allowed_tools" in m else None,
        _repeats(m["repeats"]) if "repeats" in m else None,
        _approvals(m["approvals"]) if "approvals" in m else None,
        _budget(m["budget"]) if "budget" in m else {},
    )
    if policy == ScorePolicy():
        root.fail(_SAYS_NOTHING)
    return policy


_SAYS_NOTHING = "the policy says nothing; it needs allowed_tools, repeats, approvals or budget"


def _members(node: Node, keys: Iterable[str]) -> dict[str, Node]:
    """The members of a mapping, none of them without a value."""
    found = node.all_members(keys)
    for name, member in found.items():
        if member.is_null:
            # Refuse, do not skip: what is left empty by accident would be scored by nobody.
            member.fail(f"{name} has no value; give one, or leave it out")
    return found


def _tools(node: Node) -> ToolNames:
    names: set[str] = set()
    prefixes: set[str] = set()
    for item in node.texts():
        text = item.line_of_text()
        name, star, rest = text.partition("*")
        if rest:
            item.fail(f"{item.what}: a * stands only at the end of a name; got {text!r}")
        (prefixes if star else names).add(name)
    return ToolNames(frozenset(names), tuple(sorted(prefixes)))


def _repeats(node: Node) -> Repeats:
    m = _members(node, _REPEATS_KEYS)
    return Repeats(
        m["allowed"].integer(0, MAX_INT) if "allowed" in m else 0,
        _tools(m["except"]) if "except" in m else ToolNames(),
    )


def _approvals(node: Node) -> Approvals:
    m = _members(node, _APPROVALS_KEYS)
    if "approvers" in m and "needed_for" not in m:
        m["approvers"].fail(
            'approvers: of which tools? Name them in needed_for; needed_for: "*" is all'
        )
    approvers = None
    if "approvers" in m:
        approvers = frozenset(item.line_of_text() for item in m["approvers"].texts())
    return Approvals(_tools(m["needed_for"]) if "needed_for" in m else ToolNames(), approvers)


def _budget(node: Node) -> dict[BudgetOf, int]:
    m = _members(node, _BUDGET_KEYS)
    if not m:
        node.fail(f"budget: it needs a limit on {', '.join(_BUDGET_KEYS)}")
    return {
        name: m[name].micro_dollars() if name == "credits" else m[name].integer(0, MAX_INT)
        for name in _BUDGET_KEYS
        if name in m
    }
