"""``bernstein lineage``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from bernstein.canonical import convert, decode_strict, sha256_hex
from bernstein.chain.read import load_replay_events, payload_of
from bernstein.cli.app import Context, print_json
from bernstein.errors import CanonicalError, ProofError, UsageError
from bernstein.events import trajectory as event
from bernstein.seal.checkpoint import (
    InclusionProof,
    check_against,
    check_proof,
    make_checkpoint,
    parse_checkpoint,
    prove_entry,
)
from bernstein.seal.seals import seal_interrupted
from bernstein.seal.signing import KeyStore, Trust
from bernstein.seal.spine import SpineEntry, SpineReading, read_spine

if TYPE_CHECKING:
    from bernstein.rundir import RunDir

_EXAMPLE = """\b
Examples:
  bernstein lineage verify
  bernstein lineage why river.txt
  bernstein lineage checkpoint > checkpoint.txt
  bernstein lineage check checkpoint.txt
"""


@click.group("lineage", epilog=_EXAMPLE)
def command() -> None:
    """The spine: what was sealed, in which order, and where a file came from."""


def _keys(context: Context) -> KeyStore:
    return KeyStore(context.settings.keys_dir, context.sdd.keys)


def _whole_spine(context: Context) -> SpineReading:
    """The spine, which must be there and hold.

    Raises:
        UsageError: There is none.
        ProofError: It does not hold.
    """
    if not context.sdd.spine.exists():
        raise UsageError("there is no spine: no run of this project has been sealed")
    reading = read_spine(context.sdd.spine, _keys(context))
    if reading.broken_at is not None:
        raise ProofError(
            f"the spine does not hold at entry {reading.broken_at}: {reading.reason}\n"
            f"  {context.sdd.spine}"
        )
    return reading


@command.command("verify", epilog="Example: bernstein lineage verify")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_obj
def verify(context: Context, *, as_json: bool) -> int:
    """Check every entry of the spine: chain, hash and signature."""
    reading = _whole_spine(context)
    head = reading.entries[-1].entry_hash if reading.entries else "0" * 64
    signers = sorted({entry.key_id for entry in reading.entries})
    keys = _keys(context)
    trust = {signer: keys.find_public(signer)[1] for signer in signers}
    if as_json:
        print_json({"entries": len(reading.entries), "head": head, "signers": trust})
    else:
        click.echo(f"the spine holds: {len(reading.entries)} entries, head {head}")
        for signer, how in trust.items():
            click.echo(f"  signed by {signer} ({how})")
    return 0 if all(how != "unknown" for how in trust.values()) else 2


@command.command("why", epilog="Example: bernstein lineage why src/app.py")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_obj
def why(context: Context, file: Path, *, as_json: bool) -> int:
    """Say which run, step and model call wrote a file, by its content, else by its path."""
    entries = [e for e in _whole_spine(context).entries if e.subject is not None]
    content = sha256_hex(file.read_bytes()) if file.is_file() else None
    found = [e for e in entries if e.subject is not None and e.subject.sha256 == content]
    by_content = bool(found)
    if not found:
        path = file.as_posix().removeprefix("./")
        found = [e for e in entries if e.subject is not None and e.subject.path == path]
    if not found:
        raise UsageError(f"no sealed run wrote {file}, neither by content nor by path")
    origin = {
        "matched_by": "content" if by_content else "path",
        **_origin(context.sdd.run(found[-1].run_id), found[-1]),
    }
    if as_json:
        print_json(origin)
    else:
        for name, value in origin.items():
            click.echo(f"{name:<14}{value}")
    return 0


def _origin(run: RunDir, entry: SpineEntry) -> dict[str, object]:
    """Run, step and the last model call of the step before the file was written."""
    assert entry.subject is not None
    origin: dict[str, object] = {
        "path": entry.subject.path,
        "sha256": entry.subject.sha256,
        "run": run.run_id,
        "row": entry.subject.event_index,
    }
    asked: dict[str, object] = {}
    lanes: dict[str, dict[str, object]] = {}
    for row in load_replay_events(run.journal) if run.journal.exists() else ():
        if row.event == event.MODEL_CALL:
            payload = payload_of(row)
            lanes[row.lane] = {
                "model": f"{payload['provider']}:{payload['model']}",
                "model_call_row": row.index,
                "prompt_sha256": payload["prompt"]["digest"],
            }
        if row.index == entry.subject.event_index:
            origin["step"] = payload_of(row)["stepId"]
            asked = lanes.get(row.lane, {})
            break
    return {**origin, **asked}


@command.command("seal", epilog="Example: bernstein lineage seal 20261130T14")
@click.argument("run_id", metavar="RUN")
@click.pass_obj
def seal(context: Context, run_id: str) -> int:
    """Seal a run that was interrupted, as it is."""
    run = context.sdd.find_run(run_id)
    entry = seal_interrupted(run, context.sdd, _keys(context))
    click.echo(f"sealed {run.run_id} as entry {entry.index} of the spine")
    return 0


@command.command("checkpoint", epilog="Example: bernstein lineage checkpoint > checkpoint.txt")
@click.pass_obj
def checkpoint(context: Context) -> int:
    """Print a signed checkpoint of the spine, to keep elsewhere."""
    reading = _whole_spine(context)
    click.echo(make_checkpoint(reading.entries, _keys(context).signing_key()).text, nl=False)
    return 0


@command.command("prove", epilog="Example: bernstein lineage prove latest > proof.json")
@click.argument("run_id", metavar="RUN")
@click.pass_obj
def prove(context: Context, run_id: str) -> int:
    """Print the proof that a run's seal stands in the spine."""
    run = context.sdd.find_run(run_id)
    entries = _whole_spine(context).entries
    places = [e.index for e in entries if e.run_id == run.run_id and e.kind == "run"]
    if not places:
        raise UsageError(
            f"run {run.run_id} is not in the spine\n  seal it: bernstein lineage seal {run.run_id}"
        )
    proof = prove_entry(entries, places[-1], _keys(context).signing_key())
    print_json(msgspec.to_builtins(proof))
    return 0


@command.command("check", epilog="Example: bernstein lineage check checkpoint.txt")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--key", metavar="FINGERPRINT", help="The key id that must have signed it.")
@click.pass_obj
def check(context: Context, file: Path, key: str | None) -> int:
    """Check a proof by itself, or the spine against a checkpoint that was kept elsewhere."""
    data = file.read_bytes()
    keys = _keys(context)
    if data.lstrip().startswith(b"{"):
        proof, entry = _read_proof(data)
        found = check_proof(proof, entry)
        trust: Trust = "trusted" if key == found.key_id else keys.find_public(found.key_id)[1]
        said = f"run {entry.run_id} is entry {entry.index} of {found.size}"
    else:
        found = parse_checkpoint(data.decode("utf-8", "replace"))
        public, known = keys.find_public(found.key_id)
        trust = "trusted" if key == found.key_id else known
        if public is None or not found.is_signed_by(public):
            raise ProofError(
                f"the checkpoint is not signed by key {found.key_id}, or that is unknown"
            )
        check_against(_whole_spine(context).entries, found)
        said = f"the spine begins with the {found.size} entries of the checkpoint"
    if key is not None and key != found.key_id:
        raise ProofError(f"signed by key {found.key_id}, not by {key}")
    click.echo(f"{said}, signed by {found.key_id} ({trust})")
    return 0 if trust != "unknown" else 2


def _read_proof(data: bytes) -> tuple[InclusionProof, SpineEntry]:
    try:
        proof = convert(decode_strict(data), InclusionProof)
        return proof, convert(proof.entry, SpineEntry)
    except CanonicalError as error:
        raise ProofError(f"this is not a proof: {error}") from error
