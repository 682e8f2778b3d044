from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests import crash

pytestmark = pytest.mark.skipif(
    not crash.has_strace(), reason="strace is not here, or may not trace"
)


@pytest.mark.parametrize("name", crash.SCENARIOS)
def test_the_process_ends_well_when_nothing_happens_to_it(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "case"
    folder.mkdir()
    crash.SCENARIOS[name].prepare(folder)
    code, calls, errors = crash.run_with(name, folder, None)
    assert (code, errors) == (0, "")
    assert {"write", "fsync", "rename", "flock"} <= set(calls)


@pytest.mark.parametrize("name", crash.SCENARIOS)
def test_at_a_sample_of_its_calls_nothing_acknowledged_is_lost(name: str, tmp_path: Path) -> None:
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    crash.SCENARIOS[name].prepare(prepared)
    places = crash.injections(name, prepared, tmp_path / "count")
    assert len(places) > 20
    for number, inject in enumerate(random.Random(7).sample(places, 8)):
        broken = crash.what_is_broken(name, prepared, tmp_path / str(number), inject)
        assert broken == "", inject
