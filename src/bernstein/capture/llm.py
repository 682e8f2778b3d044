"""``call_llm``: replay first, else ask the live model and record.

The policy is written once, as a generator that yields what it needs; two small drivers feed it,
one for plain code and threads, one for tasks.
"""

from __future__ import annotations

import asyncio
import atexit
import difflib
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from bernstein.capture.models.base import ModelName, parse_model_name
from bernstein.capture.models.registry import find_provider
from bernstein.capture.portal import submit
from bernstein.capture.run import OpenRun
from bernstein.errors import ModelUnavailableError, ProviderError, ReplayMissError, UsageError
from bernstein.events import trajectory as event
from bernstein.events.entry import LANE
from bernstein.recording.answer import UNAVAILABLE, Chunk, LlmAnswer, LlmFailure, ToolCall
from bernstein.recording.hold import DEFAULT_BOUND_S
from bernstein.recording.key import LlmCall
from bernstein.rundir import open_sdd
from bernstein.settings import read_settings

if TYPE_CHECKING:
    from bernstein.capture.models.base import Provider
    from bernstein.recording.hold import Hold
    from bernstein.recording.rows import CallRow

# --- where a call belongs


@dataclass(frozen=True, slots=True)
class CallScope:
    """The run, lane and step that calls made here belong to."""

    run: OpenRun
    lane: str = ""
    step_id: str | None = None


_scope: ContextVar[CallScope | None] = ContextVar("bernstein_scope", default=None)


@contextmanager
def use_scope(scope_: CallScope) -> Iterator[None]:
    """Let the calls of this context belong to ``scope_``."""
    token = _scope.set(scope_)
    try:
        yield
    finally:
        _scope.reset(token)


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Give the calls made inside a lane of their own, so that they replay among themselves.

    Args:
        name: ``[A-Za-z0-9._/-]{1,128}``; inside another scope it is put behind that one's name.
    """
    outer = _scope.get() or _process_scope()
    lane = f"{outer.lane}/{name}" if outer.lane else name
    if not name or not LANE.fullmatch(lane):
        raise UsageError(
            f"scope {name!r} gives the lane {lane!r}, which does not match {LANE.pattern}"
        )
    with use_scope(replace(outer, lane=lane)):
        yield


# --- the policy


@dataclass(frozen=True, slots=True)
class _Wait:
    """Wait for a future; answered with whether it was done within the bound."""

    ticket: Future[None]
    bound_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Ask:
    """Begin to ask a live model."""

    call: LlmCall
    seed: int | None


@dataclass(frozen=True, slots=True)
class _Release:
    """Let the answer after this one go out, once this one has been acted on."""

    hold: Hold
    row: CallRow


class _Next:
    """The next piece from the live model: a Chunk, or the LlmAnswer that ends it."""


@dataclass(frozen=True, slots=True)
class _Sleep:
    """Let time pass before asking a live model again."""

    seconds: float


_Effect: TypeAlias = _Wait | _Ask | _Next | _Sleep | _Release | Chunk
_Policy: TypeAlias = Generator[_Effect, Any, LlmAnswer]
_Source: TypeAlias = Generator[_Effect, Any, LlmAnswer | LlmFailure]


@dataclass(slots=True)
class _Seen:
    """What happened in one attempt."""

    went_live: bool = False
    has_streamed: bool = False


def _with_retries(call: LlmCall, scope_: CallScope, max_retries: int) -> _Policy:
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
            yield _Sleep(min(0.5 * 2**attempt, 8.0))
    raise AssertionError("the last attempt returns or raises")


def _attempt(call: LlmCall, scope_: CallScope, seen: _Seen) -> _Policy:
    run, lane = scope_.run, scope_.lane
    if run.follows_score:
        yield _Wait(run.score.turn(lane))
    with run.lock:
        seq = run.begin_call(call, lane, scope_.step_id)
        was_in_flight = run.was_in_flight(call, lane)
    if was_in_flight:
        # The recorded run ended during this call; so will this one, and if not, it is a miss.
        never = run.score.turn(lane) if run.follows_score else Future[None]()
        yield _Wait(never, None if run.score.ends_cancelled else DEFAULT_BOUND_S)
    with run.lock:
        served = run.store.take(call, lane) if run.store.is_replay else None
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
        )
        if run.hold is not None:
            run.hold.call_ended()

    def end() -> None:
        if read:
            finish(_what_was_read(read))

    run.open_calls[seq] = end
    seen.went_live = served is None
    source = _serve(call, run, served) if served is not None else _ask_live(call, run.seed)
    try:
        outcome = yield from _read(source, read)
    except (_ReaderLeftError, GeneratorExit) as left:
        # The caller closed its stream, or cancelled the call. In a plan only the end of the run
        # cancels, and is in the chain as that.
        if not run.follows_score:
            is_reader = isinstance(left, _ReaderLeftError)
            finish(_what_was_read(read) if is_reader else _CANCELLED)
            if run.hold is not None and served is not None:
                run.hold.answer_went_out(served)
        raise GeneratorExit from None
    seen.has_streamed = bool(read)
    if run.follows_score:
        yield _Wait(run.score.turn(lane))
    finish(outcome)
    if run.hold is not None and served is not None:
        yield _Release(run.hold, served)
    if isinstance(outcome, LlmFailure):
        raise outcome.as_error()
    return outcome


_CANCELLED = LlmFailure("Cancelled", None, "the caller cancelled the call")


class _ReaderLeftError(Exception):
    """The reader of a stream closed it before its end."""


def _read(source: _Source, read: list[Chunk]) -> _Source:
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


def _serve(call: LlmCall, run: OpenRun, row: CallRow) -> _Source:
    """The recorded outcome: its pieces where it is streamed, held until its turn has come."""
    outcome = row.read_outcome(run.store.blobs)
    is_left = isinstance(outcome, LlmAnswer) and outcome.is_incomplete
    pieces = _pieces(outcome) if call.is_streamed else []
    for number, piece in enumerate(pieces, 1):
        if is_left and number == len(pieces) and run.hold is not None:
            # The reader leaves after this one, which ends the call: so its turn is now.
            yield _Wait(run.hold.wait(row), run.hold.bound_s)
        yield piece
    if is_left:
        _refuse(run, row, "the recorded reader left this stream here, this one reads on")
    if outcome == _CANCELLED:
        # The caller will cancel it again, if it is the caller that was recorded.
        yield _Wait(Future(), row.elapsed_s + DEFAULT_BOUND_S)
        _refuse(run, row, "the recorded caller cancelled this call, this one still waits for it")
    if run.hold is not None:
        in_time = yield _Wait(run.hold.wait(row), run.hold.bound_s)
        if not in_time:
            run.hold.expire()
    return outcome


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


def _ask_live(call: LlmCall, seed: int | None) -> _Source:
    yield _Ask(call, seed)
    while True:
        item = yield _Next()
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


# --- the drivers


def _drive(policy: _Policy) -> Iterator[Chunk | LlmAnswer]:
    """Feed a policy from plain code: yields the chunks, then the answer."""
    live: AsyncIterator[Chunk | LlmAnswer] | None = None
    value: Any = None
    error: BaseException | None = None
    try:
        while True:
            try:
                effect = policy.throw(error) if error is not None else policy.send(value)
            except StopIteration as end:
                yield end.value
                return
            value, error = None, None
            try:
                match effect:
                    case Chunk():
                        yield effect
                    case _Wait(ticket, bound_s):
                        value = _wait(ticket, bound_s)
                    case _Ask(call, seed):
                        live = _provider_of(call).ask(call, seed).__aiter__()
                    case _Next():
                        assert live is not None
                        value = submit(_next_of(live)).result()
                    case _Sleep(seconds):
                        time.sleep(seconds)
                    case _Release(hold, row):
                        _release_among_threads(hold, row)
            except GeneratorExit:
                raise
            except BaseException as failure:  # noqa: BLE001 - handed to the policy, not swallowed
                error = failure
    finally:
        policy.close()
        if live is not None:
            submit(_close(live))


async def _adrive(policy: _Policy) -> AsyncIterator[Chunk | LlmAnswer]:
    """Feed a policy from a task: yields the chunks, then the answer."""
    live: AsyncIterator[Chunk | LlmAnswer] | None = None
    value: Any = None
    error: BaseException | None = None
    try:
        while True:
            try:
                effect = policy.throw(error) if error is not None else policy.send(value)
            except StopIteration as end:
                yield end.value
                return
            value, error = None, None
            try:
                match effect:
                    case Chunk():
                        yield effect
                    case _Wait(ticket, bound_s):
                        value = await _await(ticket, bound_s)
                    case _Ask(call, seed):
                        live = _provider_of(call).ask(call, seed).__aiter__()
                    case _Next():
                        assert live is not None
                        value = await asyncio.wrap_future(submit(_next_of(live)))
                    case _Sleep(seconds):
                        await asyncio.sleep(seconds)
                    case _Release(hold, row):
                        _release_among_tasks(hold, row)
            except (GeneratorExit, asyncio.CancelledError):
                raise
            except BaseException as failure:  # noqa: BLE001 - handed to the policy, not swallowed
                error = failure
    finally:
        policy.close()
        if live is not None:
            submit(_close(live))


# A task acts on an answer within a few rounds of its loop, a thread when it is given the processor.
_TASKS_ACT_ROUNDS = 16
_THREADS_ACT_S = 0.002
_releases: set[asyncio.Task[None]] = set()


def _release_among_threads(hold: Hold, row: CallRow) -> None:
    if hold.has_others:
        submit(_release_later(hold, row, _THREADS_ACT_S))
    else:
        hold.answer_went_out(row)


def _release_among_tasks(hold: Hold, row: CallRow) -> None:
    if hold.has_others:
        release = asyncio.create_task(_release_later(hold, row, 0))
        _releases.add(release)
        release.add_done_callback(_releases.discard)
    else:
        hold.answer_went_out(row)


async def _release_later(hold: Hold, row: CallRow, after_s: float) -> None:
    """Let the next answer out after a while, so that two do not arrive as one."""
    try:
        await asyncio.sleep(after_s)
        for _ in range(_TASKS_ACT_ROUNDS):
            await asyncio.sleep(0)
    finally:
        hold.answer_went_out(row)


def _wait(ticket: Future[None], bound_s: float | None) -> bool:
    try:
        ticket.result(bound_s)
    except TimeoutError:
        return False
    return True


async def _await(ticket: Future[None], bound_s: float | None) -> bool:
    if ticket.done():
        return True
    try:
        await asyncio.wait_for(asyncio.wrap_future(ticket), bound_s)
    except TimeoutError:
        return False
    return True


def _provider_of(call: LlmCall) -> Provider:
    return find_provider(call.provider, call.model)


async def _next_of(live: AsyncIterator[Chunk | LlmAnswer]) -> Chunk | LlmAnswer:
    return await anext(live)


async def _close(live: AsyncIterator[Chunk | LlmAnswer]) -> None:
    close = getattr(live, "aclose", None)
    if close is not None:
        await close()


# --- the public calls


REQUEST_MEMBERS = (
    "messages",
    "system",
    "tools",
    "tool_choice",
    "response_format",
    "grammar",
    "stop",
    "seed",
    "top_p",
    "reasoning",
    "stream",
    "headers",
)
_ARGUMENTS = ("model", "provider", "temperature", "max_tokens", "max_retries")


def make_call(
    default: ModelName,
    prompt: str | None = None,
    *,
    model: str | None = None,
    provider: str | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    **more: object,
) -> LlmCall:
    """The call that these arguments mean, to ``default`` where none names a model."""
    for key in more:
        if key not in REQUEST_MEMBERS:
            near = difflib.get_close_matches(key, [*REQUEST_MEMBERS, *_ARGUMENTS], 1)
            hint = (
                f"did you mean {near[0]!r}?" if near else f"expected {', '.join(REQUEST_MEMBERS)}"
            )
            raise UsageError(f"a call has no {key!r}; {hint}")
    name = default
    if model is not None:
        name = parse_model_name(model) if provider is None else ModelName(provider, model)
    elif provider is not None:
        name = parse_model_name(provider)
    return LlmCall(
        model=name.model,
        prompt=prompt,
        provider=name.provider,
        temperature=None if temperature is None else float(temperature),
        max_tokens=max_tokens,
        more={key: value for key, value in more.items() if value is not None},
    )


def call_llm(
    prompt: str | None = None,
    *,
    model: str | None = None,
    provider: str | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    max_retries: int = 0,
    **more: object,
) -> LlmAnswer:
    """Ask a model, or serve its recorded answer.

    Args:
        prompt: The text to answer; or give ``messages``.
        model: The model's id, alone or as ``provider:name``; default: the configured one.
        provider: local, scripted, openai, anthropic or google.
        temperature: As the provider takes it; an int is made a float.
        max_tokens: The answer's bound.
        max_retries: How often to ask again after a failure that asking again can mend. Each
            attempt is recorded, and a replay repeats it without waiting.
        more: Anything else that reaches the provider: messages, system, tools, tool_choice,
            response_format, grammar (embedded model only), stop, seed, top_p, reasoning, headers.
    Returns:
        The answer.
    Raises:
        ReplayMissError: A strict replay has no (further) answer for this call.
        ProviderError: The provider failed, now or when it was recorded.
        ModelUnavailableError: The model cannot be asked from here.
    """
    scope_ = _here()
    call = make_call(
        scope_.run.default_model,
        prompt,
        model=model,
        provider=provider,
        temperature=temperature,
        max_tokens=max_tokens,
        **more,
    )
    return ask(call, scope_, max_retries)


async def acall_llm(
    prompt: str | None = None,
    *,
    model: str | None = None,
    provider: str | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    max_retries: int = 0,
    **more: object,
) -> LlmAnswer:
    """``call_llm`` for tasks."""
    scope_ = _here()
    call = make_call(
        scope_.run.default_model,
        prompt,
        model=model,
        provider=provider,
        temperature=temperature,
        max_tokens=max_tokens,
        **more,
    )
    return await aask(call, scope_, max_retries)


def stream_llm(prompt: str | None = None, **arguments: Any) -> Iterator[Chunk | LlmAnswer]:
    """``call_llm`` in pieces: yields each Chunk as it comes, and the LlmAnswer last."""
    scope_, max_retries = _here(), arguments.pop("max_retries", 0)
    call = make_call(scope_.run.default_model, prompt, **arguments, stream=True)
    return _drive(_with_retries(call, scope_, max_retries))


def astream_llm(prompt: str | None = None, **arguments: Any) -> AsyncIterator[Chunk | LlmAnswer]:
    """``stream_llm`` for tasks."""
    scope_, max_retries = _here(), arguments.pop("max_retries", 0)
    call = make_call(scope_.run.default_model, prompt, **arguments, stream=True)
    return _adrive(_with_retries(call, scope_, max_retries))


def ask(call: LlmCall, scope_: CallScope, max_retries: int = 0) -> LlmAnswer:
    """Ask for a call that is already made, in a scope that is already known."""
    *_, answer = _drive(_with_retries(call, scope_, max_retries))
    assert isinstance(answer, LlmAnswer)
    return answer


async def aask(call: LlmCall, scope_: CallScope, max_retries: int = 0) -> LlmAnswer:
    """``ask`` for tasks."""
    items = [item async for item in _adrive(_with_retries(call, scope_, max_retries))]
    answer = items[-1]
    assert isinstance(answer, LlmAnswer)
    return answer


# --- programs of our users: one run a process, opened by the first call


def _here() -> CallScope:
    here = _scope.get()
    if here is None:
        return _process_scope()
    if here.run.pid != os.getpid():
        # A forked child: its calls are a run of their own, in the same lane.
        return replace(_process_scope(), lane=here.lane)
    return here


_process_lock = threading.Lock()
_process: CallScope | None = None
_has_failed = False


def _process_scope() -> CallScope:
    """The scope of a program that opened no run: its run is opened now and closed at exit."""
    global _process  # noqa: PLW0603 - one run a process is the point
    with _process_lock:
        if _process is None or _process.run.pid != os.getpid():
            run = open_program_run()
            _process = CallScope(run)
            atexit.register(_end_process_run, run)
            _watch_for_failure()
        elif _process.run.is_closed:
            raise UsageError("the run of this program has ended: no call can be made at its exit")
        return _process


def _watch_for_failure() -> None:
    """Note an exception that nobody catches: the run of such a program has failed."""
    before = sys.excepthook

    def note(*arguments: Any) -> None:
        global _has_failed  # noqa: PLW0603 - the process has failed
        _has_failed = True
        before(*arguments)

    sys.excepthook = note


def _forget_process_lock() -> None:
    global _process_lock  # noqa: PLW0603 - a forked child may have inherited it held
    _process_lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_process_lock)


def open_program_run() -> OpenRun:
    """Open a run for this program, as the environment asks: a recording, or a replay."""
    settings = read_settings()
    run = OpenRun(
        open_sdd(settings.sdd_dir),
        settings,
        {"kind": "program", "argv": list(sys.argv)},
        follows_score=False,
    )
    run.append(event.RUN_STARTED, {"agentId": "program"})
    return run


def close_program_run(run: OpenRun, status: event.RunStatus) -> int:
    """End a program's run and report a replay on standard error.

    Returns:
        What a program that ends well must end with: 3 after a strict miss, 1 after a replay that
        diverged or a run that could not be sealed, else 0.
    """
    for end in list(run.open_calls.values()):
        end()  # streams that were begun and left open; what nobody read of stays in flight
    run.append(event.RUN_FINISHED, event.run_finished(status, None, None))
    run.close(status)
    if run.seal_problem is not None:
        sys.stderr.write(f"bernstein: the run is not sealed: {run.seal_problem}\n")
    coverage, comparison = run.coverage(), run.comparison()
    if coverage is None or comparison is None:
        return int(run.seal_problem is not None)
    if run.hold is not None and run.hold.has_expired:
        sys.stderr.write(
            "note: a call that was recorded did not come, so from there the answers "
            "were not held in their order\n"
        )
    sys.stderr.write(f"{coverage.line()}\n{comparison.line()}\n")
    if coverage.strict_violations:
        return ReplayMissError.exit_code
    return int((run.is_strict and comparison.relation == "diverged") or bool(run.seal_problem))


def _end_process_run(run: OpenRun) -> None:
    if run.pid != os.getpid():
        return  # a forked child, whose parent ends this run
    has_failed = _has_failed or run.store.first_miss is not None
    code = close_program_run(run, "failed" if has_failed else "completed")
    if code == ReplayMissError.exit_code or (code and not _has_failed):
        # At exit the interpreter's own code can only be overruled like this.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
