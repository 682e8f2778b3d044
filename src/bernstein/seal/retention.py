"""Which finished runs stay on disk, and what goes with one that does not.

Rule: a run that runs, the source of a replay that runs, a pinned run, a symlink and whatever is not
a run's folder are never touched. A pruned run reads as pruned in the spine, not as broken.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING

from bernstein.canonical import DigestRef, as_ref, decode_canonical
from bernstein.errors import CanonicalError, RecordingError
from bernstein.jsonl import locked, open_append, read_lines
from bernstein.recording.blobs import BlobStore
from bernstein.recording.session_events import remove_events
from bernstein.rundir import RunDir
from bernstein.seal.evidence import stored_refs
from bernstein.seal.seals import keep_audit_seal
from bernstein.seal.spine import Spine, read_spine

if TYPE_CHECKING:
    from bernstein.rundir import SddDir
    from bernstein.seal.signing import KeyStore

_REMOVED = ".pruned-"


def choose_pruned(sdd: SddDir, keep: int, ending: str | None = None) -> list[RunDir]:
    """The runs that go so that ``keep`` finished ones stay: replays first, then the oldest.

    Neither one that runs nor one that waits for an approval has finished.

    Args:
        sdd: The project.
        keep: How many stay, beside those that are pinned.
        ending: A run that ends now; it counts, and stays.
    """
    runs = sdd.list_runs()
    running = [run for run in runs if run.is_running() or run.is_parked()]
    names = {run.run_id for run in running}
    protected = names | {_source_of(run) for run in running} | {ending}
    finished = [run for run in runs if run.run_id not in names and not run.keep.exists()]
    may_go = [run for run in finished if run.run_id not in protected]
    # A list is oldest first, and sorting keeps that order within replays and recordings.
    may_go.sort(key=lambda run: _source_of(run) is None)
    return may_go[: max(len(finished) - keep, 0)]


def prune_to(sdd: SddDir, keep: int, keys: KeyStore, ending: str | None = None) -> list[RunDir]:
    """Remove what ``choose_pruned`` names; one process at a time. What went is returned."""
    fd = open_append(sdd.prune_lock)
    try:
        with locked(fd):
            for removed in sdd.runs.glob(f"{_REMOVED}*"):
                _destroy(sdd, RunDir(removed))  # a kill kept the last prune from ending
            BlobStore(sdd.blobs).sweep()
            runs = choose_pruned(sdd, keep, ending)
            prune(sdd, runs, keys)
    finally:
        os.close(fd)
    return runs


def prune(sdd: SddDir, runs: list[RunDir], keys: KeyStore) -> None:
    """Remove runs, and the bodies that no other run holds.

    Raises:
        KeyUnavailableError: There is no key to sign the spine's entry with.
        OSError: The disk refuses.
    """
    if not runs:
        return
    sealed = read_spine(sdd.spine, keys)
    key = keys.signing_key()
    for run in runs:
        entry = sealed.entry_of(run.run_id)
        if entry is not None:
            keep_audit_seal(run, sdd, sealed)
            Spine(sdd.spine).append("pruned", run.run_id, entry.seal_sha256, key)
        # Away first, in one step: a run that is half removed would read as tampered with.
        removed = sdd.runs / f"{_REMOVED}{run.run_id}"
        run.path.rename(removed)
        _destroy(sdd, RunDir(removed))
        remove_events(sdd.provider_state, run.run_id)


def _destroy(sdd: SddDir, removed: RunDir) -> None:
    """Remove a run that is out of the way: first its bodies, which only its rows can name."""
    gone = body_names(removed) or set()
    for run in sdd.list_runs() if gone else ():
        held = body_names(run)
        # A recording that cannot be read may hold any of them.
        gone = set() if held is None else gone - held
    blobs = BlobStore(sdd.blobs)
    for name in gone:
        blobs.remove(name)
    shutil.rmtree(removed.path)


def _source_of(run: RunDir) -> str | None:
    with contextlib.suppress(RecordingError):
        source = run.read_info().get("source_run")
        return source if isinstance(source, str) else None
    return None


def body_names(run: RunDir) -> set[str] | None:
    """The names of the blobs that a run's rows refer to; None where they cannot be read."""
    try:
        return {ref.name for ref in stored_refs(run) | _miss_refs(run)}
    except (RecordingError, OSError, CanonicalError, KeyError, TypeError):
        return None


def _miss_refs(run: RunDir) -> set[DigestRef]:
    if not run.misses.exists():
        return set()
    lines = (line.data for line in read_lines(run.misses) if line.is_whole)
    refs = (as_ref(decode_canonical(line)["nearest"]) for line in lines)
    return {ref for ref in refs if ref is not None}
