"""What a journal proves of the calls recorded beside it.

Its rows carry the lane and prompt digest of each call in the order in which they began, and the
key, digest and usage of each answer in the order in which they were known. What no row covers is
when a call was made, how its answer was cut into pieces, and its reasoning.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from bernstein.canonical import JsonObject, decode_strict, digest_of_bytes, utf8
from bernstein.chain.read import load_replay_events, payload_of
from bernstein.errors import CanonicalError, ForgottenBodyError, RecordingError
from bernstein.events import trajectory as event
from bernstein.events.provider_state import Mutation, mutation_of
from bernstein.recording.answer import LlmAnswer, Outcome
from bernstein.recording.blobs import BlobStore
from bernstein.recording.coverage import Answered
from bernstein.recording.queue import Recording
from bernstein.recording.rows import CallRow, PromptReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bernstein.events.entry import JournalEntry

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

_ASKED = {event.MODEL_CALL: "prompt", event.HTTP_REQUEST: "request"}


@dataclass(slots=True)
class ChainedRequest:
    """What a journal says of one request: its row, lane and digest, and what it showed."""

    index: int
    lane: str
    digest: str
    mutations: list[Mutation] = field(default_factory=list)


@dataclass(slots=True)
class ChainedAnswer:
    """What a journal says of one answer.

    Attributes:
        index: Its row.
        outcome: ok or error.
        answer: Its lane, key and digest.
        begun: How many calls had begun before it.
        size_bytes: Of what the digest is of.
        usage: The members of the ``model.usage`` row behind it, or None.
        mutations: The changes of the context that it reported.
    """

    index: int
    outcome: str
    answer: Answered
    begun: int
    size_bytes: int = 0
    usage: JsonObject | None = None
    mutations: list[Mutation] = field(default_factory=list)

    @property
    def lane(self) -> str:
        """The lane of its row."""
        return self.answer.lane


@dataclass(slots=True)
class ChainedCalls:
    """What a journal says of calls, by beginning, and of their answers."""

    begun: list[ChainedRequest] = field(default_factory=list)
    answers: list[ChainedAnswer] = field(default_factory=list)


@dataclass(slots=True)
class ChainedRun:
    """What a journal says of all that a run asked.

    Attributes:
        calls: Of ``call_llm``.
        exchanges: Over HTTP, through a gateway.
        fixtures: The answers of the world beside the model.
        tools: The results of tools of the built-in agent: row, lane, digest.
        stray: Rows of mutations among exchanges that stand behind none of them.
        is_finished: Whether it has the run's last row.
    """

    calls: ChainedCalls = field(default_factory=ChainedCalls)
    exchanges: ChainedCalls = field(default_factory=ChainedCalls)
    fixtures: list[ChainedAnswer] = field(default_factory=list)
    tools: list[tuple[int, str, str]] = field(default_factory=list)
    stray: list[int] = field(default_factory=list)
    is_finished: bool = False


class _Reader:
    """Takes a journal's rows in their order."""

    def __init__(self) -> None:
        self.found = ChainedRun()
        self._is_client = self._is_plan = False
        self._agents: set[str] = set()  # lanes of agents: what they ask is below
        # Where the mutations go that the next rows say.
        self._last: ChainedRequest | ChainedAnswer | None = None

    def _calls(self, lane: str) -> ChainedCalls:
        is_below_agent = lane.rpartition("/")[0] in self._agents
        return self.found.exchanges if self._is_client or is_below_agent else self.found.calls

    def add(self, entry: JournalEntry) -> None:
        """Take one row.

        Raises:
            CanonicalError, KeyError, TypeError: Its payload says nothing of what its event is.
        """
        found, last, self._last = self.found, self._last, None
        match entry.event:
            case event.MODEL_CALL | event.HTTP_REQUEST:
                digest = payload_of(entry)[_ASKED[entry.event]]["digest"]
                self._last = ChainedRequest(entry.index, entry.lane, digest)
                self._calls(entry.lane).begun.append(self._last)
            case event.MODEL_ANSWER | event.HTTP_RESPONSE | event.FIXTURE_ANSWERED:
                calls = self._calls(entry.lane)
                self._last = _answer_of(entry, len(calls.begun))
                is_fixture = entry.event == event.FIXTURE_ANSWERED
                (found.fixtures if is_fixture else calls.answers).append(self._last)
            case event.MODEL_USAGE:
                if isinstance(last, ChainedAnswer) and last.index == entry.index - 1:
                    payload = payload_of(entry)
                    last.usage = {k: v for k, v in payload.items() if k in _USAGE_MEMBERS}
                    self._last = last
            case event.PROVIDER_STATE_MUTATION:
                # They stand right behind the row of what showed them, written with it.
                if last is not None and last.lane == entry.lane:
                    last.mutations.append(mutation_of(payload_of(entry)))
                    self._last = last
                elif self._is_client or entry.lane.rpartition("/")[0] in self._agents:
                    self.found.stray.append(entry.index)
            case event.TOOL_RESULT if self._is_plan and entry.lane not in self._agents:
                digest = payload_of(entry)["result"]["digest"]
                found.tools.append((entry.index, entry.lane, digest))
            case event.AGENT_STARTED:
                self._agents.add(entry.lane)
            case event.RUN_STARTED:
                agent_id = str(payload_of(entry).get("agentId"))
                self._is_client = agent_id.startswith("client/")
                self._is_plan = agent_id == "bernstein"
            case event.RUN_FINISHED:
                found.is_finished = True


def _answer_of(entry: JournalEntry, begun: int) -> ChainedAnswer:
    payload = payload_of(entry)
    answer = Answered(entry.lane, payload["key"], payload["answer"]["digest"])
    return ChainedAnswer(
        entry.index, payload["outcome"], answer, begun, payload["answer"]["byteLength"]
    )


def read_chained_run(journal: Path) -> ChainedRun:
    """What a journal says of all that its run asked, up to its first bad line.

    Raises:
        RecordingError: A row of a call has a payload that says nothing of one.
    """
    reader = _Reader()
    for entry in load_replay_events(journal):
        try:
            reader.add(entry)
        except (CanonicalError, KeyError, TypeError) as error:
            raise RecordingError(
                f"row {entry.index} ({entry.event}) says nothing of a call: {error}"
            ) from error
    return reader.found


def unanswered_calls(journal: Path, recording: Recording) -> Counter[tuple[str, str]]:
    """Lane and prompt digest of the calls that began and have no recorded outcome."""
    known = {row.seq for row in recording.rows}
    begun = read_chained_run(journal).calls.begun
    return Counter((call.lane, call.digest) for seq, call in enumerate(begun) if seq not in known)


def recorded_answers(recording: Recording, blobs: BlobStore) -> Iterator[Answered]:
    """Each answer of a recording, by lane, key and digest.

    Raises:
        RecordingError: One cannot be read.
    """
    for row in recording.rows:
        yield Answered(row.lane, row.key, row.read_outcome(blobs).digest().digest)


@dataclass(frozen=True, slots=True)
class Difference:
    """The row of the journal, what the recording has there, and what the journal has."""

    index: int | None
    expected: str | None
    actual: str | None


def first_difference(
    recording: Recording, chained: ChainedCalls, blobs: BlobStore, *, is_finished: bool
) -> Difference | None:
    """The first recorded call that is not the chain's, or None."""
    if recording.stale_rows:
        return Difference(None, None, None)
    prompts = PromptReader(blobs)
    for number, row in enumerate(recording.rows):
        prompt = _unless_forgotten(lambda: prompts.read(row))  # noqa: B023 - called at once
        if number == len(chained.answers):
            # A run that was cut between the two writes has one answer more than its chain.
            is_last = number == len(recording.rows) - 1 and not is_finished
            if is_last and _began_there(row, prompt, chained) and _has_key(row, prompt):
                return None
            return Difference(None, row.key, None)
        said = chained.answers[number]
        outcome = _unless_forgotten(lambda: row.read_outcome(blobs))  # noqa: B023
        actual = None if outcome is None else outcome.digest().digest
        is_same = (
            (row.done, row.begun) == (number, said.begun)
            and (row.lane, row.key) == (said.answer.lane, said.answer.key)
            and _began_there(row, prompt, chained)
            and _has_key(row, prompt)
            and (outcome is None or _is_said(outcome, said))
        )
        if not is_same:
            return Difference(said.index, actual, said.answer.digest)
    missing = chained.answers[len(recording.rows) :]
    return Difference(missing[0].index, None, missing[0].answer.digest) if missing else None


T = TypeVar("T")


def _unless_forgotten(read: Callable[[], T]) -> T | None:
    """What ``read`` gives; None where the body was destroyed or not taken along."""
    try:
        return read()
    except ForgottenBodyError:
        return None


def _has_key(row: CallRow, prompt: str | None) -> bool:
    return prompt is None or row.key_of(prompt) == row.key


def _is_said(outcome: Outcome, said: ChainedAnswer) -> bool:
    """Whether the chain has this outcome: its kind, digest and usage."""
    is_ok = isinstance(outcome, LlmAnswer)
    usage = outcome.usage if isinstance(outcome, LlmAnswer) else None
    return (
        outcome.digest().digest == said.answer.digest
        and said.outcome == ("ok" if is_ok else "error")
        and said.usage == (None if usage is None else usage.to_json())
    )


def _began_there(row: CallRow, prompt: str | None, chained: ChainedCalls) -> bool:
    """Whether the chain has this call where the row says that it began."""
    said = chained.begun[row.seq] if 0 <= row.seq < row.begun <= len(chained.begun) else None
    if prompt is None:
        digest = decode_strict(bytes(row.prompt))["digest"]
    else:
        digest = digest_of_bytes(utf8(prompt)).digest
    return said is not None and (said.lane, said.digest) == (row.lane, digest)
