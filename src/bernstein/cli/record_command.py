"""``bernstein record``."""

from __future__ import annotations

from dataclasses import replace

import click

from bernstein.cli.app import Context
from bernstein.errors import UsageError

_EXAMPLE = """\b
Examples:
  bernstein record -- python agent.py
  bernstein record --upstream openai=http://127.0.0.1:8080/v1 -- claude -p "hello"
"""


@click.command("record", epilog=_EXAMPLE, context_settings={"ignore_unknown_options": False})
@click.argument("argv", metavar="-- CMD…", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--upstream",
    "upstreams",
    multiple=True,
    metavar="NAME=URL",
    help="Where a provider is, instead of what the environment names.",
)
@click.option(
    "--extend", metavar="RUN", help="Serve what this run recorded, and ask only the rest live."
)
@click.option(
    "--trust", is_flag=True, help="With --extend: serve it though nobody you trust sealed it."
)
@click.option("--profile", help="The normalisation profile (default: by the command's name).")
@click.option("--timeout", type=float, metavar="S", help="End the command after S seconds.")
@click.option(
    "--isolate", is_flag=True, help="Give it no network but the gateway, and fixed folders (Linux)."
)
@click.pass_obj
def command(
    context: Context,
    argv: tuple[str, ...],
    *,
    upstreams: tuple[str, ...],
    extend: str | None,
    trust: bool,
    profile: str | None,
    timeout: float | None,
    isolate: bool,
) -> int:
    """Run a command and record what it asks of model providers, and what they answer.

    The command is pointed at a gateway on loopback by the variables that its SDK or
    client reads (ANTHROPIC_BASE_URL, OPENAI_BASE_URL, GOOGLE_GEMINI_BASE_URL). Its
    exit code is ours.
    """
    from bernstein.capture.gateway.command import (  # noqa: PLC0415 - a server is heavy
        CommandOptions,
        run_recorded,
    )

    chosen = dict(named_url_option(text) for text in upstreams)
    options = CommandOptions(
        argv, chosen, profile, timeout_s=timeout, trusts=trust, is_isolated=isolate
    )
    settings = replace(context.settings, replay_run_id=extend, allow_live_miss=extend is not None)
    return run_recorded(context.sdd, settings, options)


def named_url_option(text: str) -> tuple[str, str]:
    """A provider's name and base URL.

    Raises:
        UsageError: It is not NAME=URL.
    """
    name, sign, url = text.partition("=")
    if not sign or not url.startswith(("http://", "https://")):
        raise UsageError(
            f"--upstream {text!r}: expected NAME=URL\n"
            "  for example: --upstream openai=http://127.0.0.1:8080/v1"
        )
    return name, url
