"""A run as one file, with what proves it; bundles of one run are the same byte for byte."""

from __future__ import annotations

import stat
import zipfile
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from bernstein.canonical import canonical_bytes
from bernstein.errors import BundleError, ForgottenBodyError
from bernstein.files import replacing
from bernstein.seal.body_key import bodies_of
from bernstein.seal.bundle import FILES, check_bundle
from bernstein.seal.checkpoint import prove_entry
from bernstein.seal.digest_form import digest_forms
from bernstein.seal.evidence import Verdict, stored_refs, verify_run
from bernstein.seal.spine import read_spine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bernstein.rundir import RunDir, SddDir
    from bernstein.seal.signing import KeyStore

_MAX_RATIO = 50
_EPOCH = (1980, 1, 1, 0, 0, 0)


def export_run(
    run: RunDir, sdd: SddDir, keys: KeyStore, target: Path, *, with_bodies: bool
) -> Verdict:
    """Write a sealed run and its proof into one zip file.

    Args:
        run: A run whose evidence is verified.
        sdd: Its project.
        keys: To sign the checkpoint of the proof with.
        target: The file to write.
        with_bodies: Whether prompts and answers go along; without them everything else still
            verifies.
    Raises:
        BundleError: The evidence does not hold.
        OSError: The disk refuses.
    """
    verdict = verify_run(run, sdd, keys)
    if verdict.verdict not in {"verified", "flagged"}:
        raise BundleError(
            f"run {run.run_id} is not exported: {verdict.verdict} "
            f"({verdict.reason or verdict.note})\n  see: bernstein replay {run.run_id} --verify"
        )
    if run.proof.exists():
        check_bundle(run, sdd, keys)
    entries = read_spine(sdd.spine, keys).entries
    place = [e.index for e in entries if e.run_id == run.run_id and e.kind in {"run", "received"}]
    # Over the spine up to the entry, so that a bundle does not change as the spine grows.
    proof = prove_entry(entries[: place[-1] + 1], place[-1], keys.signing_key())
    members = dict(_members(run, sdd, keys, with_bodies=with_bodies))
    if not run.proof.exists():
        members["proof.json"] = canonical_bytes(msgspec.to_builtins(proof)) + b"\n"
    with replacing(target) as file, zipfile.ZipFile(file, "w", compresslevel=6) as bundle:
        for name in sorted(members):
            info = zipfile.ZipInfo(f"{run.run_id}/{name}", _EPOCH)
            data = members[name]
            # What packs too well would look like a bomb to whoever imports it.
            is_dense = len(data) < _MAX_RATIO * len(zlib.compress(data, 1))
            info.compress_type = zipfile.ZIP_DEFLATED if is_dense else zipfile.ZIP_STORED
            info.external_attr = (stat.S_IFREG | 0o600) << 16
            info.create_system = 3
            bundle.writestr(info, members[name])
    return verdict


def _members(
    run: RunDir, sdd: SddDir, keys: KeyStore, *, with_bodies: bool
) -> Iterator[tuple[str, bytes]]:
    forms = digest_forms(run, bodies_of(run, sdd, keys)) if not with_bodies else {}
    for name in FILES:
        path = run.path / name
        if name in {"misses.jsonl", "body_key.json"} and not with_bodies:
            continue  # a miss shows parts of prompts
        if (stem := name.removesuffix(".jsonl")) in forms:
            yield name, b"".join(forms[stem])
        elif path.is_file() and not path.is_symlink():
            yield name, path.read_bytes()
    if with_bodies:
        blobs = bodies_of(run, sdd, keys)
        for name in sorted({ref.name for ref in stored_refs(run)}):
            with suppress(ForgottenBodyError):
                yield f"blobs/{name}", blobs.read_file(name)
