from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from bernstein.seal.signing import default_keys
from tests.helpers import no_model, run_plan, script
from tests.readers import Reader, Readers
from tests.test_seal import PLAN, RULES

if TYPE_CHECKING:
    from pathlib import Path

    from bernstein.rundir import SddDir


@pytest.fixture
def readers(sdd: SddDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Reader]:
    monkeypatch.setenv("BERNSTEIN_ENCRYPT", "1")
    script(*RULES)
    run = sdd.run(run_plan(PLAN, sdd).run_id)
    no_model()
    (tmp_path / "inputs").mkdir()
    return Readers(tmp_path / "inputs", run, sdd, default_keys(sdd)).by_name()


def mutated(data: bytes, chance: random.Random) -> bytes:
    """``data`` with a few bytes, pieces or numbers changed."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at, length = chance.randint(0, len(changed)), chance.choice((1, 1, 2, 8, 60))
        match chance.randrange(5):
            case 0:
                changed[at : at + length] = b""
            case 1:
                changed[at:at] = changed[at : at + length]
            case 2:
                changed[at : at + 1] = bytes([chance.randrange(256)])
            case 3:
                odd = (b"null", b"-1", b"1e999", b"{}", b"[]", b'"', b"\n", b"\\ud800", b"0" * 30)
                changed[at : at + length] = chance.choice(odd)
            case _:
                start = chance.randint(0, len(data))
                changed[at : at + length] = data[start : start + length]
    return bytes(changed)


def test_no_reader_raises_anything_but_an_error_of_ours(readers: dict[str, Reader]) -> None:
    chance = random.Random(20261130)
    for name, reader in readers.items():
        reader.read(reader.example)
        for number in range(20 if name == "bundle" else 60):
            data = mutated(reader.example, chance)
            try:
                reader.read(data)
            except Exception as error:
                error.add_note(f"reader {name}, input {number}: {data[:2000]!r}")
                raise
