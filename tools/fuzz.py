"""Coverage-guided fuzzing of every reader: none may raise anything but an error of ours.

    python -m tools.fuzz                        every reader, ten million inputs in all
    python -m tools.fuzz --inputs 100000        as many in all
    python -m tools.fuzz --reader plan          one reader

An input that does not hold is kept in ``.prove/fuzz/`` and named, and the exit code is 1. What
earlier runs found worth keeping is there too, and is where the next one starts.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
STATE = ROOT / ".prove" / "fuzz"
# Of a hundred parts of all inputs: what is read alone takes more of them than a whole run.
PARTS = {
    "journal": 8,
    "history": 8,
    "calls": 10,
    "decisions": 8,
    "spine": 8,
    "seal": 9,
    "checkpoint": 9,
    "audit": 9,
    "plan": 9,
    "canonical": 10,
    "exchanges": 4,
    "answers": 6,
    "bundle": 2,
    "run/journal.jsonl": 3,
    "run/llm_calls.jsonl": 1,
    "run/fixtures.jsonl": 1,
    "run/wal.jsonl": 1,
    "run/spine.jsonl": 1,
    "run/seal.json": 1,
    "run/run.json": 1,
    "run/body_key.json": 1,
}


def fuzz_one(name: str, inputs: int, folder: Path) -> None:
    """Fuzz one reader in this process, which then ends, with ``folder`` for its files."""
    import atheris

    with atheris.instrument_imports(include=["bernstein"]):
        from tests import helpers, readers, test_seal

        from bernstein.rundir import SddDir
        from bernstein.seal.signing import default_keys

    (folder / "work").mkdir()
    (folder / "inputs").mkdir()
    os.chdir(folder / "work")
    os.environ |= {"BERNSTEIN_KEYS_DIR": str(folder / "keys"), "BERNSTEIN_ENCRYPT": "1"}
    sdd = SddDir(folder / "work" / ".sdd")
    helpers.script(*test_seal.RULES)
    run = sdd.run(helpers.run_plan(test_seal.PLAN, sdd).run_id)
    made = readers.Readers(folder / "inputs", run, sdd, default_keys(sdd)).by_name()
    assert made.keys() == PARTS.keys(), made.keys() ^ PARTS.keys()
    place = STATE / name.replace("/", "-")
    (place / "corpus").mkdir(parents=True, exist_ok=True)
    (place / "corpus" / "example").write_bytes(made[name].example)
    options = [f"-runs={inputs}", "-print_final_stats=1", "-max_len=8192", "-timeout=30"]
    options += [f"-artifact_prefix={place}/", str(place / "corpus")]
    atheris.Setup([sys.argv[0], *options], made[name].read)
    atheris.Fuzz()  # ends the process


def fuzz(name: str, inputs: int) -> tuple[str, int, str]:
    """Fuzz one reader in a process of its own: its name, inputs read, and what went wrong."""
    shared = Path("/dev/shm")  # noqa: S108 - each input is a file, and a disk would be the limit
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        command = [sys.executable, "-m", "tools.fuzz", "--reader", name]
        done = subprocess.run(
            [*command, "--inputs", str(inputs), "--here", folder],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            cwd=ROOT,
        )
    found = re.search(r"stat::number_of_executed_units: (\d+)", done.stderr)
    return name, int(found[1]) if found else 0, "" if done.returncode == 0 else done.stderr


def main() -> int:
    """Fuzz what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000_000)
    parser.add_argument("--reader", choices=sorted(PARTS))
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        fuzz_one(options.reader, options.inputs, options.here)
    names = [options.reader] if options.reader else sorted(PARTS, key=lambda n: -PARTS[n])
    whole = sum(PARTS[name] for name in names)
    shares = [-(-options.inputs * PARTS[name] // whole) for name in names]
    total, failed = 0, 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, count, problem in pool.map(fuzz, names, shares):
            total += count
            failed += bool(problem)
            print(f"{count:>10}  {name}{': does not hold' if problem else ''}", flush=True)
            if problem:
                print(problem[-3000:])
    print(f"{total} inputs, {failed} readers do not hold")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
