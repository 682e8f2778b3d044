"""The exhaustive form of each table of proofs: every case, in process, resumable.

    python -m tools.prove                  every case of every table, figures into docs/proofs.md
    python -m tools.prove --shard 3/20     every twentieth case, from the third
    python -m tools.prove --table flips    one table

A case that does not hold is printed and ends the run with 1. What is done is kept in ``.prove/``
for the commit it was done at, so a run that was cut goes on where it was.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from tests import crash, independent
from tests.helpers import verify
from tests.pairs import is_faithful, run_pair
from tests.rounds import run_round
from tests.tampering import Sample, changes, make_sample, rewritten, try_change

from bernstein.errors import BundleError
from bernstein.rundir import SddDir
from bernstein.seal.bundle import import_bundle
from bernstein.seal.export import export_run
from bernstein.seal.signing import KeyStore

ROOT = Path(__file__).parents[1]
STATE = ROOT / ".prove"
FIGURES = ROOT / "docs" / "proofs.md"
PAIRS = 200
ROUNDS = 500


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
    sample = _sample(folder)
    files = [(path, path.read_bytes()) for path in sample.files]

    def case(number: int) -> tuple[str, bool]:
        place, bit = divmod(number, 8)
        path, at, data = _place(files, place)
        changed = bytearray(data)
        changed[at] ^= 1 << bit
        path.write_bytes(changed)
        try:
            if path == sample.sdd.audit:
                return f"{path.name}: not verified", not sample.holds(path)
            verdict = verify(sample.sdd, sample.run)
            chain_holds = independent.check(sample.run.journal)[0]
        finally:
            path.write_bytes(data)
        is_right = verdict.verdict != "verified"
        if path == sample.run.journal and verdict.reason not in {"envelope", "missing", "extra"}:
            is_right &= verdict.step_index == data.count(b"\n", 0, at) and not chain_holds
        return f"{path.name}: {verdict.verdict}, {verdict.reason or verdict.note[:12]}", is_right

    return Table(
        "a flipped bit anywhere in the evidence of a sealed run of at least 40 events is never "
        "verified, and in the journal is named at its row",
        sum(len(data) for _, data in files) * 8,
        case,
    )


def tampering(folder: Path) -> Table:
    """Each row deleted, doubled, swapped or taken from elsewhere; each cut; each file removed."""
    sample = _sample(folder)
    every = list(changes(sample))
    whole = list(rewritten(sample, KeyStore(folder / "thief", sample.sdd.keys)))

    def case(number: int) -> tuple[str, bool]:
        if number < len(whole):
            return whole[number]
        return try_change(sample, every[number - len(whole)])

    return Table(
        "whatever is deleted, doubled, swapped, cut or taken from another run is never verified, "
        "nor is a run that somebody else made anew; in the journal the first row that is not as it "
        "was is named, and an independent verifier says the same of the chain",
        len(whole) + len(every),
        case,
    )


def verifiers(folder: Path) -> Table:
    """A bit of each byte of a bundle's members, by the two verifiers of a release and by import."""
    sample = _sample(folder)
    target = folder / "run.zip"
    export_run(sample.run, sample.sdd, sample.keys, target, with_bodies=True)
    with zipfile.ZipFile(target) as bundle:
        members = [(name, bundle.read(name)) for name in sorted(bundle.namelist())]
    (key_id,) = sample.keys.own_ids()
    by_python = runpy.run_path(str(ROOT / "verifier" / "verify.py"))["main"]
    node = shutil.which("node")
    by_node = None
    if node is not None:
        by_node = subprocess.Popen(
            [node, str(ROOT / "tools" / "verify_many.mjs")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def said_by_node() -> int:
        if by_node is None:
            return 1
        assert by_node.stdin is not None
        assert by_node.stdout is not None
        by_node.stdin.write(f"{target} {key_id}\n")
        by_node.stdin.flush()
        return int(by_node.stdout.readline())

    def import_refuses() -> bool:
        with tempfile.TemporaryDirectory(dir=folder) as name:
            try:
                import_bundle(target, SddDir(Path(name) / ".sdd"), sample.keys, key_id)
            except BundleError:
                return True
        return False

    def case(number: int) -> tuple[str, bool]:
        name, at, data = _place(members, number)
        changed = bytearray(data)
        changed[at] ^= 1 << number % 8
        with zipfile.ZipFile(target, "w") as bundle:
            for other, own in members:
                bundle.writestr(other, bytes(changed) if other == name else own)
        with contextlib.redirect_stdout(io.StringIO()):
            codes = (by_python([str(target), key_id]), said_by_node())
        label = f"{name.split('/')[-1]}: refused by all"
        return label, codes == (1, 1) and import_refuses()

    by = (
        "verify.py, verify.mjs and import" if by_node else "verify.py and import (node is not here)"
    )
    return Table(
        f"a flipped bit in any byte of a bundle is refused by {by}",
        sum(len(data) for _, data in members),
        case,
    )


def _sample(folder: Path) -> Sample:
    os.environ["BERNSTEIN_KEYS_DIR"] = str(folder / "keys")
    return make_sample(folder / "work")


def _place(files: list[tuple[Any, bytes]], place: int) -> tuple[Any, int, bytes]:
    """The file that a place in all of them lies in, and where in it."""
    for path, data in files:
        if place < len(data):
            return path, place, data
        place -= len(data)
    raise IndexError(place)


def crashes(folder: Path) -> Table:
    """A kill or a failure at each system call of all that writes evidence."""
    if not crash.has_strace():
        return Table("strace is not here, so no crash was tried", 0, lambda _: ("", True))
    os.environ["BERNSTEIN_KEYS_DIR"] = str(folder / "keys")
    places = []
    for name, scenario in crash.SCENARIOS.items():
        (folder / name).mkdir(parents=True)
        scenario.prepare(folder / name)
        found = crash.injections(name, folder / name, folder / f"{name}-count")
        places += [(name, inject) for inject in found]

    def case(number: int) -> tuple[str, bool]:
        name, inject = places[number]
        broken = crash.what_is_broken(name, folder / name, folder / str(number), inject)
        call = inject.rsplit(":when", 1)[0]
        return f"{name}: {call}" + (f": {broken}" if broken else ""), not broken

    return Table(
        "killed, or failed by the disk, at any system call of appending and sealing, recovery, "
        "retention, forgetting, export and import: nothing acknowledged is lost, what is there is "
        "verified, and the same done again ends well and leaves nothing behind",
        len(places),
        case,
    )


def rounds(folder: Path) -> Table:
    """Who gets which answer, when many ask at once."""
    os.environ["BERNSTEIN_KEYS_DIR"] = str(folder / "keys")

    def case(number: int) -> tuple[str, bool]:
        done = run_round(folder, number)
        shutil.rmtree(folder / f"round-{number}")
        return done.seam + (f": {done.problem}" if done.problem else ""), not done.problem

    return Table(
        "8 threads and 64 tasks at once, equal and different requests, plain and streamed, random "
        "delays: everybody is given their own recorded answer, byte for byte, and over a "
        "transport border for border",
        ROUNDS,
        case,
    )


TABLES: dict[str, Callable[[Path], Table]] = {
    "pairs": pairs,
    "flips": flips,
    "tampering": tampering,
    "verifiers": verifiers,
    "crashes": crashes,
    "rounds": rounds,
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
        # Not in order, so that a shard has some of everything.
        order = random.Random(0).sample(range(table.count), table.count)
        number, saved_s = int(str(done["next"])), time.monotonic()
        while number < table.count:
            label, holds = table.case(order[number])
            counts[label] += 1
            if not holds:
                broken.append(f"{name} case {order[number]}: {label}")
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
