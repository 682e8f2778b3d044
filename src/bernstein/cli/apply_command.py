"""``bernstein apply``."""

from __future__ import annotations

import click

from bernstein.cli.app import Context
from bernstein.errors import WorkspaceError
from bernstein.runner.workspace import Change, apply_changes, diff_lines, pending_changes


@click.command("apply", epilog="Example: bernstein apply latest --dry-run")
@click.argument("run_id", metavar="RUN")
@click.option("--dry-run", is_flag=True, help="Show the diff and bring nothing over.")
@click.option("-q", "--quiet", is_flag=True, help="Do not print the diff.")
@click.pass_obj
def command(context: Context, run_id: str, *, dry_run: bool, quiet: bool) -> int:
    """Bring the changes of a run's workspace over into the folder, and show them.

    A file that changed in the folder since the run began is not overwritten:
    then nothing is brought over.
    """
    run = context.sdd.find_run(run_id)
    if run.is_running():
        raise WorkspaceError(f"run {run.run_id} is still running; apply it when it has ended")
    changes = pending_changes(run)
    if not changes:
        click.echo("nothing to bring over: the folder has all of it already")
        return 0
    for line in diff_lines(run, changes) if not quiet else ():
        click.echo(line)
    if dry_run:
        click.echo(f"{_files(changes)} would change")
        return 0
    apply_changes(run, changes)
    click.echo(
        f"{_files(changes)} brought over: {', '.join(c.path for c in changes[:8])}"
        + (", …" if len(changes) > 8 else "")
    )
    return 0


def _files(changes: list[Change]) -> str:
    return "1 file" if len(changes) == 1 else f"{len(changes)} files"
