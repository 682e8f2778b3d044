"""``bernstein verify``."""

from __future__ import annotations

import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING

import click
import msgspec

from bernstein.chain.decisions import compare_decisions
from bernstein.cli.app import Context, print_json
from bernstein.cli.replay_command import EXIT_CODES, verdict_line, write_report
from bernstein.errors import UsageError
from bernstein.events.entry import GENESIS
from bernstein.rundir import SddDir
from bernstein.seal.evidence import Verdict, verify_run
from bernstein.seal.signing import KeyStore
from bernstein.seal.spine import SpineReading, read_spine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bernstein.rundir import RunDir

_BATCH = 64
_LARGE_BYTES = 16 * 2**20

_EXAMPLE = """\b
Examples:
  bernstein verify latest
  bernstein verify --all
  bernstein verify --determinism RUN_A RUN_B
"""


@click.command("verify", epilog=_EXAMPLE)
@click.argument("run_ids", metavar="RUN...", nargs=-1)
@click.option("--all", "all_runs", is_flag=True, help="Check every run of the project.")
@click.option(
    "--determinism",
    is_flag=True,
    help="Compare the decision logs of two runs, or of one with its own record.",
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Name only the runs that are not verified.")
@click.pass_obj
def command(
    context: Context,
    run_ids: tuple[str, ...],
    *,
    all_runs: bool,
    determinism: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Check the evidence of runs: chain, recording, seal, signature and spine.

    Exits with 0 where all are verified, 1 where one is a mismatch, else 2.
    """
    if determinism:
        return _determinism(context, run_ids, as_json=as_json)
    if bool(run_ids) == all_runs:
        raise UsageError("name runs to check, or give --all\n  for example: bernstein verify --all")
    runs = context.sdd.list_runs() if all_runs else [context.sdd.find_run(r) for r in run_ids]
    counts: Counter[str] = Counter()
    results = []
    gone = _gone_runs(context) if all_runs else []
    for run, verdict in chain(_verify_all(context, runs), gone):
        counts[verdict.verdict] += 1
        if run.path.is_dir():
            write_report(run, verdict)
        if as_json:
            results.append({"run_id": run.run_id, **msgspec.to_builtins(verdict)})
        elif not (quiet and verdict.verdict == "verified"):
            click.echo(f"{run.run_id} {verdict_line(run, verdict)}")
    if as_json:
        print_json(results)
    elif len(runs) != 1:
        said = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        click.echo(f"{len(runs)} runs: {said or 'none'}")
    codes = {EXIT_CODES[name] for name in counts}
    return 1 if 1 in codes else max(codes, default=0)


def _gone_runs(context: Context) -> list[tuple[RunDir, Verdict]]:
    """Runs that the spine has as sealed, and that are neither here nor said to be pruned."""
    spine = read_spine(context.sdd.spine, KeyStore(context.settings.keys_dir, context.sdd.keys))
    last = {entry.run_id: entry.kind for entry in spine.entries if entry.kind != "artifact"}
    missing = Verdict(
        "mismatch",
        0,
        GENESIS,
        "missing",
        0,
        note="the spine has it as sealed, and its folder is gone",
    )
    return [
        (context.sdd.run(run_id), missing)
        for run_id, kind in last.items()
        if kind != "pruned" and not context.sdd.run(run_id).path.exists()
    ]


def _verify_all(context: Context, runs: list[RunDir]) -> Iterator[tuple[RunDir, Verdict]]:
    """Each run's verdict, over all cores where there is much to check."""
    cores = os.cpu_count() or 1
    checker = _Checker(context.sdd, KeyStore(context.settings.keys_dir, context.sdd.keys))
    if len(runs) <= _BATCH and sum(map(_size, runs)) < _LARGE_BYTES:
        yield from ((run, checker.verify(run)) for run in runs)
        return
    size = max(1, min(_BATCH, len(runs) // (4 * cores)))
    names = [run.run_id for run in runs]
    batches = [names[at : at + size] for at in range(0, len(names), size)]
    done = 0
    # The spine is read once, not in each process.
    with ProcessPoolExecutor(cores, initializer=_use, initargs=(checker,)) as pool:
        for verdicts in pool.map(_verify_batch, batches):
            for verdict in verdicts:
                yield runs[done], verdict
                done += 1
            if sys.stderr.isatty():
                sys.stderr.write(f"\r{done} of {len(runs)} runs ")
    if sys.stderr.isatty():
        sys.stderr.write("\r")


def _size(run: RunDir) -> int:
    try:
        return run.journal.stat().st_size
    except OSError:
        return 0


class _Checker:
    """What every run of a project is checked with."""

    def __init__(self, sdd: SddDir, keys: KeyStore) -> None:
        self.sdd = sdd
        self._keys = keys
        self._spine = read_spine(sdd.spine, keys)

    def verify(self, run: RunDir) -> Verdict:
        """The verdict on one run; a file that cannot be read is part of it, and ends no check."""
        return _verify_one(run, self.sdd, self._keys, self._spine)


_checker: _Checker  # of a worker process


def _use(checker: _Checker) -> None:
    global _checker  # noqa: PLW0603 - once in each worker
    _checker = checker


def _verify_batch(names: list[str]) -> list[Verdict]:
    return [_checker.verify(_checker.sdd.run(name)) for name in names]


def _verify_one(run: RunDir, sdd: SddDir, keys: KeyStore, spine: SpineReading) -> Verdict:
    """The verdict on one run; a file that cannot be read is part of it, and ends no check."""
    try:
        return verify_run(run, sdd, keys, spine)
    except FileNotFoundError:
        sealed = spine.sealed(run.run_id)
        if sealed is None:
            return Verdict("prefix", 0, GENESIS, note="it has no journal")
        return Verdict("mismatch", 0, GENESIS, "missing", 0, note="its journal is gone")
    except OSError as error:
        return Verdict(
            "mismatch", 0, GENESIS, "not_a_row", 0, note=f"{error.strerror}: {error.filename}"
        )


def _determinism(context: Context, run_ids: tuple[str, ...], *, as_json: bool) -> int:
    if not 1 <= len(run_ids) <= 2:
        raise UsageError("--determinism takes one run or two")
    runs = [context.sdd.find_run(run_id) for run_id in run_ids]
    result = compare_decisions(runs[0].wal, runs[1].wal if len(runs) == 2 else runs[0].journal)
    if as_json:
        print_json(msgspec.to_builtins(result))
    elif result.first_difference is None:
        click.echo(f"equal: {result.rows} decisions, fingerprint {result.fingerprint}")
    else:
        click.echo(
            f"different at decision {result.first_difference}: "
            f"{result.left or 'none'} against {result.right or 'none'}"
        )
    return 0 if result.first_difference is None else 1
