"""One run through a gateway: opened, served on loopback, closed and reported."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from bernstein.capture.gateway.player import Player
from bernstein.capture.gateway.seat import Seat, SeatOptions
from bernstein.capture.run import OpenRun
from bernstein.errors import RecordingError, ReplayMissError
from bernstein.events import trajectory as event
from bernstein.settings import provider_secrets
from bernstein.wire.profile import load_profile
from bernstein.wire.secrets import Redactor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from bernstein.capture.gateway.launcher import Launcher
    from bernstein.recording.coverage import Guard
    from bernstein.rundir import SddDir
    from bernstein.settings import Settings


Closable = TypeVar("Closable", bound=Any)


class GatewaySession(Seat):
    """A run whose exchanges go through a gateway; it listens once the context is entered."""

    def __init__(
        self,
        sdd: SddDir,
        settings: Settings,
        *,
        argv: Sequence[str],
        profile: str = "generic",
        upstreams: Mapping[str, str] | None = None,
        is_paced: bool = False,
        trusts: bool = True,
        rerun: str = "",
        guard: Guard = "none",
        allow: Iterable[tuple[str, int]] = (),
        launcher: Launcher | None = None,
        folder: Path | None = None,
        make_player: Callable[..., Player] = Player,
    ) -> None:
        """Open a run: a recording, or a replay where the settings name a run.

        Args:
            sdd: Where the run goes.
            settings: Seed, replay, strictness.
            argv: What is run: it stands in ``run.json``.
            profile: The name of the profile of a recording; a replay takes the recording's.
            upstreams: Base URLs of providers by name that overrule what the environment names.
            is_paced: Whether a replay is as slow as the recording was.
            trusts: Whether a recording is served that nobody whom this user trusts has sealed:
                its answers can make an agent run tools.
            rerun: The command that records again; a miss advises it.
            guard: What keeps whoever asks from the network in a replay.
            allow: Hosts and ports that a replay in this process may reach beside the gateway.
            launcher: What starts the command, where there is one.
            folder: Where that command works: what is in it now belongs to the recording.
            make_player: Makes what serves a replay.
        Raises:
            BernsteinError: It cannot be begun.
        """
        chosen = load_profile(profile)
        redactor = Redactor(provider_secrets())
        kept_argv = [redactor.text(argument) for argument in argv]
        run = OpenRun(sdd, settings, {"kind": "client", "argv": kept_argv}, follows_score=False)
        listener = None if launcher is None else launcher.listener
        options = SeatOptions(
            upstreams=upstreams or {},
            is_paced=is_paced,
            is_isolated=listener is not None,
            folder=folder,
            rerun=rerun,
            make_player=make_player,
        )
        with ExitStack() as undo:
            undo.callback(run.discard)  # what cannot begin leaves nothing
            run.guard = guard
            _check_source(run, trusts=trusts)
            super().__init__(run, redactor, chosen, options)
            self.server = self.serve(listener)
            self._allow = list(allow)
            self._stack = ExitStack()
            undo.pop_all()

    def __enter__(self) -> Self:
        self.run.append(event.RUN_STARTED, {"agentId": f"client/{self.profile.name}"})
        self._stack.enter_context(self.server)
        if self.run.is_strict:
            self.run.keep_from_network([("127.0.0.1", self.server.port), *self._allow])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.run.pid == os.getpid():
            self._stack.close()

    def closes_at_end(self, closable: Closable) -> Closable:
        """Close something with the context."""
        return self._stack.enter_context(closing(closable))

    def finish(self, code: int, *, is_verbose: bool = False) -> int:
        """Close and seal the run, and report it on standard error.

        Args:
            code: The exit code of what was run.
            is_verbose: Whether answers that nobody asked for are listed.
        Returns:
            3 after a strict miss, else ``code``, else 1 where a replay diverged or the run could
            not be sealed.
        """
        self.end_open()
        run, said = self.run, sys.stderr.write
        status: event.RunStatus = "completed" if code == 0 else "failed"
        run.append_end(status)
        run.close(status)
        if run.seal_problem is not None:
            said(f"bernstein: the run is not sealed: {run.seal_problem}\n")
        said(run.context.note())
        for path in self.kept_home.left_out:
            said(f"note: ~/{path} is too large to be kept: the command did not find it\n")
        coverage, comparison = run.coverage(), run.comparison()
        run.retain()
        if coverage is None or comparison is None or self.player is None:
            said(f"recorded run {run.dir.run_id} head={run.head}\n")
            return code or int(run.seal_problem is not None)
        if run.store.first_miss is not None:
            said(f"{run.store.first_miss}\n")
        if self.player.hold.has_expired:
            said(
                "note: a request that was recorded did not come, so from there the answers were "
                "not held in their order\n"
            )
        for host, count in self.refused.items():
            said(f"note: {host} was reached for and refused ({count}x): it is not recorded\n")
        # What an extension does not hold any more is said without being asked for.
        for row in self.player.unused() if is_verbose or not run.is_strict else ():
            said(f"unused: exchange {row.seq}: {row.method} {row.path} ({row.status})\n")
        said(f"{coverage.line()}\n")
        if run.is_strict:
            said(f"{comparison.line()}\n")
        else:
            said(
                f"extended {run.source.run_id if run.source else ''} to run {run.dir.run_id} "
                f"head={run.head}\n"
            )
        if coverage.strict_violations:
            return ReplayMissError.exit_code
        has_diverged = run.is_strict and comparison.relation == "diverged"
        return code or int(has_diverged or run.seal_problem is not None)


def _check_source(run: OpenRun, *, trusts: bool) -> None:
    """Refuse a recording that is not replayed in this way."""
    source = run.source
    if source is None:
        return
    if not source.exchanges.exists() or source.read_info().get("kind") == "plan":
        raise RecordingError(
            f"run {source.run_id} is not the recording of one client: it is replayed by what "
            f"recorded it\n  see: bernstein replay {source.run_id}"
        )
    if not trusts:
        run.refuse_untrusted()
