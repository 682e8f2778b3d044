"""Peak memory and time of everything that reads a journal of 2 GB, each in a process of its own.

``python -m bench.large [--gigabytes 2]``; nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.run import sample_journal
from bernstein import diff_journals, rebuild_state
from bernstein.chain.compare import compare_journals
from bernstein.chain.verify import check_chain, find_bad_lines
from bernstein.fold.run import project
from bernstein.fold.source import EventFile

ROW_BYTES = 535


def fold(path: Path) -> None:
    """Every event through the fold of a run."""
    project(EventFile(path, "r"))


def measured(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds, and the peak memory in MB, of ``work`` in a child."""
    process = os.fork()
    if process == 0:
        work()
        os._exit(0)
    start = time.perf_counter()
    _, status, usage = os.wait4(process, 0)
    if status:
        sys.exit("the work failed")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2)
    rows = int(parser.parse_args().gigabytes * 1e9 / ROW_BYTES)
    with tempfile.TemporaryDirectory() as name:
        path = sample_journal(Path(name) / "r" / "journal.jsonl", rows)
        copy = Path(name) / "copy.jsonl"
        os.link(path, copy)
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{rows} rows, {path.stat().st_size / 1e9:.2f} GB; {own:.0f} MB before any work")
        for label, work in (
            ("verify", lambda: check_chain(path)),
            ("salvage", lambda: list(find_bad_lines(path))),
            ("diff", lambda: diff_journals(path, copy)),
            ("compare", lambda: compare_journals(path, copy)),
            ("fold", lambda: fold(path)),
            ("rebuild_state", lambda: rebuild_state(path, rows, "r")),
        ):
            took_s, peak_mb = measured(work)
            print(f"{label:<16}{took_s:>8.1f} s{peak_mb:>8.0f} MB", flush=True)


if __name__ == "__main__":
    main()
