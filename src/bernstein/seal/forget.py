"""Destroys the bodies of a run on purpose: prompts, answers and results; their digests stay.

Where they are encrypted their key goes too, so that a copy of a body cannot be opened again.
What is left verifies as before and says that its bodies are forgotten. A body that another run
holds stays, and is named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.errors import SealError
from bernstein.files import sweep_temporaries, write_file
from bernstein.recording.session_events import remove_events
from bernstein.seal.body_key import bodies_of
from bernstein.seal.digest_form import digest_forms
from bernstein.seal.evidence import verify_run
from bernstein.seal.retention import body_names
from bernstein.seal.spine import Spine, read_spine

if TYPE_CHECKING:
    from bernstein.rundir import RunDir, SddDir
    from bernstein.seal.signing import KeyStore


def forget_bodies(run: RunDir, sdd: SddDir, keys: KeyStore) -> dict[str, str]:
    """Replace each body of a sealed run's recording by its digest, and remove large ones.

    Returns:
        Names of bodies that stay, with the id of a run that holds them.
    Raises:
        SealError: The run runs, or its evidence does not hold: what would be left proves nothing.
        OSError: The disk refuses.
    """
    if run.is_running():
        raise SealError(f"run {run.run_id} is still running; end it first")
    verdict = verify_run(run, sdd, keys)
    if verdict.verdict not in {"verified", "flagged"}:
        raise SealError(
            f"run {run.run_id} is {verdict.verdict} ({verdict.reason or verdict.note}): without "
            "its bodies nothing would prove it\n"
            f"  see: bernstein replay {run.run_id} --verify"
        )
    blobs = bodies_of(run, sdd, keys)
    forms = digest_forms(run, blobs)
    data = {name: b"".join(lines) for name, lines in forms.items() if name != "wal"}
    gone = body_names(run) or set()
    spine = read_spine(sdd.spine, keys)
    forgotten = {entry.run_id for entry in spine.entries if entry.kind == "forgotten"}
    held: dict[str, str] = {}
    for other in sdd.list_runs():
        if other.run_id != run.run_id and other.run_id not in forgotten:
            bodies = body_names(other)
            # A recording that cannot be read may hold any of them.
            held |= dict.fromkeys(gone if bodies is None else gone & bodies, other.run_id)
    # The spine first: a crash in between leaves bodies that are said to be forgotten, and a second
    # call finishes; the other way round nothing would say why they are gone.
    sealed = spine.sealed(run.run_id)
    Spine(sdd.spine).append("forgotten", run.run_id, sealed, keys.signing_key())
    # The key, where there is one; what a miss showed of prompts, and torn ends of the recording,
    # which no seal names.
    for path in (run.body_key, run.misses, *run.path.glob("*.torn-*")):
        path.unlink(missing_ok=True)
    sweep_temporaries(run.path)
    blobs.sweep()
    for name, lines in data.items():
        write_file(run.path / f"{name}.jsonl", lines)
    for body in gone - held.keys():
        blobs.remove(body)
    remove_events(sdd.provider_state, run.run_id)
    return held
