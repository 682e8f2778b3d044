"""Transports for the HTTP clients of this process: what they ask is recorded, or served.

The classes are made for the library at hand, httpx or httpx2, which SDKs use side by side. Each
client keeps its own way to the network for what goes live.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import CancelledError
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from bernstein.capture.gateway.live import begun
from bernstein.capture.gateway.player import Begin, Effect, Linger, Pause, Policy, Wait
from bernstein.capture.gateway.seam import Asked, Seam

if TYPE_CHECKING:
    from bernstein.capture.gateway.session import GatewaySession

# Behind it a client need not wait for the end of the body.
_LAST_EVENT = b"data: [DONE]"


# --- waiting


def _wait(effect: Effect) -> bool:
    """Wait with this thread; whether it was for long enough."""
    match effect:
        case Wait(ticket, bound_s):
            try:
                ticket.result(bound_s)
            except TimeoutError:
                return False
        case Pause(seconds):
            time.sleep(seconds)
    return True


async def _await(effect: Effect) -> bool:
    """Wait in a loop; whether it was for long enough."""
    match effect:
        case Wait(ticket, bound_s):
            try:
                await asyncio.wait_for(asyncio.wrap_future(ticket), bound_s)
            except TimeoutError:
                return False
        case Pause(seconds):
            await asyncio.sleep(seconds)
    return True


def _run(asking: Generator[Effect, bool, Asked]) -> Asked:
    try:
        effect = next(asking)
        while True:
            effect = asking.send(_wait(effect))
    except StopIteration as end:
        asked: Asked = end.value
        return asked
    finally:
        asking.close()


async def _arun(asking: Generator[Effect, bool, Asked]) -> Asked:
    try:
        effect = next(asking)
        while True:
            effect = asking.send(await _await(effect))
    except StopIteration as end:
        asked: Asked = end.value
        return asked
    finally:
        asking.close()


# --- served


class _Served:
    """Runs the policy of one served response; both ways of waiting are here, side by side."""

    def __init__(self, seam: Seam, asked: Asked, policy: Policy) -> None:
        self._seam = seam
        self._asked = asked
        self._policy = policy
        self._is_unreachable = asked.row is not None and asked.row.end == "unreachable"
        self._answer: bool | None = None
        self._is_over = False

    def step(self, *, is_patient: bool = False) -> Begin | Wait | Pause | Linger | bytes | None:
        """The next thing to do; None at the end, which is recorded then.

        Who is not patient is told at once that it got no more when it was recorded.

        Raises:
            Exception: The library's own, where the recorded response did not end well.
        """
        effect: Effect | None = None
        with suppress(StopIteration):
            effect = next(self._policy) if self._answer is None else self._policy.send(self._answer)
        self._answer = True
        if isinstance(effect, Linger) and not is_patient:
            self._policy.close()  # it left here, and now it asks for more
            effect = None
        if effect is None:
            self._is_over = True
            self._seam.end(self._asked)
            if (error := self._seam.broken_off(self._asked)) is not None:
                raise error
        return effect

    def next(self) -> Begin | bytes | None:
        """The next thing to give to a client that waits with its thread."""
        while isinstance(effect := self.step(), Wait | Pause):
            self._answer = _wait(effect)
        assert not isinstance(effect, Linger)
        return effect

    async def anext(self) -> Begin | bytes | None:
        """The next thing to give to a client that waits in a loop."""
        while isinstance(effect := self.step(is_patient=True), Wait | Pause | Linger):
            if isinstance(effect, Linger):
                await self._linger()
                self._policy.close()
                continue
            self._answer = await _await(effect)
        return effect

    async def _linger(self) -> None:
        """Wait as long as the recorded client had waited when it left, and somewhat longer.

        Where it left by a time-out of its own, that comes first.
        """
        row = self._asked.row
        if row is not None:
            waited_s = row.elapsed_s - (row.times_ms[-1] / 1000 if row.times_ms else 0)
            await asyncio.sleep(waited_s * 1.5 + 0.5)

    def begin(self) -> Begin:
        """The head of the response, for a client that waits with its thread."""
        head = self.next()
        while self._is_unreachable:
            self.next()
        assert isinstance(head, Begin)
        return head

    async def abegin(self) -> Begin:
        """The head of the response, for a client that waits in a loop."""
        head = await self.anext()
        while self._is_unreachable:
            await self.anext()
        assert isinstance(head, Begin)
        return head

    @property
    def _has_all(self) -> bool:
        """Whether the client has had everything, and only did not wait for the end."""
        response, row = self._asked.response, self._asked.row
        return response.is_all and (row is None or row.end == "complete")

    def leave(self) -> None:
        """End it where it is."""
        self._policy.close()
        self._seam.end(self._asked)

    def close(self) -> None:
        """The client wants no more of it."""
        if self._has_all and not self._is_over:
            self.next()
        self.leave()

    async def aclose(self) -> None:
        """See ``close``."""
        if self._has_all and not self._is_over:
            await self.anext()
        self.leave()

    def __iter__(self) -> Iterator[bytes]:
        while isinstance(data := self.next(), bytes):
            yield data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while isinstance(data := await self.anext(), bytes):
            yield data


# --- live


class _Live:
    """Passes a live response on, and notes it."""

    def __init__(self, seam: Seam, asked: Asked, answer: Any) -> None:
        self._seam = seam
        self._asked = asked
        self._answer = answer
        self._is_over = False
        self._is_unpacked = begun(asked.response, answer)

    def __iter__(self) -> Iterator[bytes]:
        answer = self._answer
        try:
            for data in answer.iter_bytes() if self._is_unpacked else answer.iter_raw():
                if data:
                    self._seam.add(self._asked, data)
                    yield data
        except (self._seam.library.TransportError, CancelledError) as error:
            self._is_over = True
            self._seam.failed(self._asked, error)
            raise
        self._is_over = True
        self._seam.end(self._asked)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        answer = self._answer
        try:
            async for data in answer.aiter_bytes() if self._is_unpacked else answer.aiter_raw():
                if data:
                    self._seam.add(self._asked, data)
                    yield data
        except (self._seam.library.TransportError, CancelledError) as error:
            self._is_over = True
            self._seam.failed(self._asked, error)
            raise
        self._is_over = True
        self._seam.end(self._asked)

    def _leave(self) -> None:
        chunks = self._asked.response.chunks
        has_all = bool(chunks) and chunks[-1].data.rstrip().endswith(_LAST_EVENT)
        if not (self._is_over or has_all):
            self._asked.response.end = "left"
        self._seam.end(self._asked)

    def close(self) -> None:
        """The client wants no more of it."""
        self._leave()
        self._answer.close()

    async def aclose(self) -> None:
        """See ``close``."""
        self._leave()
        await self._answer.aclose()


# --- the library's classes


def sync_transport(session: GatewaySession, library: Any, inner: Any) -> Any:
    """What ``Client(transport=…)`` of the library takes; see ``ReplayGateway.transport``."""
    if inner is None and not session.is_replay:
        inner = session.closes_at_end(library.HTTPTransport())
    return _made(library, _SyncTransport, "BaseTransport")(Seam(session, library), inner)


def async_transport(session: GatewaySession, library: Any, inner: Any) -> Any:
    """What ``AsyncClient(transport=…)`` of the library takes."""
    if inner is None and not session.is_replay:
        inner = library.AsyncHTTPTransport()
    return _made(library, _AsyncTransport, "AsyncBaseTransport")(Seam(session, library), inner)


@cache
def _made(library: Any, how: type, kind: str) -> Any:
    """A class of ours that is the library's of this kind."""
    return type(f"{how.__name__}{kind}", (how, getattr(library, kind)), {})


class _SyncTransport:
    def __init__(self, seam: Seam, inner: Any) -> None:
        self._seam = seam
        self._inner = inner

    def handle_request(self, request: Any) -> Any:
        """Answer a request of the library."""
        seam, library = self._seam, self._seam.library
        body = request.read()
        asked = _run(seam.ask(request, body))
        if asked.policy is not None:
            served = _made(library, _Served, "SyncByteStream")(seam, asked, asked.policy)
            try:
                begin = served.begin()
            except BaseException:
                served.leave()
                raise
            return library.Response(begin.status, headers=begin.headers, stream=served)
        try:
            answer = self._inner.handle_request(seam.live(asked, request.extensions))
        except BaseException as error:
            seam.failed(asked, error)
            raise
        stream = _made(library, _Live, "SyncByteStream")(seam, asked, answer)
        headers = asked.response.headers
        return library.Response(answer.status_code, headers=headers, stream=stream)

    def close(self) -> None:
        """Close the connections."""
        if self._inner is not None:
            self._inner.close()


class _AsyncTransport:
    def __init__(self, seam: Seam, inner: Any) -> None:
        self._seam = seam
        self._inner = inner

    async def handle_async_request(self, request: Any) -> Any:
        """Answer a request of the library."""
        seam, library = self._seam, self._seam.library
        body = await request.aread()
        asked = await _arun(seam.ask(request, body))
        if asked.policy is not None:
            served = _made(library, _Served, "AsyncByteStream")(seam, asked, asked.policy)
            try:
                begin = await served.abegin()
            except BaseException:
                served.leave()
                raise
            return library.Response(begin.status, headers=begin.headers, stream=served)
        try:
            answer = await self._inner.handle_async_request(seam.live(asked, request.extensions))
        except BaseException as error:
            seam.failed(asked, error)
            raise
        stream = _made(library, _Live, "AsyncByteStream")(seam, asked, answer)
        headers = asked.response.headers
        return library.Response(answer.status_code, headers=headers, stream=stream)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._inner is not None:
            await self._inner.aclose()
