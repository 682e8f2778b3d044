"""``bernstein thread verify`` and ``bernstein thread watch``."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click
import msgspec

from bernstein.cli.app import Context, print_json
from bernstein.errors import UnknownRunError
from bernstein.fold.follow import follow
from bernstein.fold.thread import verify_thread_against_journal
from bernstein.fold.told import told_row
from bernstein.seal.evidence import verify_run
from bernstein.seal.signing import KeyStore

if TYPE_CHECKING:
    from bernstein.rundir import RunDir

_EXAMPLE = """\b
Examples:
  bernstein thread watch latest
  bernstein thread verify --run latest
"""


@click.group("thread", epilog=_EXAMPLE)
def command() -> None:
    """Watch a run as it happens, and prove that what is shown is what happened."""


@command.command("verify", epilog="Example: bernstein thread verify --run latest")
@click.option("--run", "run_id", metavar="RUN", required=True, help="The run.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_obj
def verify(context: Context, run_id: str, *, as_json: bool) -> int:
    """Prove that the stream of a run is its journal, and that the journal is the one sealed.

    Exits with 0 where it is (with a warning where there is no seal), 1 with the first step that
    differs, 2 where there is no journal.
    """
    run = _find(context, run_id)
    check = verify_thread_against_journal(run.journal)
    warning = wrong = ""
    if check.step_index is None:
        verdict = verify_run(
            run,
            context.sdd.project_of(run),
            KeyStore(context.settings.keys_dir, context.sdd.keys),
        )
        if verdict.verdict == "mismatch":
            wrong = f"{verdict.reason}" + (f": {verdict.note}" if verdict.note else "")
            check = msgspec.structs.replace(check, step_index=verdict.step_index, note=wrong)
        elif verdict.verdict == "prefix":
            warning = verdict.note or "there is no seal, so nothing says that these are all rows"
    if as_json:
        print_json({"run_id": run.run_id, **msgspec.to_builtins(check), "warning": warning})
    elif check.step_index is not None:
        click.echo(f"run {run.run_id} differs at step {check.step_index}: {check.note}")
    elif wrong:
        click.echo(f"run {run.run_id} is not what was sealed: {wrong}")
    else:
        click.echo(f"run {run.run_id}: {check.rows} events are the journal that was executed")
    if warning:
        sys.stderr.write(f"warning: {warning}\n")
    return int(bool(check.note))


@command.command("watch", epilog="Example: bernstein thread watch latest --json")
@click.argument("run_id", metavar="RUN")
@click.option("--after", type=click.IntRange(0), help="Begin behind the row of this index.")
@click.option("--json", "as_json", is_flag=True, help="Print each row as it stands.")
@click.pass_obj
def watch(context: Context, run_id: str, after: int | None, *, as_json: bool) -> int:
    """Print a run's rows as they come, until it has ended."""
    run = _find(context, run_id)
    for event in follow(run, after, wait=time.sleep):
        text = event.data.decode("utf-8", "replace") if as_json else told_row(event)
        click.echo(text)
        sys.stdout.flush()
    return 0


def _find(context: Context, run_id: str) -> RunDir:
    run = context.sdd.find_shown(run_id)
    if not run.journal.exists():
        raise UnknownRunError(f"run {run.run_id} has no journal\n  list the runs: bernstein runs")
    return run
