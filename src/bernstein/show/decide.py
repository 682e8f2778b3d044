"""Decisions on tools over HTTP: what waits, and what somebody says to it.

Rule: who decides names the row that they saw by index and hash. Where that is not what waits now
nothing is chained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from bernstein.canonical import JsonObject, convert, decode_strict
from bernstein.errors import StaleDecisionError, UsageError
from bernstein.runner.pending import PendingCall, pending_calls
from bernstein.seal.approvals import Decision, decide_once, find_approval
from bernstein.seal.body_key import bodies_of
from bernstein.seal.inside import refuse_inside_run
from bernstein.seal.signing import KeyStore

if TYPE_CHECKING:
    from pathlib import Path

    from bernstein.rundir import RunDir, SddDir


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What somebody decides: on the row of this index, which had this hash when they saw it."""

    index: int
    event_hash: str
    decision: Decision
    actor: str


def waiting_calls(sdd: SddDir, keys_dir: Path, run: RunDir) -> list[PendingCall]:
    """The calls of a run that wait for a decision; a run that has ended waits for none.

    Raises:
        RecordingError: The run cannot be read.
    """
    calls = _pending(sdd, keys_dir, run)
    return [call for call in calls if find_approval(sdd, keys_dir, call.row) is None]


def told_call(call: PendingCall) -> JsonObject:
    """A call that waits, with what the model asks for, or null where that cannot be read."""
    return {
        "call": call.call_id,
        "tool": call.name,
        "asked": call.asked or None,
        "index": call.row.index,
        "event_hash": call.row.event_hash,
    }


def decide(sdd: SddDir, keys_dir: Path, run: RunDir, body: bytes) -> JsonObject:
    """Sign and chain a decision.

    Args:
        body: An ``Asked`` as JSON.
    Raises:
        UsageError: It is none, or names nobody.
        StaleDecisionError: It is not on a row that waits now, or that has another hash.
    """
    asked = convert(decode_strict(body), Asked)
    refuse_inside_run(sdd)
    call = next((c for c in _pending(sdd, keys_dir, run) if c.row.index == asked.index), None)
    if call is None:
        raise StaleDecisionError(f"row {asked.index} of run {run.run_id} waits for no decision")
    if call.row.event_hash != asked.event_hash:
        raise StaleDecisionError(f"row {asked.index} has another hash than the one that you saw")
    if not call.asked and asked.decision == "approved":
        raise StaleDecisionError("what it asks for cannot be read, so nobody can approve it")
    said, is_new = decide_once(sdd, keys_dir, call.row, asked.decision, asked.actor)
    if not is_new:
        raise StaleDecisionError(f"it was {said.decision} before, by {said.actor}: that stands")
    return {
        "call": call.call_id,
        "index": said.index,
        "event_hash": said.event_hash,
        "decision": said.decision,
        "actor": said.actor,
    }


def _pending(sdd: SddDir, keys_dir: Path, run: RunDir) -> list[PendingCall]:
    if run.seal.exists():
        return []
    try:
        return pending_calls(run, bodies_of(run, sdd, KeyStore(keys_dir, sdd.keys)))
    except UsageError:
        return []  # a run of a command: it asks nobody
