"""Checks that a run's recording is the one that its journal was made with.

An intact journal proves its recording: its rows carry the lane and prompt digest of each call in
the order in which they began, and the key, digest and usage of each answer in the order in which
they were known. What no row covers is when a call was made, how its answer was cut into pieces,
and its reasoning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bernstein.canonical import JsonObject, decode_canonical, digest_of_bytes, utf8
from bernstein.chain.read import load_replay_events, payload_of
from bernstein.chain.verify import Verdict, verify_journal
from bernstein.errors import CanonicalError, RecordingError
from bernstein.events.trajectory import MODEL_ANSWER, MODEL_CALL, MODEL_USAGE, RUN_FINISHED
from bernstein.jsonl import read_lines
from bernstein.recording.answer import LlmAnswer
from bernstein.recording.blobs import BlobStore
from bernstein.recording.coverage import Answered
from bernstein.recording.queue import Recording, load_recording
from bernstein.recording.rows import CallRow, read_prompts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bernstein.rundir import RunDir

_USAGE_MEMBERS = frozenset(
    {
        "inputTokens",
        "outputTokens",
        "cachedInputTokens",
        "credits",
        "billingStatus",
        "priceBookVersion",
    }
)


@dataclass(slots=True)
class ChainedAnswer:
    """What a journal says of one answer.

    Attributes:
        index: Its row.
        outcome: ok or error.
        answer: Its lane, key and digest.
        begun: How many calls had begun before it.
        usage: The members of the ``model.usage`` row behind it, or None.
    """

    index: int
    outcome: str
    answer: Answered
    begun: int
    usage: JsonObject | None = None


@dataclass(slots=True)
class ChainedCalls:
    """What a journal says of a run's calls: lane and prompt digest by beginning, and answers."""

    begun: list[tuple[str, str]] = field(default_factory=list)
    answers: list[ChainedAnswer] = field(default_factory=list)
    is_finished: bool = False


def read_chained_calls(journal: Path) -> ChainedCalls:
    """The calls that a journal holds, up to its first bad line."""
    found = ChainedCalls()
    for entry in load_replay_events(journal):
        if entry.event == MODEL_CALL:
            found.begun.append((entry.lane, payload_of(entry)["prompt"]["digest"]))
        elif entry.event == MODEL_ANSWER:
            payload = payload_of(entry)
            answer = Answered(entry.lane, payload["key"], payload["answer"]["digest"])
            found.answers.append(
                ChainedAnswer(entry.index, payload["outcome"], answer, len(found.begun))
            )
        elif entry.event == MODEL_USAGE and found.answers[-1].index == entry.index - 1:
            payload = payload_of(entry)
            found.answers[-1].usage = {k: v for k, v in payload.items() if k in _USAGE_MEMBERS}
        elif entry.event == RUN_FINISHED:
            found.is_finished = True
    return found


def recorded_answers(recording: Recording, blobs: BlobStore) -> Iterator[Answered]:
    """Each answer of a recording, by lane, key and digest.

    Raises:
        RecordingError: One cannot be read.
    """
    for row in recording.rows:
        yield Answered(row.lane, row.key, row.read_outcome(blobs).digest().digest)


def verify_run(run: RunDir, blobs: Path) -> Verdict:
    """Check a run's chain, and its recorded calls against the chain.

    Raises:
        OSError: The journal cannot be read.
    """
    verdict = verify_journal(run.journal)
    if verdict.verdict == "mismatch" or not run.read_info().get("records", False):
        return verdict
    try:
        for line in read_lines(run.llm_calls):
            if line.is_whole:
                decode_canonical(line.data)
        recording = load_recording(run.llm_calls)
        problem = _first_difference(recording, read_chained_calls(run.journal), BlobStore(blobs))
    except (RecordingError, CanonicalError, FileNotFoundError, KeyError, TypeError):
        problem = _Difference(None, None, None)
    if problem is None:
        return verdict
    return Verdict("mismatch", verdict.rows, verdict.head, "recording", *problem.as_tuple())


@dataclass(frozen=True, slots=True)
class _Difference:
    """The row of the journal, what the recording has there, and what the journal has."""

    index: int | None
    expected: str | None
    actual: str | None

    def as_tuple(self) -> tuple[int | None, str | None, str | None]:
        return self.index, self.expected, self.actual


def _first_difference(
    recording: Recording, chained: ChainedCalls, blobs: BlobStore
) -> _Difference | None:
    """The first recorded call that is not the chain's, or None."""
    if recording.stale_rows:
        return _Difference(None, None, None)
    for number, (row, prompt) in enumerate(read_prompts(recording.rows, blobs)):
        if number == len(chained.answers):
            # A run that was cut between the two writes has one answer more than its chain.
            return None if not chained.is_finished else _Difference(None, row.key, None)
        said = chained.answers[number]
        outcome = row.read_outcome(blobs)
        answer = Answered(row.lane, row.key, outcome.digest().digest)
        usage = outcome.usage if isinstance(outcome, LlmAnswer) else None
        is_same = (
            (row.done, row.begun) == (number, said.begun)
            and _began_there(row, prompt, chained)
            and row.key_of(prompt) == row.key
            and answer == said.answer
            and said.outcome == ("ok" if isinstance(outcome, LlmAnswer) else "error")
            and said.usage == (None if usage is None else usage.to_json())
        )
        if not is_same:
            return _Difference(said.index, answer.digest, said.answer.digest)
    missing = chained.answers[len(recording.rows) :]
    return _Difference(missing[0].index, None, missing[0].answer.digest) if missing else None


def _began_there(row: CallRow, prompt: str, chained: ChainedCalls) -> bool:
    """Whether the chain has this call where the row says that it began."""
    said = chained.begun[row.seq] if 0 <= row.seq < row.begun <= len(chained.begun) else None
    return said == (row.lane, digest_of_bytes(utf8(prompt)).digest)
