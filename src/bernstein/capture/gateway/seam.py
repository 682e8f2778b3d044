"""Where what an HTTP library of this process asks comes into a session.

Nothing here waits or reads: how that is done is the transport's affair.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple, assert_never

from bernstein.capture.gateway.live import forwarded, live_url, unreachable
from bernstein.errors import UsageError
from bernstein.wire.key import Request
from bernstein.wire.protocol import PROVIDERS

if TYPE_CHECKING:
    from bernstein.capture.gateway.player import Effect, Policy
    from bernstein.capture.gateway.session import GatewaySession
    from bernstein.capture.gateway.wire_run import Exchange, Response
    from bernstein.recording.exchanges import ExchangeRow


# What ``live.unreachable`` says of it.
_ERROR_NAME = re.compile(rb"cannot be reached: (\w+)")


class Asked(NamedTuple):
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

    def ask(self, request: Any, body: bytes) -> Generator[Effect, bool, Asked]:
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
            return Asked(exchange, response, None)
        lane, row = player.take(asked, match)
        if row is not None:
            yield from player.enter(row)
        exchange, response = wire.begin(asked, kept, match, lane)
        if row is not None:
            return Asked(exchange, response, player.play(exchange, row, response), row)
        said = player.missed(exchange)
        refusal = None if said is None else player.refuse(exchange, response, said)
        return Asked(exchange, response, refusal)

    def _addressed(self, url: Any) -> tuple[str, str, str, str]:
        """The provider of a URL, its base URL, and the path and query below that."""
        path, _, query = url.raw_path.decode("latin-1").partition("?")
        origin = f"{url.scheme}://{url.netloc.decode('latin-1')}"
        upstreams = self._session.upstreams
        for base, name in self._known:
            if f"{origin}{path}/".startswith(f"{base}/"):
                return name, upstreams[name], f"{origin}{path}".removeprefix(base), query
        return url.host, origin, path, query

    def live(self, asked: Asked, extensions: Any) -> Any:
        """The request of the library that goes to the network."""
        request = asked.exchange.request
        return self.library.Request(
            request.method,
            live_url(request),
            headers=forwarded(request),
            content=request.body,
            extensions=extensions,
        )

    def add(self, asked: Asked, data: bytes) -> None:
        """A piece of a live response has come."""
        self._wire.add(asked.exchange, asked.response, data)

    def end(self, asked: Asked) -> None:
        """Record what came; a second call does nothing."""
        self._wire.end(asked.exchange, asked.response)
        if asked.row is not None and self._session.player is not None:
            self._session.player.ended(asked.row)

    def failed(self, asked: Asked, error: BaseException) -> None:
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

    def broken_off(self, asked: Asked) -> Exception | None:
        """What the client is told where a served response does not end well."""
        match asked.response.end:
            case "cut":
                return self._error("RemoteProtocolError", "the recorded response broke off here")
            case "left":
                return self._error("ReadTimeout", "the recorded client waited no longer")
            case "unreachable":
                name = _ERROR_NAME.search(asked.response.body)
                kind = name[1].decode() if name else "ConnectError"
                return self._error(kind, "the provider could not be reached")
            case "complete":
                return None
        assert_never(asked.response.end)

    def _error(self, name: str, message: str) -> Exception:
        kind = getattr(self.library, name, None)
        if not (isinstance(kind, type) and issubclass(kind, self.library.TransportError)):
            kind = self.library.ConnectError
        error: Exception = kind(message)
        return error
