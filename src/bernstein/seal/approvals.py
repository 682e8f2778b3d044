"""What an operator says to a tool that a run asks about: signed, and in the audit chain.

A decision names a row of a journal by index and hash. The first one on a row counts; what nobody
here has signed, or stands in a row of the audit chain that does not hold, is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from bernstein.canonical import JsonObject, canonical_bytes, convert
from bernstein.errors import CanonicalError, UsageError
from bernstein.events.trajectory import TOOL_STARTED
from bernstein.seal.audit import AuditChain, audit_keys, read_audit
from bernstein.seal.signing import KeyStore, is_signed_by

if TYPE_CHECKING:
    from pathlib import Path

    from bernstein.rundir import SddDir

THREAD_APPROVAL = "thread.approval"
Decision: TypeAlias = Literal["approved", "denied"]
POLICY = "policy"  # the actor of what the plan itself says: nobody decides by this name
_MAX_ACTOR_CHARS = 128


@dataclass(frozen=True, slots=True)
class RowRef:
    """A row of a run's journal: its place, and its hash."""

    run_id: str
    index: int
    event_hash: str


class ThreadApproval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of a ``thread.approval`` row of the audit chain."""

    run_id: str
    index: int
    event_hash: str
    decision: Decision
    actor: str
    key_id: str
    sig: str

    @property
    def row(self) -> RowRef:
        """The row that it decides on."""
        return RowRef(self.run_id, self.index, self.event_hash)

    def signed_bytes(self) -> bytes:
        """What the signature is over."""
        value: JsonObject = msgspec.to_builtins(self)
        del value["sig"]
        # "bernstein.approval.v1\n" + JCS without sig
        return b"bernstein.approval.v1\n" + canonical_bytes(value)


def record_thread_approval(
    sdd: SddDir, keys_dir: Path, row: RowRef, decision: Decision, actor: str
) -> ThreadApproval:
    """Sign a decision and put it into the audit chain, on disk when this returns.

    Where there is one on this row already, that one stands and is returned.

    Raises:
        UsageError: The actor has no name.
        KeyUnavailableError: The operator's key, or that of the audit chain, is not here.
        JournalError, OSError: The audit chain cannot be written.
    Source: docs/tools.md, "Who decides".
    """
    return decide_once(sdd, keys_dir, row, decision, actor)[0]


def decide_once(
    sdd: SddDir, keys_dir: Path, row: RowRef, decision: Decision, actor: str
) -> tuple[ThreadApproval, bool]:
    """``record_thread_approval``, and whether the decision that stands now is this one.

    Of several that come at once one is chained.
    """
    is_name = actor.strip() and len(actor) <= _MAX_ACTOR_CHARS and actor.isprintable()
    if not is_name or actor == POLICY:
        raise UsageError(
            f"{actor!r} is no name for who decides\n  give one, at most 128 characters: --as NAME"
        )
    key = KeyStore(keys_dir, sdd.keys).signing_key()
    said = ThreadApproval(row.run_id, row.index, row.event_hash, decision, actor, key.key_id, "")
    said = msgspec.structs.replace(said, sig=key.sign(said.signed_bytes()))
    known: list[ThreadApproval] = []

    def is_first() -> bool:
        known.extend(filter(None, [find_approval(sdd, keys_dir, row)]))
        return not known

    chain = AuditChain(sdd.audit, audit_keys(keys_dir))
    if chain.append_if(THREAD_APPROVAL, msgspec.to_builtins(said), is_first) is None:
        return known[0], False
    return said, True


def start_approved(sdd: SddDir, keys_dir: Path, row: RowRef) -> bool:
    """Note in the audit chain that what was approved on a row is about to run.

    Returns:
        Whether it has not begun before: one approval lets one tool run once, also where somebody
        put an older state of the run's folder back.
    Raises:
        Like ``record_thread_approval``.
    """
    chain = AuditChain(sdd.audit, audit_keys(keys_dir))
    _, is_new = chain.append_once(
        TOOL_STARTED,
        {"run_id": row.run_id, "index": row.index, "event_hash": row.event_hash},
    )
    return is_new


def find_approval(sdd: SddDir, keys_dir: Path, row: RowRef) -> ThreadApproval | None:
    """The first decision on a row that an operator of this user has signed, or None."""
    keys = KeyStore(keys_dir, sdd.keys)
    own = keys.own_ids()
    # By the place that their hmac covers, whatever the order of the lines is by now.
    rows = sorted(read_audit(sdd.audit, audit_keys(keys_dir)), key=lambda kept: kept.index)
    for kept in rows:
        if kept.type != THREAD_APPROVAL:
            continue
        try:
            said = convert(kept.payload, ThreadApproval)
        except CanonicalError:
            continue
        if said.row != row or said.key_id not in own:
            continue
        public, _ = keys.find_public(said.key_id)
        if public is not None and is_signed_by(public, said.sig, said.signed_bytes()):
            return said
    return None
