"""Whether a client is asked not to change its own context, and by which of its switches.

Rule: suppression is a request, not a fact. Whether it was followed is seen by what is observed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from bernstein.canonical import convert

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bernstein.canonical import JsonObject

# The switches of Claude Code that say when it compacts.
SWITCHES = (
    "DISABLE_AUTO_COMPACT",
    "DISABLE_COMPACT",
    "CLAUDE_AUTOCOMPACT_PCT_OVERRIDE",
    "CLAUDE_CODE_AUTO_COMPACT_WINDOW",
)
_NEVER_TOKENS = 2**53 - 1


class CompactionPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client is told about its own compaction.

    Attributes:
        suppresses: Whether it is asked not to compact by itself.
        switches: The variables that say so, and those that the user had set.
    """

    suppresses: bool
    switches: dict[str, str]

    def to_json(self) -> JsonObject:
        """What of it stands in ``run.json``, and in the fingerprint of a step."""
        value: JsonObject = msgspec.to_builtins(self)
        return value


def apply_compaction_policy(
    environment: Mapping[str, str], *, deterministic: bool
) -> CompactionPolicy:
    """The policy of a new recording: suppression in a deterministic run, else what the user set.

    Args:
        environment: The user's variables.
        deterministic: Whether the run has a seed.
    """
    switches = {name: environment[name] for name in SWITCHES if environment.get(name)}
    if deterministic:
        switches["DISABLE_AUTO_COMPACT"] = "1"
    return CompactionPolicy(deterministic, switches)


def recorded_policy(info: JsonObject) -> CompactionPolicy | None:
    """The policy that a recording was made under; None where none is known.

    Raises:
        CanonicalError: What stands there is none.
    """
    said = info.get("compaction")
    return None if said is None else convert(said, CompactionPolicy)


def with_policy(environment: Mapping[str, str], policy: CompactionPolicy | None) -> dict[str, str]:
    """Variables for a client under a policy: its switches, and no others."""
    if policy is None:
        return dict(environment)
    kept = {name: value for name, value in environment.items() if name not in SWITCHES}
    return kept | policy.switches


def codex_settings(policy: CompactionPolicy | None) -> str:
    """Lines for Codex's ``config.toml``.

    Codex heeds its limit only up to nine tenths of the window that it knows: there it compacts all
    the same.
    """
    suppresses = policy is not None and policy.suppresses
    return f"model_auto_compact_token_limit = {_NEVER_TOKENS}\n" if suppresses else ""


def gemini_settings(policy: CompactionPolicy | None) -> JsonObject:
    """Members for Gemini CLI's ``settings.json``: at which share of the window it compresses."""
    suppresses = policy is not None and policy.suppresses
    return {"model": {"compressionThreshold": 1}} if suppresses else {}
