"""A recording as a folder of its own, to keep beside tests: reviewable text, without keys."""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from bernstein.errors import ForgottenBodyError, RecordingError, UsageError
from bernstein.files import make_private, write_file
from bernstein.recording.blobs import BlobStore
from bernstein.seal.evidence import stored_refs, verify_run

if TYPE_CHECKING:
    from pathlib import Path

    from bernstein.rundir import RunDir, SddDir
    from bernstein.seal.signing import KeyStore

_OWN = frozenset(
    {
        "blobs",
        "exchanges.jsonl",
        "fixtures.jsonl",
        "journal.jsonl",
        "llm_calls.jsonl",
        "run.json",
        "wal.jsonl",
    }
)


def save_recording(run: RunDir, sdd: SddDir, keys: KeyStore, target: Path) -> None:
    """Write what a replay of ``run`` needs into ``target``, whose earlier recording it replaces.

    Raises:
        UsageError: The folder holds something else.
        RecordingError: The run's evidence does not hold, or its bodies are encrypted.
        OSError: The disk refuses.
    """
    others = {path.name for path in target.iterdir()} - _OWN if target.exists() else set()
    if others:
        raise UsageError(
            f"{target} holds what is not a recording ({min(others)})\n  name another folder"
        )
    if not run.has_begun():
        raise UsageError(f"run {run.run_id} has no row: there is nothing to save")
    verdict = verify_run(run, sdd, keys)
    if verdict.verdict == "mismatch":
        raise RecordingError(
            f"run {run.run_id} does not hold ({verdict.reason}): it is not saved\n"
            f"  see: bernstein replay {run.run_id} --verify"
        )
    if run.body_key.exists():
        raise RecordingError(
            f"the bodies of run {run.run_id} are encrypted: a saved recording is text\n"
            "  record it with BERNSTEIN_ENCRYPT unset"
        )
    made = target.with_name(f".{target.name}.new")
    shutil.rmtree(made, ignore_errors=True)
    make_private(made)
    recordings = (run.llm_calls, run.exchanges)
    for path in (run.run_json, run.journal, *recordings, run.fixtures, run.wal):
        # An empty recording says that nothing was asked; any other empty file says nothing.
        if path.exists() and (path in recordings or path.stat().st_size):
            write_file(made / path.name, path.read_bytes())
    blobs, kept = BlobStore(sdd.blobs), BlobStore(made / "blobs" / "sha256")
    for ref in stored_refs(run):
        with suppress(ForgottenBodyError):
            kept.put(blobs.get(ref))
    if target.exists():
        shutil.rmtree(target)
    made.rename(target)
