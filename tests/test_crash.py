from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests import crash

pytestmark = pytest.mark.skipif(
    not crash.has_strace(), reason="strace is not here, or may not trace"
)


def test_the_process_ends_well_when_nothing_happens_to_it(tmp_path: Path) -> None:
    code, calls, errors = crash.run_with(tmp_path, None)
    assert (code, errors) == (0, "")
    assert {"write", "fsync", "rename", "flock"} <= set(calls)


def test_at_a_sample_of_its_calls_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    (tmp_path / "count").mkdir()
    places = crash.injections(tmp_path / "count")
    assert len(places) > 40
    for number, inject in enumerate(random.Random(7).sample(places, 16)):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert crash.what_is_broken(folder, inject) == "", inject
