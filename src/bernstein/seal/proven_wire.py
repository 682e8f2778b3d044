"""What a journal proves of the HTTP exchanges recorded beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.canonical import as_ref, decode_strict
from bernstein.errors import ForgottenBodyError, RecordingError
from bernstein.recording.coverage import Answered
from bernstein.recording.exchanges import read_requests
from bernstein.seal.proven import ChainedCalls, Difference
from bernstein.wire.chained import Terms, said_of_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bernstein.recording.blobs import BlobStore
    from bernstein.recording.exchanges import ExchangeRecording, ExchangeRow


def recorded_responses(
    recording: ExchangeRecording, blobs: BlobStore, terms: Terms
) -> Iterator[Answered]:
    """Each response of a recording, by lane, key and digest.

    Raises:
        RecordingError: One cannot be read.
    """
    for row in recording.rows:
        said = said_of_row(row, row.read_response(blobs), terms.folders)
        yield Answered(row.lane, row.key, said.answer.digest)


def first_wrong_exchange(
    recording: ExchangeRecording, chained: ChainedCalls, blobs: BlobStore, terms: Terms
) -> Difference | None:
    """The first recorded exchange that is not the chain's, or None."""
    for number, (row, request) in enumerate(read_requests(recording.rows, blobs)):
        if number == len(chained.answers):
            # A run that was cut between the two writes has one response more than its chain.
            is_last = number == len(recording.rows) - 1 and not chained.is_finished
            if is_last and _is_asked(row, request, chained, terms):
                return None
            return Difference(None, row.key, None)
        said = chained.answers[number]
        answer = _answer(row, blobs, terms)
        is_same = (
            (row.done, row.begun) == (number, said.begun)
            and (row.lane, row.key) == (said.answer.lane, said.answer.key)
            and _is_asked(row, request, chained, terms)
            and answer in (None, (said.outcome, said.answer.digest, _frozen(said.usage)))
        )
        if not is_same:
            actual = None if answer is None else answer[1]
            return Difference(said.index, actual, said.answer.digest)
    missing = chained.answers[len(recording.rows) :]
    return Difference(missing[0].index, None, missing[0].answer.digest) if missing else None


def _is_asked(row: ExchangeRow, request: str | None, chained: ChainedCalls, terms: Terms) -> bool:
    """Whether the chain has this request where the row says that it arrived."""
    begun = chained.begun[row.seq] if 0 <= row.seq < row.begun <= len(chained.begun) else None
    if begun is None or begun[0] != row.lane:
        return False
    if request is None:
        return as_ref(decode_strict(bytes(row.request))) is not None
    match = terms.match_row(row, request)
    is_same = (match.key, match.scheme) == (row.key, row.key_scheme)
    # A recording made before ids were kept has none.
    return is_same and row.ids in ({}, match.ids) and (match.digest.digest == begun[1])


def _answer(
    row: ExchangeRow, blobs: BlobStore, terms: Terms
) -> tuple[str, str, tuple[tuple[str, object], ...] | None] | None:
    """What the row's response comes to; None where its body is forgotten."""
    try:
        body = row.read_response(blobs)
    except ForgottenBodyError:
        return None
    if sum(row.chunks) != len(body):
        raise RecordingError(f"the pieces of exchange {row.seq} are not those of its body")
    said = said_of_row(row, body, terms.folders)
    usage = None if said.usage is None else said.usage.to_json()
    return said.outcome, said.answer.digest, _frozen(usage)


def _frozen(usage: dict[str, object] | None) -> tuple[tuple[str, object], ...] | None:
    return None if usage is None else tuple(sorted(usage.items()))
