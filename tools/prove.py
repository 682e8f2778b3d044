"""The exhaustive form of each table of proofs: every case, in process, resumable.

    python -m tools.prove                  every case of every table, figures into docs/proofs.md
    python -m tools.prove --shard 3/20     every twentieth case, from the third
    python -m tools.prove --table flips    one table

A case that does not hold is printed and ends the run with 1. What is done is kept in ``.prove/``
for the commit it was done at, so a run that was cut goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from tests import crash, independent
from tests.helpers import ONE_TASK, no_model, run_plan, script, verify
from tests.pairs import is_faithful, run_pair

from bernstein.rundir import SddDir

ROOT = Path(__file__).parents[1]
STATE = ROOT / ".prove"
FIGURES = ROOT / "docs" / "proofs.md"
PAIRS = 200
SMALL_PLAN = """\
stages:
  - name: s
    steps:
      - title: One
        files: [a.txt]
        completion_signals: [{type: command, run: "true"}]
"""


class Table(NamedTuple):
    """A claim, how many cases it has, and what one case comes to: a label, and whether it holds."""

    claim: str
    count: int
    case: Callable[[int], tuple[str, bool]]


def pairs(folder: Path) -> Table:
    """Record and replay pairs of a plan with eight parallel steps."""

    os.environ["BERNSTEIN_KEYS_DIR"] = str(folder / "keys")

    def case(number: int) -> tuple[str, bool]:
        recorded, replayed = run_pair(SddDir(folder / f"pair-{number}" / ".sdd"), number)
        assert replayed.comparison is not None
        return replayed.comparison.relation, is_faithful(recorded, replayed)

    return Table(
        "a plan with 8 parallel steps, repeated prompts, random delays and failures replays to "
        "the head of its recording, every step with its own answers",
        PAIRS,
        case,
    )


def flips(folder: Path) -> Table:
    """Each bit of each byte of a sealed run's evidence."""
    os.environ["BERNSTEIN_KEYS_DIR"] = str(folder / "keys")
    sdd = SddDir(folder / "flips" / ".sdd")
    script(
        {"match": "Step: One", "fail": {"class": "Busy", "status": 429}, "times": 1},
        {"match": "Split one step", "text": ONE_TASK},
        {"text": "answer {n}", "usage": {"input": 5, "output": 7}},
    )
    run = sdd.run(run_plan(SMALL_PLAN, sdd).run_id)
    no_model()
    assert verify(sdd, run).verdict == "verified"
    paths = (run.journal, run.llm_calls, run.fixtures, run.wal, run.seal, run.run_json, sdd.spine)
    files = [(path, path.read_bytes()) for path in paths]

    def case(number: int) -> tuple[str, bool]:
        place, bit = divmod(number, 8)
        path, data = files[0]
        for path, data in files:  # noqa: B007 - the one that the place is in
            if place < len(data):
                break
            place -= len(data)
        changed = bytearray(data)
        changed[place] ^= 1 << bit
        path.write_bytes(changed)
        try:
            verdict = verify(sdd, run)
            chain_holds = independent.check(run.journal)[0]
        finally:
            path.write_bytes(data)
        is_right = verdict.verdict != "verified"
        if path == run.journal and verdict.reason not in {"envelope", "missing", "extra"}:
            is_right &= verdict.step_index == data.count(b"\n", 0, place) and not chain_holds
        return f"{path.name}: {verdict.verdict}, {verdict.reason or verdict.note[:12]}", is_right

    return Table(
        "a flipped bit anywhere in a sealed run's evidence is never verified, and in the journal "
        "is named at its row",
        sum(len(data) for _, data in files) * 8,
        case,
    )


def crashes(folder: Path) -> Table:
    """A kill or a failure at each system call of appending, closing and sealing."""
    if not crash.has_strace():
        return Table("strace is not here, so no crash was tried", 0, lambda _: ("", True))
    (folder / "count").mkdir(parents=True)
    places = crash.injections(folder / "count")

    def case(number: int) -> tuple[str, bool]:
        inject = places[number]
        (folder / str(number)).mkdir()
        broken = crash.what_is_broken(folder / str(number), inject)
        return inject.rsplit(":when", 1)[0] + (f": {broken}" if broken else ""), not broken

    return Table(
        "killed, or failed by the disk, at any system call of appending, closing and sealing: "
        "nothing acknowledged is lost, the journal reopens, the run can be sealed and is verified",
        len(places),
        case,
    )


TABLES: dict[str, Callable[[Path], Table]] = {
    "pairs": pairs,
    "flips": flips,
    "crashes": crashes,
}


def prove(name: str, shard: int, of: int, commit: str) -> tuple[Table, Counter[str], list[str]]:
    """Do the cases of a shard that are not done yet; counts by label, and what does not hold."""
    state = STATE / f"{name}-{shard}-of-{of}.json"
    STATE.mkdir(exist_ok=True)
    done: dict[str, object] = {}
    if state.exists():
        done = json.loads(state.read_text())
    if done.get("commit") != commit:
        done = {"commit": commit, "next": shard - 1, "counts": {}, "broken": []}
    counts: Counter[str] = Counter(done["counts"])  # type: ignore[arg-type]
    broken = list(done["broken"])  # type: ignore[call-overload]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # a run copies the folder that it is started in
        table = TABLES[name](Path(folder))
        number, saved_s = int(str(done["next"])), time.monotonic()
        while number < table.count:
            label, holds = table.case(number)
            counts[label] += 1
            if not holds:
                broken.append(f"{name} case {number}: {label}")
                print(f"does not hold: {broken[-1]}", flush=True)
            number += of
            if time.monotonic() - saved_s > 5 or number >= table.count:
                saved_s = time.monotonic()
                state.write_text(
                    json.dumps(
                        {"commit": commit, "next": number, "counts": counts, "broken": broken}
                    )
                )
                if sys.stderr.isatty():
                    sys.stderr.write(f"\r{name}: {min(number, table.count)} of {table.count} ")
        os.chdir(ROOT)
    return table, counts, broken


def main() -> int:
    """Prove what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shard", default="1/1")
    parser.add_argument("--table", choices=sorted(TABLES))
    options = parser.parse_args()
    shard, of = (int(part) for part in options.shard.split("/"))
    commit = (
        subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        ).stdout.strip()
        or "no commit"
    )
    report, failed = [], 0
    for name in [options.table] if options.table else TABLES:
        table, counts, broken = prove(name, shard, of, commit)
        failed += len(broken)
        print(f"{name}: {counts.total()} of {table.count} cases, {len(broken)} do not hold")
        for label, count in sorted(counts.items()):
            print(f"  {count:>8}  {label}")
        report.append((name, table, counts, broken))
    if of == 1 and not options.table:
        _write_figures(report, commit)
    print(f"{sum(c.total() for _, _, c, _ in report) - failed} passed, {failed} failed")
    return int(failed > 0)


def _write_figures(report: list[tuple[str, Table, Counter[str], list[str]]], commit: str) -> None:
    lines = [
        "# Proofs",
        "",
        (
            f"Figures of `make prove` on {datetime.now(UTC):%Y-%m-%d} at commit `{commit}`, Python "
            f"{sys.version.split()[0]}."
        ),
    ]
    for name, table, counts, broken in report:
        lines += [
            "",
            f"## {name}",
            "",
            f"Claim: {table.claim}.",
            "",
            f"{counts.total()} cases, {len(broken)} do not hold.",
            "",
            "| cases | outcome |",
            "| ---: | --- |",
        ]
        lines += [f"| {count} | {label} |" for label, count in sorted(counts.items())]
    FIGURES.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
