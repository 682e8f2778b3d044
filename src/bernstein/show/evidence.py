"""What a browser needs to check a run by itself, and what the check of this machine says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from bernstein.files import read_file
from bernstein.seal.evidence import verify_run
from bernstein.seal.seals import parse_seal

if TYPE_CHECKING:
    from bernstein.canonical import JsonObject
    from bernstein.rundir import RunDir, SddDir
    from bernstein.seal.signing import KeyStore


def evidence_of(run: RunDir, sdd: SddDir, keys: KeyStore) -> JsonObject:
    """A run's seal and key, and its verdict.

    Returns:
        ``seal``: the text of ``seal.json``, or None. ``public_key``: the raw Ed25519 key that it
        names, 64 hex digits, or None where it is not here. ``trust``: own, trusted or unknown.
        ``verdict``: as ``verify_run`` gives it, of a run that has ended, else None.
    Raises:
        RecordingError, OSError: A file cannot be read.
    """
    text, public, trust = None, None, "unknown"
    if run.seal.exists():
        data = read_file(run.seal)
        text = data.decode("utf-8", "replace")
        seal = parse_seal(data)
        if seal is not None:
            public, trust = keys.find_public(seal.key_id)
    verdict = None if run.is_running() else verify_run(run, sdd, keys)
    return {
        "seal": text,
        "public_key": None if public is None else public.hex(),
        "trust": trust,
        "verdict": msgspec.to_builtins(verdict),
    }
