"""``bernstein export`` and ``bernstein import``."""

from __future__ import annotations

from pathlib import Path

import click

from bernstein.cli.app import Context
from bernstein.errors import UsageError
from bernstein.seal.bundle import import_bundle
from bernstein.seal.export import export_run
from bernstein.seal.signing import KeyStore


@click.command("export", epilog="Example: bernstein export latest -o run.zip")
@click.argument("run_id", metavar="RUN")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), required=True)
@click.option(
    "--without-bodies",
    is_flag=True,
    help="Leave prompts and answers out; everything else still verifies.",
)
@click.pass_obj
def export(context: Context, run_id: str, output: Path, *, without_bodies: bool) -> int:
    """Write a run with its seal and proof into one file; a run gives the same bytes each time."""
    run = context.sdd.find_run(run_id)
    keys = KeyStore(context.settings.keys_dir, context.sdd.keys)
    verdict = export_run(run, context.sdd, keys, output, with_bodies=not without_bodies)
    click.echo(f"{output}: run {run.run_id}, {verdict.rows} rows, sealed by {verdict.signer}")
    return 0


@click.command("import", epilog="Example: bernstein import run.zip --trust-key FINGERPRINT")
@click.argument("bundle", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--trust-key",
    metavar="FINGERPRINT",
    help="The key that must have sealed it; it is pinned, so its runs are verified.",
)
@click.pass_obj
def import_(context: Context, bundle: Path, *, trust_key: str | None) -> int:
    """Take a run from a bundle into this project, once all of it holds."""
    if trust_key is not None and (len(trust_key) != 64 or trust_key.strip("0123456789abcdef")):
        raise UsageError("a fingerprint is 64 lower-case hex digits, as `export` prints it")
    keys = KeyStore(context.settings.keys_dir, context.sdd.keys)
    run = import_bundle(bundle, context.sdd, keys, trust_key)
    click.echo(f"run {run.run_id} is here; check it: bernstein replay {run.run_id} --verify")
    return 0
