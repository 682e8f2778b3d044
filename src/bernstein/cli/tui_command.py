"""``bernstein tui``."""

from __future__ import annotations

import getpass
import signal
import sys
from typing import TYPE_CHECKING

import click

from bernstein.cli.app import Context
from bernstein.errors import UnknownRunError, UsageError
from bernstein.seal.signing import KeyStore
from bernstein.settings import has_full_terminal, tui_streams

if TYPE_CHECKING:
    from collections.abc import Callable

    from bernstein.rundir import RunDir

_EXAMPLE = """\b
Examples:
  bernstein tui latest
  BERNSTEIN_TUI_STREAM=1 bernstein tui
"""


@click.command("tui", epilog=_EXAMPLE)
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--as", "actor", metavar="NAME", help="Who decides; your user's name unless given.")
@click.pass_obj
def command(context: Context, run_id: str | None, actor: str | None) -> int:
    """Show a run in the terminal as it happens, and decide on what it asks; without RUN the list.

    BERNSTEIN_TUI_STREAM=1 feeds it from the stream of rows; else it looks each second.
    """
    run = None if run_id is None else context.sdd.find_shown(run_id)
    if run is not None and not run.journal.exists():
        raise UnknownRunError(f"run {run.run_id} has no journal\n  list the runs: bernstein runs")
    show_thread(context, run, actor)
    return 0


def show_thread(
    context: Context,
    run: RunDir | None,
    actor: str | None = None,
    is_owned: Callable[[], bool] = lambda: False,
) -> str | None:
    """Show a run, or the list, until its reader leaves it.

    Args:
        context: Of the command.
        run: The run.
        actor: Who decides.
        is_owned: Whether the run goes on, and is this command's own.
    Returns:
        ``leave`` or ``end``: what is to become of such a run; else None.
    Raises:
        UsageError: This is no terminal that can show it.
        SystemExit: It was told to end.
        Exception: A fault of ours ended the view.
    """
    refuse_poor_terminal()
    from bernstein.show.tui.app import TERMINATED, ThreadApp  # noqa: PLC0415 - heavy
    from bernstein.show.tui.sources import polled, streamed  # noqa: PLC0415

    source = streamed if tui_streams() else polled
    keys = KeyStore(context.settings.keys_dir, context.sdd.keys)
    app = ThreadApp(context.sdd, keys, source, actor or getpass.getuser(), run)
    app.is_owned = is_owned
    before = signal.getsignal(signal.SIGTERM)
    try:
        answer = app.run()
    finally:
        signal.signal(signal.SIGTERM, before)
    if app.fault is not None:
        raise app.fault
    if answer == TERMINATED:
        sys.exit(128 + signal.SIGTERM)
    return answer


def refuse_poor_terminal() -> None:
    """Refuse to go on without a terminal on which a text can be put anywhere.

    Raises:
        UsageError: This is none.
    """
    streams = (sys.stdin, sys.stdout, sys.stderr)  # it is drawn on the last
    if not (all(stream.isatty() for stream in streams) and has_full_terminal()):
        raise UsageError(
            "this is no terminal that can show it\n  as lines: bernstein thread watch RUN"
        )
