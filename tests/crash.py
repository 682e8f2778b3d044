"""A process that writes evidence, killed or failed at one of its system calls by strace.

Run as a program it is the process; imported it is the harness, for the tests and for the proofs.
A scenario is prepared in peace, is run with one system call going wrong, and is looked at then.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bernstein import EventJournal, seal_journal_into_spine
from bernstein.chain.verify import check_chain
from bernstein.errors import BundleError, SealError
from bernstein.recording.answer import LlmAnswer
from bernstein.recording.key import LlmCall
from bernstein.rundir import RunDir, SddDir
from bernstein.seal.bundle import import_bundle
from bernstein.seal.evidence import verify_run
from bernstein.seal.export import export_run
from bernstein.seal.forget import forget_bodies
from bernstein.seal.retention import prune_to
from bernstein.seal.seals import seal_interrupted
from bernstein.seal.signing import KeyStore, default_keys
from bernstein.seal.spine import read_spine
from tests.helpers import open_run

ROWS = 3
CALLS = (
    "write",
    "fsync",
    "rename",
    "unlink",
    "unlinkat",
    "rmdir",
    "link",
    "mkdir",
    "ftruncate",
    "flock",
)
_ROOT = Path(__file__).parents[1]
_TEXT = "a text that only one run holds " * 4000


class Scenario(NamedTuple):
    """What is prepared in a folder, what the process does there, and what is wrong afterwards."""

    prepare: Callable[[Path], None]
    work: Callable[[Path], None]
    broken: Callable[[Path, list[str]], str]


def _sdd(folder: Path) -> tuple[SddDir, KeyStore]:
    sdd = SddDir(folder / ".sdd")
    return sdd, default_keys(sdd)


def _say(word: str) -> None:
    os.write(1, f"{word}\n".encode())


def _record(sdd: SddDir, text: str, *, sealed: bool = True) -> RunDir:
    """A run with one call, whose prompt and answer hold ``text``."""
    run = open_run(sdd)
    call = LlmCall("m", f"about {text}", "p")
    seq = run.begin_call(call, "", None)
    run.finish_call(call, LlmAnswer(text), seq=seq, lane="", step_id=None, begun_s=0.0)
    if sealed:
        run.close("completed")
        assert run.seal_problem is None
    return run.dir


def _left(folder: Path, pattern: str) -> list[str]:
    return [path.name for path in folder.rglob(pattern)]


# --- append, close and seal


def _make_key(folder: Path) -> None:
    _sdd(folder)[1].signing_key()


def _append(folder: Path) -> None:
    sdd, _ = _sdd(folder)
    run = sdd.run("run")
    with EventJournal("run", sdd.path, durable=True) as journal:
        for n in range(ROWS):
            journal.append("step.started", {"stepId": f"s{n}", "depth": 0})
            _say("row")
    run.write_info({"run_id": "run", "status": "completed"})
    seal_journal_into_spine("run", sdd.path)
    _say("sealed")


def _append_broken(folder: Path, said: list[str]) -> str:
    sdd, keys = _sdd(folder)
    run, acknowledged = sdd.run("run"), said.count("row")
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
    return _seal_broken(sdd, run, keys) if run.run_json.exists() else ""


def _seal_broken(sdd: SddDir, run: RunDir, keys: KeyStore) -> str:
    """What keeps a run from being sealed and verified now."""
    try:
        seal_interrupted(run, sdd, keys)
    except SealError as error:
        if "sealed already" not in str(error):
            return f"it cannot be sealed any more: {error}"
    verdict = verify_run(run, sdd, keys)
    if verdict.verdict != "verified":
        return f"{verdict.verdict} {verdict.reason} {verdict.note}"
    return ""


# --- recovery: a run that was cut in the middle of three lines is sealed


def _cut_run(folder: Path) -> None:
    sdd, keys = _sdd(folder)
    keys.signing_key()
    process = os.fork()
    if process == 0:
        run = _record(sdd, "x", sealed=False)
        for path in (run.journal, run.llm_calls, run.wal):
            with path.open("ab") as file:
                file.write(b'{"torn')
        os._exit(0)
    os.waitpid(process, 0)


def _recover(folder: Path) -> None:
    sdd, keys = _sdd(folder)
    (run,) = sdd.list_runs()
    seal_interrupted(run, sdd, keys)
    _say("sealed")


def _recover_broken(folder: Path, said: list[str]) -> str:
    sdd, keys = _sdd(folder)
    (run,) = sdd.list_runs()
    if "sealed" in said and verify_run(run, sdd, keys).verdict != "verified":
        return "it was sealed and is not verified"
    broken = _seal_broken(sdd, run, keys)
    return broken or ("" if check_chain(run.journal).rows == 2 else "rows are gone")


# --- retention


def _three_runs(folder: Path) -> None:
    sdd, _ = _sdd(folder)
    for n in range(3):
        _record(sdd, f"{n}{_TEXT}")


def _prune(folder: Path) -> None:
    prune_to(*_with_keep(folder))
    _say("pruned")


def _with_keep(folder: Path) -> tuple[SddDir, int, KeyStore]:
    sdd, keys = _sdd(folder)
    return sdd, 1, keys


def _prune_broken(folder: Path, said: list[str]) -> str:
    sdd, keys = _sdd(folder)
    for run in sdd.list_runs():
        if (verdict := verify_run(run, sdd, keys)).verdict != "verified":
            return f"{run.run_id}: {verdict.verdict} {verdict.reason}"
    prune_to(*_with_keep(folder))
    spine = read_spine(sdd.spine, keys)
    there = {run.run_id for run in sdd.list_runs()}
    lost = {e.run_id for e in spine.entries if e.kind == "run" and spine.sealed(e.run_id)} - there
    pruned = {e.run_id for e in spine.entries if e.kind == "pruned"}
    if lost - pruned or len(there) != 1:
        return f"{len(there)} runs are there, and {lost - pruned} are gone without a word"
    left = [path for path in sdd.blobs.rglob("*") if path.is_file()]
    return "" if len(left) == 2 else f"{len(left)} bodies are left, of a run that has two"


# --- forget


def _one_run(folder: Path) -> None:
    _record(_sdd(folder)[0], _TEXT)


def _forget(folder: Path) -> None:
    sdd, keys = _sdd(folder)
    forget_bodies(sdd.list_runs()[0], sdd, keys)
    _say("forgotten")


def _forget_broken(folder: Path, said: list[str]) -> str:
    sdd, keys = _sdd(folder)
    (run,) = sdd.list_runs()
    if (verdict := verify_run(run, sdd, keys)).verdict != "verified":
        return f"{verdict.verdict} {verdict.reason} {verdict.note}"
    if "forgotten" not in said:
        forget_bodies(run, sdd, keys)
    files = (path for path in sdd.path.rglob("*") if path.is_file())
    if any(b"a text that only one run holds" in path.read_bytes() for path in files):
        return "a body is still there"
    return "" if verify_run(run, sdd, keys).verdict == "verified" else "not verified afterwards"


# --- export and import


def _bundle(folder: Path) -> None:
    elsewhere = SddDir(folder / "elsewhere" / ".sdd")
    run = _record(elsewhere, _TEXT)
    export_run(run, elsewhere, default_keys(elsewhere), folder / "run.zip", with_bodies=True)
    _make_key(folder)


def _export(folder: Path) -> None:
    sdd, keys = _sdd(folder)
    export_run(sdd.list_runs()[0], sdd, keys, folder / "out.zip", with_bodies=True)


def _export_broken(folder: Path, said: list[str]) -> str:
    sdd, keys = _sdd(folder)
    whole = folder / "again.zip"
    export_run(sdd.list_runs()[0], sdd, keys, whole, with_bodies=True)
    out = folder / "out.zip"
    return "a half of a bundle" if out.exists() and out.read_bytes() != whole.read_bytes() else ""


def _import(folder: Path) -> None:
    sdd, keys = _sdd(folder)
    import_bundle(folder / "run.zip", sdd, keys, None)
    _say("imported")


def _import_broken(folder: Path, said: list[str]) -> str:
    sdd, keys = _sdd(folder)
    try:
        import_bundle(folder / "run.zip", sdd, keys, None)
    except BundleError as error:
        if "here already" not in str(error):
            return f"it cannot be imported any more: {error}"
    (run,) = sdd.list_runs()
    if (verdict := verify_run(run, sdd, keys)).verdict != "verified":
        return f"{verdict.verdict} {verdict.reason} {verdict.note}"
    left = _left(sdd.path, ".import-*")
    return f"{left} is left" if left else ""


SCENARIOS = {
    "append": Scenario(_make_key, _append, _append_broken),
    "recover": Scenario(_cut_run, _recover, _recover_broken),
    "prune": Scenario(_three_runs, _prune, _prune_broken),
    "forget": Scenario(_one_run, _forget, _forget_broken),
    "export": Scenario(_one_run, _export, _export_broken),
    "import": Scenario(_bundle, _import, _import_broken),
}


def run_with(name: str, folder: Path, inject: str | None) -> tuple[int, list[str], str]:
    """Run a scenario's process under strace in ``folder``; exit code, what it said, its errors.

    Args:
        name: The scenario.
        folder: Where it was prepared.
        inject: What strace injects, as ``write:signal=KILL:when=3``; None: it counts the calls,
            whose names are returned instead of what was said.
    """
    log = folder / "strace.log"
    command = ["strace", "-f", "-qq", "-e", f"trace={','.join(CALLS)}", "-o", str(log)]
    if inject is not None:
        command += ["-e", f"inject={inject}"]
    done = subprocess.run(
        [*command, sys.executable, "-m", "tests.crash", name, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=_ROOT,
    )
    said = done.stdout.split()
    if inject is None:
        said = re.findall(r"^\d+ +(\w+)\(", log.read_text(), re.MULTILINE)
    return done.returncode, said, done.stderr


def injections(name: str, prepared: Path, folder: Path) -> list[str]:
    """Every place at which a scenario can be killed, or one of its calls made to fail."""
    shutil.copytree(prepared, folder)
    _, calls, _ = run_with(name, folder, None)
    found = []
    for call in CALLS:
        for n in range(1, calls.count(call) + 1):
            found.append(f"{call}:signal=KILL:when={n}")
            if call in {"write", "fsync", "rename", "link", "unlink", "mkdir"}:
                error = "ENOSPC" if call in {"write", "mkdir"} else "EIO"
                found.append(f"{call}:error={error}:when={n}")
    return found


def what_is_broken(name: str, prepared: Path, folder: Path, inject: str) -> str:
    """What does not hold after a crash: an acknowledged row that is gone, or worse; else ""."""
    shutil.copytree(prepared, folder)
    _, said, _ = run_with(name, folder, inject)
    return SCENARIOS[name].broken(folder, said)


def has_strace() -> bool:
    """Whether strace is there and may trace."""
    if shutil.which("strace") is None:
        return False
    return (
        subprocess.run(["strace", "-qq", "true"], capture_output=True, check=False).returncode == 0
    )


if __name__ == "__main__":
    SCENARIOS[sys.argv[1]].work(Path(sys.argv[2]))
