"""``bernstein usage``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from bernstein.cli.app import Context, print_json
from bernstein.events.payloads import BANDS
from bernstein.fold.usage import BYS, By, Name, tally
from bernstein.fold.usage_runs import count_runs
from bernstein.fold.words import plain
from bernstein.fold.zone import zone_named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bernstein.canonical import JsonObject
    from bernstein.events.payloads import ModelUsage
    from bernstein.fold.usage import Bands, Sum, Tally, UsageRow
    from bernstein.fold.usage_runs import CountedRuns

_EXAMPLE = """\b
Examples:
  bernstein usage
  bernstein usage latest --by step
  bernstein usage --by day --zone Europe/Berlin --price
"""


@click.command("usage", epilog=_EXAMPLE)
@click.argument("names", metavar="[RUN…]", nargs=-1)
@click.option("--by", type=click.Choice(BYS), default="model", help="What is summed together.")
@click.option("--zone", default="UTC", help="Where a day begins: an IANA name (default: UTC).")
@click.option("--price", is_flag=True, help="State prices by the price book; nothing is charged.")
@click.option("--include-replays", is_flag=True, help="Count replays too, which spent nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_obj
def command(
    context: Context,
    names: tuple[str, ...],
    *,
    by: By,
    zone: str,
    price: bool,
    include_replays: bool,
    as_json: bool,
) -> int:
    """Sum what model calls used, of all runs or of some, by band.

    metered was settled by a ledger, priced is stated by a price book, estimated are counts
    without a price, unsupported claims nothing. Ends with 1 where a run could not be counted.
    """
    place = zone_named(zone)
    stated, book = _pricing() if price else (None, None)
    sdd = context.sdd
    runs = [sdd.find_shown(name) for name in names] if names else sdd.list_runs()
    counted = count_runs(runs, with_replays=include_replays)
    found = tally(counted.rows, by, place, stated)
    for run_id, why in counted.broken:
        sys.stderr.write(f"bernstein: {run_id} is not counted: {why}\n")
    if as_json:
        print_json(_json(counted, found, by, zone, book))
    else:
        where = f" by {by}" + (f" in {zone}" if by == "day" else "")
        click.echo(f"{_some(len(counted.run_ids), 'run')}{where}")
        click.echo("\n".join([*_lines(found), *_notes(counted, found, book)]))
    return int(bool(counted.broken))


def _pricing() -> tuple[Callable[[UsageRow], ModelUsage], str]:
    """What states the price of a row, and the book that it is taken from."""
    from bernstein.capture.pricing import price_book, stated  # noqa: PLC0415 - only here

    return (lambda row: stated(row.payload, row.written_at)), price_book()


def _json(counted: CountedRuns, found: Tally, by: By, zone: str, book: str | None) -> JsonObject:
    return {
        "by": by,
        "zone": zone,
        "runs": counted.run_ids,
        "groups": found.groups_json(),
        "totals": found.totals.to_json(),
        "priceBook": book,
        "unpriced": [dict(name) for name in sorted(found.unpriced)],
        "leftOut": {
            "replays": counted.served,
            "replaysPartlyLive": counted.partly_live,
            "equal": [{"runId": run_id, "equals": other} for run_id, other in counted.equal],
            "broken": [{"runId": run_id, "reason": why} for run_id, why in counted.broken],
        },
    }


def _lines(found: Tally) -> list[str]:
    lines = []
    for name in sorted(found.groups):
        lines += [_named(name), *_bands(found.groups[name])]
    if len(found.groups) > 1:
        lines += ["all", *_bands(found.totals)]
    return lines or ["no usage is reported"]


def _named(name: Name) -> str:
    return plain(":".join(value for _, value in name)) if name else "(no step)"


def _bands(bands: Bands) -> list[str]:
    books = f" ({', '.join(sorted(map(plain, bands.books)))})" if bands.books else ""
    return [
        f"  {band:<11} {_told(bands.sums[band])}{books if band == 'priced' else ''}"
        for band in BANDS
        if band in bands.sums
    ]


def _told(told: Sum) -> str:
    cost = f", ${told.credits // 1_000_000}.{told.credits % 1_000_000:06d}" if told.credits else ""
    return (
        f"{_some(told.rows, 'call')}, {told.input_tokens} tokens in, "
        f"{told.cached_input_tokens} cached, {told.output_tokens} out{cost}"
    )


def _notes(counted: CountedRuns, found: Tally, book: str | None) -> list[str]:
    """What was left out, and what no price is known of."""
    notes = []
    if counted.served:
        some = _some(len(counted.served), "replay")
        notes.append(f"left out: {some}, which spent nothing (--include-replays counts them)")
    if counted.partly_live:
        notes.append(
            f"left out: {_listed(counted.partly_live)}: replays that could ask live; their rows "
            "do not say what was served"
        )
    if counted.equal:
        pairs = _listed(f"{run_id} as {other}" for run_id, other in counted.equal)
        notes.append(f"counted once, with equal heads: {pairs}")
    if book is not None:
        notes.append(f"prices are statements by {book}, not charges; each call is rounded up")
    if found.unpriced:
        names = _listed(sorted(_named(name) for name in found.unpriced))
        notes.append(f"no price is known of {names}")
    return notes


def _listed(names: Iterable[str]) -> str:
    some = list(names)
    return ", ".join(some[:5]) + (f" and {len(some) - 5} more" if len(some) > 5 else "")


def _some(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
