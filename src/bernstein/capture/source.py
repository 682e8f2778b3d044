"""The run that a replay plays from, its evidence checked before the first answer is served."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bernstein.errors import RecordingError, ReplayMissError
from bernstein.seal.evidence import unreadable_bodies, verify_run
from bernstein.seal.proven import read_chained_run

if TYPE_CHECKING:
    from bernstein.rundir import RunDir, SddDir
    from bernstein.seal.signing import KeyStore
    from bernstein.settings import Settings


def find_source(
    sdd: SddDir, settings: Settings, keys: KeyStore, rerun: str
) -> tuple[RunDir | None, bool]:
    """The run to play from, its evidence checked; and whether a key that is trusted sealed it."""
    if settings.replay_run_id is None:
        return None, False
    source = sdd.find_recording(settings.replay_run_id)
    if not source.journal.exists():
        raise RecordingError(
            f"run {source.run_id} has no journal: nothing proves its recording, so it is not "
            "replayed\n  list the runs with: bernstein runs"
        )
    recorded = [path for path in (source.llm_calls, source.exchanges) if path.exists()]
    if not recorded:
        raise _no_recording(source, rerun)
    project = sdd.project_of(source)
    verdict = verify_run(source, project, keys)
    is_empty = all(path.stat().st_size == 0 for path in recorded)
    chained = read_chained_run(source.journal) if is_empty and verdict.rows else None
    if chained is not None and (chained.calls.answers or chained.exchanges.answers):
        raise _no_recording(source, rerun)
    if verdict.verdict == "mismatch":
        where = "" if verdict.step_index is None else f" at row {verdict.step_index}"
        why = f": {verdict.note}" if verdict.note else ""
        raise RecordingError(
            f"run {source.run_id} does not hold{where} ({verdict.reason}){why}: it is not "
            f"replayed\n  see: bernstein replay {source.run_id} --verify"
        )
    is_verified = verdict.verdict in {"verified", "flagged"}
    # A verified run says by itself which of its bodies are not here.
    is_said = verdict.verdict == "verified"
    unreadable = verdict.note if is_said else unreadable_bodies(source, project, keys)
    if unreadable:
        raise RecordingError(
            f"run {source.run_id} cannot be replayed: {unreadable}\n  record one: {rerun}"
        )
    return source, is_verified


def _no_recording(source: RunDir, rerun: str) -> ReplayMissError:
    return ReplayMissError(
        f"replay miss: run {source.run_id} has no recorded calls\n  record one: {rerun}",
        key="",
        model="",
        reason="no_recording",
    )


def rerun_command(settings: Settings) -> str:
    """How this process is run again as a recording: what a miss advises."""
    program, *arguments = sys.argv or [""]
    name = Path(program).name
    if name in {"bernstein", "__main__.py"}:
        command = ["bernstein", *arguments]
    else:
        command = ["python", program, *arguments]
    seed = 42 if settings.seed is None else settings.seed
    return (
        f"env -u BERNSTEIN_REPLAY_RUN_ID BERNSTEIN_DETERMINISTIC_SEED={seed} {shlex.join(command)}"
    )
