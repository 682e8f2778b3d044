"""``bernstein run``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bernstein.capture.models.registry import close_providers
from bernstein.cli.app import Context, print_json
from bernstein.cli.progress import make_observer
from bernstein.errors import UsageError
from bernstein.runner.plan_file import load_plan
from bernstein.runner.report import RunOptions
from bernstein.runner.resume import recorded_plan
from bernstein.runner.session import PlanRun

if TYPE_CHECKING:
    from bernstein.runner.plan import Plan
    from bernstein.runner.report import RunReport, ToolsMode

_EXAMPLE = """\b
Examples:
  bernstein run plan.yaml
  BERNSTEIN_DETERMINISTIC_SEED=42 bernstein run plan.yaml
  BERNSTEIN_REPLAY_RUN_ID=latest bernstein run plan.yaml
  bernstein run plan.yaml --dry-run
  bernstein run plan.yaml --tui
  bernstein run --resume latest
"""


@click.command("run", epilog=_EXAMPLE)
@click.argument("plan_path", metavar="[PLAN]", type=click.Path(path_type=Path), required=False)
@click.option("--resume", metavar="RUN", help="Let a run go on that is parked, or that was killed.")
@click.option("--model", metavar="PROVIDER:NAME", help="Let the built-in agent ask this model.")
@click.option("--in-place", is_flag=True, help="Work in the folder itself, not in a copy.")
@click.option("--exact", is_flag=True, help="In a replay, another interleaving diverges too.")
@click.option(
    "--isolate", is_flag=True, help="Keep agents in namespaces without a network (Linux)."
)
@click.option(
    "--tools",
    type=click.Choice(["recorded", "rerun"]),
    default="recorded",
    help="In a replay: give what tools gave, or run them again and compare.",
)
@click.option("--wait", is_flag=True, help="Wait for approvals; do not park the run.")
@click.option("--tui", is_flag=True, help="Show the run on the terminal; wait for approvals.")
@click.option("--trust", is_flag=True, help="Let agents be driven by a recording of a stranger.")
@click.option("--dry-run", is_flag=True, help="Print the task graph; ask no model, record nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, no table.")
@click.option("-v", "--verbose", is_flag=True, help="List unused answers and failures in full.")
@click.pass_obj
def command(
    context: Context,
    plan_path: Path | None,
    resume: str | None,
    model: str | None,
    *,
    tools: ToolsMode,
    wait: bool,
    in_place: bool,
    exact: bool,
    isolate: bool,
    tui: bool,
    trust: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Run a plan and record it, or replay a recorded run of it."""
    if (plan_path is None) == (resume is None):
        raise UsageError("name a PLAN, or a run with --resume\n  for example: bernstein run p.yaml")
    if tui:
        if as_json or quiet or dry_run:
            raise UsageError("--tui shows the run on the terminal: leave -q, --json, --dry-run out")
        from bernstein.cli.run_in_view import run_in_view  # noqa: PLC0415 - heavy

        return run_in_view(context)
    goes_on = None if resume is None else context.sdd.find_run(resume)
    if goes_on is not None:
        if model or in_place or isolate or dry_run or context.settings.replay_run_id:
            raise UsageError("a run goes on as it began: leave the other options, and replays, out")
        plan = recorded_plan(goes_on)
        isolate = goes_on.read_info().get("isolated") is True
    else:
        assert plan_path is not None
        plan = load_plan(plan_path)
    if dry_run:
        _print_graph(plan, as_json=as_json)
        return 0
    options = RunOptions(
        model=model,
        in_place=in_place,
        exact=exact,
        trusts=trust,
        is_isolated=isolate,
        tools=tools,
        waits=wait,
        goes_on=goes_on,
    )
    with make_observer(plan, quiet=quiet or as_json) as observer:
        run = PlanRun(plan, context.sdd, context.settings, options, observer)
        try:
            report = asyncio.run(run.execute())
        finally:
            close_providers()
    if as_json:
        print_json(report_json(report))
    elif not quiet:
        click.echo(_table(report, context, in_place=in_place))
    elif report.failures or report.waiting:
        sys.stderr.write("".join(f"waits for approval: {call}\n" for call in report.waiting))
        sys.stderr.write("".join(f"failed: {failure}\n" for failure in report.failures))
    _print_replay(report, verbose=verbose)
    return report.exit_code


def report_json(report: RunReport) -> dict[str, Any]:
    """A run's report as a JSON value."""
    coverage, comparison = report.coverage, report.comparison
    return {
        "run_id": report.run_id,
        "status": report.status,
        "exit_code": report.exit_code,
        "head": report.head,
        "rows": report.rows,
        "workspace": str(report.workspace),
        "steps": [
            {"step_id": step_id, "title": title, "status": status, "error": code}
            for step_id, title, status, code in report.steps
        ],
        "failures": report.failures,
        "waiting": report.waiting,
        "artifacts": report.artifacts,
        "usage": {
            "calls": report.calls,
            "input_tokens": report.input_tokens,
            "output_tokens": report.output_tokens,
            "credits": report.credits,
        },
        "replay": None
        if coverage is None or comparison is None
        else {
            "hits": coverage.hits,
            "misses": coverage.misses,
            "strict_violations": coverage.strict_violations,
            "unused": len(coverage.unused),
            "recorded": coverage.recorded,
            "strict": coverage.is_strict,
            "guard": coverage.guard,
            "relation": comparison.relation,
            "step_index": comparison.step_index,
            "reason": comparison.reason,
        },
        "miss": None
        if report.miss is None
        else {
            "reason": report.miss.reason,
            "key": report.miss.key,
            "model": report.miss.model,
            "recorded": report.miss.recorded,
            "requested": report.miss.requested,
            "nearest": report.miss.nearest,
        },
    }


def _print_replay(report: RunReport, *, verbose: bool) -> None:
    if report.seal_problem is not None:
        sys.stderr.write(f"bernstein: the run is not sealed: {report.seal_problem}\n")
    sys.stderr.write("".join(f"note: {note}\n" for note in report.notes))
    sys.stderr.write(report.context_note)
    is_identical = report.comparison is not None and report.comparison.relation == "identical"
    if report.has_other_plan:
        sys.stderr.write("note: the plan is not the one that was recorded\n")
    if report.has_other_tree and not is_identical:
        sys.stderr.write("note: the folder is not as it was when the run was recorded\n")
    if report.miss is not None:
        sys.stderr.write(f"{report.miss}\n")
    if report.coverage is not None and report.comparison is not None:
        for unused in report.coverage.unused if verbose else ():
            sys.stderr.write(f"unused: key {unused.key} in lane {unused.lane!r}\n")
        sys.stderr.write(f"{report.coverage.line()}\n{report.comparison.line()}\n")


def _table(report: RunReport, context: Context, *, in_place: bool) -> str:
    cut = "waits" if report.status == "parked" else "cut"
    marks = {"ok": "ok", "error": "failed", "waiting": "not begun", "running": cut}
    rows = [(step_id, marks[status], code or "") for step_id, _, status, code in report.steps]
    widths = [max(len(row[n]) for row in [("step", "status", ""), *rows]) for n in (0, 1)]
    lines = [f"{'step':<{widths[0]}}  {'status':<{widths[1]}}"]
    lines += [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}".rstrip() for a, b, c in rows]
    lines += [f"  {failure}" for failure in report.failures]
    dollars = f", ${report.credits / 1e6:.4f}" if report.credits else ""
    lines.append(
        f"run {report.run_id} {report.status}: {report.calls} calls, "
        f"{report.input_tokens} tokens in, {report.output_tokens} out{dollars}"
    )
    lines.append(f"head {report.head}")
    if report.waiting:
        lines += [f"  waits for approval: {call}" for call in report.waiting]
        lines.append(f"  look at it: bernstein approve {report.run_id}")
        lines.append(f"  then let it go on: bernstein run --resume {report.run_id}")
    if report.artifacts:
        lines.append(f"files in {report.workspace}: {', '.join(report.artifacts)}")
        own = context.settings.sdd_dir
        options = f"--sdd {own} " if own is not None else ""
        if not in_place:
            lines.append(f"  bring them over: bernstein {options}apply {report.run_id}")
    elif report.status == "completed":
        lines.append(
            f"no step declares files; what was said: bernstein show {report.run_id} --answers"
        )
    return "\n".join(lines)


def _print_graph(plan: Plan, *, as_json: bool) -> None:
    if as_json:
        print_json(plan.to_json())
        return
    click.echo(f"{plan.name}: {len(plan.steps)} steps, at most {plan.max_agents} at once")
    for stage in plan.stages:
        after = f" (after {', '.join(stage.depends_on)})" if stage.depends_on else ""
        click.echo(f"{stage.stage_id}{after}")
        own = {step.step_id for step in stage.steps}
        for step in stage.steps:
            needs = [step_id for step_id in step.depends_on if step_id in own]
            waits = f" (after {', '.join(needs)})" if needs else ""
            files = f" -> {', '.join(step.files)}" if step.files else ""
            click.echo(f"  {step.step_id} [{step.cli}]{waits}{files}")
