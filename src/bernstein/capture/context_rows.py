"""Rows on the model's context: what changed it, and at the end what could have been seen.

A mutation stands in the audit chain too, anchored to its row and the head of its journal.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from bernstein.canonical import decode_canonical
from bernstein.errors import BernsteinError
from bernstein.events import trajectory as event
from bernstein.seal.audit import AuditChain, audit_keys
from bernstein.wire.sight import Sights

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bernstein.canonical import JsonObject
    from bernstein.events.entry import JournalEntry
    from bernstein.events.provider_state import Mutation
    from bernstein.rundir import SddDir


class ContextRows:
    """Makes and mirrors the rows of one run; called under the run's lock."""

    def __init__(
        self, sdd: SddDir, keys_dir: Path, run_id: str, *, is_watched: bool, is_deterministic: bool
    ) -> None:
        """Make the rows of a run.

        Args:
            sdd: Whose audit chain they stand in.
            keys_dir: Where the audit key is.
            run_id: The run.
            is_watched: Whether there are any: a replay has none where its recording has none.
            is_deterministic: Whether the context was asked not to be changed: a change is flagged.
        """
        self.is_watched = is_watched
        self.is_deterministic = is_deterministic
        self.sights = Sights()
        self.flagged: list[int] = []
        # What keeps a mutation from standing in the audit chain: the run ends without a seal then.
        self.problem: str | None = None
        self._run_id = run_id
        self._audit = AuditChain(sdd.audit, audit_keys(keys_dir))

    def mutations(
        self, mutations: Sequence[Mutation]
    ) -> list[tuple[str, Callable[[int], JsonObject]]]:
        """Their rows, each made of where it will stand."""
        if not self.is_watched:
            return []
        flagged = self.is_deterministic
        return [
            (event.PROVIDER_STATE_MUTATION, partial(mutation.payload, flagged=flagged))
            for mutation in mutations
        ]

    def mirror(self, entry: JournalEntry) -> None:
        """Put a mutation that was chained into the audit chain."""
        payload = decode_canonical(bytes(entry.payload))
        if payload["flagged"]:
            self.flagged.append(entry.index)
        mirrored = {
            "run_id": self._run_id,
            "index": entry.index,
            "head": entry.event_hash,
            "address": payload["address"],
            "kind": payload["kind"],
            "flagged": payload["flagged"],
        }
        try:
            self._audit.append("provider.state_mutation", mirrored)
        except (BernsteinError, OSError) as error:
            self.problem = str(error)

    def capabilities(self) -> list[JsonObject]:
        """The payloads of the rows that say what could be seen."""
        return self.sights.capabilities() if self.is_watched else []

    def note(self) -> str:
        """A line on mutations that came though they were to be suppressed; empty without."""
        if not self.flagged:
            return ""
        rows = ", ".join(map(str, self.flagged[:5])) + (" …" if len(self.flagged) > 5 else "")
        return (
            f"flagged: the model's context was changed in a deterministic run: row {rows}\n"
            f"  see them: bernstein show {self._run_id}\n"
        )
