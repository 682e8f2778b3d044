"""The gateway as an ASGI application: who may ask, whom a request is for, and what is done with it.

Rule: a request without the run's secret path segment, or with an Origin, learns nothing (404).
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, assert_never

from bernstein.capture.gateway.live import ClientLeftError, Upstream
from bernstein.capture.gateway.player import Begin, Linger, Pause, Wait
from bernstein.wire.key import Request

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Awaitable, Callable, Mapping

    from bernstein.capture.gateway.player import Effect, Player, Policy
    from bernstein.capture.gateway.wire_run import Exchange, Response, WireRun
    from bernstein.recording.exchanges import ExchangeRow

    Scope = Mapping[str, Any]
    Receive = Callable[[], Awaitable[dict[str, Any]]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]

MAX_BODY_BYTES = 64 * 2**20
_MAX_REFUSED = 100


class CutError(Exception):
    """The recorded response broke off here; so does this one."""


class Gateway:
    """Serves one run: live, or from its recording."""

    def __init__(
        self,
        wire: WireRun,
        upstreams: Mapping[str, str],
        player: Player | None,
        refused: Counter[str],
    ) -> None:
        """Serve these providers, by name and base URL; in a strict replay nothing goes live.

        Hosts that are asked for as if this were a proxy are counted in ``refused``.
        """
        self.token = secrets.token_urlsafe(18)
        self._refused = refused
        self._wire = wire
        self._upstreams = dict(upstreams)
        self._player = player
        self._upstream = None if wire.run.is_strict else Upstream(wire)

    def base_path(self, provider: str) -> str:
        """The path below which a provider's requests are taken."""
        return f"/{self.token}/{provider}"

    def _is_meant_for_a_proxy(self, scope: Scope) -> bool:
        """Whether a request asks for another host; it is counted: the way to anywhere is shut."""
        port = scope["server"][1]
        host = next((value.decode("latin-1") for n, value in scope["headers"] if n == b"host"), "")
        if scope["method"] == "CONNECT":
            host = scope["path"].lstrip("/") or host
        if host in {"", f"127.0.0.1:{port}", f"localhost:{port}"}:
            return False
        # Whoever asks for ever new ones is not counted for ever.
        if host in self._refused or len(self._refused) < _MAX_REFUSED:
            self._refused[host] += 1
        return True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI)."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        client = _Client(receive, send)
        parts = scope["raw_path"].decode("latin-1").split("/", 3)
        headers = [(n.decode("latin-1"), v.decode("latin-1")) for n, v in scope["headers"]]
        names = {name.lower() for name, _ in headers}
        if len(parts) < 3 or not secrets.compare_digest(parts[1], self.token) or "origin" in names:
            await client.refuse(403 if self._is_meant_for_a_proxy(scope) else 404)
            return
        provider, path = parts[2], "/" + (parts[3] if len(parts) > 3 else "")
        if provider not in self._upstreams:
            await client.refuse(404)
            return
        if "websocket" in (_value(headers, "upgrade") or "").lower():
            await client.refuse(426)  # a client that tries a websocket falls back to HTTP at once
            return
        body = await client.body()
        if body is None:
            return
        origin = self._upstreams[provider]
        query = scope["query_string"].decode("latin-1")
        request = Request(scope["method"], provider, origin, path, query, headers, body)
        await self._answer(request, client)

    async def _answer(self, request: Request, client: _Client) -> None:
        wire, player = self._wire, self._player
        kept, match = wire.match(request)
        row = None
        if player is None:
            lane = wire.lane_of(request, match)
        else:
            lane, row = player.take(request, match)
            if row is None and player.is_past_its_end(wire.request_count):
                await _play(player.hold_for_ever(), client)  # its end is on its way
                return
            if row is not None and not await _play(player.enter(row), client):
                return
        exchange, response = wire.begin(request, kept, match, lane)
        try:
            await self._respond(exchange, response, row, client)
        except asyncio.CancelledError:
            response.end = "left"
            raise
        finally:
            if player is not None and row is not None and response.end == "left":
                await player.await_turn(row.lane)
            # Before the last byte: whoever reads the end of an answer finds it recorded.
            wire.end(exchange, response)
            if player is not None and row is not None:
                player.ended(row)
        if response.end in {"cut", "left"}:
            raise CutError("the response was cut off here")
        await client.finish()

    async def _respond(
        self, exchange: Exchange, response: Response, row: ExchangeRow | None, client: _Client
    ) -> None:
        """Serve a request from its recorded row, refuse it, or ask live."""
        player = self._player
        if player is not None and row is not None:
            await _play(player.play(exchange, row, response), client)
            return
        said = None if player is None else await asyncio.to_thread(player.missed, exchange)
        if player is not None and said is not None:
            await _play(player.refuse(exchange, response, said), client)
        else:
            assert self._upstream is not None
            await self._upstream.ask(exchange, response, client)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                if self._upstream is not None:
                    await self._upstream.close()
                await send({"type": "lifespan.shutdown.complete"})
                return


async def _play(policy: Policy, client: _Client) -> bool:
    """Serve a client what a policy says; whether that came to its end before the client left."""
    answer = False
    try:
        with suppress(StopIteration):
            effect = next(policy)
            while True:
                if type(effect) is bytes:  # nearly always
                    await client.send(effect)
                    answer = True
                else:
                    answer = await _act(effect, client)
                effect = policy.send(answer)
    except ClientLeftError:
        return False
    finally:
        policy.close()
    return True


async def _act(effect: Effect, client: _Client) -> bool:
    """Do what a policy asks for; whether it was done in time."""
    match effect:
        case bytes():
            await client.send(effect)
        case Begin(status, headers):
            await client.start(status, headers)
        case Pause(seconds):
            await client.unless_left(asyncio.sleep(seconds))
        case Wait(ticket, bound_s):
            return await client.waits(asyncio.wrap_future(ticket), bound_s)
        case Linger(bound_s):
            return await client.waits(asyncio.Event().wait(), bound_s)
        case _:
            assert_never(effect)
    return True


def _value(headers: list[tuple[str, str]], name: str) -> str | None:
    return next((value for known, value in headers if known.lower() == name), None)


class _Client:
    """The other end of one connection."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._left: asyncio.Task[None] | None = None

    async def body(self) -> bytes | None:
        """The whole body of the request; None where the client has left."""
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > MAX_BODY_BYTES:
                await self.refuse(413)
                return None
            if not message.get("more_body", False):
                break
        self._left = asyncio.ensure_future(self._watch())
        return b"".join(parts)

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def start(self, status: int, headers: list[tuple[str, str]]) -> None:
        """Send status and headers."""
        raw = [(name.lower().encode("latin-1"), v.encode("latin-1")) for name, v in headers]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def send(self, data: bytes) -> None:
        """Send a piece of the body.

        Raises:
            ClientLeftError: Nobody reads any more.
        """
        if self._left is not None and self._left.done():
            raise ClientLeftError
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def unless_left(self, work: Awaitable[Any], bound_s: float | None = None) -> None:
        """Wait for ``work``.

        Raises:
            ClientLeftError: Nobody waits any more.
            TimeoutError: It took longer than ``bound_s``.
        """
        task = asyncio.ensure_future(work)
        watched = {task} if self._left is None else {task, self._left}
        try:
            done, _ = await asyncio.wait(
                watched, timeout=bound_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            if not task.done():
                task.cancel()
        if task in done:
            task.result()
            return
        if not done:
            raise TimeoutError
        raise ClientLeftError

    async def waits(self, work: Awaitable[Any], bound_s: float) -> bool:
        """Whether ``work`` is done in time.

        Raises:
            ClientLeftError: Nobody waits any more.
        """
        try:
            await self.unless_left(work, bound_s)
        except TimeoutError:
            return False
        return True

    async def finish(self) -> None:
        """End the body."""
        if self._left is not None:
            self._left.cancel()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def refuse(self, status: int) -> None:
        """Answer without a body."""
        headers = [(b"content-length", b"0")]
        if status == 426:
            headers += [(b"upgrade", b"HTTP/1.1"), (b"connection", b"upgrade")]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
