"""Records or replays a block of this program, whatever HTTP client it uses.

Inside the block the variables that SDKs read point at a gateway on loopback, so clients that are
made there need nothing else; to others ``base_url`` says where to go. Threads, tasks and child
processes started inside are inside. The variables are of the whole process: one block at a time.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2

from bernstein.capture.gateway.child import no_keys, pointers
from bernstein.capture.gateway.session import GatewaySession
from bernstein.capture.gateway.transport import async_transport, sync_transport
from bernstein.capture.gateway.world import Kind, World
from bernstein.errors import DivergedError, SealError, UsageError
from bernstein.rundir import open_sdd
from bernstein.settings import environment_with, read_settings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from bernstein.canonical import JsonObject, JsonValue

_one_block = threading.Lock()
_open_world: World | None = None


class ReplayGateway:
    """What a block is given: ways for what is asked inside it, to be recorded or served.

    Attributes:
        run_id: The block's run.
        path: Its folder.
    """

    def __init__(self, session: GatewaySession) -> None:
        self._session = session
        self.run_id = session.run.dir.run_id
        self.path = session.run.dir.path
        self.world = World(session.run, session.wire.redactor)

    def base_url(self, provider: str) -> str:
        """Where a client finds a provider (openai, anthropic, google, or a name of yours)."""
        return self._session.server.base_url(provider)

    def transport(self, library: Any = httpx2, inner: Any = None) -> Any:
        """A transport for ``Client(transport=…)``: what goes through it needs no socket.

        Args:
            library: ``httpx2`` or ``httpx``, as the client is.
            inner: The library's transport for what goes live, else its own.
        """
        return sync_transport(self._session, library, inner)

    def async_transport(self, library: Any = httpx2, inner: Any = None) -> Any:
        """Like ``transport``, for ``AsyncClient(transport=…)``."""
        return async_transport(self._session, library, inner)

    def answer(
        self,
        kind: Kind,
        request: JsonObject | None,
        produce: Callable[[], JsonValue],
        errors: Sequence[type[Exception]] = (),
    ) -> JsonValue:
        """The recorded answer of the world to a request, else what ``produce`` gives, recorded.

        Args:
            kind: llm, tool, clock, random, uuid or custom.
            request: What the answer depends on, an object of JSON; None where that is nothing:
                such answers are served in the order of asking.
            produce: Asks the world; its answer is kept as JSON, and given as JSON gives it back.
            errors: Exceptions of yours that a replay raises again as themselves; built-in ones
                are, and any other is raised as a RecordedToolError.
        Raises:
            ReplayMissError: A strict replay has no (further) answer to it.
            UsageError: Request or answer hold what JSON does not.
        """
        return self.world.answer(kind, request, produce, errors)

    async def aanswer(
        self,
        kind: Kind,
        request: JsonObject | None,
        produce: Callable[[], Awaitable[JsonValue]],
        errors: Sequence[type[Exception]] = (),
    ) -> JsonValue:
        """Like ``answer``, for what is awaited."""
        return await self.world.aanswer(kind, request, produce, errors)


def open_world() -> World | None:
    """The world of the open block, if there is one."""
    return _open_world


@contextmanager
def record(
    *,
    profile: str = "generic",
    upstreams: Mapping[str, str] | None = None,
    sdd_dir: Path | str | None = None,
    extend: str | None = None,
) -> Iterator[ReplayGateway]:
    """Record what the block asks of model providers.

    Args:
        profile: The normalisation profile.
        upstreams: Base URLs of providers by name, instead of what the environment names.
        sdd_dir: The project's folder, instead of looking for ``.sdd``.
        extend: A recorded run whose answers are served; only the rest is asked live.
    Raises:
        BernsteinError: It cannot be begun, or not be sealed.
    """
    settings = replace(read_settings(), replay_run_id=extend, allow_live_miss=extend is not None)
    folder = Path(sdd_dir) if sdd_dir is not None else settings.sdd_dir

    def begin() -> GatewaySession:
        return GatewaySession(
            open_sdd(folder), settings, argv=["record"], profile=profile, upstreams=upstreams
        )

    with _served(begin) as opened:
        yield opened


@contextmanager
def replay(
    run: str | Path,
    *,
    sdd_dir: Path | str | None = None,
    is_paced: bool = False,
    allow: Iterable[tuple[str, int]] = (),
) -> Iterator[ReplayGateway]:
    """Answer the block from a recorded run; nothing of this process reaches the network.

    Args:
        run: A run's id, a unique prefix, ``latest``, or the folder of a saved recording.
        sdd_dir: The project's folder, instead of looking for ``.sdd``.
        is_paced: Whether answers come as slowly as they were recorded.
        allow: Hosts and ports that may be reached all the same, a database of the test for example.
    Raises:
        ReplayMissError: The block asked for what was not recorded, whatever it made of the answer.
        DivergedError: It asked for less, or in another order within a lane.
        BernsteinError: The recording cannot be replayed.
    """
    settings = replace(read_settings(), replay_run_id=str(run), allow_live_miss=False)
    folder = Path(sdd_dir) if sdd_dir is not None else settings.sdd_dir

    def begin() -> GatewaySession:
        return GatewaySession(
            open_sdd(folder),
            settings,
            argv=["replay"],
            is_paced=is_paced,
            guard="python",
            allow=allow,
        )

    with _served(begin) as opened:
        yield opened


@contextmanager
def _served(begin: Callable[[], GatewaySession]) -> Iterator[ReplayGateway]:
    global _open_world  # noqa: PLW0603 - a block is of the whole process
    if not _one_block.acquire(blocking=False):
        raise UsageError("a record or replay block is open already; they are of the whole process")
    try:
        session = begin()
        code = 1
        try:
            with session:
                variables = pointers(session.server, session.upstreams)
                if session.is_replay:
                    variables |= no_keys(session.known_key_names)
                gateway = ReplayGateway(session)
                _open_world = gateway.world
                # A child process of ours can tell by it that it is inside.
                with environment_with({**variables, "BERNSTEIN_BLOCK": session.run.dir.run_id}):
                    yield gateway
            code = 0
        finally:
            _open_world = None
            # A forked child that leaves the block leaves the run to its parent.
            result = session.finish(code) if session.run.pid == os.getpid() else 0
    finally:
        _one_block.release()
    if session.run.store.first_miss is not None:
        raise session.run.store.first_miss
    if session.run.seal_problem is not None:
        raise SealError(session.run.seal_problem)
    if result:
        comparison = session.run.comparison()
        raise DivergedError("" if comparison is None else comparison.line())
