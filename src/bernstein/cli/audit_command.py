"""``bernstein audit``."""

from __future__ import annotations

import click
import msgspec

from bernstein.cli.app import Context, print_json
from bernstein.seal.audit import audit_keys, check_audit
from bernstein.seal.seals import highest_sealed_audit
from bernstein.seal.signing import KeyStore

_EXIT = {"verified": 0, "mismatch": 1, "prefix": 2, "unchecked": 2}


@click.group("audit", epilog="Example: bernstein audit verify")
def command() -> None:
    """The audit chain: approvals, and what providers changed behind our back."""


@command.command("verify", epilog="Example: bernstein audit verify --json")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_obj
def verify(context: Context, *, as_json: bool) -> int:
    """Check every row: 0 verified, 1 mismatch, 2 without a key, or where no seal names the last."""
    keys = KeyStore(context.settings.keys_dir, context.sdd.keys)
    sealed = highest_sealed_audit(context.sdd, keys)
    check = check_audit(context.sdd.audit, audit_keys(context.settings.keys_dir), sealed)
    if as_json:
        print_json(msgspec.to_builtins(check))
    else:
        where = "" if check.index is None else f" at row {check.index}"
        note = f": {check.note}" if check.note else ""
        click.echo(f"{check.verdict}{where}{note}; {check.rows} rows hold, hmac {check.hmac}")
    return _EXIT[check.verdict]


@command.command("rotate", epilog="Example: bernstein audit rotate")
@click.pass_obj
def rotate(context: Context) -> int:
    """Make a new key for the rows to come; keep the old ones, to check old rows with."""
    keys = audit_keys(context.settings.keys_dir)
    click.echo(f"new rows are made with key {keys.rotate()}")
    return 0
