"""``bernstein serve``."""

from __future__ import annotations

import sys

import click

from bernstein.cli.app import Context
from bernstein.settings import serve_token_file

_EXAMPLE = """\b
Examples:
  bernstein serve
  curl -N -H "Authorization: Bearer $TOKEN" http://127.0.0.1:8733/api/runs/latest/events
"""


@click.command("serve", epilog=_EXAMPLE)
@click.option("--port", type=click.IntRange(0, 65535), default=8733, help="0: any that is free.")
@click.pass_obj
def command(context: Context, port: int) -> int:
    """Serve the runs of this project on loopback, with their rows as they come, to be read alone.

    A reader shows the token that is printed; BERNSTEIN_SERVE_TOKEN_FILE names a file with one.
    """
    import uvicorn  # noqa: PLC0415 - heavy

    from bernstein.capture.gateway.server import loopback_listener  # noqa: PLC0415
    from bernstein.show.access import Access, read_token  # noqa: PLC0415
    from bernstein.show.app import make_app  # noqa: PLC0415

    token_file = serve_token_file()
    token = read_token(token_file)
    listener = loopback_listener(port)
    with listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        click.echo(f"{address}/api/runs")
        if token_file is None:
            click.echo(f"read token: {token}")
        sys.stdout.flush()
        config = uvicorn.Config(
            make_app(context.sdd, Access(token)),
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=3,
        )
        uvicorn.Server(config).run(sockets=[listener])
    return 0
