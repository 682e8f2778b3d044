"""``bernstein show``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from bernstein.canonical import JsonObject
from bernstein.chain.read import load_replay_events, payload_of
from bernstein.chain.verify import ChainCheck
from bernstein.cli.app import Context, print_json
from bernstein.cli.told_rows import TOLD_ROWS
from bernstein.cli.trajectory_command import check_journal
from bernstein.errors import UnknownRunError
from bernstein.events import trajectory as event
from bernstein.fold.order import typed
from bernstein.fold.run import RunFold, RunProjection
from bernstein.fold.source import TrajectoryEvent
from bernstein.recording.answer import LlmAnswer
from bernstein.recording.blobs import BlobStore
from bernstein.recording.exchanges import load_exchanges, read_requests
from bernstein.recording.explain import shown_prompt
from bernstein.recording.fixtures import read_fixtures
from bernstein.recording.queue import load_recording
from bernstein.recording.rows import read_prompts
from bernstein.rundir import RunDir
from bernstein.seal.body_key import bodies_of
from bernstein.seal.signing import KeyStore
from bernstein.wire.answers import read_answer
from bernstein.wire.protocol import MODEL_KINDS, kind_of

_EXAMPLE = """\b
Examples:
  bernstein show latest --answers
  bernstein show latest --html run.html
"""


@click.command("show", epilog=_EXAMPLE)
@click.argument("run_id", metavar="RUN")
@click.option("--answers", is_flag=True, help="Print each recorded call's prompt and answer.")
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a page of it that checks itself, and asks nobody.",
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_obj
def command(
    context: Context, run_id: str, *, answers: bool, html: Path | None, as_json: bool
) -> int:
    """Show a run: its steps, calls, usage and files; with --answers what was asked and said.

    With --html a page is written into one file: it holds the journal, the seal and, of a replay,
    what it missed, with the parts of requests that differ.
    """
    run = context.sdd.find_shown(run_id)
    if html is not None:
        return _write_page(context, run, html)
    chain = check_journal(run)
    if answers:
        return _print_answers(context, run)
    return _print_run(run, chain, run_id, as_json=as_json)


def _write_page(context: Context, run: RunDir, path: Path) -> int:
    from bernstein.show.offline import offline_page  # noqa: PLC0415 - only where it is asked for

    keys = KeyStore(context.settings.keys_dir, context.sdd.keys)
    path.write_bytes(offline_page(run, context.sdd.project_of(run), keys))
    click.echo(f"run {run.run_id}: {path}")
    return 0


def _print_run(run: RunDir, chain: ChainCheck, name: str, *, as_json: bool) -> int:
    fold, counts, calls = RunFold(), Counter[str](), Counter[str]()
    artifacts: dict[str, object] = {}
    told: list[tuple[int, str, JsonObject]] = []
    for row in load_replay_events(run.journal):
        payload = payload_of(row)
        fold.take(run.run_id, [typed(TrajectoryEvent(row.index, run.run_id, row.event, payload))])
        counts[row.event] += 1
        if row.event == event.MODEL_CALL:
            calls[str(payload.get("stepId", ""))] += 1
        elif row.event == event.ARTIFACT_WRITTEN:
            artifacts[str(payload.get("path"))] = payload.get("content", {}).get("digest")
        elif row.event == event.ARTIFACT_REMOVED:
            artifacts.pop(str(payload.get("path")), None)
        elif row.event in TOLD_ROWS:
            told.append((row.index, row.event, payload))
    info, projection = run.read_info(), fold.finish()
    if as_json:
        more = {
            "artifacts": artifacts,
            "counts": counts,
            "profile": info.get("profile"),
            "told": [{"seq": seq, "kind": kind, **payload} for seq, kind, payload in told],
        }
        print_json({**projection.to_json(), **more})
        return 0
    plan = (info.get("plan") or {}).get("name")
    click.echo(f"run {run.run_id} {run.status()}" + (f": {plan}" if plan else ""))
    if info.get("source_run"):
        click.echo(f"a replay of {info['source_run']}")
    for node in projection.steps:
        _print_step(node, calls, 0)
    _print_usage(projection)
    _print_tools(run, counts)
    for path, digest in sorted(artifacts.items()):
        click.echo(f"file {path} sha256 {digest}")
    for seq, kind, payload in told:
        click.echo(f"row {seq}: {TOLD_ROWS[kind](payload)}")
    if info.get("profile"):
        _print_profile(info["profile"])
    click.echo(f"{chain.rows} rows, head {chain.head}")
    if run.llm_calls.exists() or run.exchanges.exists() or run.fixtures.exists():
        # A saved recording is found by its folder, a run by its id, whatever is the latest then.
        shown = name if "/" in name else run.run_id
        click.echo(f"what was asked and said: bernstein show {shown} --answers")
    return 0


def _print_tools(run: RunDir, counts: Counter[str]) -> None:
    if counts[event.TOOL_PROPOSED]:
        click.echo(
            f"tools: {counts[event.TOOL_PROPOSED]} asked for, {counts[event.TOOL_RESULT]} with a "
            f"result, {counts[event.TOOL_DENIED]} denied; each of them: bernstein trajectory "
            f"{run.run_id} --tool-calls"
        )
    if run.is_parked():
        click.echo(f"it waits for an approval: bernstein approve {run.run_id}")


def _print_usage(projection: RunProjection) -> None:
    for band, totals in projection.usage_totals.items():
        if any(totals.values()):
            cost = f", ${totals['credits'] / 1e6:.4f}" if totals["credits"] else ""
            click.echo(
                f"usage ({band}): {totals['inputTokens']} tokens in, "
                f"{totals['cachedInputTokens']} cached, {totals['outputTokens']} out{cost}"
            )


def _print_profile(profile: JsonObject) -> None:
    """What the requests of this run were made the same by, rule by rule."""
    rules = profile.get("rules") or []
    ending = ":" if rules else ", no rules"
    click.echo(f"profile {profile.get('name')}, version {profile.get('version')}{ending}")
    for rule in rules:
        click.echo(f"  {rule.get('op')} {rule.get('path')}: {rule.get('why', '')}")


def _print_answers(context: Context, run: RunDir) -> int:
    project = context.sdd.project_of(run)
    blobs = bodies_of(run, project, KeyStore(context.settings.keys_dir, context.sdd.keys))
    if run.fixtures.exists():
        _print_fixtures(run, blobs)
    if run.exchanges.exists():
        _print_exchanges(run, blobs)
    recording = load_recording(run.llm_calls)
    if not (recording.rows or run.fixtures.exists() or run.exchanges.exists()):
        raise UnknownRunError(f"run {run.run_id} has no recorded calls of its own")
    for row, prompt in read_prompts(recording.rows, blobs):
        where = f" in {row.lane}" if row.lane else ""
        click.echo(f"== call {row.seq}{where}: {row.provider}:{row.model}")
        click.echo(shown_prompt(prompt))
        outcome = row.read_outcome(blobs)
        if isinstance(outcome, LlmAnswer):
            click.echo("-- answer")
            click.echo(outcome.text)
            for call in outcome.tool_calls:
                click.echo(f"-- tool {call.name} {call.args}")
        else:
            click.echo(f"-- {outcome.as_error()}")
    return 0


def _print_fixtures(run: RunDir, blobs: BlobStore) -> None:
    for kind, request, outcome, response in read_fixtures(run.fixtures, blobs):
        asked = "" if request is None else f" {request!a}"
        click.echo(f"== {kind}{asked}")
        click.echo(f"-- {'answered' if outcome == 'ok' else outcome}")
        click.echo(ascii(response))


def _print_step(node: JsonObject, calls: Counter[str], depth: int) -> None:
    label = f"  {node['label']}" if "label" in node else ""
    count = calls[node["stepId"]]
    asked = f"  ({count} call{'s' if count > 1 else ''})" if count else ""
    click.echo(f"{'  ' * (depth + 1)}{node['status']:<8}{node['stepId']}{label}{asked}")
    for child in node["children"]:
        _print_step(child, calls, depth + 1)


def _print_exchanges(run: RunDir, blobs: BlobStore) -> None:
    for row, request in read_requests(load_exchanges(run.exchanges).rows, blobs):
        lane = row.lane if row.lane != row.key else row.lane[:12]
        click.echo(f"== exchange {row.seq} in {lane}: {row.method} {row.path} ({row.status})")
        click.echo(request or "")
        click.echo("-- answered" + (f", {row.end}" if row.end != "complete" else ""))
        body = row.read_response(blobs)
        kind = kind_of(row.method, row.path)
        said = read_answer(kind, row.status, body, is_whole=True) if kind in MODEL_KINDS else None
        if isinstance(said, LlmAnswer):
            click.echo(said.text)
            for call in said.tool_calls:
                click.echo(f"[{call.name} {call.args}]")
        else:
            click.echo(body.decode("utf-8", "replace"))
