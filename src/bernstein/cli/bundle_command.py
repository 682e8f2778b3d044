"""``bernstein export`` and ``bernstein import``."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import click

from bernstein.cli.app import Context
from bernstein.errors import RecordingError, UsageError
from bernstein.seal.bundle import import_bundle, is_bundle
from bernstein.seal.export import export_run
from bernstein.seal.signing import KeyStore

_EXPORT_EXAMPLE = """\b
Examples:
  bernstein export latest -o run.zip
  bernstein export latest --as otel -o trace.json
  bernstein export latest --as inspect --bodies -o log.json
  bernstein export latest --as jsonl -o events.jsonl
"""


@click.command("export", epilog=_EXPORT_EXAMPLE)
@click.argument("run_id", metavar="RUN")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), required=True)
@click.option(
    "--as",
    "kind",
    type=click.Choice(["otel", "inspect", "jsonl"]),
    help="What other programs read, in place of a bundle; it proves nothing.",
)
@click.option("--bodies", is_flag=True, help="With otel and inspect: contents too.")
@click.option(
    "--without-bodies",
    is_flag=True,
    help="Of a bundle: leave prompts and answers out; everything else still verifies.",
)
@click.pass_obj
def export(
    context: Context,
    run_id: str,
    output: Path,
    *,
    kind: str | None,
    bodies: bool,
    without_bodies: bool,
) -> int:
    """Write a run with its seal and proof into one file; a run gives the same bytes each time.

    With --as the file has the run's trajectory in a form that other programs read: a trace of
    OpenTelemetry, a log of Inspect's, or an event a line.
    """
    if kind is None and bodies:
        raise UsageError("--bodies goes with --as\n  a bundle has them: bernstein export --help")
    if kind is not None:
        if without_bodies or (bodies and kind == "jsonl"):
            raise UsageError(
                "contents are left out unless --bodies asks for them, and jsonl has none\n"
                "  see: bernstein export --help"
            )
        from bernstein.cli.told_runs import export_as  # noqa: PLC0415 - heavy

        return export_as(context, run_id, kind, output, with_bodies=bodies)
    run = context.sdd.find_run(run_id)
    keys = KeyStore(context.settings.keys_dir, context.sdd.keys)
    verdict = export_run(run, context.sdd, keys, output, with_bodies=not without_bodies)
    click.echo(f"{output}: run {run.run_id}, {verdict.rows} rows, sealed by {verdict.signer}")
    return 0


_EXAMPLE = """\b
Examples:
  bernstein import run.zip --trust-key FINGERPRINT
  bernstein import ~/.claude/projects/*/*.jsonl
  bernstein import --as codex rollout.jsonl
  bernstein import vcr tests/cassettes/*.yaml
  bernstein import events --profile claude-code session.jsonl
"""


@click.command("import", epilog=_EXAMPLE)
@click.argument(
    "files", metavar="BUNDLE | FILE… | vcr FILE… | events FILE…", nargs=-1, required=True
)
@click.option("--as", "kind", metavar="KIND", help="What the files are; else each says it itself.")
@click.option(
    "--trust-key",
    metavar="FINGERPRINT",
    help="The key that must have sealed it; it is pinned, so its runs are verified.",
)
@click.option("--profile", default=None, help="With files of others: whose rules are used.")
@click.pass_obj
def import_(
    context: Context,
    files: tuple[str, ...],
    *,
    kind: str | None,
    trust_key: str | None,
    profile: str | None,
) -> int:
    """Take a run from a bundle into this project, or make runs of files that others wrote.

    A bundle is taken once all of it holds. Of each file of another kind a run is made and sealed
    with your key: that vouches for the import, not for what the file says. Such are sessions of
    agents, logs of evaluations and traces (of each what it tells of steps, models and tools);
    cassettes (VCR.py's YAML or JSON, also with binary or parsed bodies, and when/then documents);
    and files of events (a client's stream or transcript, a provider's stream or body), of which
    the run holds the changes of the model's context alone.
    """
    paths = [Path(name) for name in files[1:]]
    if files[0] == "vcr" and paths and kind is None:
        return _import_cassettes(context, paths, profile or "generic")
    if files[0] == "events" and paths and kind is None:
        return _import_events(context, paths, profile or "generic")
    paths = [Path(name) for name in files]
    missing = next((path for path in paths if not path.is_file()), None)
    if missing is not None:
        raise UsageError(f"there is no file {missing}\n  see: bernstein import --help")
    if kind is None and len(paths) == 1 and (trust_key is not None or is_bundle(paths[0])):
        return _import_bundle(context, paths[0], trust_key)
    if trust_key is not None:
        raise UsageError("--trust-key is for one bundle\n  see: bernstein import --help")
    from bernstein.cli.told_files import import_files  # noqa: PLC0415 - heavy

    return import_files(context, paths, kind, profile)


def _import_bundle(context: Context, path: Path, trust_key: str | None) -> int:
    if trust_key is not None and (len(trust_key) != 64 or trust_key.strip("0123456789abcdef")):
        raise UsageError("a fingerprint is 64 lower-case hex digits, as `export` prints it")
    keys = KeyStore(context.settings.keys_dir, context.sdd.keys)
    run = import_bundle(path, context.sdd, keys, trust_key)
    click.echo(f"run {run.run_id} is here; check it: bernstein replay {run.run_id} --verify")
    return 0


def _import_cassettes(context: Context, paths: list[Path], profile: str) -> int:
    from bernstein.capture.gateway.taped import import_taped  # noqa: PLC0415 - heavy
    from bernstein.interop.vcr import read_cassette  # noqa: PLC0415

    settings = replace(context.settings, replay_run_id=None)
    failed = 0
    for path in paths:
        try:
            taped = read_cassette(path.read_bytes())
            run = import_taped(taped, path.name, context.sdd, settings, profile)
        except (RecordingError, OSError) as error:
            failed += 1
            click.echo(f"{path}: {str(error).splitlines()[0]}", err=True)
            continue
        inexact = sum(not item.is_exact for item in taped)
        note = f"; {inexact} bodies are not as they were sent" if inexact else ""
        click.echo(f"{path}: run {run.run_id}, {len(taped)} exchanges{note}")
    return int(failed > 0)


def _import_events(context: Context, paths: list[Path], profile: str) -> int:
    from bernstein.capture.gateway.taped import import_events  # noqa: PLC0415 - heavy

    settings = replace(context.settings, replay_run_id=None, seed=None)
    failed = 0
    for path in paths:
        try:
            run, found = import_events(path.read_bytes(), path.name, context.sdd, settings, profile)
        except (RecordingError, OSError) as error:
            failed += 1
            click.echo(f"{path}: {str(error).splitlines()[0]}", err=True)
            continue
        kinds = Counter(report.kind for report in found.reports)
        said = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "none"
        click.echo(f"{path}: run {run.run_id}, {found.events} events, changes: {said}")
        if found.bad_counts:
            note = f"{found.bad_counts} messages tell counts that are none: left out of the usage"
            click.echo(f"{path}: {note}", err=True)
        for line in found.bad_lines[:5]:
            click.echo(f"{path}:{line}: no JSON; the lines behind it are read", err=True)
    return int(failed > 0)
