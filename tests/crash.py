"""A process that appends, closes and seals, killed or failed at one of its system calls by strace.

Run as a program it is the process; imported it is the harness, for the tests and for the proofs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROWS = 3
CALLS = ("write", "fsync", "rename", "unlink", "link", "mkdir", "ftruncate", "flock")
_ROOT = Path(__file__).parents[1]


def work(sdd_dir: str) -> None:
    """Append rows, close and seal; each thing that is done is said on standard output."""
    from bernstein import EventJournal, seal_journal_into_spine
    from bernstein.rundir import SddDir

    run = SddDir(Path(sdd_dir)).run("run")
    with EventJournal("run", sdd_dir, durable=True) as journal:
        for n in range(ROWS):
            journal.append("step.started", {"stepId": f"s{n}", "depth": 0})
            os.write(1, b"row\n")
    run.write_info({"run_id": "run", "status": "completed"})
    seal_journal_into_spine("run", sdd_dir)
    os.write(1, b"sealed\n")


def run_with(folder: Path, inject: str | None) -> tuple[int, list[str], str]:
    """Run the process under strace in ``folder``; exit code, what it said, and its errors.

    Args:
        folder: An empty folder; keys are made in it first, so that making them is not counted.
        inject: What strace injects, as ``write:signal=KILL:when=3``; None: it counts the calls,
            whose lines are returned instead of what was said.
    """
    env = {**os.environ, "BERNSTEIN_KEYS_DIR": str(folder / "keys"), "PYTHONDONTWRITEBYTECODE": "1"}
    if not (folder / "keys").exists():
        from bernstein.seal.signing import KeyStore

        KeyStore(folder / "keys", folder / ".sdd" / "keys").signing_key()
    log = folder / "strace.log"
    command = ["strace", "-f", "-qq", "-e", f"trace={','.join(CALLS)}", "-o", str(log)]
    if inject is not None:
        command += ["-e", f"inject={inject}"]
    done = subprocess.run(
        [*command, sys.executable, "-m", "tests.crash", str(folder / ".sdd")],
        capture_output=True,
        text=True,
        check=False,
        env=env,
        cwd=_ROOT,
    )
    said = done.stdout.split()
    if inject is None:
        said = re.findall(r"^\d+ +(\w+)\(", log.read_text(), re.MULTILINE)
    return done.returncode, said, done.stderr


def injections(folder: Path) -> list[str]:
    """Every place at which the process can be killed, or one of its calls made to fail."""
    _, calls, _ = run_with(folder, None)
    found = []
    for name in CALLS:
        for n in range(1, calls.count(name) + 1):
            found.append(f"{name}:signal=KILL:when={n}")
            if name in {"write", "fsync", "rename", "link"}:
                error = "ENOSPC" if name == "write" else "EIO"
                found.append(f"{name}:error={error}:when={n}")
    return found


def what_is_broken(folder: Path, inject: str) -> str:
    """What does not hold after a crash: an acknowledged row that is gone, or worse; else ""."""
    from bernstein import EventJournal, seal_journal_into_spine
    from bernstein.chain.verify import check_chain
    from bernstein.errors import SealError
    from bernstein.rundir import SddDir
    from bernstein.seal.evidence import verify_run
    from bernstein.seal.signing import KeyStore

    _, said, errors = run_with(folder, inject)
    sdd = SddDir(folder / ".sdd")
    keys, run = KeyStore(folder / "keys", sdd.keys), sdd.run("run")
    acknowledged = said.count("row")
    if not run.journal.exists():
        return "" if acknowledged == 0 else "acknowledged rows are gone"
    if "sealed" in said and verify_run(run, sdd, keys).verdict != "verified":
        return "it was sealed and is not verified"
    if not run.seal.exists():
        with EventJournal("run", sdd.path):
            pass  # sets a torn line aside
        check = check_chain(run.journal)
        if check.reason is not None or check.rows < acknowledged:
            return f"{acknowledged} rows were acknowledged, {check.rows} hold ({check.reason})"
    if not run.run_json.exists():
        return ""
    try:
        seal_journal_into_spine("run", sdd.path, keys)
    except SealError as error:
        if "sealed already" not in str(error):
            return f"it cannot be sealed any more: {error}"
    verdict = verify_run(run, sdd, keys)
    if verdict.verdict != "verified":
        return f"{verdict.verdict} {verdict.reason} {verdict.note}"
    return "" if "Traceback" in errors or not errors else errors


def has_strace() -> bool:
    """Whether strace is there and may trace."""
    if shutil.which("strace") is None:
        return False
    return (
        subprocess.run(["strace", "-qq", "true"], capture_output=True, check=False).returncode == 0
    )


if __name__ == "__main__":
    work(sys.argv[1])
