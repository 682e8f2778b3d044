"""The signed commitment to a finished run, ``seal.json``, and its place in the spine."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from bernstein.canonical import JsonObject, canonical_bytes, convert, decode_canonical, sha256_hex
from bernstein.chain.read import load_replay_events, payload_of
from bernstein.chain.verify import check_chain
from bernstein.errors import CanonicalError, RecordingError, SealError
from bernstein.events.trajectory import ARTIFACT_WRITTEN
from bernstein.files import make_private, write_file
from bernstein.jsonl import locked, open_append, set_torn_line_aside
from bernstein.rundir import SddDir
from bernstein.seal.audit import AuditFloor, audit_state
from bernstein.seal.body_key import bodies_of
from bernstein.seal.digest_form import recording_digests
from bernstein.seal.signing import SigningKey, default_keys, is_signed_by
from bernstein.seal.spine import Spine, SpineEntry, Subject, read_spine

if TYPE_CHECKING:
    from bernstein.rundir import RunDir
    from bernstein.seal.signing import KeyStore
    from bernstein.seal.spine import SpineReading

SealStatus: TypeAlias = Literal["completed", "failed", "cancelled", "interrupted"]


class RecordingDigest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a seal says of one recording file."""

    rows: int
    digest_form_sha256: str


class AuditState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long the audit chain was when a run was sealed, and its last hmac."""

    count: int
    hmac: str


class Seal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``seal.json``."""

    v: int
    run_id: str
    status: SealStatus
    head: str
    count: int
    journal_sha256: str
    run_sha256: str
    recordings: dict[str, RecordingDigest]
    artifacts: list[Subject]
    audit: AuditState
    key_id: str
    sig: str

    def signed_bytes(self) -> bytes:
        """What the signature covers."""
        # "bernstein.seal.v1\n" + JCS without sig
        value: JsonObject = msgspec.to_builtins(self)
        del value["sig"]
        return b"bernstein.seal.v1\n" + canonical_bytes(value)

    def is_signed_by(self, public: bytes) -> bool:
        """Whether the signature is that of this seal under ``public``."""
        return is_signed_by(public, self.sig, self.signed_bytes())


def parse_seal(data: bytes) -> Seal | None:
    """The seal that a file holds in its only spelling, or None."""
    try:
        seal = convert(decode_canonical(data.removesuffix(b"\n")), Seal)
    except CanonicalError:
        return None
    return seal if data.endswith(b"\n") and seal.v == 1 else None


def seal_run(run: RunDir, sdd: SddDir, keys: KeyStore, status: SealStatus) -> SpineEntry:
    """Seal a run that has ended: its files are committed to, signed, and entered into the spine.

    Raises:
        SealError: The run is sealed already, still runs, or its chain does not hold.
        KeyUnavailableError: There is no key to sign with.
        OSError: The disk refuses.
    """
    key = keys.signing_key()
    fd = open_append(run.journal)
    try:
        with locked(fd):
            if run.seal.exists():
                return _complete(run, sdd, keys)
            chain = check_chain(run.journal)
            if chain.reason is not None:
                raise SealError(
                    f"run {run.run_id} cannot be sealed: its journal does not hold at row "
                    f"{chain.step_index} ({chain.reason})\n"
                    f"  see: bernstein replay {run.run_id} --verify"
                )
            unsigned = Seal(
                v=1,
                run_id=run.run_id,
                status=status,
                head=chain.head,
                count=chain.rows,
                journal_sha256=chain.sha256,
                run_sha256=sha256_hex(run.run_json.read_bytes()),
                recordings=msgspec.convert(
                    recording_digests(run, bodies_of(run, sdd, keys)), dict[str, RecordingDigest]
                ),
                artifacts=_artifacts(run.journal),
                audit=AuditState(*audit_state(sdd.audit)),
                key_id=key.key_id,
                sig="",
            )
            seal = msgspec.structs.replace(unsigned, sig=key.sign(unsigned.signed_bytes()))
            data = canonical_bytes(msgspec.to_builtins(seal)) + b"\n"
            write_file(run.seal, data)
    except (CanonicalError, RecordingError) as error:
        raise SealError(f"run {run.run_id} cannot be sealed: {error}") from error
    finally:
        os.close(fd)
    return _enter(run, sdd, key, data, seal.artifacts)


def _complete(run: RunDir, sdd: SddDir, keys: KeyStore) -> SpineEntry:
    """Enter a seal of ours into the spine, where a crash kept it out."""
    data = run.seal.read_bytes()
    seal = parse_seal(data)
    public = None if seal is None else keys.find_public(seal.key_id)[0]
    is_own = seal is not None and seal.key_id in keys.own_ids()
    if seal is None or public is None or not is_own or not seal.is_signed_by(public):
        raise SealError(f"run {run.run_id} has a seal that is not yours; it cannot be sealed again")
    reading = read_spine(sdd.spine, keys)
    if reading.sealed(run.run_id) is not None:
        raise SealError(f"run {run.run_id} is sealed already")
    known = [entry.subject for entry in reading.entries if entry.run_id == run.run_id]
    return _enter(run, sdd, keys.signing_key(), data, [a for a in seal.artifacts if a not in known])


def _enter(
    run: RunDir, sdd: SddDir, key: SigningKey, seal: bytes, artifacts: list[Subject]
) -> SpineEntry:
    """Enter a seal into the spine: first the files that the run wrote, then the run."""
    spine = Spine(sdd.spine)
    for artifact in artifacts:
        spine.append("artifact", run.run_id, sha256_hex(seal), key, artifact)
    return spine.append("run", run.run_id, sha256_hex(seal), key)


def seal_interrupted(run: RunDir, sdd: SddDir, keys: KeyStore) -> SpineEntry:
    """Seal a run that did not come to its end; torn lines are set aside first.

    Raises:
        SealError: The run still runs, or see ``seal_run``.
    """
    lock = open_append(run.lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise SealError(f"run {run.run_id} is still running; end it first") from error
    finally:
        os.close(lock)
    status: SealStatus = "interrupted"
    info = run.read_info()
    if info.get("status") in {"completed", "failed", "cancelled"}:
        status = info["status"]
    set_torn_lines_aside(run)
    return seal_run(run, sdd, keys, status)


def set_torn_lines_aside(run: RunDir) -> None:
    """Take from each file of a run what a kill has left of a last line; the caller has its lock."""
    for path in (run.journal, run.llm_calls, run.exchanges, run.fixtures, run.wal):
        if path.exists():
            fd = open_append(path)
            try:
                with locked(fd):
                    set_torn_line_aside(fd, path)
            finally:
                os.close(fd)


def seal_journal_into_spine(
    run_id: str, sdd_dir: Path | str, keys: KeyStore | None = None
) -> SpineEntry:
    """Seal a finished run of a project by its id; see ``seal_run``.

    Source: docs/spec.md, "Journal" and "Seal and spine".
    """
    sdd = SddDir(Path(sdd_dir))
    return seal_interrupted(sdd.run(run_id), sdd, keys or default_keys(sdd))


def highest_sealed_audit(sdd: SddDir, keys: KeyStore) -> AuditFloor | None:
    """The longest audit chain that a seal of this project names.

    Seals of runs that came from elsewhere, and such as are not signed by a key of ours, name none.
    That of the pruned run that was sealed last is kept beside the audit chain.
    """
    made_here = [e for e in read_spine(sdd.spine, keys).entries if e.kind == "run"]
    places = {e.seal_sha256: e.index for e in made_here}
    own = keys.own_ids()
    found: AuditFloor | None = None
    latest = -1
    for path in (sdd.audit_seal, *(run.seal for run in sdd.list_runs())):
        seal, digest = _read_seal(path)
        if seal is None or seal.key_id not in own or digest not in places:
            continue
        latest = max(latest, places[digest])
        if found is None or seal.audit.count > found.rows:
            found = AuditFloor(seal.audit.count, seal.audit.hmac)
    is_latest = not made_here or latest == made_here[-1].index
    return None if found is None else found._replace(is_latest=is_latest)


def keep_audit_seal(run: RunDir, sdd: SddDir, spine: SpineReading) -> None:
    """Keep what the seal of a run made here says of the audit chain, before the run is removed."""
    places = {e.seal_sha256: e.index for e in spine.entries if e.kind == "run"}
    seal, digest = _read_seal(run.seal)
    _, kept = _read_seal(sdd.audit_seal)
    if seal is not None and places.get(digest, -1) > places.get(kept, -1):
        make_private(sdd.audit_seal.parent)
        write_file(sdd.audit_seal, run.seal.read_bytes())


def _read_seal(path: Path) -> tuple[Seal | None, str | None]:
    """The seal in a file, and the digest of its bytes; None where there is none."""
    if path.is_symlink() or not path.is_file():
        return None, None
    data = path.read_bytes()
    return parse_seal(data), sha256_hex(data)


def _artifacts(journal: Path) -> list[Subject]:
    """The last digest of each file that the run wrote, by path."""
    found: dict[str, Subject] = {}
    for entry in load_replay_events(journal):
        if entry.event == ARTIFACT_WRITTEN:
            payload = payload_of(entry)
            path = payload["path"]
            found[path] = Subject(path, payload["content"]["digest"], entry.index)
    return [found[path] for path in sorted(found)]
