"""``bernstein save``."""

from __future__ import annotations

from pathlib import Path

import click

from bernstein.cli.app import Context
from bernstein.seal.save import save_recording
from bernstein.seal.signing import KeyStore


@click.command("save", epilog="Example: bernstein save latest tests/recordings/agent")
@click.argument("run_id", metavar="RUN")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.pass_obj
def command(context: Context, run_id: str, folder: Path) -> int:
    """Write a run's recording into a folder to commit.

    `bernstein replay DIR --trust -- CMD…` plays from it, and `bernstein show DIR` shows it.
    """
    run = context.sdd.find_run(run_id)
    keys = KeyStore(context.settings.keys_dir, context.sdd.keys)
    save_recording(run, context.sdd, keys, folder)
    click.echo(f"{folder}: the recording of run {run.run_id}")
    click.echo(f"  replay it: bernstein replay {folder} --trust -- CMD…")
    return 0
