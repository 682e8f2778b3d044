"""Checks a run's evidence: chain, seal, recording, signature and spine, in this order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from bernstein.canonical import (
    DigestRef,
    JsonObject,
    as_ref,
    decode_canonical,
    decode_strict,
    sha256_hex,
)
from bernstein.chain.read import load_replay_events
from bernstein.chain.verify import ChainCheck, ChainReason, check_chain
from bernstein.errors import CanonicalError, ProofError, RecordingError
from bernstein.files import read_file
from bernstein.jsonl import read_lines
from bernstein.recording.exchanges import load_exchanges
from bernstein.recording.queue import load_recording
from bernstein.rundir import RunDir, SddDir
from bernstein.seal.body_key import bodies_of, check_body_key, missing_body_key
from bernstein.seal.digest_form import recording_digests
from bernstein.seal.proven import Difference, first_difference, read_chained_run
from bernstein.seal.proven_wire import first_wrong_exchange
from bernstein.seal.proven_world import first_wrong_fixture, first_wrong_tool
from bernstein.seal.received import check_received, read_proof
from bernstein.seal.seals import Seal, parse_seal
from bernstein.seal.signing import KeyStore, default_keys
from bernstein.seal.spine import SpineReading, read_spine
from bernstein.wire.chained import TermsOfRun

if TYPE_CHECKING:
    from pathlib import Path

    from bernstein.recording.blobs import BlobStore

VerdictName: TypeAlias = Literal["verified", "flagged", "mismatch", "prefix"]
Reason: TypeAlias = (
    ChainReason | Literal["missing", "extra", "envelope", "recording", "seal", "spine"]
)

# What reading a payload of another shape raises.
_MALFORMED = (KeyError, TypeError, AttributeError, ValueError, IndexError, OSError)


class Verdict(msgspec.Struct, frozen=True):
    """What a check of one run's evidence found.

    Attributes:
        verdict: verified (all of it matches a seal by a known key), flagged (verified, and it
            holds mutations that a deterministic run asked not to have), mismatch or prefix (what is
            there holds, but without a seal by a known key nothing says that it is complete).
        rows: Rows that hold, in order, before the first that does not.
        head: The hash of the last row that holds; 64 zeros where there is none.
        reason: Why, for a mismatch.
        step_index: The first row that does not hold, or is flagged, from 0; None where it is no
            row.
        expected_hash: What was recomputed, or what the seal says.
        actual_hash: What stands there.
        signer: The id of the key that sealed the run, where its signature holds.
        note: For people: what a prefix lacks, or where a mismatch was found.
    """

    verdict: VerdictName
    rows: int
    head: str
    reason: Reason | None = None
    step_index: int | None = None
    expected_hash: str | None = None
    actual_hash: str | None = None
    signer: str | None = None
    note: str = ""


def verify_journal(path: Path) -> Verdict:
    """Check the run that a ``journal.jsonl`` belongs to: chain, recording, seal and spine.

    A journal that lies in no project has neither seal nor spine, so it is a prefix at best.

    Raises:
        OSError: The file cannot be read.
    Source: docs/spec.md, "Verdicts".
    """
    run = RunDir(path.absolute().parent)
    sdd = SddDir(run.path.parents[1])
    return verify_run(run, sdd, default_keys(sdd))


def verify_deep(run: RunDir, sdd: SddDir, keys: KeyStore) -> Verdict:
    """``verify_run``, and inside each payload, and each large body that a call refers to.

    Raises:
        OSError: The journal cannot be read.
    """
    verdict = verify_run(run, sdd, keys)
    if verdict.verdict == "mismatch":
        return verdict
    broken = _first_deep_problem(run, sdd, keys)
    if broken is None:
        return verdict
    return msgspec.structs.replace(
        verdict, verdict="mismatch", reason=broken.reason, step_index=broken.index, note=broken.note
    )


def _first_deep_problem(run: RunDir, sdd: SddDir, keys: KeyStore) -> Finding | None:
    for row in load_replay_events(run.journal):
        try:
            decode_canonical(bytes(row.payload))
        except CanonicalError as error:
            return Finding("mismatch", "payload", row.index, note=str(error))
    blobs = bodies_of(run, sdd, keys)
    for ref in stored_refs(run):
        try:
            blobs.check(ref)
        except RecordingError as error:
            return Finding("mismatch", "recording", note=str(error))
    return None


def verify_run(
    run: RunDir, sdd: SddDir, keys: KeyStore, spine: SpineReading | None = None
) -> Verdict:
    """Check one run; ``spine`` is a reading of the whole spine, where there is one already.

    Raises:
        OSError: The journal cannot be read.
    """
    chain = check_chain(run.journal)
    if chain.reason is not None:
        return Verdict(
            "mismatch",
            chain.rows,
            chain.head,
            chain.reason,
            chain.step_index,
            chain.expected_hash,
            chain.actual_hash,
        )
    if spine is None:
        spine = read_spine(sdd.spine, keys)
    info = _info_of(run)
    if chain.flagged and info.get("seed") is None and info.get("watches_context") is True:
        note = "a mutation is flagged, and the run has no seed"
        return Verdict(
            "mismatch", chain.flagged[0], chain.head, "payload", chain.flagged[0], note=note
        )
    if chain.unflagged is not None and info.get("seed") is not None:
        note = "a mutation is not flagged, and the run has a seed"
        at = chain.unflagged
        return Verdict("mismatch", at, chain.head, "payload", at, note=note)
    finding = _check_seal(run, sdd, keys, spine, chain)
    if chain.flagged and finding.verdict in {"verified", "prefix"}:
        finding = _flagged(finding, chain)
    return Verdict(
        finding.verdict,
        chain.rows,
        chain.head,
        finding.reason,
        finding.index,
        finding.expected,
        finding.actual,
        finding.signer,
        finding.note,
    )


def _info_of(run: RunDir) -> JsonObject:
    """What ``run.json`` says; nothing where it is damaged, which is found out elsewhere."""
    try:
        return run.read_info()
    except RecordingError:
        return {}


def _flagged(finding: Finding, chain: ChainCheck) -> Finding:
    """What becomes of evidence that holds where mutations came that were to be suppressed."""
    rows = ", ".join(map(str, chain.flagged[:5])) + (" …" if len(chain.flagged) > 5 else "")
    note = f"the model's context was changed though the run is deterministic: row {rows}"
    is_whole = finding.verdict == "verified"
    return replace(
        finding,
        verdict="flagged" if is_whole else finding.verdict,
        index=chain.flagged[0] if is_whole else finding.index,
        note=f"{finding.note}; {note}" if finding.note else note,
    )


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of the checks behind the chain; its members are those of ``Verdict``."""

    verdict: VerdictName
    reason: Reason | None = None
    index: int | None = None
    expected: str | None = None
    actual: str | None = None
    signer: str | None = None
    note: str = ""


def _check_seal(
    run: RunDir, sdd: SddDir, keys: KeyStore, spine: SpineReading, chain: ChainCheck
) -> Finding:
    try:
        data = read_file(run.seal)
    except RecordingError as error:
        return Finding("mismatch", "seal", note=str(error))
    except FileNotFoundError:
        recorded = _check_recording(run, sdd, keys, None)
        if recorded is not None:
            return recorded
        sealed = spine.sealed(run.run_id)
        if sealed is not None:
            return Finding("mismatch", "seal", None, sealed, None, note="its seal is gone")
        return Finding("prefix", note="there is no seal, so nothing says that these are all rows")
    seal = parse_seal(data)
    if seal is None:
        return Finding("mismatch", "seal", note="seal.json is not a seal")
    broken = check_contents(run, sdd, keys, seal, chain)
    return broken or _check_signature(run, sdd, keys, spine, seal)


def check_contents(
    run: RunDir, sdd: SddDir, keys: KeyStore, seal: Seal, chain: ChainCheck
) -> Finding | None:
    """What of a run's files is not as its seal says; None where all of it is.

    Whether the seal is anybody's is not looked at here.
    """
    if chain.rows < seal.count:
        note = f"sealed with {seal.count} rows, there are {chain.rows}"
        return Finding("mismatch", "missing", chain.rows, seal.head, chain.head, note=note)
    if chain.rows > seal.count:
        note = f"sealed with {seal.count} rows, there are {chain.rows}"
        return Finding("mismatch", "extra", seal.count, seal.head, chain.head, note=note)
    if chain.head != seal.head or run.run_id != seal.run_id:
        note = "the chain holds, and is not the one that was sealed"
        return Finding("mismatch", "seal", None, seal.head, chain.head, note=note)
    if chain.sha256 != seal.journal_sha256:
        note = "times were changed"
        return Finding("mismatch", "envelope", None, seal.journal_sha256, chain.sha256, note=note)
    recorded = _check_recording(run, sdd, keys, seal)
    if recorded is not None:
        return recorded
    run_sha256 = sha256_hex(run.run_json.read_bytes()) if run.run_json.exists() else None
    if run_sha256 != seal.run_sha256:
        note = "run.json was changed"
        return Finding("mismatch", "seal", None, seal.run_sha256, run_sha256, note=note)
    return None


def _check_signature(
    run: RunDir, sdd: SddDir, keys: KeyStore, spine: SpineReading, seal: Seal
) -> Finding:
    public, trust = keys.find_public(seal.key_id)
    if public is None:
        return Finding("prefix", note=f"sealed by key {seal.key_id}, which is not here")
    if not seal.is_signed_by(public):
        return Finding("mismatch", "seal", note="the signature is not that of the seal")
    if spine.broken_at is not None:
        note = f"entry {spine.broken_at} of the spine does not hold ({spine.reason})"
        return Finding("mismatch", "spine", note=note)
    entry, seal_sha256 = spine.entry_of(run.run_id), sha256_hex(run.seal.read_bytes())
    if entry is None or entry.seal_sha256 != seal_sha256:
        entered = None if entry is None else entry.seal_sha256
        note = "the spine has no such seal of this run"
        return Finding("mismatch", "spine", None, seal_sha256, entered, note=note)
    if entry.kind == "received":
        try:
            check_received(run, seal, read_proof(run))
        except ProofError as error:
            return Finding("mismatch", "spine", note=str(error).split("\n", 1)[0])
    if trust == "unknown":
        note = f"sealed by key {seal.key_id}, which you do not trust"
        return Finding("prefix", signer=seal.key_id, note=note)
    for signer in sorted(spine.signers):
        if keys.find_public(signer)[1] == "unknown":
            # Who has no key of ours can write a whole spine anew, but not sign it as one of us.
            note = f"the spine has entries by key {signer}, which you do not trust"
            return Finding("prefix", signer=seal.key_id, note=note)
    try:
        note = unreadable_bodies(run, sdd, keys)
    except (RecordingError, CanonicalError, *_MALFORMED) as error:
        return Finding("mismatch", "recording", note=str(error).split("\n", 1)[0])
    return Finding("verified", signer=seal.key_id, note=note)


def unreadable_bodies(run: RunDir, sdd: SddDir, keys: KeyStore) -> str:
    """How many bodies of a run stand as a digest alone, and why; empty where none does."""
    blobs = bodies_of(run, sdd, keys)
    count = sum(not blobs.can_read(ref) for ref in stored_refs(run))
    if count == 0:
        return ""
    if kek := missing_body_key(run, keys):
        return f"{count} bodies are encrypted, and the key {kek} that opens them is not here"
    return f"{count} bodies are forgotten or not here"


def _check_recording(run: RunDir, sdd: SddDir, keys: KeyStore, seal: Seal | None) -> Finding | None:
    """What is wrong with the recording files, held against seal and chain; None where nothing."""
    try:
        if wrong_key := check_body_key(run):
            return Finding("mismatch", "recording", note=wrong_key)
        blobs = bodies_of(run, sdd, keys)
        is_spelled = seal is not None  # then its digest form has been made, and each row read
        if seal is not None:
            found = recording_digests(run, blobs)
            for name in sorted(seal.recordings.keys() | found.keys()):
                said = msgspec.to_builtins(seal.recordings.get(name))
                if said != found.get(name):
                    note = f"{name}.jsonl is not as it was sealed"
                    return Finding("mismatch", "recording", note=note)
        problem = _first_difference(run, blobs, is_checked=is_spelled)
        for ref in _fixture_refs(run):
            blobs.check(ref)
    except (RecordingError, CanonicalError, *_MALFORMED) as error:
        note = str(error).split("\n", 1)[0]
        return Finding("mismatch", "recording", note=note)
    if problem is None:
        return None
    note = "what is recorded is not what the journal proves"
    return Finding(
        "mismatch", "recording", problem.index, problem.expected, problem.actual, note=note
    )


def _first_difference(run: RunDir, blobs: BlobStore, *, is_checked: bool) -> Difference | None:
    if not run.exchanges.exists() and _info_of(run).get("records") is True:
        chained = read_chained_run(run.journal)
        if chained.exchanges.answers:
            return Difference(chained.exchanges.answers[0].index, None, None)
    if not (run.llm_calls.exists() or run.exchanges.exists()):
        return None  # a strict replay records nothing; what a seal says is checked by its digest
    for line in read_lines(run.llm_calls) if run.llm_calls.exists() else ():
        if line.is_whole:
            decode_canonical(line.data)
    chained = read_chained_run(run.journal)
    for check in (first_wrong_fixture, first_wrong_tool):
        if (wrong := check(run.fixtures, chained)) is not None:
            return wrong
    is_finished = chained.is_finished
    if run.exchanges.exists():
        info = run.read_info()
        wrong = first_wrong_exchange(
            load_exchanges(run.exchanges, is_checked=is_checked),
            chained.exchanges,
            blobs,
            TermsOfRun(info),
            is_finished=is_finished,
            watches=info.get("watches_context") is True,
        )
        if wrong is None and chained.stray and chained.exchanges.answers:
            return Difference(chained.stray[0], None, None)
        if wrong is not None or not run.llm_calls.exists():
            return wrong
    return first_difference(
        load_recording(run.llm_calls), chained.calls, blobs, is_finished=is_finished
    )


def stored_refs(run: RunDir) -> set[DigestRef]:
    """The bodies of a run that do not stand in their rows."""
    found: list[DigestRef | None] = []
    for row in load_recording(run.llm_calls).rows:
        for raw in (row.prompt, row.outcome):
            if bytes(raw).startswith(b'{"byteLength":'):
                found.append(as_ref(decode_strict(bytes(raw))))
    for exchange in load_exchanges(run.exchanges, is_checked=True).rows:
        for raw in (exchange.request, exchange.response):
            if bytes(raw).startswith(b'{"byteLength":'):
                found.append(as_ref(decode_strict(bytes(raw))))
    # Configuration of a recorded command, where the run is encrypted.
    info = run.read_info()
    for kept in (info, *(info.get("agents") or {}).values()):
        found += [as_ref(text) for text in ((kept.get("home") or {}).get("files") or {}).values()]
        # What an agent printed, and the bodies of a run that somebody else told.
        for attempt in kept.get("attempts") or ():
            found += [as_ref(attempt.get(name)) for name in ("output", "errors")]
            found += map(as_ref, attempt.get("bodies") or ())
    return {ref for ref in found if ref is not None} | _fixture_refs(run)


def _fixture_refs(run: RunDir) -> set[DigestRef]:
    if not run.fixtures.exists():
        return set()
    rows = [decode_canonical(line.data) for line in read_lines(run.fixtures) if line.is_whole]
    refs = (as_ref(row.get(name)) for row in rows for name in ("request", "response"))
    return {ref for ref in refs if ref is not None}
