"""Records the run of a command through the gateway, or replays it."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bernstein.capture.gateway.child import (
    environment,
    passing_on_signals,
    surroundings,
    wait_for,
)
from bernstein.capture.gateway.launcher import Launcher
from bernstein.capture.gateway.player import Player
from bernstein.capture.gateway.session import GatewaySession
from bernstein.capture.gateway.watcher import Watcher
from bernstein.errors import UsageError
from bernstein.wire.profile import profile_for

if TYPE_CHECKING:
    from bernstein.rundir import SddDir
    from bernstein.settings import Settings


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """How a command is recorded or replayed.

    Attributes:
        argv: The command.
        upstreams: Base URLs by provider that overrule what the environment names.
        profile: The name of a profile; None chooses by the command's name.
        is_paced: Whether a replay is as slow as the recording was.
        timeout_s: When the command is ended; None never.
        trusts: Whether a recording is served that nobody whom this user trusts has sealed.
        is_verbose: Whether the answers that nobody asked for are listed.
        is_isolated: Whether it is kept in namespaces of its own.
        folder: Where it works.
        make_player: Makes what serves a replay.
        is_quiet: Whether what it prints goes nowhere.
    """

    argv: Sequence[str]
    upstreams: Mapping[str, str] = field(default_factory=dict)
    profile: str | None = None
    is_paced: bool = False
    timeout_s: float | None = None
    trusts: bool = False
    is_verbose: bool = False
    is_isolated: bool = False
    folder: Path = field(default_factory=Path.cwd)
    make_player: Callable[..., Player] = Player
    is_quiet: bool = False


def run_recorded(sdd: SddDir, settings: Settings, options: CommandOptions) -> int:
    """Run a command through the gateway: live and recorded, or as a replay where settings say so.

    Returns:
        The exit code: see ``GatewaySession.finish``.
    Raises:
        BernsteinError: It cannot be begun.
    """
    if shutil.which(options.argv[0]) is None:
        raise UsageError(f"there is no program {options.argv[0]}\n  name one behind --")
    launcher = Launcher(is_isolated=options.is_isolated, is_quiet=options.is_quiet)
    try:
        return _launched(launcher, sdd, settings, options)
    finally:
        launcher.close()


def _launched(launcher: Launcher, sdd: SddDir, settings: Settings, options: CommandOptions) -> int:
    session = GatewaySession(
        sdd,
        settings,
        argv=options.argv,
        profile=options.profile or profile_for(options.argv),
        upstreams=options.upstreams,
        is_paced=options.is_paced,
        trusts=options.trusts,
        guard="netns" if options.is_isolated else "proxy",
        launcher=launcher,
        folder=options.folder,
        make_player=options.make_player,
        rerun=f"bernstein record -- {shlex.join(options.argv)}",
    )
    code = 1
    try:
        folders = (session.home, session.tmp)
        watcher = Watcher(session.server.gateway.token, folders, ends_rest=False)
        with watcher, session, surroundings(*folders) as made:
            session.write_home()
            env = environment(
                session.server,
                made,
                session.upstreams,
                is_replay=session.is_replay,
                key_names=session.known_key_names,
                policy=session.policy,
            )
            hidden = [sdd.path, settings.keys_dir]
            if session.run.source is not None:
                hidden.append(session.run.source.path)
            with passing_on_signals(launcher.process, has_own_session=options.is_isolated):
                launcher.run(options.argv, env, options.folder, hidden)
                code = wait_for(launcher.process, options.timeout_s)
    finally:
        result = session.finish(code, is_verbose=options.is_verbose)
    return result
