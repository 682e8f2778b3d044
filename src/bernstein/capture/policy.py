"""The policy of a call: replay first, else ask the live model and record.

Written once, as a generator that yields what it needs from whoever drives it: a wait, a live
request, its next piece, a pause. What it yields for the reader are the Chunks.
"""

from __future__ import annotations

import time
from asyncio import CancelledError
from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from bernstein.errors import ModelUnavailableError, ProviderError, ReplayMissError
from bernstein.recording.answer import UNAVAILABLE, Chunk, LlmAnswer, LlmFailure, ToolCall
from bernstein.recording.hold import DEFAULT_BOUND_S, Hold
from bernstein.recording.key import LlmCall
from bernstein.recording.rows import CallRow

if TYPE_CHECKING:
    from bernstein.capture.program import CallScope
    from bernstein.capture.run import OpenRun


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for a future; answered with whether it was done within the bound."""

    ticket: Future[None]
    bound_s: float | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """Begin to ask a live model."""

    call: LlmCall
    seed: int | None


@dataclass(frozen=True, slots=True)
class Release:
    """Let the answer after this one go out, once this one has been acted on."""

    hold: Hold
    row: CallRow


class Next:
    """The next piece from the live model: a Chunk, or the LlmAnswer that ends it."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Let time pass before asking a live model again."""

    seconds: float


Effect: TypeAlias = Wait | Ask | Next | Sleep | Release | Chunk
Policy: TypeAlias = Generator[Effect, Any, LlmAnswer]
Source: TypeAlias = Generator[Effect, Any, LlmAnswer | LlmFailure]


@dataclass(slots=True)
class _Seen:
    """What happened in one attempt."""

    went_live: bool = False
    has_streamed: bool = False


def with_retries(call: LlmCall, scope_: CallScope, max_retries: int) -> Policy:
    """Ask up to ``1 + max_retries`` times; each attempt is a call of its own in the recording."""
    for attempt in range(max_retries + 1):
        seen = _Seen()
        try:
            return (yield from _attempt(call, scope_, seen))
        except ProviderError as error:
            # What the reader has already seen of a stream cannot be taken back by a retry.
            if attempt == max_retries or not error.is_retryable or seen.has_streamed:
                raise
        if seen.went_live:
            yield Sleep(min(0.5 * 2**attempt, 8.0))
    raise AssertionError("the last attempt returns or raises")


def _attempt(call: LlmCall, scope_: CallScope, seen: _Seen) -> Policy:
    run, lane = scope_.run, scope_.lane
    seq, served = yield from _begin(call, scope_)
    begun_s = time.monotonic()
    read: list[Chunk] = []

    def finish(outcome: LlmAnswer | LlmFailure) -> None:
        if run.open_calls.pop(seq, None) is None:
            return  # the end of the run has ended it
        run.finish_call(
            call,
            outcome,
            seq=seq,
            lane=lane,
            step_id=scope_.step_id,
            begun_s=begun_s,
            is_served=served is not None,
        )
        if run.hold is not None:
            run.hold.call_ended()

    def end_early(outcome: LlmAnswer | LlmFailure) -> None:
        finish(outcome)
        if run.hold is not None and served is not None:
            run.hold.answer_went_out(served)

    def end() -> None:
        if read:
            finish(_what_was_read(read))

    run.open_calls[seq] = end
    seen.went_live = served is None
    source = _serve(call, run, served) if served is not None else _ask_live(call, run.seed)
    try:
        outcome = yield from _read(source, read)
    except CancelledError:
        if not run.follows_score:
            try:
                if run.hold is not None and served is not None:
                    # It ends when its turn has come, like any other.
                    yield from _await_turn(run.hold, served)
            finally:
                end_early(_cancelled(read))
        raise
    except (_ReaderLeftError, GeneratorExit) as left:
        # The caller closed its stream, or cancelled the call. In a plan only the end of the run
        # cancels, and is in the chain as that.
        if not run.follows_score:
            is_reader = isinstance(left, _ReaderLeftError)
            end_early(_what_was_read(read) if is_reader else _cancelled(read))
        raise GeneratorExit from None
    seen.has_streamed = bool(read)
    if run.follows_score:
        yield Wait(run.score.turn(lane))
    finish(outcome)
    if run.hold is not None and served is not None:
        yield Release(run.hold, served)
    if isinstance(outcome, LlmFailure):
        raise outcome.as_error()
    return outcome


def _begin(call: LlmCall, scope_: CallScope) -> Generator[Effect, Any, tuple[int, CallRow | None]]:
    """Begin a call once its turn has come: its number, and the recorded call that serves it."""
    run, lane = scope_.run, scope_.lane
    if run.follows_score:
        yield Wait(run.score.turn(lane))
    with run.lock:
        seq = run.begin_call(call, lane, scope_.step_id)
        was_in_flight = run.was_in_flight(call, lane)
    if was_in_flight:
        # The recorded run ended during this call; so will this one, and if not, it is a miss.
        never = run.score.turn(lane) if run.follows_score else Future[None]()
        yield Wait(never, None if run.score.ends_cancelled else DEFAULT_BOUND_S)
    with run.lock:
        served = run.take_recorded(call, lane)
    return seq, served


_CANCELLED = "Cancelled"


def _cancelled(read: list[Chunk]) -> LlmFailure:
    """The outcome of a call that its caller cancelled, with what had been streamed until then."""
    partial = _what_was_read(read) if read else None
    return LlmFailure(_CANCELLED, None, "the caller cancelled the call", partial)


class _ReaderLeftError(Exception):
    """The reader of a stream closed it before its end."""


def _read(source: Source, read: list[Chunk]) -> Source:
    """Pass a source's effects on, and keep the chunks that reach the reader."""
    value: Any = None
    while True:
        try:
            effect = source.send(value)
        except StopIteration as end:
            outcome: LlmAnswer | LlmFailure = end.value
            return outcome
        if isinstance(effect, Chunk):
            read.append(effect)
            try:
                value = yield effect
            except GeneratorExit:
                raise _ReaderLeftError from None
            continue
        try:
            value = yield effect
        except ModelUnavailableError as error:
            return LlmFailure(UNAVAILABLE, None, str(error))
        except ProviderError as error:
            return LlmFailure(
                error.error_class,
                error.status,
                error.text,
                _what_was_read(read) if read else None,
            )


def _serve(call: LlmCall, run: OpenRun, row: CallRow) -> Source:
    """The recorded outcome: its pieces where it is streamed, held until its turn has come."""
    outcome = row.read_outcome(run.store.blobs)
    is_left = isinstance(outcome, LlmAnswer) and outcome.is_incomplete
    pieces = _pieces(outcome) if call.is_streamed else []
    for number, piece in enumerate(pieces, 1):
        if is_left and number == len(pieces) and run.hold is not None:
            # The reader leaves after this one, which ends the call: so its turn is now.
            yield from _await_turn(run.hold, row)
        yield piece
    if is_left:
        _refuse(run, row, "the recorded reader left this stream here, this one reads on")
    if isinstance(outcome, LlmFailure) and outcome.error_class == _CANCELLED:
        # The caller will cancel it again, if it is the caller that was recorded.
        yield Wait(Future(), row.elapsed_s + DEFAULT_BOUND_S)
        _refuse(run, row, "the recorded caller cancelled this call, this one still waits for it")
    if run.hold is not None:
        yield from _await_turn(run.hold, row)
    return outcome


def _await_turn(hold: Hold, row: CallRow) -> Generator[Effect, Any, None]:
    if not (yield Wait(hold.wait(row), hold.bound_s)):
        hold.expire()


def _refuse(run: OpenRun, row: CallRow, what: str) -> None:
    """Count a miss behind the end of a recorded answer; raised where the replay is strict."""
    miss = ReplayMissError(
        f"replay miss: {what}\n  record again with BERNSTEIN_REPLAY_RUN_ID unset",
        key=row.key,
        model=row.model,
        recorded=1,
        requested=2,
        reason="exhausted",
    )
    run.store.register_miss(miss, row.lane)


def _ask_live(call: LlmCall, seed: int | None) -> Source:
    yield Ask(call, seed)
    while True:
        item = yield Next()
        if isinstance(item, LlmAnswer):
            return item
        yield item


def _pieces(outcome: LlmAnswer | LlmFailure) -> list[Chunk]:
    answer = outcome.partial if isinstance(outcome, LlmFailure) else outcome
    return [] if answer is None else answer.pieces()


def _what_was_read(pieces: list[Chunk]) -> LlmAnswer:
    """The pieces that a reader saw before a stream was cut, as an answer."""

    def joined(kind: str) -> str:
        return "".join(piece.text for piece in pieces if piece.kind == kind)

    tools = sorted({piece.kind for piece in pieces if piece.kind.startswith("tool/")})
    return LlmAnswer(
        joined("text"),
        # The names of its tools come with the whole answer, which nobody waited for.
        tool_calls=tuple(ToolCall("", joined(kind)) for kind in tools),
        reasoning=joined("reasoning") or None,
        chunks=tuple((piece.kind, len(piece.text)) for piece in pieces),
        is_incomplete=True,
    )
