"""Feeds the policy of a call: from plain code and threads, and from tasks.

Live requests are made on the portal's loop, whoever waits for them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from bernstein.capture.models.registry import find_provider
from bernstein.capture.policy import Ask, Next, Policy, Release, Sleep, Wait
from bernstein.capture.portal import submit
from bernstein.recording.answer import Chunk, LlmAnswer

if TYPE_CHECKING:
    from bernstein.capture.models.base import Provider
    from bernstein.recording.hold import Hold
    from bernstein.recording.key import LlmCall
    from bernstein.recording.rows import CallRow


def drive(policy: Policy) -> Iterator[Chunk | LlmAnswer]:
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
                    case Wait(ticket, bound_s):
                        value = _wait(ticket, bound_s)
                    case Ask(call, seed):
                        live = _provider_of(call).ask(call, seed).__aiter__()
                    case Next():
                        assert live is not None
                        value = submit(_next_of(live)).result()
                    case Sleep(seconds):
                        time.sleep(seconds)
                    case Release(hold, row):
                        _release_among_threads(hold, row)
            except GeneratorExit:
                raise
            except BaseException as failure:  # noqa: BLE001 - handed to the policy, not swallowed
                error = failure
    finally:
        policy.close()
        if live is not None:
            submit(_close(live))


async def adrive(policy: Policy) -> AsyncIterator[Chunk | LlmAnswer]:
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
                    case Wait(ticket, bound_s):
                        value = await _await(ticket, bound_s)
                    case Ask(call, seed):
                        live = _provider_of(call).ask(call, seed).__aiter__()
                    case Next():
                        assert live is not None
                        value = await asyncio.wrap_future(submit(_next_of(live)))
                    case Sleep(seconds):
                        await asyncio.sleep(seconds)
                    case Release(hold, row):
                        _release_among_tasks(hold, row)
            except GeneratorExit:
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
