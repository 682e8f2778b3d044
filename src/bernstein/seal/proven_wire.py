"""What a journal proves of the HTTP exchanges recorded beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.canonical import as_ref, decode_strict
from bernstein.errors import ForgottenBodyError, RecordingError
from bernstein.recording.coverage import Answered
from bernstein.recording.exchanges import read_requests
from bernstein.seal.proven import ChainedAnswer, ChainedCalls, ChainedRequest, Difference
from bernstein.wire.chained import Said, Terms, TermsOfRun, said_of_row
from bernstein.wire.history import Histories, request_reports
from bernstein.wire.protocol import kind_of
from bernstein.wire.reported import mutation_of_report

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bernstein.events.provider_state import Mutation
    from bernstein.recording.blobs import BlobStore
    from bernstein.recording.exchanges import ExchangeRecording, ExchangeRow
    from bernstein.wire.key import Match


def recorded_responses(
    recording: ExchangeRecording, blobs: BlobStore, terms: TermsOfRun
) -> Iterator[Answered]:
    """Each response of a recording, by lane, key and digest.

    Raises:
        RecordingError: One cannot be read.
    """
    for row in recording.rows:
        said = said_of_row(row, row.read_response(blobs), terms.of(row.lane))
        yield Answered(row.lane, row.key, said.answer.digest)


def first_wrong_exchange(
    recording: ExchangeRecording,
    chained: ChainedCalls,
    blobs: BlobStore,
    terms: TermsOfRun,
    *,
    is_finished: bool,
    watches: bool,
) -> Difference | None:
    """The first recorded exchange that is not the chain's, or None.

    With ``watches`` the mutations of the context that the exchanges show are the chain's too.
    """
    requests = _RequestsInOrder(chained, terms)
    for number, (row, request) in enumerate(read_requests(recording.rows, blobs)):
        match = None if request is None else terms.of(row.lane).match_row(row, request)
        if number == len(chained.answers):
            # A run that was cut between the two writes has one response more than its chain.
            is_last = number == len(recording.rows) - 1 and not is_finished
            if is_last and _is_asked(row, match, chained):
                return None
            return Difference(None, row.key, None)
        said = chained.answers[number]
        answer = _answer(row, blobs, terms.of(row.lane), match if watches else None)
        is_same = (
            (row.done, row.begun) == (number, said.begun)
            and (row.lane, row.key) == (said.answer.lane, said.answer.key)
            and _is_asked(row, match, chained)
            and (answer is None or _is_said(answer, said, watches=watches and match is not None))
        )
        if not is_same:
            actual = None if answer is None else answer.answer.digest
            return Difference(said.index, actual, said.answer.digest)
        if watches and (wrong := requests.add(row, match)) is not None:
            return Difference(wrong.index, None, None)
    if (wrong := requests.end()) is not None:
        return Difference(wrong.index, None, None)
    missing = chained.answers[len(recording.rows) :]
    return Difference(missing[0].index, None, missing[0].answer.digest) if missing else None


def _is_said(answer: Said, said: ChainedAnswer, *, watches: bool) -> bool:
    if watches and list(answer.mutations) != said.mutations:
        return False
    usage = None if answer.usage is None else answer.usage.to_json()
    return (answer.outcome, answer.answer.digest, usage) == (
        said.outcome,
        said.answer.digest,
        said.usage,
    )


class _RequestsInOrder:
    """Holds what requests show against the chain, in the order in which they arrived.

    The rows come in the order in which their responses ended. A lane with a request that is not
    there, in flight at a crash or forgotten, is not looked at from there on.
    """

    def __init__(self, chained: ChainedCalls, terms: TermsOfRun) -> None:
        self._begun = chained.begun
        self._terms = terms
        self._histories = Histories()
        self._waiting: dict[int, tuple[ExchangeRow, Match | None]] = {}
        self._next = 0
        self._unsure: set[str] = set()

    def add(self, row: ExchangeRow, match: Match | None) -> ChainedRequest | None:
        """Take a row; the first request that shows something else than the chain says."""
        self._waiting[row.seq] = (row, match)
        while self._next in self._waiting:
            if (wrong := self._take_next()) is not None:
                return wrong
        return None

    def end(self) -> ChainedRequest | None:
        """Take what waits behind a request that has no row."""
        while self._waiting:
            if self._next not in self._waiting:
                self._unsure.add(self._begun[self._next].lane)
                self._next += 1
            elif (wrong := self._take_next()) is not None:
                return wrong
        return None

    def _take_next(self) -> ChainedRequest | None:
        row, match = self._waiting.pop(self._next)
        begun = self._begun[self._next]
        self._next += 1
        if match is None:
            self._unsure.add(row.lane)
        if row.lane in self._unsure or match is None:
            return None
        terms = self._terms.of(row.lane)
        is_right = shown_by(row, match, terms, self._histories) == begun.mutations
        return None if is_right else begun


def shown_by(row: ExchangeRow, match: Match, terms: Terms, histories: Histories) -> list[Mutation]:
    """The mutations that a recorded request shows, after those of its lane before it."""
    kind = kind_of(row.method, row.path)
    reports = request_reports(kind, row.path, match, row.lane, histories)
    profile, prepare = terms.profile, terms.folders.to_variables
    return [mutation_of_report(report, profile, prepare) for report in reports]


def _is_asked(row: ExchangeRow, match: Match | None, chained: ChainedCalls) -> bool:
    """Whether the chain has this request where the row says that it arrived."""
    begun = chained.begun[row.seq] if 0 <= row.seq < row.begun <= len(chained.begun) else None
    if begun is None or begun.lane != row.lane:
        return False
    if match is None:
        return as_ref(decode_strict(bytes(row.request))) is not None
    is_same = (match.key, match.scheme) == (row.key, row.key_scheme)
    # A recording made before ids were kept has none.
    return is_same and row.ids in ({}, match.ids) and match.digest.digest == begun.digest


def _answer(row: ExchangeRow, blobs: BlobStore, terms: Terms, match: Match | None) -> Said | None:
    """What the row's response comes to; None where its body is forgotten."""
    try:
        body = row.read_response(blobs)
    except ForgottenBodyError:
        return None
    if sum(row.chunks) != len(body):
        raise RecordingError(f"the pieces of exchange {row.seq} are not those of its body")
    asked = None if match is None else match.body
    return said_of_row(row, body, terms, asked, watches=match is not None)
