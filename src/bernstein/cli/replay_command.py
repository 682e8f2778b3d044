"""``bernstein replay``."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import msgspec

from bernstein.canonical import canonical_bytes
from bernstein.chain.compare import COUNTS_ALONE
from bernstein.chain.diff import JournalDiff, diff_journals, to_json
from bernstein.chain.verify import check_chain, find_bad_lines
from bernstein.cli.app import Context, print_json
from bernstein.errors import UnknownRunError, UsageError
from bernstein.files import write_file
from bernstein.fold.rebuild import rebuild_state
from bernstein.recording.misses import read_misses
from bernstein.rundir import RunDir
from bernstein.seal.body_key import bodies_of
from bernstein.seal.evidence import Verdict, verify_deep, verify_run
from bernstein.seal.signing import KeyStore

EXIT_CODES = {"verified": 0, "flagged": 1, "mismatch": 1, "prefix": 2}

_EXAMPLE = """\b
Examples:
  bernstein replay latest
  bernstein replay latest --verify
  bernstein replay latest --from-step 12
  bernstein replay diff RUN_A RUN_B
  bernstein replay latest -- python agent.py
"""


@click.command("replay", epilog=_EXAMPLE)
@click.argument("arguments", metavar="RUN [-- CMD…] | diff A B", nargs=-1, required=True)
@click.option("--verify", is_flag=True, help="Check the run's evidence.")
@click.option("--deep", is_flag=True, help="With --verify: also inside payloads and blobs.")
@click.option("--salvage", is_flag=True, help="List every bad line of the journal and go on.")
@click.option("--explain", is_flag=True, help="List the misses of the last replay of the run.")
@click.option("--from-step", type=int, metavar="N", help="Rebuild the state after N events.")
@click.option(
    "--pace",
    type=click.Choice(["fast", "recorded"]),
    default="fast",
    help="With CMD: whether answers come as slowly as they were recorded.",
)
@click.option("--timeout", type=float, metavar="S", help="With CMD: end it after S seconds.")
@click.option(
    "--isolate",
    is_flag=True,
    help="With CMD: give it no network but the gateway, and fixed folders (Linux).",
)
@click.option("--trust", is_flag=True, help="With CMD: serve it though nobody you trust sealed it.")
@click.option("-v", "--verbose", is_flag=True, help="With CMD: list unused answers.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_obj
def command(
    context: Context,
    arguments: tuple[str, ...],
    *,
    verify: bool,
    deep: bool,
    salvage: bool,
    explain: bool,
    from_step: int | None,
    pace: str,
    timeout: float | None,
    isolate: bool,
    trust: bool,
    verbose: bool,
    as_json: bool,
) -> int:
    """Say what a run is and how to replay it, check it, or find where two runs part.

    \b
    --verify exits with 0 verified (all of it matches its seal, by a key that
    you trust), 1 mismatch (it names the first row that does not hold), 2 cannot
    tell (what is there holds; without a seal nothing says that it is complete).
    diff takes runs or journal files; it exits with 0 equal, 1 different.
    With a command behind -- it runs that and answers it from the recording: it
    exits with 3 after a miss, else with its code, else 1 if the runs differ.
    """
    name, *argv = arguments
    if argv and name != "diff":
        return _replay_command(
            context,
            name,
            argv,
            is_paced=pace == "recorded",
            timeout_s=timeout,
            trusts=trust,
            is_verbose=verbose,
            is_isolated=isolate,
        )
    if arguments[0] == "diff":
        if len(arguments) != 3:
            raise UsageError("diff takes two runs\n  for example: bernstein replay diff A B")
        return _diff(context, arguments[1], arguments[2], as_json=as_json)
    if explain:
        return _explain(context, arguments[0], as_json=as_json)
    run = context.sdd.find_shown(arguments[0])
    if not run.journal.exists():
        raise UnknownRunError(f"run {run.run_id} has no journal\n  list the runs: bernstein runs")
    if from_step is not None:
        click.echo(rebuild_state(run.journal, from_step, run.run_id), nl=False)
        return 0
    if salvage:
        return _salvage(run, as_json=as_json)
    if not (verify or deep):
        _print_header(run, as_json=as_json)
        return 0
    check = verify_deep if deep else verify_run
    keys = KeyStore(context.settings.keys_dir, context.sdd.keys)
    verdict = check(run, context.sdd.project_of(run), keys)
    write_report(run, verdict)
    if as_json:
        print_json({"run_id": run.run_id, **msgspec.to_builtins(verdict)})
    else:
        click.echo(verdict_line(run, verdict))
    return EXIT_CODES[verdict.verdict]


def _explain(context: Context, name: str, *, as_json: bool) -> int:
    """The misses of a run, where it is a replay, else of its newest replay."""
    replays = [run for run in context.sdd.list_runs() if run.read_info().get("source_run")]
    if name == "latest":
        replayed = next(reversed(replays), None)
        what = "no replay"
    else:
        run = context.sdd.find_shown(name)
        own = [other for other in replays if other.read_info()["source_run"] == run.run_id]
        replayed = run if run.read_info().get("source_run") else next(reversed(own), None)
        what = f"run {run.run_id} is no replay, and none of it"
    if replayed is None:
        raise UsageError(f"{what} has been made here\n  see: bernstein replay --help")
    keys = KeyStore(context.settings.keys_dir, context.sdd.keys)
    misses = read_misses(replayed, bodies_of(replayed, context.sdd, keys))
    if as_json:
        print_json(misses)
        return 0
    for miss in misses:
        nearest = miss["nearest"] or {}
        click.echo(f"{miss['reason']} in lane {miss['lane'] or '(none)'}, key {miss['key'][:12]}")
        for differs in nearest.get("differs", []):
            path, old, new = differs if isinstance(differs, list) else (differs, None, None)
            click.echo(f"  {path}" + (f": recorded {old}, asked {new}" if old else ""))
        for line in nearest.get("diff", []):
            click.echo(f"    {line}")
    click.echo(f"{len(misses)} misses in replay {replayed.run_id}")
    return 0


def _replay_command(context: Context, name: str, argv: list[str], **options: Any) -> int:
    from bernstein.capture.gateway.command import (  # noqa: PLC0415 - a server is heavy
        CommandOptions,
        run_recorded,
    )

    settings = replace(context.settings, replay_run_id=name)
    return run_recorded(context.sdd, settings, CommandOptions(argv, **options))


def _salvage(run: RunDir, *, as_json: bool) -> int:
    bad = list(find_bad_lines(run.journal))
    if as_json:
        print_json(msgspec.to_builtins(bad))
    else:
        for line in bad:
            click.echo(f"line {line.line + 1} at byte {line.offset}: {line.reason}")
        click.echo(f"{len(bad)} bad lines" if len(bad) != 1 else "1 bad line")
    return int(bool(bad))


def _diff(context: Context, left: str, right: str, *, as_json: bool) -> int:
    journals = [_journal(context, name) for name in (left, right)]
    for journal in journals:
        check = check_chain(journal)
        if check.reason is not None:
            raise UsageError(
                f"{journal} does not hold at row {check.step_index} ({check.reason}): it cannot "
                "be compared"
            )
    found = diff_journals(*journals)
    if as_json:
        print_json(None if found is None else to_json(found))
    elif found is None:
        click.echo("equal: every row")
    else:
        click.echo(_diff_text(found))
    return 0 if found is None else 1


def _journal(context: Context, name: str) -> Path:
    path = Path(name)
    if path.is_file():
        return path
    run = context.sdd.find_run(name)
    if not run.journal.exists():
        raise UnknownRunError(f"run {run.run_id} has no journal\n  list the runs: bernstein runs")
    return run.journal


def _diff_text(found: JournalDiff) -> str:
    def named(row: tuple[str, str] | None) -> str:
        return "no row" if row is None else row[0] + (f" in {row[1]}" if row[1] else "")

    where = f"different at step {found.step_index}: {found.reason}: "
    lines = [f"{where}{named(found.left)} | {named(found.right)}"]
    if found.kinds is not None:
        lines.append(f"  kind: {found.kinds[0] or 'none'} | {found.kinds[1] or 'none'}")
    if found.in_counts_alone:
        lines.append(f"  they differ in nothing but {COUNTS_ALONE}")
    lines += [f"  {f.path}: {f.left!r} | {f.right!r}" for f in found.fields[:20]]
    if found.realigned is None:
        lines.append("  they are not equal again after that")
    else:
        lines.append(f"  equal again from step {found.realigned[0]} | {found.realigned[1]}")
    return "\n".join(lines)


def _print_header(run: RunDir, *, as_json: bool) -> None:
    info, chain = run.read_info(), check_chain(run.journal)
    plan = (info.get("plan") or {}).get("name")
    source = info.get("source_run") or run.run_id
    command = "bernstein run PLAN"
    if info.get("kind") == "program":
        command = shlex.join(["python", *info.get("argv", [])])
    how = f"BERNSTEIN_REPLAY_RUN_ID={source} {command}"
    if info.get("kind") == "client":
        how = f"bernstein replay {source} -- {shlex.join(info.get('argv', []))}"
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
        ("status", run.status()),
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


def verdict_line(run: RunDir, verdict: Verdict) -> str:
    """A verdict for people: what it is, and why."""
    if verdict.verdict in {"verified", "flagged"}:
        note = f"\n  {verdict.note}" if verdict.note else ""
        signer = f"\n  sealed by {verdict.signer}"
        return f"{verdict.verdict}: {verdict.rows} rows, head {verdict.head}{signer}{note}"
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


def write_report(run: RunDir, verdict: Verdict) -> None:
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
