"""What a run would be blind to: for each kind of change to the context, where it could show.

Rule: derived from the code that sees it, and never from a second table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bernstein.agents.command import CommandAdapter
from bernstein.agents.registry import BUILTIN, CLIENTS
from bernstein.events.provider_state import KINDS, MutationKind, Seen
from bernstein.wire.profile import load_profile, profile_for
from bernstein.wire.protocol import PROVIDERS
from bernstein.wire.sight import Sights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bernstein.canonical import JsonObject, JsonValue
    from bernstein.wire.protocol import Kind

# One request of each provider: what its own API is.
_ASKED: dict[str, Kind] = {"anthropic": "messages", "openai": "responses", "google": "generate"}
# What a request can ask a provider to do to its context.
_FEATURES: dict[str, JsonObject] = {
    "thinking": {"thinking": {"type": "enabled"}},
    "truncation=auto": {"truncation": "auto"},
    "context_management": {
        "context_management": {
            "edits": [
                {"type": "compact_20260112"},
                {"type": "clear_tool_uses_20250919"},
                {"type": "clear_thinking_20251015"},
            ]
        }
    },
}


@dataclass(frozen=True, slots=True)
class Surface:
    """A place where a change of the context can show.

    Attributes:
        group: ``wire``: exchanges with a provider; ``output``: what a client prints; ``call``.
        name: The provider, the client, or call_llm.
        names_conversation: At the wire: whether a request says which conversation it goes on.
        kinds: How each kind of change could be seen.
    """

    group: Literal["wire", "output", "call"]
    name: str
    names_conversation: bool | None
    kinds: Mapping[MutationKind, Seen]


@dataclass(frozen=True, slots=True)
class BlindSpots:
    """What runs could see.

    Attributes:
        surfaces: Each by itself.
        on_request: What comes of a kind once a request asks for a feature, by the feature.
        in_steps: What no surface of a step shows, by its agent.
    """

    surfaces: tuple[Surface, ...]
    on_request: Mapping[str, Mapping[MutationKind, Seen]]
    in_steps: Mapping[str, tuple[MutationKind, ...]]


def blind_spots() -> BlindSpots:
    """What a run could see of each kind, as a run itself would declare it."""
    wire = {
        (name, has_lane): _at_wire(_ASKED[name], {}, has_lane=has_lane)
        for name in PROVIDERS
        for has_lane in (True, False)
    }
    sights = {name: adapter.sight for name, adapter in CLIENTS.items()}
    sights[CommandAdapter.name] = CommandAdapter.sight
    output = {name: _in_output(sight) for name, sight in sights.items()}
    call = _in_call()
    surfaces = [
        *(Surface("wire", name, has_lane, kinds) for (name, has_lane), kinds in wire.items()),
        *(Surface("output", name, None, kinds) for name, kinds in output.items()),
        Surface("call", "call_llm", None, call),
    ]
    in_steps = {BUILTIN: _blind(call)}
    for name, kinds in output.items():
        adapter = CLIENTS.get(name)
        profile = load_profile(adapter.profile if adapter else profile_for([]))
        # Whom a command asks is not known: what is hidden at one provider may be hidden.
        asked = [adapter.provider] if adapter and adapter.provider else PROVIDERS
        at_wire = {k for p in asked for k in _blind(wire[p, bool(profile.lane_headers)])}
        in_steps[name] = tuple(kind for kind in _blind(kinds) if kind in at_wire)
    return BlindSpots(tuple(surfaces), _on_request(), in_steps)


def _at_wire(kind: Kind, body: JsonValue, *, has_lane: bool) -> dict[MutationKind, Seen]:
    sights = Sights()
    sights.asked("it", kind, body, has_lane=has_lane)
    return _declared(sights)


def _in_output(sight: Mapping[MutationKind, Seen]) -> dict[MutationKind, Seen]:
    sights = Sights()
    sights.client_ended("it", sight, is_whole=True)
    return _declared(sights)


def _in_call() -> dict[MutationKind, Seen]:
    sights = Sights()
    sights.called("it")
    return _declared(sights)


def _declared(sights: Sights) -> dict[MutationKind, Seen]:
    """How a run declares each kind, that saw nothing but one surface."""
    (row,) = sights.capabilities()
    return {kind: Seen(**row["kinds"][kind]) for kind in KINDS}


def _blind(seen: Mapping[MutationKind, Seen]) -> tuple[MutationKind, ...]:
    return tuple(kind for kind, at in seen.items() if at.value == "declared-blind")


def _on_request() -> dict[str, dict[MutationKind, Seen]]:
    unasked = _at_wire("messages", {}, has_lane=False)
    asked = {
        feature: _at_wire("messages", body, has_lane=False) for feature, body in _FEATURES.items()
    }
    return {
        feature: {kind: at for kind, at in kinds.items() if at != unasked[kind]}
        for feature, kinds in asked.items()
    }
