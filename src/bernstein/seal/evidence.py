"""Checks that a run's recording is the one that its journal was made with.

An intact journal proves its recording: the ``model.answer`` rows carry the key, the kind of outcome
and the digest of each answer, in the order in which they were known.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from bernstein.chain.read import load_replay_events, payload_of
from bernstein.chain.verify import Verdict, verify_journal
from bernstein.errors import CanonicalError, RecordingError
from bernstein.events.trajectory import MODEL_ANSWER, RUN_FINISHED
from bernstein.recording.answer import LlmAnswer
from bernstein.recording.blobs import BlobStore
from bernstein.recording.coverage import Answered
from bernstein.recording.queue import Recording, load_recording
from bernstein.recording.rows import read_prompts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bernstein.rundir import RunDir


def verify_run(run: RunDir, blobs: Path) -> Verdict:
    """Check a run's chain, and its recorded calls against the chain.

    Raises:
        OSError: The journal cannot be read.
    """
    verdict = verify_journal(run.journal)
    if verdict.verdict == "mismatch" or not run.read_info().get("records", False):
        return verdict
    try:
        recording = load_recording(run.llm_calls)
        problem = _first_difference(run, recording, BlobStore(blobs))
    except (RecordingError, CanonicalError):
        problem = (None, None, None)
    if problem is None:
        return verdict
    index, expected, actual = problem
    return Verdict("mismatch", verdict.rows, verdict.head, "recording", index, expected, actual)


def recorded_answers(recording: Recording, blobs: BlobStore) -> Iterator[tuple[str, Answered]]:
    """Each recorded answer in the order of ``done``: its outcome's kind, and its digest."""
    for row in sorted(recording.rows, key=lambda row: row.done):
        outcome = row.read_outcome(blobs)
        kind = "ok" if isinstance(outcome, LlmAnswer) else "error"
        yield kind, Answered(row.lane, row.key, outcome.digest().digest)


def chained_answers(journal: Path) -> Iterator[tuple[int, str, Answered]]:
    """Each ``model.answer`` row of a journal: index, outcome and digest."""
    for entry in load_replay_events(journal):
        if entry.event == MODEL_ANSWER:
            payload = payload_of(entry)
            yield (
                entry.index,
                payload["outcome"],
                Answered(entry.lane, payload["key"], payload["answer"]["digest"]),
            )


def _first_difference(
    run: RunDir, recording: Recording, blobs: BlobStore
) -> tuple[int | None, str | None, str | None] | None:
    """Index, recorded and chained digest of the first answer that is not the chain's, or None."""
    for row, prompt in read_prompts(recording.rows, blobs):
        if row.key_of(prompt) != row.key:
            return None, row.key, row.key_of(prompt)
    pairs = zip_longest(recorded_answers(recording, blobs), chained_answers(run.journal))
    for recorded, chained in pairs:
        if recorded is None:
            index, _, answer = chained
            return index, None, answer.digest
        if chained is None:
            # A run that was cut between the two writes has one answer more than its chain.
            return None if not _is_finished(run.journal) else (None, recorded[1].digest, None)
        index, kind, answer = chained
        if recorded != (kind, answer):
            return index, recorded[1].digest, answer.digest
    return None


def _is_finished(journal: Path) -> bool:
    return any(entry.event == RUN_FINISHED for entry in load_replay_events(journal))
