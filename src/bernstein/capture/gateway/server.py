"""Runs the gateway on a free loopback port, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from typing import TYPE_CHECKING, Self

import uvicorn

from bernstein.errors import BernsteinError

if TYPE_CHECKING:
    from types import TracebackType

    from bernstein.capture.gateway.app import Gateway

_START_S = 20.0


def loopback_listener(port: int = 0) -> socket.socket:
    """A socket bound to a port of loopback, by default a free one.

    Raises:
        BernsteinError: Somebody else has it.
    """
    return listen_at("127.0.0.1", port)


def listen_at(address: str, port: int) -> socket.socket:
    """A socket bound to a port of an IP address; 0: a free one.

    Raises:
        BernsteinError: Somebody else has it, or the address is none of this machine.
    """
    # TCP by name: to a connection of one without it asyncio gives no TCP_NODELAY, and each small
    # piece then waits 40 ms for the client's acknowledgement of the one before.
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
    except OSError as error:
        listener.close()
        where = "loopback" if address == "127.0.0.1" else address
        raise BernsteinError(
            f"port {port} of {where} cannot be had: {error.strerror}\n  name another: --port"
        ) from error
    return listener


class _Server(uvicorn.Server):
    """A server that ends when it is told to, and not at the next tenth of a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_told = asyncio.Event()

    async def main_loop(self) -> None:
        """Serve until ``stop``."""
        self._loop = asyncio.get_running_loop()
        if not self.should_exit:
            await self._is_told.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the connections; where there are none, at once."""
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
            return
        for server in self.servers:
            server.close()
        await self.lifespan.shutdown()

    def stop(self) -> None:
        """End, whatever thread says so."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._is_told.set)


class GatewayServer:
    """A running gateway; it listens once the context is entered, and has ended after it."""

    def __init__(self, gateway: Gateway, listener: socket.socket | None = None) -> None:
        """Serve on a socket that is bound to a port of loopback already, else on one of our own."""
        self.gateway = gateway
        self._socket = listener or loopback_listener()
        self.port: int = self._socket.getsockname()[1]
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        config = uvicorn.Config(
            gateway,
            lifespan="on",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=3,
            timeout_keep_alive=75,
        )
        self._server = _Server(config)
        self._thread = threading.Thread(
            target=self._server.run,
            kwargs={"sockets": [self._socket]},
            name="bernstein-gateway",
            daemon=True,
        )

    @property
    def is_alive(self) -> bool:
        """Whether it still serves."""
        return self._thread.is_alive()

    def base_url(self, provider: str) -> str:
        """Where a client finds a provider; it holds the run's secret."""
        return f"http://127.0.0.1:{self.port}{self.gateway.base_path(provider)}"

    def __enter__(self) -> Self:
        self._thread.start()
        waited = threading.Event()
        for _ in range(int(_START_S / 0.01)):
            if self._server.started:
                return self
            if not self._thread.is_alive():
                break
            waited.wait(0.01)
        raise BernsteinError("the gateway could not be started on a loopback port")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.stop()
        self._thread.join(timeout=10)
        self._socket.close()
