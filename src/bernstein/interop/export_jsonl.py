"""A run as events in envelopes, a line each: what every fold reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.canonical import canonical_bytes
from bernstein.chain.read import payload_of
from bernstein.events.payloads import KINDS, VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bernstein.events.entry import JournalEntry


def to_envelopes(rows: Iterable[JournalEntry], run_id: str) -> Iterator[bytes]:
    """The rows that are a trajectory's events, each as canonical JSON with its LF."""
    for row in rows:
        if row.event in KINDS:
            envelope = {
                "eventId": row.event_hash,
                "runId": run_id,
                "seq": row.index,
                "version": VERSION,
                "occurredAt": row.ts,
                "kind": row.event,
                "payload": payload_of(row),
            }
            yield canonical_bytes(envelope) + b"\n"
