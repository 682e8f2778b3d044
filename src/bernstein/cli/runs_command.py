"""``bernstein runs``."""

from __future__ import annotations

import click

from bernstein.cli.app import Context, print_json
from bernstein.errors import RecordingError, UsageError
from bernstein.files import write_file
from bernstein.seal.retention import choose_pruned, prune_to
from bernstein.seal.signing import KeyStore

_EXAMPLE = """\b
Examples:
  bernstein runs
  bernstein runs keep latest
  bernstein runs prune --keep 20 --dry-run
"""


@click.group("runs", invoke_without_command=True, epilog=_EXAMPLE)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_context
def command(ctx: click.Context, *, as_json: bool) -> int:
    """List the runs, newest first; pin some, or remove old ones."""
    return 0 if ctx.invoked_subcommand else _list(ctx.obj, as_json=as_json)


def _list(context: Context, *, as_json: bool) -> int:
    rows = []
    for run in reversed(context.sdd.list_runs()):
        try:
            info, status = run.read_info(), run.status()
        except RecordingError:
            info, status = {}, "unreadable"
        rows.append(
            {
                "run_id": run.run_id,
                "status": status,
                "name": (info.get("plan") or {}).get("name") or " ".join(info.get("argv", [])),
                "source_run": info.get("source_run"),
                "head": info.get("head"),
            }
        )
    if as_json:
        print_json(rows)
    elif not rows:
        click.echo(f"no runs in {context.sdd.path}; record one with: bernstein run plan.yaml")
    for row in rows if not as_json else ():
        of = f" (replay of {row['source_run']})" if row["source_run"] else ""
        click.echo(f"{row['run_id']}  {row['status']:<11}  {row['name']}{of}")
    return 0


@command.command("keep", epilog="Example: bernstein runs keep latest")
@click.argument("run_id", metavar="RUN")
@click.option("--off", is_flag=True, help="Take the pin out again.")
@click.pass_obj
def keep(context: Context, run_id: str, *, off: bool) -> int:
    """Pin a run: nothing prunes it."""
    run = context.sdd.find_run(run_id)
    if off:
        run.keep.unlink(missing_ok=True)
    else:
        write_file(run.keep, b"")
    click.echo(f"{run.run_id} {'may be pruned again' if off else 'is kept'}")
    return 0


@command.command("prune", epilog="Example: bernstein runs prune --keep 20 --dry-run")
@click.option(
    "--keep",
    "count",
    type=click.IntRange(1),
    metavar="N",
    help="How many finished runs stay (default: BERNSTEIN_REPLAY_RETENTION).",
)
@click.option("--dry-run", is_flag=True, help="Name the runs that would go, and keep them.")
@click.pass_obj
def prune_runs(context: Context, count: int | None, *, dry_run: bool) -> int:
    """Remove old runs: replays first, then the oldest; never one that runs or is pinned."""
    count = count or context.settings.retention
    if count is None:
        raise UsageError("say how many runs stay\n  for example: bernstein runs prune --keep 20")
    keys = KeyStore(context.settings.keys_dir, context.sdd.keys)
    runs = choose_pruned(context.sdd, count) if dry_run else prune_to(context.sdd, count, keys)
    for run in runs:
        click.echo(f"{'would remove' if dry_run else 'removed'} {run.run_id}")
    if not runs:
        click.echo("nothing to remove")
    return 0
