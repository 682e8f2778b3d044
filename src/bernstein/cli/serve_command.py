"""``bernstein serve``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bernstein.cli.app import Context
from bernstein.errors import UsageError
from bernstein.seal.inside import refuse_inside_run
from bernstein.seal.signing import KeyStore
from bernstein.settings import serve_token_file

if TYPE_CHECKING:
    import ssl

_EXAMPLE = """\b
Examples:
  bernstein serve
  bernstein serve --read-only --port 9000
  bernstein serve --host 0.0.0.0 --name build.example --cert cert.pem --key key.pem
  curl -N -H "Authorization: Bearer $TOKEN" http://127.0.0.1:8733/api/runs/latest/events
"""
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("serve", epilog=_EXAMPLE)
@click.option("--port", type=click.IntRange(0, 65535), default=8733, help="0: any that is free.")
@click.option("--host", default="127.0.0.1", metavar="IP", help="Where to listen (loopback).")
@click.option("--name", "names", multiple=True, help="A host name that leads here; may repeat.")
@click.option("--cert", type=_FILE, help="A TLS certificate, PEM; for other hosts than loopback.")
@click.option("--key", type=_FILE, help="Its private key, PEM.")
@click.option("--texts", is_flag=True, help="Let readers see what was asked and said.")
@click.option("--read-only", is_flag=True, help="Take no approvals.")
@click.pass_obj
def command(
    context: Context,
    port: int,
    host: str,
    names: tuple[str, ...],
    *,
    cert: Path | None,
    key: Path | None,
    texts: bool,
    read_only: bool,
) -> int:
    """Show the runs of this project in a browser, live, and take approvals there.

    The address that is printed lets its reader in. Who approves shows the operator's token, which
    is in the file that is named. BERNSTEIN_SERVE_TOKEN_FILE: a file with a read token of yours.
    """
    import uvicorn  # noqa: PLC0415 - heavy

    from bernstein.capture.gateway.server import listen_at  # noqa: PLC0415
    from bernstein.show.access import (  # noqa: PLC0415
        Access,
        is_loopback,
        operator_token,
        read_token,
    )
    from bernstein.show.app import make_app  # noqa: PLC0415

    tls = _tls(cert, key)
    if tls is None and not is_loopback(host):
        raise UsageError(
            f"{host} can be reached by others, and the token would be sent in the clear\n"
            "  give it a certificate: --cert FILE --key FILE"
        )
    token_file = serve_token_file()
    token = read_token(token_file)
    operator = operator_file = None
    if not read_only:
        refuse_inside_run(context.sdd)
        # Where keys are kept from files, what decides in their place is too.
        settings = context.settings
        operator_file, operator = operator_token(settings.keys_dir, is_kept=not settings.keyring)
    where = f"[{host}]" if ":" in host else host
    access = Access(token, operator, (*(name.lower() for name in names), where.lower()), texts)
    keys = KeyStore(context.settings.keys_dir, context.sdd.keys)
    listener = listen_at(host, port)
    with listener:
        shown = names[0] if names else where
        address = f"{'https' if tls else 'http'}://{shown}:{listener.getsockname()[1]}/"
        click.echo(address if token_file else f"{address}#token={token}")
        click.echo(f"read token: {f'the one in {token_file}' if token_file else token}")
        if operator is not None:
            where = f"the one in {operator_file}" if operator_file else operator
            click.echo(f"operator token, for approvals: {where}")
        sys.stdout.flush()
        config = uvicorn.Config(
            make_app(context.sdd, keys, access),
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=3,
        )
        config.load()
        config.ssl = tls
        uvicorn.Server(config).run(sockets=[listener])
    return 0


def _tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise UsageError("a certificate and its key go together: --cert FILE --key FILE")
    import ssl  # noqa: PLC0415 - only where it is asked for

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        tls.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"{cert} and {key} are no certificate and its key: {error}") from error
    return tls
