"""Records or replays a block of this program, whatever HTTP client it uses.

Inside the block the variables that SDKs read point at a gateway on loopback, so clients that are
made there need nothing else; to others ``base_url`` says where to go. Threads, tasks and child
processes started inside are inside. The variables are of the whole process: one block at a time.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bernstein.capture.gateway.child import no_keys, pointers
from bernstein.capture.gateway.session import GatewaySession
from bernstein.errors import DivergedError, SealError, UsageError
from bernstein.rundir import open_sdd
from bernstein.settings import environment_with, read_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_one_block = threading.Lock()


class OpenGateway:
    """What a block is given: where to go, and which run it is."""

    def __init__(self, session: GatewaySession) -> None:
        self._session = session
        self.run_id = session.run.dir.run_id
        self.path = session.run.dir.path

    def base_url(self, provider: str) -> str:
        """Where a client finds a provider (openai, anthropic, google, or a name of yours)."""
        return self._session.server.base_url(provider)


@contextmanager
def record(
    *,
    profile: str = "generic",
    upstreams: Mapping[str, str] | None = None,
    sdd_dir: Path | str | None = None,
    extend: str | None = None,
) -> Iterator[OpenGateway]:
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
    run: str | Path, *, sdd_dir: Path | str | None = None, is_paced: bool = False
) -> Iterator[OpenGateway]:
    """Answer the block from a recorded run; nothing of this process reaches the network.

    Args:
        run: A run's id, a unique prefix, ``latest``, or the folder of a saved recording.
        sdd_dir: The project's folder, instead of looking for ``.sdd``.
        is_paced: Whether answers come as slowly as they were recorded.
    Raises:
        ReplayMissError: The block asked for what was not recorded, whatever it made of the answer.
        DivergedError: It asked for less, or in another order within a lane.
        BernsteinError: The recording cannot be replayed.
    """
    settings = replace(read_settings(), replay_run_id=str(run), allow_live_miss=False)
    folder = Path(sdd_dir) if sdd_dir is not None else settings.sdd_dir

    def begin() -> GatewaySession:
        return GatewaySession(open_sdd(folder), settings, argv=["replay"], is_paced=is_paced)

    with _served(begin) as opened:
        yield opened


@contextmanager
def _served(begin: Callable[[], GatewaySession]) -> Iterator[OpenGateway]:
    if not _one_block.acquire(blocking=False):
        raise UsageError("a record or replay block is open already; they are of the whole process")
    try:
        session = begin()
        code = 1
        try:
            with session:
                variables = pointers(session.server, session.upstreams)
                if session.is_replay:
                    variables |= no_keys()
                with environment_with(variables):
                    yield OpenGateway(session)
            code = 0
        finally:
            result = session.finish(code)
    finally:
        _one_block.release()
    if session.run.store.first_miss is not None:
        raise session.run.store.first_miss
    if session.run.seal_problem is not None:
        raise SealError(session.run.seal_problem)
    if result:
        comparison = session.run.comparison()
        raise DivergedError("" if comparison is None else comparison.line())
