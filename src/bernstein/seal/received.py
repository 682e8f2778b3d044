"""What a run from elsewhere carries: its place in the spine of the project that it was made in.

``proof.json`` is one canonical line: the entry, its path to a signed checkpoint's root, the key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.canonical import convert, decode_canonical, sha256_hex
from bernstein.errors import CanonicalError, ProofError, RecordingError
from bernstein.files import read_file
from bernstein.seal.checkpoint import InclusionProof, check_proof
from bernstein.seal.spine import SpineEntry

if TYPE_CHECKING:
    from bernstein.rundir import RunDir
    from bernstein.seal.seals import Seal


def read_proof(run: RunDir) -> InclusionProof:
    """The proof that a run carries.

    Raises:
        ProofError: There is none, or it is not one.
    """
    try:
        data = read_file(run.proof)
        return convert(decode_canonical(data.removesuffix(b"\n")), InclusionProof)
    except (FileNotFoundError, CanonicalError, RecordingError) as error:
        raise ProofError(f"there is no proof.json with the run: {error}") from error


def check_received(run: RunDir, seal: Seal, proof: InclusionProof) -> None:
    """Hold a run's seal against the proof; whom to trust is not decided here.

    Raises:
        ProofError: The proof does not hold, or is that of something else.
    """
    try:
        entry = convert(proof.entry, SpineEntry)
    except CanonicalError as error:
        raise ProofError(f"the proof holds no entry: {error}") from error
    check_proof(proof, entry)
    public = bytes.fromhex(proof.public_key)
    if entry.kind not in {"run", "received"}:
        raise ProofError("the proof is that of something else than a run")
    if entry.seal_sha256 != sha256_hex(run.seal.read_bytes()) or entry.run_id != run.run_id:
        raise ProofError("the proof is that of another seal")
    if not (seal.is_signed_by(public) and entry.is_signed_by(public)):
        raise ProofError("the run is not signed by the key that its proof names")
