"""A seam for the HTTP clients of this process: what they ask is recorded, or served from memory.

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
from typing import TYPE_CHECKING, Any, NamedTuple, assert_never

from bernstein.capture.gateway.live import begun, forwarded, live_url, unreachable
from bernstein.capture.gateway.player import Begin, Effect, Linger, Pause, Policy, Wait
from bernstein.errors import UsageError
from bernstein.wire.key import Request
from bernstein.wire.protocol import PROVIDERS

if TYPE_CHECKING:
    from bernstein.capture.gateway.session import GatewaySession
    from bernstein.capture.gateway.wire_run import Exchange, Response
    from bernstein.recording.exchanges import ExchangeRow


# Behind it a client need not wait for the end of the body.
_LAST_EVENT = b"data: [DONE]"


class _Asked(NamedTuple):
    """A request that has been counted: served by its policy, live without one."""

    exchange: Exchange
    response: Response
    policy: Policy | None
    row: ExchangeRow | None = None


class Seam:
    """Takes what clients of one library ask into one session."""

    def __init__(self, session: GatewaySession, library: Any) -> None:
        self._session = session
        self._wire = session.wire
        self.library = library
        upstreams, server = session.upstreams, session.server
        # A provider is meant by the gateway's address for it, by where it is, and by its own one.
        self._known = [
            *((server.base_url(name), name) for name in upstreams),
            *((base, name) for name, base in upstreams.items()),
            *((PROVIDERS[name].default, name) for name in upstreams if name in PROVIDERS),
        ]

    def ask(self, request: Any, body: bytes) -> Generator[Effect, bool, _Asked]:
        """Count a request of the library, and find what answers it; waits for its turn first.

        Raises:
            UsageError: The session has ended.
        """
        wire, player = self._wire, self._session.player
        if wire.run.is_closed:
            raise UsageError("the block that this client was made in has ended")
        headers = [(n.decode("latin-1"), v.decode("latin-1")) for n, v in request.headers.raw]
        provider, origin, path, query = self._addressed(request.url)
        asked = Request(request.method, provider, origin, path, query, headers, body)
        kept, match = wire.match(asked)
        if player is None:
            exchange, response = wire.begin(asked, kept, match, wire.lane_of(asked, match))
            return _Asked(exchange, response, None)
        lane, row = player.take(asked, match)
        if row is not None:
            yield from player.enter(row)
        exchange, response = wire.begin(asked, kept, match, lane)
        if row is not None:
            return _Asked(exchange, response, player.play(exchange, row, response), row)
        said = player.missed(exchange)
        refusal = None if said is None else player.refuse(exchange, response, said)
        return _Asked(exchange, response, refusal)

    def _addressed(self, url: Any) -> tuple[str, str, str, str]:
        """The provider of a URL, its base URL, and the path and query below that."""
        path, _, query = url.raw_path.decode("latin-1").partition("?")
        origin = f"{url.scheme}://{url.netloc.decode('latin-1')}"
        upstreams = self._session.upstreams
        for base, name in self._known:
            if f"{origin}{path}/".startswith(f"{base}/"):
                return name, upstreams[name], f"{origin}{path}".removeprefix(base), query
        return url.host, origin, path, query

    def live(self, asked: _Asked, extensions: Any) -> Any:
        """The request of the library that goes to the network."""
        request = asked.exchange.request
        return self.library.Request(
            request.method,
            live_url(request),
            headers=forwarded(request),
            content=request.body,
            extensions=extensions,
        )

    def add(self, asked: _Asked, data: bytes) -> None:
        """A piece of a live response has come."""
        self._wire.add(asked.exchange, asked.response, data)

    def end(self, asked: _Asked) -> None:
        """Record what came; a second call does nothing."""
        self._wire.end(asked.exchange, asked.response)
        if asked.row is not None and self._session.player is not None:
            self._session.player.ended(asked.row)

    def failed(self, asked: _Asked, error: BaseException) -> None:
        """A live request has failed before its end: note how."""
        response = asked.response
        if not isinstance(error, self.library.TransportError) or isinstance(
            error, self.library.ReadTimeout
        ):
            response.end = "left"
        elif response.status:
            response.end = "cut"
        else:
            self.add(asked, unreachable(asked.exchange, response, error))
        self.end(asked)

    def broken_off(self, asked: _Asked) -> Exception | None:
        """What the client is told where a served response does not end well."""
        match asked.response.end:
            case "cut":
                return self._error("RemoteProtocolError", "the recorded response broke off here")
            case "left":
                return self._error("ReadTimeout", "the recorded client waited no longer")
            case "unreachable":
                return self._error("ConnectError", "the provider could not be reached")
            case "complete":
                return None
        assert_never(asked.response.end)

    def _error(self, name: str, message: str) -> Exception:
        error: Exception = getattr(self.library, name)(message)
        return error


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


def _run(asking: Generator[Effect, bool, _Asked]) -> _Asked:
    try:
        effect = next(asking)
        while True:
            effect = asking.send(_wait(effect))
    except StopIteration as end:
        asked: _Asked = end.value
        return asked
    finally:
        asking.close()


async def _arun(asking: Generator[Effect, bool, _Asked]) -> _Asked:
    try:
        effect = next(asking)
        while True:
            effect = asking.send(await _await(effect))
    except StopIteration as end:
        asked: _Asked = end.value
        return asked
    finally:
        asking.close()


# --- served


class _Served:
    """Runs the policy of one served response; both ways of waiting are here, side by side."""

    def __init__(self, seam: Seam, asked: _Asked, policy: Policy) -> None:
        self._seam = seam
        self._asked = asked
        self._policy = policy
        self._is_unreachable = asked.row is not None and asked.row.end == "unreachable"
        self._answer: bool | None = None
        self._is_over = False

    def step(self) -> Begin | Wait | Pause | bytes | None:
        """The next thing to do; None at the end, which is recorded then.

        Raises:
            Exception: The library's own, where the recorded response did not end well.
        """
        effect: Effect | None = None
        with suppress(StopIteration):
            effect = next(self._policy) if self._answer is None else self._policy.send(self._answer)
        self._answer = True
        if isinstance(effect, Linger):
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
        return effect

    async def anext(self) -> Begin | bytes | None:
        """The next thing to give to a client that waits in a loop."""
        while isinstance(effect := self.step(), Wait | Pause):
            self._answer = await _await(effect)
        return effect

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

    def _leave(self) -> None:
        self._policy.close()
        self._seam.end(self._asked)

    def close(self) -> None:
        """The client wants no more of it."""
        if self._has_all and not self._is_over:
            self.next()
        self._leave()

    async def aclose(self) -> None:
        """See ``close``."""
        if self._has_all and not self._is_over:
            await self.anext()
        self._leave()

    def __iter__(self) -> Iterator[bytes]:
        while isinstance(data := self.next(), bytes):
            yield data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while isinstance(data := await self.anext(), bytes):
            yield data


# --- live


class _Live:
    """Passes a live response on, and notes it."""

    def __init__(self, seam: Seam, asked: _Asked, answer: Any) -> None:
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
            begin = served.begin()
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
            begin = await served.abegin()
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
