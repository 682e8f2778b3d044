from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bernstein import EventJournal, seal_journal_into_spine, verify_journal
from bernstein.canonical import canonical_bytes, decode_canonical
from bernstein.chain.read import load_replay_events, payload_of
from bernstein.errors import JournalError, KeyUnavailableError, SealError
from bernstein.rundir import RunDir, SddDir
from bernstein.seal import merkle
from bernstein.seal.seals import parse_seal, seal_run
from bernstein.seal.signing import KeyStore, default_keys
from bernstein.seal.spine import Spine, read_spine
from tests.helpers import (
    MODEL,
    ONE_TASK,
    no_model,
    open_run,
    run_plan,
    script,
    unseal,
    verify,
)

PLAN = """\
stages:
  - name: s
    steps:
      - title: One
        files: [a.txt]
        completion_signals: [{type: command, run: "true"}]
      - {title: Two}
"""
RULES: list[dict[str, Any]] = [
    {"match": "Step: One", "fail": {"class": "Busy", "status": 429}, "times": 1},
    {"match": "Split one step", "text": ONE_TASK},
    {"text": "answer {n}", "usage": {"input": 5, "output": 7}},
]


def make_run(sdd: SddDir) -> RunDir:
    script(*RULES)
    report = run_plan(PLAN, sdd)
    no_model()
    assert report.status == "completed"
    return sdd.run(report.run_id)


@pytest.fixture
def run(sdd: SddDir) -> RunDir:
    return make_run(sdd)


EVIDENCE = ("journal", "llm_calls", "fixtures", "wal", "seal", "run_json")


def test_a_finished_run_is_verified_by_the_key_of_its_user(sdd: SddDir, run: RunDir) -> None:
    verdict = verify(sdd, run)
    assert verdict.verdict == "verified"
    assert verdict.signer in default_keys(sdd).own_ids()
    assert verify_journal(run.journal) == verdict


def test_private_keys_are_private_and_not_in_the_project(sdd: SddDir, run: RunDir) -> None:
    keys = Path(os.environ["BERNSTEIN_KEYS_DIR"])
    (private,) = keys.glob("*.ed25519")
    assert private.stat().st_mode & 0o777 == 0o600
    assert keys.stat().st_mode & 0o777 == 0o700
    secret = private.read_bytes().strip()
    for path in sdd.path.rglob("*"):
        if path.is_file():
            assert secret not in path.read_bytes()
    assert (sdd.keys / f"{private.stem}.pub").exists()


@pytest.mark.parametrize("name", EVIDENCE)
def test_a_flipped_bit_anywhere_is_never_verified(sdd: SddDir, run: RunDir, name: str) -> None:
    path: Path = getattr(run, name)
    data = path.read_bytes()
    draw = random.Random(name)
    for at in draw.sample(range(len(data)), min(len(data), 150)):
        changed = bytearray(data)
        changed[at] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        verdict = verify(sdd, run)
        assert verdict.verdict in {"mismatch", "prefix"}, (name, at)
        if name == "journal" and verdict.reason not in {"envelope", "missing", "extra"}:
            assert verdict.step_index == data.count(b"\n", 0, at)
    path.write_bytes(data)
    assert verify(sdd, run).verdict == "verified"


@pytest.mark.parametrize("name", ["journal", "llm_calls", "fixtures", "wal"])
def test_a_deleted_doubled_or_swapped_row_is_never_verified(
    sdd: SddDir, run: RunDir, name: str
) -> None:
    path: Path = getattr(run, name)
    data = path.read_bytes()
    lines = data.split(b"\n")[:-1]
    for n in range(len(lines)):
        variants = [[*lines[:n], *lines[n + 1 :]], [*lines[: n + 1], *lines[n:]]]
        if n + 1 < len(lines):
            variants.append([*lines[:n], lines[n + 1], lines[n], *lines[n + 2 :]])
        for changed in variants:
            path.write_bytes(b"".join(line + b"\n" for line in changed))
            assert verify(sdd, run).verdict == "mismatch"
    path.write_bytes(data)


def test_a_cut_tail_is_missing_and_names_where_it_was_cut(sdd: SddDir, run: RunDir) -> None:
    data = run.journal.read_bytes()
    lines = data.split(b"\n")[:-1]
    for kept in range(len(lines)):
        run.journal.write_bytes(b"".join(line + b"\n" for line in lines[:kept]))
        verdict = verify(sdd, run)
        assert (verdict.verdict, verdict.reason, verdict.step_index) == (
            "mismatch",
            "missing",
            kept,
        )
        assert f"sealed with {len(lines)} rows, there are {kept}" in verdict.note


def test_every_cut_of_every_file_is_never_verified(sdd: SddDir, run: RunDir) -> None:
    for name in EVIDENCE:
        path: Path = getattr(run, name)
        data = path.read_bytes()
        for cut in range(0, len(data), 1 + len(data) // 200):
            path.write_bytes(data[:cut])
            assert verify(sdd, run).verdict != "verified", (name, cut)
        path.write_bytes(data)


@pytest.mark.parametrize("name", [*EVIDENCE[1:], "spine"])
def test_a_file_that_is_gone_is_never_verified(sdd: SddDir, run: RunDir, name: str) -> None:
    path: Path = sdd.spine if name == "spine" else getattr(run, name)
    path.unlink()
    verdict = verify(sdd, run)
    assert (verdict.verdict, verdict.reason) == (
        "mismatch",
        {"seal": "seal", "run_json": "seal", "spine": "spine"}.get(name, "recording"),
    )


def test_without_seal_and_spine_it_is_a_prefix_and_never_verified(sdd: SddDir, run: RunDir) -> None:
    unseal(sdd, run)
    verdict = verify(sdd, run)
    assert verdict.verdict == "prefix"
    assert "no seal" in verdict.note


def test_a_deep_check_looks_into_payloads_and_bodies(sdd: SddDir) -> None:
    from bernstein.seal.evidence import verify_deep

    script(*RULES[:2], {"text": "t" * 70_000})
    run = sdd.run(run_plan(PLAN, sdd).run_id)
    keys = default_keys(sdd)
    assert verify_deep(run, sdd, keys).verdict == "verified"
    blob = next(path for path in sdd.blobs.rglob("*") if path.is_file())
    good = blob.read_bytes()
    blob.write_bytes(good[:-1] + b"x")
    assert verify_deep(run, sdd, keys).verdict == "mismatch"
    blob.write_bytes(good)
    # A chain over a payload in another spelling: only a deep check sees it.
    from bernstein.events.entry import GENESIS, JournalEntry, event_hash, payload_hash, to_line

    other = sdd.run("odd")
    other.path.mkdir()
    payload = b'{"b":1, "a":2}'
    hashed = payload_hash("a", "", payload)
    entry = JournalEntry(
        0,
        "a",
        "",
        msgspec.Raw(payload),
        hashed,
        GENESIS,
        event_hash(GENESIS, "a", hashed, 0),
        "2026-11-30T00:00:00.000000Z",
        0.5,
    )
    other.journal.write_bytes(to_line(entry) + b"\n")
    assert verify(sdd, other).verdict == "prefix"
    verdict = verify_deep(other, sdd, keys)
    assert (verdict.verdict, verdict.reason, verdict.step_index) == ("mismatch", "payload", 0)


def test_times_that_were_changed_are_called_that(sdd: SddDir, run: RunDir) -> None:
    lines = run.journal.read_bytes().split(b"\n")
    lines[3] = lines[3].replace(b'"ts":"2', b'"ts":"3')
    run.journal.write_bytes(b"\n".join(lines))
    verdict = verify(sdd, run)
    assert (verdict.verdict, verdict.reason, verdict.step_index) == ("mismatch", "envelope", None)


def rechain(sdd: SddDir, run: RunDir) -> None:
    """Write the journal anew, one payload changed, every hash right."""
    rows = list(load_replay_events(run.journal))
    run.journal.unlink()
    seal = run.seal.read_bytes()
    run.seal.unlink()
    with EventJournal(run.run_id, sdd.path) as journal:
        for row in rows:
            payload = payload_of(row)
            if row.index == len(rows) - 1:
                payload["status"] = "failed"
            journal.append(row.event, payload, row.lane)
    run.seal.write_bytes(seal)


def test_a_run_that_was_chained_anew_is_not_the_one_that_was_sealed(
    sdd: SddDir, run: RunDir
) -> None:
    rechain(sdd, run)
    verdict = verify(sdd, run)
    assert (verdict.verdict, verdict.reason) == ("mismatch", "seal")
    assert verdict.expected_hash != verdict.actual_hash


def test_a_run_sealed_anew_with_another_key_is_not_verified(
    sdd: SddDir, run: RunDir, tmp_path: Path
) -> None:
    rechain(sdd, run)
    run.seal.unlink()
    spine = sdd.spine.read_bytes()
    thief = KeyStore(tmp_path / "thief", sdd.keys)
    for how in ("own spine", "entered into ours"):
        sdd.spine.write_bytes(b"" if how == "own spine" else spine)
        run.seal.unlink(missing_ok=True)
        seal_run(run, sdd, thief, "completed")
        verdict = verify(sdd, run)
        assert verdict.verdict == "prefix"
        assert "do not trust" in verdict.note
        # Without the thief's public half nothing at all can be said.
        (sdd.keys / f"{verdict.signer}.pub").unlink()
        assert verify(sdd, run).verdict != "verified"


def test_a_key_is_trusted_once_it_is_pinned(sdd: SddDir, run: RunDir, tmp_path: Path) -> None:
    keys = Path(os.environ["BERNSTEIN_KEYS_DIR"])
    (private,) = keys.glob("*.ed25519")
    public = bytes.fromhex((sdd.keys / f"{private.stem}.pub").read_text())
    other = KeyStore(tmp_path / "other", sdd.keys)
    assert not verify_by(other, sdd, run)
    other.trust(private.stem, public)
    assert verify_by(other, sdd, run)
    # A pin whose name is not that of its key pins nothing.
    (tmp_path / "other/trusted" / f"{private.stem}.pub").write_text("00" * 32)
    assert not verify_by(other, sdd, run)


def verify_by(keys: KeyStore, sdd: SddDir, run: RunDir) -> bool:
    from bernstein.seal.evidence import verify_run

    return verify_run(run, sdd, keys).verdict == "verified"


def test_rows_or_files_of_another_run_are_never_verified(sdd: SddDir, run: RunDir) -> None:
    other = make_run(sdd)
    for name in EVIDENCE:
        path: Path = getattr(run, name)
        data = path.read_bytes()
        foreign = getattr(other, name).read_bytes()
        if foreign != data:
            path.write_bytes(foreign)
            assert verify(sdd, run).verdict != "verified", name
            path.write_bytes(data)
    moved = sdd.run("moved")
    shutil.copytree(other.path, moved.path)
    assert verify(sdd, moved).verdict == "mismatch"
    assert verify(sdd, run).verdict == "verified"


def test_nothing_is_appended_to_a_sealed_journal(sdd: SddDir, run: RunDir) -> None:
    with (
        EventJournal(run.run_id, sdd.path) as journal,
        pytest.raises(JournalError, match="is sealed"),
    ):
        journal.append("a", {})
    with pytest.raises(SealError, match="sealed already"):
        seal_journal_into_spine(run.run_id, sdd.path)


def test_a_run_that_crashed_is_sealed_as_interrupted(sdd: SddDir) -> None:
    script(*RULES)
    opened = open_run(sdd)
    from bernstein import call_llm
    from bernstein.capture.program import CallScope
    from bernstein.capture.scope import use_scope

    with use_scope(CallScope(opened)):
        call_llm("p", model=MODEL)
        with pytest.raises(SealError, match="still running"):
            seal_journal_into_spine(opened.dir.run_id, sdd.path)
    # The crash: nothing is closed, and the last line is torn.
    os.close(opened._lock_fd)
    with opened.dir.journal.open("ab") as file:
        file.write(b'{"index":')
    entry = seal_journal_into_spine(opened.dir.run_id, sdd.path)
    assert entry.kind == "run"
    verdict = verify(sdd, opened.dir)
    assert verdict.verdict == "verified"
    seal = parse_seal(opened.dir.seal.read_bytes())
    assert seal is not None
    assert seal.status == "interrupted"
    assert (opened.dir.path / "journal.torn-0").read_bytes() == b'{"index":'


def test_a_seal_that_a_crash_kept_out_of_the_spine_is_entered(sdd: SddDir, run: RunDir) -> None:
    sdd.spine.unlink()
    assert verify(sdd, run).reason == "spine"
    seal_journal_into_spine(run.run_id, sdd.path)
    assert verify(sdd, run).verdict == "verified"


def test_a_run_that_cannot_be_sealed_says_so_and_does_not_end_with_0(
    sdd: SddDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERNSTEIN_KEYS_DIR", "/proc/nowhere")
    script(*RULES)
    report = run_plan(PLAN, sdd)
    assert report.status == "completed"
    assert report.exit_code == 1
    assert "BERNSTEIN_KEYS_DIR" in (report.seal_problem or "")
    assert verify(sdd, sdd.run(report.run_id)).verdict == "prefix"


def test_a_keys_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KeyUnavailableError, match="BERNSTEIN_KEYS_DIR"):
        KeyStore(tmp_path / "file", tmp_path / "pub").signing_key()


def test_two_processes_that_make_a_first_key_make_one(tmp_path: Path) -> None:
    import threading

    keys = KeyStore(tmp_path / "keys", tmp_path / "pub")
    made: list[str] = []
    threads = [
        threading.Thread(target=lambda: made.append(keys.signing_key().key_id)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 1
    assert len(made) == 8
    assert keys.own_ids() == {made[0]}


# --- the spine


def test_the_spine_names_artifacts_with_the_row_that_made_them(sdd: SddDir, run: RunDir) -> None:
    reading = read_spine(sdd.spine, default_keys(sdd))
    assert [(e.kind, e.run_id) for e in reading.entries] == [
        ("artifact", run.run_id),
        ("run", run.run_id),
    ]
    subject = reading.entries[0].subject
    assert subject is not None
    rows = list(load_replay_events(run.journal))
    assert subject.path == "a.txt"
    assert payload_of(rows[subject.event_index])["content"]["digest"] == subject.sha256


def test_every_flipped_bit_of_the_spine_is_found(sdd: SddDir, run: RunDir) -> None:
    make_run(sdd)
    keys = default_keys(sdd)
    data = sdd.spine.read_bytes()
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << (at % 8)
        sdd.spine.write_bytes(changed)
        reading = read_spine(sdd.spine, keys)
        assert reading.broken_at == data.count(b"\n", 0, at)
    sdd.spine.write_bytes(data[: data.rindex(b"\n", 0, -1) + 1])
    assert read_spine(sdd.spine, keys).broken_at is None
    assert verify(sdd, run).verdict == "verified"  # a later run's entry was cut, not this one's


def test_an_entry_is_not_put_behind_a_broken_one(sdd: SddDir, run: RunDir) -> None:
    key = default_keys(sdd).signing_key()
    with sdd.spine.open("ab") as file:
        file.write(b"{}")
    assert Spine(sdd.spine).append("run", "x", None, key).index == 2  # a torn line is set aside
    with sdd.spine.open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(JournalError, match="lineage verify"):
        Spine(sdd.spine).append("run", "x", None, key)


def test_a_torn_spine_is_mended_by_the_next_seal(sdd: SddDir, run: RunDir) -> None:
    sdd.spine.write_bytes(sdd.spine.read_bytes()[:-20])
    assert verify(sdd, run).reason == "spine"
    other = make_run(sdd)
    assert verify(sdd, other).verdict == "verified"
    seal_journal_into_spine(run.run_id, sdd.path)
    assert verify(sdd, run).verdict == "verified"


def test_a_spine_written_anew_without_our_key_verifies_nothing(
    sdd: SddDir, run: RunDir, tmp_path: Path
) -> None:
    other = make_run(sdd)
    thief = KeyStore(tmp_path / "thief", sdd.keys)
    entries = read_spine(sdd.spine, default_keys(sdd)).entries
    sdd.spine.unlink()
    for entry in entries:
        if entry.run_id == run.run_id:
            Spine(sdd.spine).append(
                entry.kind, entry.run_id, entry.seal_sha256, thief.signing_key(), entry.subject
            )
    assert verify(sdd, run).verdict == "prefix"
    assert "do not trust" in verify(sdd, run).note
    assert verify(sdd, other).verdict == "mismatch"


def test_artifacts_that_a_crash_kept_out_of_the_spine_are_entered_with_their_run(
    sdd: SddDir, run: RunDir
) -> None:
    sdd.spine.write_bytes(b"")
    seal_journal_into_spine(run.run_id, sdd.path)
    kinds = [entry.kind for entry in read_spine(sdd.spine, default_keys(sdd)).entries]
    assert kinds == ["artifact", "run"]


def test_an_answer_that_was_written_half_keeps_its_run_from_being_sealed(
    sdd: SddDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bernstein.capture.run import OpenRun

    append_all = OpenRun.append_all

    def full(self: OpenRun, rows: Any, *arguments: Any) -> Any:
        if rows[0][0] == "model.answer":
            raise OSError(28, "No space left on device")
        return append_all(self, rows, *arguments)

    monkeypatch.setattr(OpenRun, "append_all", full)
    script(*RULES)
    report = run_plan(PLAN, sdd)
    assert report.exit_code == 1
    assert "without a seal" in (report.seal_problem or "")
    assert not sdd.run(report.run_id).seal.exists()


def test_an_entry_is_the_canonical_spelling_and_its_hash_can_be_worked_out(
    sdd: SddDir, run: RunDir
) -> None:
    from hashlib import sha256

    for line in sdd.spine.read_bytes().split(b"\n")[:-1]:
        value = decode_canonical(line)
        stated = value.pop("entry_hash")
        value.pop("sig")
        preimage = b"bernstein.spine.v1\n" + canonical_bytes(value)
        assert sha256(preimage).hexdigest() == stated
    seal = json.loads(run.seal.read_bytes())
    assert set(seal) == {
        "v", "run_id", "status", "head", "count", "journal_sha256", "run_sha256", "recordings",
        "artifacts", "audit", "key_id", "sig",
    }  # fmt: skip
    assert set(seal["recordings"]) == {"llm_calls", "fixtures", "wal"}


def test_the_spine_is_a_merkle_log(sdd: SddDir, run: RunDir) -> None:
    make_run(sdd)
    entries = read_spine(sdd.spine, default_keys(sdd)).entries
    leaves = [merkle.leaf_hash(bytes.fromhex(e.entry_hash)) for e in entries]
    root = merkle.root(leaves)
    for index, leaf in enumerate(leaves):
        path = merkle.prove_inclusion(leaves, index)
        assert merkle.check_inclusion(leaf, index, len(leaves), path, root)
    assert msgspec.to_builtins(entries[0])["subject"]["path"] == "a.txt"
