"""The rows of ``misses.jsonl``: what a replay asked for and did not find."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.canonical import JsonObject, as_ref, decode_canonical, decode_strict
from bernstein.jsonl import read_lines

if TYPE_CHECKING:
    from bernstein.recording.blobs import BlobStore
    from bernstein.rundir import RunDir


def read_misses(run: RunDir, blobs: BlobStore) -> list[JsonObject]:
    """The misses of a replay in their order, what is encrypted of them opened.

    Raises:
        CanonicalError: A row is damaged.
        ForgottenBodyError: The key of what was encrypted is not here.
    """
    if not run.misses.exists():
        return []
    rows: list[JsonObject] = []
    for line in read_lines(run.misses):
        if line.is_whole:
            row = decode_canonical(line.data)
            ref = as_ref(row["nearest"])
            nearest = row["nearest"] if ref is None else decode_strict(blobs.get(ref))
            rows.append({**row, "nearest": nearest})
    return rows
