"""What of a provider can be seen at the wire: for each kind of mutation, whether and where.

Rule: what was not seen is only worth something beside what could have been. Nothing is called
observed that a provider does without a sign, and a cut stream makes what it hid incomplete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.events.provider_state import MutationKind, Seen, capability

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bernstein.canonical import JsonObject, JsonValue
    from bernstein.recording.exchanges import ExchangeEnd
    from bernstein.wire.protocol import Kind

# Kinds that a response says by itself: a cut one may have hidden them.
_IN_RESPONSES: tuple[MutationKind, ...] = (
    "compaction",
    "tool_result_clearing",
    "thinking_clearing",
    "model_fallback",
)
# Kinds that an answer says of which no request is known.
_IN_ANSWERS = _IN_RESPONSES[:3]
# Kinds that a client's own history gives away, where it says which conversation asks.
_IN_HISTORIES: tuple[MutationKind, ...] = (
    "compaction",
    "tool_result_clearing",
    "thinking_clearing",
    "microcompaction",
    "truncation",
)


class Sights:
    """Gathers what was asked of each provider in one run."""

    def __init__(self) -> None:
        self._kinds: dict[str, set[Kind]] = {}
        self._asked: dict[str, set[str]] = {}  # what of a provider's own features was asked for
        self._cut: set[str] = set()
        self._unread: set[str] = set()
        self._found: dict[str, set[MutationKind]] = {}
        self._called: set[str] = set()
        self._clients: dict[str, tuple[Mapping[MutationKind, Seen], bool]] = {}

    def asked(self, provider: str, kind: Kind, body: JsonValue, *, has_lane: bool) -> None:
        """A model was asked; ``has_lane``: the request says which conversation it goes on."""
        self._kinds.setdefault(provider, set()).add(kind)
        asked = self._asked.setdefault(provider, set())
        asked.add("history" if has_lane else "no history")
        if not isinstance(body, dict):
            return
        if body.get("truncation") == "auto":
            asked.add("truncation")
        if body.get("thinking") or body.get("reasoning"):
            asked.add("thinking")
        management = body.get("context_management")
        edits = management.get("edits") if isinstance(management, dict) else management
        for edit in edits if isinstance(edits, list) else ():
            if isinstance(edit, dict):
                asked.add(str(edit.get("type", "")).rsplit("_", 1)[0])

    def answered(self, provider: str, kind: Kind) -> None:
        """An answer is there, and no request that it is of."""
        self._kinds.setdefault(provider, set()).add(kind)
        self._asked.setdefault(provider, set()).update({"no request", "no history"})

    def called(self, provider: str) -> None:
        """A model was asked through its SDK, which shows nothing of what is not in the answer."""
        self._called.add(provider)

    def client_ended(
        self, client: str, sight: Mapping[MutationKind, Seen], *, is_whole: bool
    ) -> None:
        """A client ended, whose output shows what ``sight`` says where it came to its end."""
        was_whole = self._clients.get(client, (sight, True))[1]
        self._clients[client] = (sight, was_whole and is_whole)

    def ended(self, provider: str, end: ExchangeEnd) -> None:
        """A response ended; one that was cut, or not read to its end, hid something."""
        if end in {"cut", "left"}:
            self._cut.add(provider)

    def unread(self, provider: str, kind: Kind) -> None:
        """A request or an answer came that cannot be read: it may have said anything."""
        self._kinds.setdefault(provider, set()).add(kind)
        self._asked.setdefault(provider, set())
        self._unread.add(provider)

    def found(self, provider: str, kind: MutationKind) -> None:
        """A mutation was seen at the wire."""
        self._kinds.setdefault(provider, set())
        self._asked.setdefault(provider, set())
        self._found.setdefault(provider, set()).add(kind)

    def capabilities(self) -> list[JsonObject]:
        """The payload of each provider's and client's row, by name."""
        names = self._kinds.keys() | self._called
        seen = {name: self._seen(name) for name in names}
        for client, (sight, is_whole) in self._clients.items():
            seen[client] = {
                kind: at if is_whole else Seen("incomplete", at.channel)
                for kind, at in sight.items()
            }
        return [capability(name, seen[name]) for name in sorted(seen)]

    def _seen(self, provider: str) -> dict[MutationKind, Seen]:
        kinds, asked = self._kinds.get(provider, set()), self._asked.get(provider, set())
        wire, blind, unasked = (
            Seen("observed", "wire"),
            Seen("declared-blind"),
            Seen("not-requested"),
        )
        has_histories = "history" in asked and "no history" not in asked
        seen: dict[MutationKind, Seen] = {
            "compaction": unasked,
            "tool_result_clearing": unasked,
            "thinking_clearing": blind if "thinking" in asked else unasked,
            "truncation": unasked,
            "held_state_reference": wire,
            "model_fallback": wire,
        }
        if has_histories:
            seen |= dict.fromkeys(_IN_HISTORIES, Seen("observed", "history"))
            if "thinking" in asked:
                # What the server drops of earlier thoughts is in no history.
                seen["thinking_clearing"] = blind
        if "generate" in kinds or {"compact", "compaction"} & (kinds | asked):
            seen["compaction"] = wire
        if "clear_tool_uses" in asked:
            seen["tool_result_clearing"] = wire
        if "clear_thinking" in asked:
            seen["thinking_clearing"] = wire
        if "no request" in asked:
            seen |= dict.fromkeys(_IN_ANSWERS, wire)
            seen |= {"held_state_reference": blind, "model_fallback": blind, "truncation": blind}
        if "truncation" in asked:
            # What was left out is said nowhere.
            seen["truncation"] = blind
        if provider in self._called:
            seen |= {"thinking_clearing": blind, "model_fallback": blind}
        if not kinds:
            seen["held_state_reference"] = unasked
        for kind in self._found.get(provider, ()):
            if seen.get(kind, unasked).value != "observed":
                seen[kind] = wire
        return self._without_hidden(provider, seen)

    def _without_hidden(
        self, provider: str, seen: dict[MutationKind, Seen]
    ) -> dict[MutationKind, Seen]:
        """What was seen, where something was cut or could not be read."""
        is_unread = provider in self._unread
        hidden = _IN_RESPONSES if provider in self._cut else ()
        for kind in tuple(seen) if is_unread else hidden:
            at = seen[kind]
            is_of_wire = at.value == "observed" and at.channel == "wire"
            if is_of_wire or (is_unread and at.value != "declared-blind"):
                seen[kind] = Seen("incomplete", at.channel or "wire")
        return seen
