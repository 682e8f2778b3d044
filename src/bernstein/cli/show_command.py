"""``bernstein show``."""

from __future__ import annotations

from collections import Counter

import click

from bernstein.canonical import JsonObject
from bernstein.cli.app import Context, print_json
from bernstein.errors import UnknownRunError
from bernstein.events import trajectory as event
from bernstein.fold.run import TrajectoryEvent, project, read_events


@click.command("show", epilog="Example: bernstein show latest")
@click.argument("run_id", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_obj
def command(context: Context, run_id: str, *, as_json: bool) -> int:
    """Show a run: its steps, calls, usage and artifacts."""
    run = context.sdd.find_run(run_id)
    if not run.journal.exists():
        raise UnknownRunError(f"run {run.run_id} has no journal\n  list the runs: bernstein runs")
    events = list(read_events(run.journal, run.run_id))
    info = run.read_info()
    projection = project(events)
    artifacts = {
        item.payload["path"]: item.payload["content"]["digest"]
        for item in events
        if item.kind == event.ARTIFACT_WRITTEN
    }
    if as_json:
        print_json(
            {
                **projection.to_json(),
                "artifacts": artifacts,
                "counts": Counter(item.kind for item in events),
            }
        )
        return 0
    plan = (info.get("plan") or {}).get("name")
    click.echo(f"run {run.run_id} {projection.status}" + (f": {plan}" if plan else ""))
    if info.get("source_run"):
        click.echo(f"a replay of {info['source_run']}")
    calls = _calls_by_step(events)
    for node in projection.steps:
        _print_step(node, calls, 0)
    for band, totals in projection.usage_totals.items():
        if any(totals.values()):
            cost = f", ${totals['credits'] / 1e6:.4f}" if totals["credits"] else ""
            click.echo(
                f"usage ({band}): {totals['inputTokens']} tokens in, "
                f"{totals['cachedInputTokens']} cached, {totals['outputTokens']} out{cost}"
            )
    for path, digest in sorted(artifacts.items()):
        click.echo(f"file {path} sha256 {digest}")
    click.echo(f"{len(events)} rows, head {info.get('head') or 'open'}")
    return 0


def _calls_by_step(events: list[TrajectoryEvent]) -> Counter[str]:
    return Counter(
        item.payload.get("stepId", "") for item in events if item.kind == event.MODEL_CALL
    )


def _print_step(node: JsonObject, calls: Counter[str], depth: int) -> None:
    label = f"  {node['label']}" if "label" in node else ""
    count = calls[node["stepId"]]
    asked = f"  ({count} call{'s' if count > 1 else ''})" if count else ""
    click.echo(f"{'  ' * (depth + 1)}{node['status']:<8}{node['stepId']}{label}{asked}")
    for child in node["children"]:
        _print_step(child, calls, depth + 1)
