"""``bernstein replay``."""

from __future__ import annotations

import click
import msgspec

from bernstein.canonical import canonical_bytes
from bernstein.chain.verify import check_chain
from bernstein.cli.app import Context, print_json
from bernstein.errors import UnknownRunError
from bernstein.rundir import RunDir, write_file
from bernstein.seal.evidence import Verdict, verify_run
from bernstein.seal.signing import default_keys

_EXIT = {"verified": 0, "flagged": 1, "mismatch": 1, "prefix": 2}

_EXAMPLE = """\b
Examples:
  bernstein replay latest
  bernstein replay 20261130T14 --verify
"""


@click.command("replay", epilog=_EXAMPLE)
@click.argument("run_id", metavar="RUN")
@click.option("--verify", is_flag=True, help="Recompute the journal's chain and check the calls.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_obj
def command(context: Context, run_id: str, *, verify: bool, as_json: bool) -> int:
    """Say what a run is and how to replay it; with --verify, check its evidence.

    \b
    --verify exits with 0 verified (all of it matches its seal, by a key that
    you trust), 1 mismatch (it names the first row that does not hold), 2 cannot
    tell (what is there holds; without a seal nothing says that it is complete).
    """
    run = context.sdd.find_run(run_id)
    if not run.journal.exists():
        raise UnknownRunError(f"run {run.run_id} has no journal\n  list the runs: bernstein runs")
    if not verify:
        _print_header(run, as_json=as_json)
        return 0
    verdict = verify_run(run, context.sdd, default_keys(context.sdd))
    _write_report(run, verdict)
    if as_json:
        print_json({"run_id": run.run_id, **msgspec.to_builtins(verdict)})
    else:
        click.echo(_verdict_line(run, verdict))
    return _EXIT[verdict.verdict]


def _print_header(run: RunDir, *, as_json: bool) -> None:
    info, chain = run.read_info(), check_chain(run.journal)
    plan = (info.get("plan") or {}).get("name")
    source = info.get("source_run") or run.run_id
    how = f"BERNSTEIN_REPLAY_RUN_ID={source} bernstein run PLAN"
    if as_json:
        print_json(
            {
                "run_id": run.run_id,
                "plan": plan,
                "status": info.get("status"),
                "head": chain.head,
                "rows": chain.rows,
                "seed": info.get("seed"),
                "source_run": info.get("source_run"),
                "replay": how,
            }
        )
        return
    for name, value in (
        ("run", run.run_id),
        ("plan", plan),
        ("status", info.get("status")),
        ("replay of", info.get("source_run")),
        ("seed", info.get("seed")),
        ("head", chain.head),
        ("rows", chain.rows),
    ):
        if value is not None:
            click.echo(f"{name:<10}{value}")
    if chain.reason is not None:
        click.echo(f"{'damaged':<10}at row {chain.step_index}: {chain.reason}")
    click.echo(f"{'replay it':<10}{how}")


def _verdict_line(run: RunDir, verdict: Verdict) -> str:
    if verdict.verdict == "verified":
        return f"verified: {verdict.rows} rows, head {verdict.head}\n  sealed by {verdict.signer}"
    if verdict.verdict == "prefix":
        return f"prefix: {verdict.rows} rows hold, head {verdict.head}\n  {verdict.note}"
    where = "" if verdict.step_index is None else f" at step {verdict.step_index}"
    lines = [f"mismatch{where}: {verdict.reason}"]
    if verdict.expected_hash or verdict.actual_hash:
        lines.append(f"  expected {verdict.expected_hash or 'nothing'}")
        lines.append(f"  actual   {verdict.actual_hash or 'nothing'}")
    if verdict.note:
        lines.append(f"  {verdict.note}")
    lines.append(f"  report: {run.divergence_report}")
    return "\n".join(lines)


def _write_report(run: RunDir, verdict: Verdict) -> None:
    """Write the report of a failed check, or remove that of an earlier one."""
    if verdict.verdict != "mismatch":
        run.divergence_report.unlink(missing_ok=True)
        return
    report = {
        "run_id": run.run_id,
        "reason": verdict.reason,
        "step_index": verdict.step_index,
        "expected_hash": verdict.expected_hash,
        "actual_hash": verdict.actual_hash,
    }
    write_file(run.divergence_report, canonical_bytes(report) + b"\n")
