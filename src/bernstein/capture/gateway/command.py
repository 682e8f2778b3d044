"""Records the run of a command through the gateway, or replays it."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bernstein.capture.gateway.child import environment, run_child, surroundings
from bernstein.capture.gateway.session import GatewaySession
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
    """

    argv: Sequence[str]
    upstreams: Mapping[str, str] = field(default_factory=dict)
    profile: str | None = None
    is_paced: bool = False
    timeout_s: float | None = None
    trusts: bool = False
    is_verbose: bool = False


def run_recorded(sdd: SddDir, settings: Settings, options: CommandOptions) -> int:
    """Run a command through the gateway: live and recorded, or as a replay where settings say so.

    Returns:
        The exit code: see ``GatewaySession.finish``.
    Raises:
        BernsteinError: It cannot be begun.
    """
    if shutil.which(options.argv[0]) is None:
        raise UsageError(f"there is no program {options.argv[0]}\n  name one behind --")
    session = GatewaySession(
        sdd,
        settings,
        argv=options.argv,
        profile=options.profile or profile_for(options.argv[0]),
        upstreams=options.upstreams,
        is_paced=options.is_paced,
        trusts=options.trusts,
        guard="proxy",
        rerun=f"bernstein record -- {shlex.join(options.argv)}",
    )
    code = 1
    try:
        with session, surroundings(session.home, session.tmp) as made:
            env = environment(session.server, made, session.upstreams, is_replay=session.is_replay)
            code = run_child(options.argv, env, options.timeout_s)
    finally:
        result = session.finish(code, is_verbose=options.is_verbose)
    return result
