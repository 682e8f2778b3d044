"""Forwards a request to its provider and passes the response on as it comes."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol

import httpx2

from bernstein.wire.protocol import error_body

if TYPE_CHECKING:
    from bernstein.capture.gateway.wire_run import Exchange, Response, WireRun
    from bernstein.wire.key import Request

# What belongs to one connection, and what would make the body unreadable for the recording.
_NOT_FORWARDED = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_NOT_PASSED_ON = frozenset({"connection", "content-length", "keep-alive", "transfer-encoding"})
_UNPACKED = frozenset({"", "identity", "gzip", "x-gzip", "deflate"})
TIMEOUT_S = 600.0


class Client(Protocol):
    """Whoever asked: what is sent to it goes out at once."""

    async def start(self, status: int, headers: list[tuple[str, str]]) -> None:
        """Send status and headers."""

    async def send(self, data: bytes) -> None:
        """Send a piece of the body.

        Raises:
            ClientLeftError: Nobody reads any more.
        """


class ClientLeftError(Exception):
    """The client has closed its connection."""


class Upstream:
    """The providers, asked over one pool of connections."""

    def __init__(self, wire: WireRun) -> None:
        self._wire = wire
        timeout = httpx2.Timeout(TIMEOUT_S, connect=30.0)
        self._http = httpx2.AsyncClient(timeout=timeout, trust_env=True, follow_redirects=False)

    async def ask(self, exchange: Exchange, response: Response, client: Client) -> None:
        """Ask and pass on; ``response`` is filled in as it comes, and says how it ended."""
        request = exchange.request
        try:
            # Not by the client's own `stream`: that would add headers which nobody sent.
            asked = httpx2.Request(
                request.method,
                live_url(request),
                headers=forwarded(request),
                content=request.body,
                extensions={"timeout": self._http.timeout.as_dict()},
            )
            async with aclosing(await self._http.send(asked, stream=True)) as answer:
                is_unpacked = begun(response, answer)
                await client.start(response.status, response.headers)
                # What cannot be unpacked here is passed on, and kept, as it is packed.
                pieces = answer.aiter_bytes() if is_unpacked else answer.aiter_raw()
                async for data in pieces:
                    if data:
                        self._wire.add(exchange, response, data)
                        await client.send(data)
        except ClientLeftError:
            response.end = "left"
        except httpx2.HTTPError as error:
            if response.status:
                response.end = "cut"
                return
            data = unreachable(exchange, response, error)
            self._wire.add(exchange, response, data)
            await client.start(response.status, response.headers)
            await client.send(data)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()


def begun(response: Response, answer: Any) -> bool:
    """Note status and headers of a live response; whether its body is to be read unpacked.

    What cannot be unpacked here is passed on, and kept, as it is packed.
    """
    is_unpacked = answer.headers.get("content-encoding", "").lower() in _UNPACKED
    left_out = _NOT_PASSED_ON | {"content-encoding"} if is_unpacked else _NOT_PASSED_ON
    pairs = [(name.decode("latin-1"), v.decode("latin-1")) for name, v in answer.headers.raw]
    response.status = answer.status_code
    response.headers = [pair for pair in pairs if pair[0].lower() not in left_out]
    return is_unpacked


def unreachable(exchange: Exchange, response: Response, error: Exception) -> bytes:
    """Note that there was no response; the body that a client of the gateway is told so with."""
    provider = exchange.request.provider
    what = f"{provider} cannot be reached: {type(error).__name__}"
    response.end = "unreachable"
    response.status = 502
    response.headers = [("content-type", "application/json")]
    return json.dumps(error_body(provider, what)).encode()


def live_url(request: Request) -> str:
    """Where a request goes."""
    query = f"?{request.query}" if request.query else ""
    return f"{request.origin.rstrip('/')}{request.path}{query}"


def forwarded(request: Request) -> list[tuple[str, str]]:
    """The headers that a request goes with: its answer is asked for unpacked."""
    kept = [(n, v) for n, v in request.headers if n.lower() not in _NOT_FORWARDED]
    return [*kept, ("accept-encoding", "identity")]
