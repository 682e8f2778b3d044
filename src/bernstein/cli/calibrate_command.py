"""``bernstein calibrate``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bernstein.cli.app import Context
from bernstein.cli.record_command import named_url_option

if TYPE_CHECKING:
    from bernstein.capture.gateway.calibrate import Calibration

_MAX_VALUES = 4
_EXAMPLE = """\b
Examples:
  bernstein calibrate -- my-agent "do it"
  bernstein calibrate --out my-agent.json -- my-agent "do it"
  bernstein record --profile ./my-agent.json -- my-agent "do it"
"""


@click.command("calibrate", epilog=_EXAMPLE)
@click.argument("argv", metavar="-- CMD…", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--upstream", "upstreams", multiple=True, metavar="NAME=URL", help="See record.")
@click.option("--profile", help="The profile to begin with (default: by the command's name).")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the suggested profile there, instead of printing it.",
)
@click.option("--timeout", type=float, metavar="S", help="End each run after S seconds.")
@click.pass_obj
def command(
    context: Context,
    argv: tuple[str, ...],
    *,
    upstreams: tuple[str, ...],
    profile: str | None,
    out: Path | None,
    timeout: float | None,
) -> int:
    """Find what a client varies by itself, and suggest the rules that take it out of the key.

    Records the command once, then replays it at once, slowly and under another date
    (with faketime, where that is installed), each in a copy of the folder. It goes on
    after a miss, and lists each field that differed, with both values. A suggested
    rule is to be reviewed: what varies may say something.

    Ends with 0 where nothing varied or the suggested profile takes all of it out,
    else with 1.
    """
    import msgspec  # noqa: PLC0415 - with the rest

    from bernstein.capture.gateway.calibrate import (  # noqa: PLC0415 - a server is heavy
        calibrate,
    )
    from bernstein.capture.gateway.command import CommandOptions  # noqa: PLC0415
    from bernstein.files import write_file  # noqa: PLC0415

    options = CommandOptions(
        argv, dict(named_url_option(text) for text in upstreams), profile, timeout_s=timeout
    )
    with tempfile.TemporaryDirectory(prefix="bernstein-calibrate-") as work:
        found = calibrate(
            context.settings, options, Path(work), lambda text: click.echo(text, err=True)
        )
    _print(found)
    assert found.profile is not None
    if found.variations:
        spelled = msgspec.json.format(msgspec.json.encode(found.profile), indent=2) + b"\n"
        if out is None:
            click.echo(spelled, nl=False)
        else:
            write_file(out, spelled)
            click.echo(f"profile: {out}; review it, then: bernstein record --profile {out} -- …")
    return int(found.matched < found.missed or found.unlike > 0)


def _print(found: Calibration) -> None:
    for note in found.notes:
        click.echo(f"note: {note}")
    for name, count in found.asked.items():
        if count != found.requests:
            click.echo(f"note: {name}: {count} requests came, and {found.requests} were recorded")
    fields: dict[tuple[str, str, str], tuple[dict[str, None], set[str]]] = {}
    for (path, kind, before, old, new), around in found.variations.items():
        values, names = fields.setdefault((path, kind, before), ({}, set()))
        values |= dict.fromkeys((ascii(old), ascii(new)))
        names |= around
    for (path, kind, before), (values, names) in fields.items():
        behind = f" behind {before!a}" if before.strip() else ""
        shown = ", ".join(list(values)[:_MAX_VALUES])
        click.echo(f"{path}: {kind}{behind}: {shown} ({', '.join(sorted(names))})")
    if found.unlike:
        click.echo(f"{found.unlike} requests had no recorded one to be compared with")
    click.echo(
        f"{found.requests} requests recorded; {found.missed} of their repetitions differed, "
        f"{found.matched} of these match under the suggested profile"
    )
