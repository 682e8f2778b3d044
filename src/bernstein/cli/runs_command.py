"""``bernstein runs``."""

from __future__ import annotations

import click

from bernstein.cli.app import Context, print_json
from bernstein.errors import RecordingError


@click.command("runs", epilog="Example: bernstein runs")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_obj
def command(context: Context, *, as_json: bool) -> int:
    """List the runs, newest first."""
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
