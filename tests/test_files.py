from __future__ import annotations

import os
import threading
from pathlib import Path

from bernstein.files import replacing, sweep_temporaries, write_file


def test_a_sweep_takes_what_a_kill_left_and_nothing_else(tmp_path: Path) -> None:
    left = tmp_path / ".run.json.0123abcd.tmp"
    left.write_text("half")
    kept = [tmp_path / ".draft.tmp", tmp_path / "a.tmp", tmp_path / "below" / left.name]
    kept[2].parent.mkdir()
    for path in kept:
        path.write_text("mine")
    (tmp_path / ".folder.0123abcd.tmp").mkdir()
    os.mkfifo(tmp_path / ".fifo.0123abcd.tmp")
    with replacing(tmp_path / "new") as file:
        file.write(b"whole")
        sweep_temporaries(tmp_path)
    assert (tmp_path / "new").read_bytes() == b"whole"
    assert not left.exists()
    assert all(path.exists() for path in kept)


def test_a_sweep_beside_writers_costs_none_of_them_its_file(tmp_path: Path) -> None:
    done = threading.Event()

    def sweep() -> None:
        while not done.is_set():
            sweep_temporaries(tmp_path)

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        for n in range(300):
            write_file(tmp_path / "file", b"%d" % n)
            assert (tmp_path / "file").read_bytes() == b"%d" % n
    finally:
        done.set()
        sweeper.join()
