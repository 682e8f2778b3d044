"""Destroys the bodies of a run on purpose: prompts, answers and results; their digests stay.

What is left verifies as before and says that its bodies are forgotten. A body that another run
holds stays, and is named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.errors import SealError
from bernstein.recording.blobs import BlobStore
from bernstein.rundir import write_file
from bernstein.seal.digest_form import digest_forms
from bernstein.seal.evidence import verify_run
from bernstein.seal.retention import large_bodies
from bernstein.seal.spine import Spine, read_spine

if TYPE_CHECKING:
    from bernstein.rundir import RunDir, SddDir
    from bernstein.seal.signing import KeyStore


def forget_bodies(run: RunDir, sdd: SddDir, keys: KeyStore) -> dict[str, str]:
    """Replace each body of a sealed run's recording by its digest, and remove large ones.

    Returns:
        Digests of bodies that stay, with the id of a run that holds them.
    Raises:
        SealError: The run runs, or its evidence does not hold: what would be left proves nothing.
        OSError: The disk refuses.
    """
    if run.is_running():
        raise SealError(f"run {run.run_id} is still running; end it first")
    verdict = verify_run(run, sdd, keys)
    if verdict.verdict != "verified":
        raise SealError(
            f"run {run.run_id} is {verdict.verdict} ({verdict.reason or verdict.note}): without "
            "its bodies nothing would prove it\n"
            f"  seal it first: bernstein lineage seal {run.run_id}"
        )
    forms = digest_forms(run, BlobStore(sdd.blobs))
    data = {name: b"".join(forms[name]) for name in ("llm_calls", "fixtures") if name in forms}
    gone = large_bodies(run)
    held: dict[str, str] = {}
    for other in sdd.list_runs():
        if other.run_id != run.run_id:
            held |= dict.fromkeys(gone & large_bodies(other), other.run_id)
    # The spine first: a crash in between leaves bodies that are said to be forgotten, and a second
    # call finishes; the other way round nothing would say why they are gone.
    sealed = read_spine(sdd.spine, keys).sealed(run.run_id)
    Spine(sdd.spine).append("forgotten", run.run_id, sealed, keys.signing_key())
    for name, lines in data.items():
        write_file(run.path / f"{name}.jsonl", lines)
    for digest in gone - held.keys():
        (sdd.blobs / digest[:2] / digest).unlink(missing_ok=True)
    return held
