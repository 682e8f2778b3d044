"""``bernstein score``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bernstein.canonical import sha256_hex
from bernstein.cli.app import Context, print_json
from bernstein.cli.trajectory_command import check_journal, events_of
from bernstein.errors import BernsteinError, RecordingError, UsageError
from bernstein.fold.policy import ScorePolicy
from bernstein.fold.run import project
from bernstein.fold.scores import SCORED, ScoreReport, score, told
from bernstein.fold.source import EventFile
from bernstein.fold.tool_calls import project_tool_calls
from bernstein.fold.words import plain
from bernstein.seal.audit import AuditChain, audit_keys
from bernstein.seal.evidence import verify_run
from bernstein.seal.signing import KeyStore
from bernstein.seal.spine import SpineReading, read_spine

if TYPE_CHECKING:
    from bernstein.canonical import JsonObject
    from bernstein.rundir import RunDir

_EXAMPLE = """\b
Examples:
  bernstein score latest --policy policy.yaml
  bernstein score --all --policy policy.yaml
  bernstein score latest --against RUN --policy policy.yaml
"""


@dataclass(slots=True)
class _Scored:
    """What came of one run: its report, or why there is none."""

    name: str
    report: ScoreReport | None = None
    error: str = ""
    exit_code: int = 0
    worse: tuple[str, ...] = ()
    row: int | None = None  # of the audit chain
    is_new: bool = False
    unanchored: str = ""
    could_not_anchor: bool = False


@click.command("score", epilog=_EXAMPLE)
@click.argument("names", metavar="[RUN | FILE | -]…", nargs=-1)
@click.option("--policy", "policy_file", required=True, metavar="FILE", help="What runs may do.")
@click.option("--all", "all_runs", is_flag=True, help="Score every run of the project.")
@click.option("--against", metavar="RUN", help="Also fail what counts more than in this run.")
@click.option("--no-anchor", is_flag=True, help="Leave the result out of the audit chain.")
@click.option("--run-id", default="", help="Of a FILE or -: the run that its rows are of.")
@click.option("--line", "as_line", is_flag=True, help="Print the line whose digest is anchored.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_obj
def command(
    context: Context,
    names: tuple[str, ...],
    *,
    policy_file: str,
    all_runs: bool,
    against: str | None,
    no_anchor: bool,
    run_id: str,
    as_line: bool,
    as_json: bool,
) -> int:
    """Hold what runs did against a policy, by their events alone.

    Ends with 0 where all scores hold; 1 where one does not, is worse than in the run of --against,
    or evidence does not hold; 2 where it cannot be checked. The result of a run that is sealed here
    is anchored in the audit chain, once.
    """
    if bool(names) == all_runs:
        raise UsageError(
            "name runs to score, or give --all\n"
            "  for example: bernstein score latest --policy policy.yaml"
        )
    policy = ScorePolicy.load(policy_file)
    scorer = _Scorer(context, policy, run_id, anchors=not no_anchor)
    base = None if against is None else scorer.report_of(against)[0]
    is_single = len(names) == 1
    given = [run.run_id for run in context.sdd.list_runs()] if all_runs else names
    results = [scorer.score(name, base, raises=is_single) for name in given]
    for result in results:
        _print_problems(result)
    if as_json:
        values = [_json(result, base) for result in results]
        print_json(values[0] if is_single else values)
    elif as_line:
        for result in results:
            if result.report is not None:
                sys.stdout.buffer.write(result.report.to_bytes() + b"\n")
    elif is_single:
        click.echo("\n".join(_lines(results[0], against)))
    else:
        click.echo("\n".join([*(_line(result) for result in results), _summary(results)]))
    return _exit_code(results)


class _Scorer:
    """Scores what a user names by one policy."""

    def __init__(
        self, context: Context, policy: ScorePolicy, run_id: str, *, anchors: bool
    ) -> None:
        self._context = context
        self._policy = policy
        self._run_id = run_id
        self._anchors = anchors
        self._keys = KeyStore(context.settings.keys_dir, context.sdd.keys)

    @cached_property
    def _spine(self) -> SpineReading:
        return read_spine(self._context.sdd.spine, self._keys)

    def score(self, name: str, base: ScoreReport | None, *, raises: bool) -> _Scored:
        """Score one run; where it cannot be, it is said, or raised."""
        try:
            report, head, unanchored = self.report_of(name)
        except (BernsteinError, OSError) as error:
            if raises:
                raise
            code = error.exit_code if isinstance(error, BernsteinError) else 2
            return _Scored(name, error=str(error).split("\n", 1)[0], exit_code=code)
        worse = () if base is None else tuple(report.worse_than(base))
        result = _Scored(name, report, "", int(bool(worse) or not report.holds), worse)
        if head is None:
            result.unanchored = unanchored
        elif self._anchors:
            self._anchor(result, report, head)
        return result

    def _anchor(self, result: _Scored, report: ScoreReport, head: str) -> None:
        context = self._context
        chain = AuditChain(context.sdd.audit, audit_keys(context.settings.keys_dir))
        try:
            row, result.is_new = chain.append_once(SCORED, report.anchor(head))
            result.row = row.index
        except (BernsteinError, OSError) as error:
            result.could_not_anchor = True
            result.unanchored = str(error).split("\n", 1)[0]

    def report_of(self, name: str) -> tuple[ScoreReport, str | None, str]:
        """The scores of what ``name`` names; the head that they can be anchored to, or why none.

        Raises:
            UnknownRunError: There is no such run or file.
            RecordingError: The evidence of the run does not hold.
            FoldError: Its events are none, or contradict each other.
        """
        path = Path(name)
        if name == "-" or path.is_fifo() or path.is_file():
            with events_of(self._context, name, self._run_id) as events:
                return self._report(events), None, ""
        run = self._context.sdd.find_shown(name)
        head, why = self._check(run)
        return self._report(EventFile(run.journal, run.run_id)), head, why

    def _report(self, events: EventFile) -> ScoreReport:
        return score(project(events), project_tool_calls(events), self._policy)

    def _check(self, run: RunDir) -> tuple[str | None, str]:
        """The head that a run's scores can be anchored to, or why there is none.

        Raises:
            RecordingError: The evidence of the run does not hold.
        """
        sdd = self._context.sdd
        check_journal(run)
        if run.path.parent != sdd.runs:
            return None, ""
        verdict = verify_run(run, sdd, self._keys, self._spine)
        if verdict.verdict == "mismatch":
            raise RecordingError(
                f"the evidence of {run.run_id} does not hold ({verdict.reason}: {verdict.note})\n"
                f"  see: bernstein replay {run.run_id} --verify"
            )
        entry = self._spine.entry_of(run.run_id)
        if verdict.verdict == "prefix":
            return None, verdict.note
        if entry is None or entry.kind != "run":
            return None, "it was sealed elsewhere"
        return verdict.head, ""


def _print_problems(result: _Scored) -> None:
    if result.error:
        sys.stderr.write(f"bernstein: {plain(result.name)} is not scored: {result.error}\n")
    if result.could_not_anchor:
        sys.stderr.write(
            f"bernstein: the result of {plain(result.name)} cannot be written to the audit chain: "
            f"{result.unanchored}\n  mend that, or score with --no-anchor\n"
        )
    elif result.unanchored:
        sys.stderr.write(f"{plain(result.name)} is not anchored: {result.unanchored}\n")


def _lines(result: _Scored, against: str | None) -> list[str]:
    assert result.report is not None
    lines = [line for one in result.report.scores for line in told(one)]
    if result.worse:
        lines.append(f"worse than in {plain(against or '')}: {', '.join(result.worse)}")
    elif against is not None:
        lines.append(f"nothing is worse than in {plain(against)}")
    if result.row is not None:
        when = "is" if result.is_new else "was already"
        lines.append(f"the result {when} anchored in the audit chain, row {result.row}")
    return lines


def _line(result: _Scored) -> str:
    if result.report is None:
        return f"{plain(result.name)} is not scored"
    failed = [one.score for one in result.report.scores if not one.holds]
    said = f"fails {', '.join(failed)}" if failed else "holds"
    worse = f"; worse: {', '.join(result.worse)}" if result.worse else ""
    return f"{plain(result.name)} {said}{worse}"


def _summary(results: list[_Scored]) -> str:
    reports = [result.report for result in results if result.report is not None]
    held = sum(report.holds for report in reports)
    parts = [f"{held} hold", f"{len(reports) - held} do not"]
    if worse := sum(bool(result.worse) for result in results):
        parts.append(f"{worse} are worse")
    if unscored := len(results) - len(reports):
        parts.append(f"{unscored} not scored")
    return f"{len(results)} runs: {', '.join(parts)}"


def _exit_code(results: list[_Scored]) -> int:
    codes = {result.exit_code for result in results}
    if any(result.could_not_anchor for result in results):
        return 2
    return 1 if 1 in codes else max(codes, default=0)


def _json(result: _Scored, base: ScoreReport | None) -> JsonObject:
    if result.report is None:
        return {"name": result.name, "error": result.error}
    anchor = None if result.row is None else {"row": result.row, "isNew": result.is_new}
    return {
        "name": result.name,
        **result.report.to_json(),
        "scoreSha256": sha256_hex(result.report.to_bytes()),
        "anchor": anchor,
        "unanchored": result.unanchored or None,
        "against": None if base is None else {"runId": base.run_id, "worse": [*result.worse]},
    }
