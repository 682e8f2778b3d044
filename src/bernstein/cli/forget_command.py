"""``bernstein forget``."""

from __future__ import annotations

import click

from bernstein.cli.app import Context
from bernstein.errors import UsageError
from bernstein.seal.forget import forget_bodies
from bernstein.seal.signing import KeyStore


@click.command("forget", epilog="Example: bernstein forget 20261130T14 --bodies")
@click.argument("run_id", metavar="RUN")
@click.option("--bodies", is_flag=True, help="Say that you mean it: this cannot be undone.")
@click.pass_obj
def command(context: Context, run_id: str, *, bodies: bool) -> int:
    """Destroy a run's prompts, answers and results; its proof stays, and it no longer replays.

    Its workspace and the plan in run.json are not touched.
    """
    run = context.sdd.find_run(run_id)
    if not bodies:
        raise UsageError(
            "this destroys what was asked and said, for good\n"
            f"  if you mean it: bernstein forget {run.run_id} --bodies"
        )
    keys = KeyStore(context.settings.keys_dir, context.sdd.keys)
    held = forget_bodies(run, context.sdd, keys)
    click.echo(f"the bodies of {run.run_id} are forgotten")
    for digest, other in sorted(held.items()):
        click.echo(f"  {digest} stays: run {other} holds it too")
    return 0
