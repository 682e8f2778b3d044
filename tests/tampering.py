"""A sealed project, and every way to tamper with it that a table of proofs tries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bernstein.rundir import RunDir, SddDir
from bernstein.seal.audit import AuditChain, audit_keys, check_audit
from bernstein.seal.evidence import verify_run
from bernstein.seal.seals import highest_sealed_audit, seal_run
from bernstein.seal.signing import KeyStore, default_keys
from tests import independent
from tests.helpers import ONE_TASK, no_model, run_plan, script
from tests.test_seal import rechain

PLAN = """\
stages:
  - name: s
    steps:
      - title: One
        files: [a.txt]
        completion_signals: [{type: command, run: "true"}]
      - {title: Two}
      - {title: Three}
      - {title: Four}
"""


class Sample(NamedTuple):
    """A project with a run to tamper with, another run beside it, and audit rows before both."""

    sdd: SddDir
    run: RunDir
    other: RunDir
    keys: KeyStore

    @property
    def files(self) -> list[Path]:
        """The files that are evidence of the run."""
        run = self.run
        paths = [run.journal, run.llm_calls, run.fixtures, run.wal, run.seal, run.run_json]
        return [*paths, self.sdd.spine, self.sdd.audit]

    def of_other(self, path: Path) -> bytes:
        """The same file of the other run; its own bytes where the runs share it."""
        return (self.other.path / path.name if path.parent == self.run.path else path).read_bytes()

    def holds(self, path: Path) -> bool:
        """Whether everything that ``path`` is evidence of is called verified."""
        if path == self.sdd.audit:
            sealed = highest_sealed_audit(self.sdd, self.keys)
            return check_audit(path, audit_keys(self.keys.folder), sealed).verdict == "verified"
        runs = (self.run, self.other) if path == self.sdd.spine else (self.run,)
        return all(verify_run(run, self.sdd, self.keys).verdict == "verified" for run in runs)


class Change(NamedTuple):
    """A file's new bytes (None: it is removed), and the row that must be named for a journal."""

    label: str
    path: Path
    data: bytes | None
    row: int | None = None


def make_sample(folder: Path) -> Sample:
    """Make the project; at least 40 events, one of the runs a failure and a retry among them."""
    sdd = SddDir(folder / ".sdd")
    keys = default_keys(sdd)
    for number in range(3):
        AuditChain(sdd.audit, audit_keys(keys.folder)).append("thread.approval", {"n": number})
    runs = []
    for title in ("One", "Other"):
        script(
            {"match": f"Step: {title}", "fail": {"class": "Busy", "status": 429}, "times": 1},
            {"match": "Split one step", "text": ONE_TASK},
            {"text": "answer {n}", "usage": {"input": 5, "output": 7}},
        )
        runs.append(sdd.run(run_plan(PLAN.replace("One", title), sdd).run_id))
    no_model()
    sample = Sample(sdd, runs[0], runs[1], keys)
    assert all(sample.holds(path) for path in sample.files)
    assert runs[0].journal.read_bytes().count(b"\n") >= 40
    return sample


def changes(sample: Sample) -> Iterator[Change]:
    """Every row deleted, doubled, swapped or taken from elsewhere; every cut; every file gone."""
    for path in sample.files:
        own, foreign = path.read_bytes(), sample.of_other(path)
        yield Change("removed", path, None, 0)
        yield Change("emptied", path, b"", 0)
        if foreign != own:
            yield Change("that of another run", path, foreign)
        for at in range(1, len(own)):
            yield Change("cut", path, own[:at], own.count(b"\n", 0, at))
        yield from _row_changes(path, own.splitlines(True), foreign.splitlines(True))


def _row_changes(path: Path, own: list[bytes], foreign: list[bytes]) -> Iterator[Change]:
    if len(own) < 2:
        return
    for n, row in enumerate(own):
        yield Change("row deleted", path, b"".join(own[:n] + own[n + 1 :]), n)
        yield Change("row doubled", path, b"".join([*own[: n + 1], *own[n:]]), n + 1)
        if n + 1 < len(own):
            swapped = [*own[:n], own[n + 1], row, *own[n + 2 :]]
            yield Change("rows swapped", path, b"".join(swapped), n)
        if n < len(foreign) and foreign[n] != row:
            replaced = [*own[:n], foreign[n], *own[n + 1 :]]
            # A first row holds by itself, whosever it is: the second does not follow it.
            yield Change("row of another run", path, b"".join(replaced), n or 1)
            if n:
                yield Change("end of another run", path, b"".join(own[:n] + foreign[n:]), n)


def try_change(sample: Sample, change: Change) -> tuple[str, bool]:
    """Make the change, verify, take it back; a label, and whether what was said is right."""
    path, original = change.path, change.path.read_bytes()
    try:
        if change.data is None:
            path.unlink()
        else:
            path.write_bytes(change.data)
        is_right = not sample.holds(path)
        label = f"{path.name}: {change.label}"
        if path == sample.run.journal and change.data is not None:
            verdict = verify_run(sample.run, sample.sdd, sample.keys)
            label += f": {verdict.verdict}, {verdict.reason}"
            if change.row is not None:
                is_right &= verdict.step_index == change.row
            chain_holds, rows, _ = independent.check(path)
            is_about_chain = verdict.reason not in {"missing", "extra", "seal", "envelope"}
            is_right &= chain_holds != is_about_chain and rows == verdict.rows
    except FileNotFoundError:
        # A run without a journal cannot be read at all, which is said and is no verdict.
        is_right = change.data is None and path == sample.run.journal
        label = f"{path.name}: {change.label}: nothing to check"
    finally:
        path.write_bytes(original)
    return label, is_right


def rewritten(sample: Sample, thief: KeyStore) -> Iterator[tuple[str, bool]]:
    """The run chained anew, then sealed anew by somebody, with our spine and with their own."""
    run, sdd = sample.run, sample.sdd
    kept = {path: path.read_bytes() for path in (run.journal, run.seal, sdd.spine)}
    rechain(sdd, run)
    yield "chained anew", not sample.holds(run.journal)
    for label, spine in (("own spine", b""), ("our spine", kept[sdd.spine])):
        run.seal.unlink()
        sdd.spine.write_bytes(spine)
        seal_run(run, sdd, thief, "completed")
        yield f"chained, sealed and signed with another key, {label}", not sample.holds(run.journal)
    for path, data in kept.items():
        path.write_bytes(data)
    yield "put back", sample.holds(run.journal)
