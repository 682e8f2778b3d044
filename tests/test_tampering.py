from __future__ import annotations

import random
from typing import TYPE_CHECKING

from bernstein.seal.signing import KeyStore
from tests.tampering import changes, make_sample, rewritten, try_change

if TYPE_CHECKING:
    from pathlib import Path


def test_whatever_is_done_to_a_row_or_a_file_is_found_and_named(tmp_path: Path) -> None:
    sample = make_sample(tmp_path / "work")
    every = list(changes(sample))
    rows = [change for change in every if change.label != "cut"]
    cuts = [change for change in every if change.label == "cut"]
    draw = random.Random(11)
    for change in draw.sample(rows, 250) + draw.sample(cuts, 150):
        label, is_right = try_change(sample, change)
        assert is_right, f"{label} (row {change.row})"


def test_a_run_that_was_made_anew_by_somebody_else_is_never_verified(tmp_path: Path) -> None:
    sample = make_sample(tmp_path / "work")
    thief = KeyStore(tmp_path / "thief", sample.sdd.keys)
    for label, is_right in rewritten(sample, thief):
        assert is_right, label
