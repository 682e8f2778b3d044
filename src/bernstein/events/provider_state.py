"""What providers and clients did to the model's context, as rows of a journal.

Rule: a row certifies what was reported, by digests; what was not reported it does not claim. An
absence of rows says something only beside a capability row that says what could be seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

from bernstein.canonical import canonical_bytes, sha256_hex
from bernstein.errors import CanonicalError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bernstein.canonical import JsonObject

MutationKind: TypeAlias = Literal[
    "compaction",
    "tool_result_clearing",
    "thinking_clearing",
    "microcompaction",
    "truncation",
    "held_state_reference",
    "model_fallback",
    "retraction",
    "context_reset",
    "memory_injection",
]
KINDS: tuple[MutationKind, ...] = get_args(MutationKind)
# observed: it would have been seen; declared-blind: it happens without a sign here; incomplete: a
# stream was cut, so that some of it may not have been seen; not-requested: only on request, and
# nobody asked for it.
Sight: TypeAlias = Literal["observed", "declared-blind", "incomplete", "not-requested"]


class Mutation(NamedTuple):
    """What one report comes to.

    Attributes:
        kind: What was done to the context.
        before_digest: sha256 of the members that were labelled as the state before; None without.
        after_digest: sha256 of the whole report.
        tokens: Counts that were reported: ``before``, ``after``, ``cleared``.
        rest_digest: With counts: sha256 of the report without them. A client's own counts can
            follow its timing, and a difference in them alone is to be told from any other.
    """

    kind: MutationKind
    before_digest: str | None
    after_digest: str
    tokens: dict[str, int]
    rest_digest: str | None = None

    def payload(self, step_index: int, *, flagged: bool) -> JsonObject:
        """The payload of the row that is at ``step_index``."""
        covered: JsonObject = {
            "kind": self.kind,
            "before_digest": self.before_digest,
            "after_digest": self.after_digest,
            "step_index": step_index,
        }
        # sha256("bernstein.mutation.v1\n" + JCS {kind, before_digest, after_digest, step_index})
        address = sha256_hex(b"bernstein.mutation.v1\n" + canonical_bytes(covered))
        tokens: JsonObject = {**self.tokens, "rest_digest": self.rest_digest}
        counted: JsonObject = {"tokens": tokens} if self.tokens else {}
        return {"address": address, **covered, **counted, "flagged": flagged}


def mutation_of(payload: JsonObject) -> Mutation:
    """What a row says, but for where it is and whether it is flagged.

    Raises:
        KeyError, TypeError: It says nothing of a mutation.
    """
    tokens = dict(payload.get("tokens") or {})
    rest = tokens.pop("rest_digest", None)
    return Mutation(
        payload["kind"], payload["before_digest"], payload["after_digest"], tokens, rest
    )


def is_addressed(payload: JsonObject, index: int) -> bool:
    """Whether the address in a row is that of what it says, and its step that of its row."""
    try:
        flagged = payload["flagged"]
        return type(flagged) is bool and payload == mutation_of(payload).payload(
            index, flagged=flagged
        )
    except (CanonicalError, KeyError, TypeError, ValueError):
        return False


class Seen(NamedTuple):
    """How one kind could be seen, and where: ``wire``, ``stream-json`` and the like."""

    value: Sight
    channel: str | None = None


def capability(provider: str, seen: Mapping[MutationKind, Seen]) -> JsonObject:
    """The payload of ``provider_state_capability``: what of a provider could be seen in a run."""
    kinds = {kind: seen.get(kind, Seen("declared-blind")) for kind in KINDS}
    can_see = any(at.value in {"observed", "incomplete"} for at in kinds.values())
    return {
        "provider": provider,
        "capability": "observed" if can_see else "declared-blind",
        "kinds": {kind: {"value": at.value, "channel": at.channel} for kind, at in kinds.items()},
    }
