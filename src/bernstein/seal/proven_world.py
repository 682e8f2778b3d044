"""What a journal proves of the answers of the world beside the model, recorded as fixtures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.canonical import JsonObject, as_ref, decode_canonical, digest_of
from bernstein.errors import CanonicalError, RecordingError
from bernstein.jsonl import read_lines
from bernstein.recording.coverage import Answered
from bernstein.seal.proven import ChainedRun, Difference

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The result of a plan's command is chained where it is acted on, as ``signal.checked``, and that of
# a tool as ``tool.result``.
_CHAINED_OTHERWISE = ("command", "step_tool")


def recorded_fixtures(path: Path) -> Iterator[tuple[str, Answered]]:
    """Outcome, and lane, key and digest, of each fixture that is chained as one.

    Raises:
        RecordingError: A row is damaged.
    """
    for line in read_lines(path) if path.exists() else ():
        if not line.is_whole:
            return
        try:
            row: JsonObject = decode_canonical(line.data)
            if row["kind"] in _CHAINED_OTHERWISE:
                continue
            ref = as_ref(row["response"]) or digest_of(row["response"])
            yield row["outcome"], Answered(row["lane"], row["key"], ref.digest)
        except (CanonicalError, KeyError, TypeError) as error:
            raise RecordingError(f"{path.name} holds what is no fixture: {error}") from error


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
