"""Takes a run from a bundle: one zip file with the run and what proves it.

Rule: nothing of a bundle is in the project before it has been checked in a folder of its own.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from bernstein.canonical import sha256_hex
from bernstein.chain.verify import check_chain
from bernstein.errors import BundleError, ProofError
from bernstein.files import make_private, sync_folder
from bernstein.jsonl import locked, open_append
from bernstein.rundir import SddDir, is_run_id, make_sdd
from bernstein.seal.checkpoint import InclusionProof
from bernstein.seal.evidence import check_contents, stored_refs
from bernstein.seal.received import check_received, read_proof
from bernstein.seal.seals import Seal, parse_seal
from bernstein.seal.spine import Spine, read_spine

if TYPE_CHECKING:
    from bernstein.rundir import RunDir
    from bernstein.seal.signing import KeyStore

MAX_MEMBERS = 100_000
MAX_BYTES = 4 * 2**30
MAX_RATIO = 200
FILES = (
    "body_key.json",
    "exchanges.jsonl",
    "fixtures.jsonl",
    "journal.jsonl",
    "llm_calls.jsonl",
    "misses.jsonl",
    "proof.json",
    "run.json",
    "seal.json",
    "wal.jsonl",
)
_UNPACKED = ".import-"
_MEMBER = re.compile(
    r"(?P<run>[^/]+)/(?:(?P<file>" + "|".join(re.escape(name) for name in FILES) + r")"
    r"|blobs/(?P<blob>[0-9a-f]{64}))"
)


def import_bundle(source: Path, sdd: SddDir, keys: KeyStore, trust_key: str | None) -> RunDir:
    """Take a run from a bundle into the project, once all of it holds.

    Args:
        source: The zip file.
        sdd: The project.
        keys: This user's keys; the spine's entry is signed with them.
        trust_key: The id of the key that must have sealed it; it is pinned.
    Raises:
        BundleError: It is not a bundle, or its evidence does not hold.
        OSError: The disk refuses.
    """
    make_sdd(sdd)
    make_private(sdd.runs)
    # That of pruning: it must not take a body that this run is about to hold.
    lock = open_append(sdd.prune_lock)
    try:
        with locked(lock):
            for left in sdd.path.glob(f"{_UNPACKED}*"):
                # A kill kept an import from ending.
                shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
            return _import(source, sdd, keys, trust_key)
    finally:
        os.close(lock)


def is_bundle(path: Path) -> bool:
    """Whether a file is a zip file, and none of those that evaluations are logged in."""
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":
            return False
    try:
        with zipfile.ZipFile(path) as archive:
            return not {"header.json", "_journal/start.json"} & set(archive.namelist())
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError):
        return True  # a broken one, and it is said why


def _import(source: Path, sdd: SddDir, keys: KeyStore, trust_key: str | None) -> RunDir:
    with tempfile.TemporaryDirectory(prefix=_UNPACKED, dir=sdd.path) as name:
        project = SddDir(Path(name))
        run = _unpack(source, project)
        seal, proof = check_bundle(run, project, keys)
        if trust_key is not None and seal.key_id != trust_key:
            raise BundleError(f"sealed by key {seal.key_id}, not by {trust_key}")
        target = sdd.run(run.run_id)
        if target.path.exists():
            _refuse_second(target, run, sdd, keys)
        referred = {ref.name for ref in stored_refs(run)}
        for blob in project.blobs.glob("*/*"):
            kept = sdd.blobs / blob.parent.name / blob.name
            if blob.name not in referred:
                raise BundleError(f"no call of the run refers to the body {blob.name}")
            if not kept.exists():
                make_private(kept.parent)
                shutil.move(blob, kept)
        if not target.path.exists():
            run.path.rename(target.path)
        sync_folder(sdd.runs)
    public = bytes.fromhex(proof.public_key)
    if trust_key is not None:
        keys.trust(seal.key_id, public)
    else:
        keys.publish(seal.key_id, public)
    data = target.seal.read_bytes()
    Spine(sdd.spine).append("received", target.run_id, sha256_hex(data), keys.signing_key())
    return target


def _refuse_second(target: RunDir, run: RunDir, sdd: SddDir, keys: KeyStore) -> None:
    """Refuse a run that is here already, unless a crash kept it out of the spine."""
    is_same = target.seal.exists() and target.seal.read_bytes() == run.seal.read_bytes()
    if not is_same or read_spine(sdd.spine, keys).sealed(run.run_id) is not None:
        raise BundleError(f"there is a run {run.run_id} here already")


def _unpack(source: Path, project: SddDir) -> RunDir:
    """Write the members of a bundle below ``project``, each name and size checked first."""
    try:
        with zipfile.ZipFile(source) as bundle:
            infos = bundle.infolist()
            _check_members(infos)
            run = project.new_run(infos[0].filename.split("/", 1)[0])
            for info in infos:
                found = _MEMBER.fullmatch(info.filename)
                assert found is not None
                path = run.path / (found["file"] or "")
                if found["blob"]:
                    path = project.blobs / found["blob"][:2] / found["blob"]
                    make_private(path.parent)
                _write_member(bundle, info, path)
                if found["blob"] and sha256_hex(path.read_bytes()) != found["blob"]:
                    raise BundleError(f"{info.filename} holds other bytes than its name says")
    except (
        zipfile.BadZipFile,
        zlib.error,
        NotImplementedError,
        RuntimeError,
        EOFError,
        ValueError,
    ) as error:
        raise BundleError(f"{source} is not a bundle: {error}") from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # a member that says to begin before the file does
            raise
        raise BundleError(f"{source} is not a bundle: {error}") from error
    return run


def _check_members(infos: list[zipfile.ZipInfo]) -> None:
    names = [info.filename for info in infos]
    if not names or len(names) > MAX_MEMBERS or len(set(names)) != len(names):
        raise BundleError(f"a bundle has up to {MAX_MEMBERS} members, each once, not {len(names)}")
    total = sum(info.file_size for info in infos)
    packed = sum(info.compress_size for info in infos)
    if total > MAX_BYTES or total > MAX_RATIO * max(packed, 1024):
        raise BundleError(f"{total} bytes from {packed}: more than a bundle unpacks to")
    runs = set()
    for info in infos:
        found = _MEMBER.fullmatch(info.filename)
        kind = stat.S_IFMT(info.external_attr >> 16)
        if found is None or not is_run_id(found["run"]) or kind not in (0, stat.S_IFREG):
            raise BundleError(f"{info.filename[:100]!a} is not a member of a bundle")
        runs.add(found["run"])
    if len(runs) != 1:
        raise BundleError("a bundle holds one run")


def _write_member(bundle: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> None:
    left = info.file_size
    with bundle.open(info) as member, path.open("xb") as file:
        path.chmod(0o600)
        while part := member.read(min(2**20, left + 1)):
            left -= len(part)
            if left < 0:
                raise BundleError(f"{info.filename} is longer than the bundle says")
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


def check_bundle(run: RunDir, project: SddDir, keys: KeyStore) -> tuple[Seal, InclusionProof]:
    """Hold a bundle against its own seal and proof; whom to trust is not decided here.

    Raises:
        BundleError: It does not hold.
    """
    try:
        seal = parse_seal(run.seal.read_bytes())
        if seal is None:
            raise BundleError("the bundle's seal.json is not a seal")
        proof = read_proof(run)
        check_received(run, seal, proof)
    except (FileNotFoundError, ProofError) as error:
        raise BundleError(f"the bundle's proof does not hold: {error}") from error
    if not run.journal.exists():
        raise BundleError("the bundle has no journal")
    chain = check_chain(run.journal)
    if chain.reason is not None:
        raise BundleError(f"the journal does not hold at row {chain.step_index}: {chain.reason}")
    finding = check_contents(run, project, keys, seal, chain)
    if finding is not None:
        raise BundleError(f"the bundle does not hold ({finding.reason}): {finding.note}")
    return seal, proof
