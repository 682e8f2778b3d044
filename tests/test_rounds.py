"""Twenty rounds of 72 askers at once; ``tools/prove.py`` has 500."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rounds import run_round


@pytest.mark.loopback
@pytest.mark.parametrize("number", range(20))
def test_everybody_gets_their_own_recorded_answer(tmp_path: Path, number: int) -> None:
    assert run_round(tmp_path, number).problem == ""
