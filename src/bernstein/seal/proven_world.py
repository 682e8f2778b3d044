"""What a journal proves of the answers of the world beside the model, recorded as fixtures."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from bernstein.canonical import JsonObject, as_ref, decode_canonical, digest_of
from bernstein.errors import CanonicalError, RecordingError
from bernstein.jsonl import read_lines
from bernstein.recording.coverage import Answered
from bernstein.recording.fixtures import STEP_TOOL
from bernstein.seal.proven import ChainedRun, Difference

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The result of a plan's command is chained where it is acted on, as ``signal.checked``, and that of
# a tool as ``tool.result``.
_CHAINED_OTHERWISE = ("command", STEP_TOOL)


def recorded_fixtures(path: Path) -> Iterator[tuple[str, Answered]]:
    """Outcome, and lane, key and digest, of each fixture that is chained as one.

    Raises:
        RecordingError: A row is damaged.
    """
    for row in _rows(path):
        if row["kind"] not in _CHAINED_OTHERWISE:
            ref = as_ref(row["response"]) or digest_of(row["response"])
            yield row["outcome"], Answered(row["lane"], row["key"], ref.digest)


def _rows(path: Path) -> Iterator[JsonObject]:
    for line in read_lines(path) if path.exists() else ():
        if not line.is_whole:
            return
        try:
            row: JsonObject = decode_canonical(line.data)
        except CanonicalError as error:
            raise RecordingError(f"{path.name} holds what is no fixture: {error}") from error
        names = ("kind", "key", "lane", "outcome")
        if type(row) is not dict or not all(type(row.get(name)) is str for name in names):
            raise RecordingError(f"{path.name} holds what is no fixture")
        if "response" not in row:
            raise RecordingError(f"{path.name} holds a fixture without a response")
        yield row


def first_wrong_tool(path: Path, chained: ChainedRun) -> Difference | None:
    """The first recorded result of a tool that is not the chain's in its lane, or None."""
    recorded: dict[str, deque[str]] = {}
    for row in _rows(path):
        if row["kind"] == STEP_TOOL:
            ref = as_ref(row["response"]) or digest_of(row["response"])
            recorded.setdefault(row["lane"], deque()).append(ref.digest)
    for index, lane, digest in chained.tools:
        found = recorded[lane].popleft() if recorded.get(lane) else None
        if found != digest:
            return Difference(index, found, digest)
    # Of each task of a run that was cut one result can be recorded and not yet chained.
    is_left = any(len(left) > (not chained.is_finished) for left in recorded.values())
    return Difference(None, None, None) if is_left else None


def first_wrong_fixture(path: Path, chained: ChainedRun) -> Difference | None:
    """The first fixture that is not the chain's, or None."""
    recorded = list(recorded_fixtures(path))
    for number, (outcome, answer) in enumerate(recorded):
        if number == len(chained.fixtures):
            # A run that was cut between the two writes has one fixture more than its chain.
            is_last = number == len(recorded) - 1 and not chained.is_finished
            return None if is_last else Difference(None, answer.key, None)
        said = chained.fixtures[number]
        if (outcome, answer) != (said.outcome, said.answer):
            return Difference(said.index, answer.digest, said.answer.digest)
    missing = chained.fixtures[len(recorded) :]
    return Difference(missing[0].index, None, missing[0].answer.digest) if missing else None
