"""``bernstein approve`` and ``bernstein deny``."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING

import click

from bernstein.cli.app import Context, print_json
from bernstein.errors import UsageError
from bernstein.fold.words import plain
from bernstein.runner.pending import PendingCall, pending_calls
from bernstein.seal.approvals import find_approval, record_thread_approval
from bernstein.seal.body_key import bodies_of
from bernstein.seal.inside import refuse_inside_run
from bernstein.seal.signing import KeyStore

if TYPE_CHECKING:
    from bernstein.rundir import RunDir
    from bernstein.seal.approvals import Decision

_EXAMPLE = """\b
Examples:
  bernstein approve latest             list what waits, and what is asked for
  bernstein approve RUN CALL           then: bernstein run --resume RUN
"""
_DENY_EXAMPLE = "Example: bernstein deny 20261130T14 CALL --as alice"
_VERBS: dict[Decision, str] = {"approved": "approve", "denied": "deny"}


@click.command("approve", epilog=_EXAMPLE)
@click.argument("run_id", metavar="RUN")
@click.argument("call_id", metavar="[CALL]", required=False)
@click.option("--as", "actor", metavar="NAME", help="Who decides; your user's name unless given.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_obj
def approve(
    context: Context, run_id: str, call_id: str | None, actor: str | None, *, as_json: bool
) -> int:
    """Let a tool run that a run asks about; without CALL list what waits.

    What is decided is signed with your key, stands in the audit chain, and cannot be taken back.
    """
    return _decide(context, run_id, call_id, actor, "approved", as_json=as_json)


@click.command("deny", epilog=_DENY_EXAMPLE)
@click.argument("run_id", metavar="RUN")
@click.argument("call_id", metavar="CALL")
@click.option("--as", "actor", metavar="NAME", help="Who decides; your user's name unless given.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_obj
def deny(context: Context, run_id: str, call_id: str, actor: str | None, *, as_json: bool) -> int:
    """Refuse a tool that a run asks about; the model is told so, and goes on."""
    return _decide(context, run_id, call_id, actor, "denied", as_json=as_json)


def _decide(
    context: Context,
    run_id: str,
    call_id: str | None,
    actor: str | None,
    decision: Decision,
    *,
    as_json: bool,
) -> int:
    run = context.sdd.find_run(run_id)
    keys = KeyStore(context.settings.keys_dir, context.sdd.keys)
    calls = pending_calls(run, bodies_of(run, context.sdd, keys))
    if call_id is None:
        return _print_pending(context, run, calls, as_json=as_json)
    if run_id == "latest":
        raise UsageError(
            "what is the latest can be another run than the one that you looked at\n"
            f"  name it: bernstein {_VERBS[decision]} {run.run_id} {call_id}"
        )
    refuse_inside_run(context.sdd)
    call = _find(calls, call_id, run)
    if not call.asked and decision == "approved":
        raise UsageError(
            f"what {call.call_id} asks for cannot be read here, so nobody can approve it\n"
            f"  deny it: bernstein deny {run.run_id} {call.call_id}"
        )
    said = record_thread_approval(
        context.sdd, keys.folder, call.row, decision, actor or getpass.getuser()
    )
    if as_json:
        print_json({"call": call.call_id, "decision": said.decision, "actor": said.actor})
    else:
        click.echo(f"{call.call_id} ({call.name}): {said.decision} by {said.actor}")
    if said.decision != decision:
        raise UsageError(f"{call.call_id} was {said.decision} before, by {said.actor}: that stands")
    if not (as_json or run.is_running()):
        click.echo(f"  let the run go on: bernstein run --resume {run.run_id}")
    return 0


def _print_pending(
    context: Context, run: RunDir, calls: list[PendingCall], *, as_json: bool
) -> int:
    found = []
    for call in calls:
        said = find_approval(context.sdd, context.settings.keys_dir, call.row)
        decided = None if said is None else f"{said.decision} by {said.actor}"
        found.append(
            {"call": call.call_id, "tool": call.name, "asked": plain(call.asked), "said": decided}
        )
    if as_json:
        print_json(found)
        return 0
    if not found:
        click.echo(f"run {run.run_id}: nothing waits for approval")
    for item in found:
        click.echo(
            f"{item['call']}: {item['tool']}" + (f", {item['said']}" if item["said"] else "")
        )
        click.echo(f"  {item['asked'] or 'what it asks for cannot be read'}")
    return 0


def _find(calls: list[PendingCall], call_id: str, run: RunDir) -> PendingCall:
    for call in calls:
        if call.call_id == call_id:
            return call
    waiting = ", ".join(call.call_id for call in calls) or "none"
    raise UsageError(
        f"no call {call_id!r} of run {run.run_id} waits for approval; those that do: {waiting}\n"
        f"  see: bernstein approve {run.run_id}"
    )
