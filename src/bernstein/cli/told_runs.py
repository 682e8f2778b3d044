"""Runs in the forms that other programs read."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click

from bernstein.canonical import as_ref, decode_strict, digest_of, digest_of_bytes, utf8
from bernstein.chain.read import load_replay_events
from bernstein.cli.trajectory_command import check_journal
from bernstein.errors import CanonicalError, ForgottenBodyError, RecordingError
from bernstein.files import replacing
from bernstein.interop.export_inspect import to_inspect
from bernstein.interop.export_jsonl import to_envelopes
from bernstein.interop.export_otel import to_otel
from bernstein.interop.story import story_of
from bernstein.recording.fixtures import read_fixtures
from bernstein.recording.queue import load_recording
from bernstein.recording.rows import read_prompts
from bernstein.seal.body_key import bodies_of
from bernstein.seal.evidence import stored_refs
from bernstein.seal.signing import KeyStore

if TYPE_CHECKING:
    from pathlib import Path

    from bernstein.canonical import JsonObject, JsonValue
    from bernstein.cli.app import Context
    from bernstein.interop.story import Bodies
    from bernstein.rundir import RunDir


def export_as(context: Context, name: str, kind: str, output: Path, *, with_bodies: bool) -> int:
    """Write a run's trajectory into a file.

    Raises:
        UnknownRunError: There is no such run.
        RecordingError: The chain of its journal does not hold.
        OSError: The disk refuses.
    """
    run = context.sdd.find_shown(name)
    count = check_journal(run).rows
    rows = load_replay_events(run.journal)
    with replacing(output) as file:
        if kind == "jsonl":
            file.writelines(to_envelopes(rows, run.run_id))
        else:
            write = to_otel if kind == "otel" else to_inspect
            bodies = _bodies(context, run) if with_bodies else None
            file.write(write(story_of(rows, run.run_id), bodies))
    click.echo(f"{output}: run {run.run_id}, {count} rows, as {kind}")
    return 0


def _bodies(context: Context, run: RunDir) -> Bodies:
    """Finds the bodies that a run keeps, as JSON; None for one that is not here."""
    keys = KeyStore(context.settings.keys_dir, context.sdd.keys)
    blobs = bodies_of(run, context.sdd.project_of(run), keys)
    refs = {ref.digest: ref for ref in stored_refs(run)}
    kept: dict[str, JsonValue] = {}  # that stand in the rows of a recording
    with suppress(ForgottenBodyError, RecordingError):
        for _, prompt in read_prompts(load_recording(run.llm_calls).rows, blobs):
            kept[digest_of_bytes(utf8(prompt)).digest] = prompt

    with suppress(ForgottenBodyError, RecordingError, FileNotFoundError):
        for _, request, _, response in read_fixtures(run.fixtures, blobs):
            for body in (request, response):
                kept[digest_of(body).digest] = body

    def find(said: JsonObject) -> JsonValue:
        ref = as_ref(said)
        if ref is None or ref.digest in kept:
            return kept.get(said.get("digest", ""))
        try:
            return decode_strict(blobs.get(refs.get(ref.digest, ref)))
        except (ForgottenBodyError, RecordingError, CanonicalError):
            return None

    return find
