"""``bernstein gateway``."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from pathlib import Path

import click

from bernstein.cli.app import Context
from bernstein.cli.record_command import named_url_option

_EXAMPLE = """\b
Examples:
  bernstein gateway --env-file gateway.env      (then, elsewhere: . ./gateway.env)
  bernstein gateway --replay latest --env-file gateway.env
"""


@click.command("gateway", epilog=_EXAMPLE)
@click.option("--replay", "run_id", metavar="RUN", help="Answer from this run instead of live.")
@click.option(
    "--env-file",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Where to write the variables that point clients at it; it holds the run's secret.",
)
@click.option("--upstream", "upstreams", multiple=True, metavar="NAME=URL", help="See record.")
@click.option("--profile", default="generic", help="The normalisation profile of a recording.")
@click.option("--trust", is_flag=True, help="Replay it though nobody you trust sealed it.")
@click.option("-v", "--verbose", is_flag=True, help="List unused answers at the end.")
@click.pass_obj
def command(
    context: Context,
    *,
    run_id: str | None,
    env_file: Path,
    upstreams: tuple[str, ...],
    profile: str,
    trust: bool,
    verbose: bool,
) -> int:
    """Serve one run until it is interrupted: clients are started by somebody else.

    Ends with what a replay ends with: 3 after a miss, 1 where it diverged, else 0.
    """
    from bernstein.capture.gateway.child import (  # noqa: PLC0415 - a server is heavy
        no_keys,
        pointers,
    )
    from bernstein.capture.gateway.session import GatewaySession  # noqa: PLC0415
    from bernstein.files import write_file  # noqa: PLC0415

    session = GatewaySession(
        context.sdd,
        replace(context.settings, replay_run_id=run_id),
        argv=["gateway"],
        profile=profile,
        upstreams=dict(named_url_option(text) for text in upstreams),
        trusts=trust,
    )
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    try:
        with session:
            variables = pointers(session.server, session.upstreams)
            if session.is_replay:
                variables |= no_keys(session.known_key_names)
            lines = "".join(f"export {name}={value}\n" for name, value in variables.items())
            write_file(env_file, lines.encode())
            click.echo(f"serving on loopback; point clients at it: . {env_file}", err=True)
            stopped.wait()
    finally:
        env_file.unlink(missing_ok=True)
        result = session.finish(0, is_verbose=verbose)
    return result
