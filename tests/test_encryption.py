from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bernstein.canonical import as_ref
from bernstein.errors import BundleError, KeyUnavailableError, RecordingError
from bernstein.recording.answer import LlmAnswer
from bernstein.recording.key import LlmCall
from bernstein.rundir import RunDir, SddDir
from bernstein.seal import secret
from bernstein.seal.body_key import body_keys
from bernstein.seal.bundle import import_bundle
from bernstein.seal.evidence import verify_deep, verify_run
from bernstein.seal.export import export_run
from bernstein.seal.retention import prune
from bernstein.seal.signing import KeyStore, default_keys
from tests.helpers import bernstein, no_model, open_run, rows, run_plan, script, verify
from tests.test_bundle import check, check_by_node, own_id
from tests.test_seal import PLAN, RULES

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "the answer that nobody else may read"


def record(sdd: SddDir, monkeypatch: pytest.MonkeyPatch, text: str = SECRET) -> RunDir:
    with monkeypatch.context() as patch:
        patch.setenv("BERNSTEIN_ENCRYPT", "1")
        script(*RULES[:2], {"text": text})
        run = sdd.run(run_plan(PLAN, sdd).run_id)
    no_model()
    return run


@pytest.fixture
def run(sdd: SddDir, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    return record(sdd, monkeypatch)


def bytes_of(folder: Path) -> bytes:
    """All that lies in a folder, but for workspaces, which are the plan's own files."""
    paths = (p for p in sorted(folder.rglob("*")) if p.is_file() and "workspace" not in p.parts)
    return b"".join(path.read_bytes() for path in paths)


def test_an_encrypted_run_holds_no_text_verifies_and_replays_identically(
    sdd: SddDir, run: RunDir
) -> None:
    assert SECRET.encode() not in bytes_of(sdd.path)
    assert b"Split one step" not in bytes_of(sdd.path)
    assert (verify(sdd, run).verdict, verify(sdd, run).note) == ("verified", "")
    assert verify_deep(run, sdd, default_keys(sdd)).verdict == "verified"
    for row in rows(run.llm_calls):
        for body in (row["prompt"], row["outcome"]):
            ref = as_ref(body)
            assert ref is not None
            assert ref.enc_ref is not None
            assert ref.enc_ref != ref.digest
    for row in rows(run.fixtures):
        assert "encRef" in row["response"]
    replayed = run_plan(PLAN, sdd, replay=run.run_id)
    assert replayed.exit_code == 0
    assert replayed.comparison is not None
    assert replayed.comparison.relation == "identical"
    assert SECRET in bernstein("show", run.run_id, "--answers").stdout


def test_an_encrypted_run_and_one_in_the_clear_have_one_head(
    sdd: SddDir, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(*RULES[:2], {"text": SECRET})
    clear = sdd.run(run_plan(PLAN, sdd).run_id)
    assert verify(sdd, clear).head == verify(sdd, run).head
    assert SECRET.encode() in clear.llm_calls.read_bytes()


def test_what_a_replay_of_an_encrypted_run_writes_is_encrypted_too(
    sdd: SddDir, run: RunDir
) -> None:
    missed = run_plan(PLAN.replace("Two", "Other"), sdd, replay=run.run_id)
    assert missed.exit_code == 3
    (miss,) = rows(sdd.run(missed.run_id).misses)
    assert "encRef" in miss["nearest"]
    script(RULES[1], {"text": "a live answer with the word " + SECRET})
    live = run_plan(PLAN.replace("Two", "Other"), sdd, replay=run.run_id, allow_live_miss=True)
    assert live.coverage is not None
    assert live.coverage.misses > 0
    no_model()
    assert SECRET.encode() not in bytes_of(sdd.path)
    assert verify(sdd, sdd.run(live.run_id)).verdict == "verified"
    again = run_plan(PLAN.replace("Two", "Other"), sdd, replay=live.run_id)
    assert (again.exit_code, again.comparison and again.comparison.relation) == (0, "identical")


def test_without_the_key_everything_verifies_and_nothing_is_readable(
    sdd: SddDir, run: RunDir, tmp_path: Path
) -> None:
    for path in (tmp_path / "keys").glob("bodies-*"):
        path.unlink()
    verdict = verify(sdd, run)
    assert verdict.verdict == "verified"
    assert "encrypted, and the key" in verdict.note
    with pytest.raises(RecordingError, match="encrypted, and the key"):
        run_plan(PLAN, sdd, replay=run.run_id)
    done = bernstein("show", run.run_id, "--answers")
    assert done.returncode in {1, 2}
    assert "Traceback" not in done.stderr
    assert verify_deep(run, sdd, default_keys(sdd)).verdict == "verified"
    blob = next(path for path in sdd.blobs.rglob("*") if path.is_file())
    blob.write_bytes(blob.read_bytes()[:-1] + b"\0")
    deep = verify_deep(run, sdd, default_keys(sdd))
    assert (deep.verdict, deep.reason) == ("mismatch", "recording")


def test_a_changed_body_or_key_is_a_mismatch_wherever_it_is_changed(
    sdd: SddDir, run: RunDir
) -> None:
    key = run.body_key.read_bytes()
    for place in range(len(key)):
        run.body_key.write_bytes(key[:place] + bytes([key[place] ^ 1]) + key[place + 1 :])
        verdict = verify(sdd, run)
        assert (verdict.verdict, verdict.reason) == ("mismatch", "recording"), place
    run.body_key.write_bytes(key)
    blobs = [path for path in sdd.blobs.rglob("*") if path.is_file()]
    for blob in blobs:
        data = blob.read_bytes()
        blob.write_bytes(data[:20] + bytes([data[20] ^ 1]) + data[21:])
        assert verify_deep(run, sdd, default_keys(sdd)).verdict == "mismatch"
        blob.write_bytes(data)
    assert verify_deep(run, sdd, default_keys(sdd)).verdict == "verified"


def test_a_body_put_in_the_place_of_another_does_not_open(sdd: SddDir, run: RunDir) -> None:
    first, second = (row["outcome"] for row in rows(run.llm_calls)[-2:])
    assert first["digest"] != second["digest"]
    text = run.llm_calls.read_text().replace(first["encRef"], second["encRef"])
    run.llm_calls.write_text(text)
    run.seal.unlink()
    sdd.spine.unlink()
    verdict = verify(sdd, run)
    assert (verdict.verdict, verdict.reason) == ("mismatch", "recording")


def test_a_growing_history_stays_small_when_it_is_encrypted(
    sdd: SddDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, prompt = open_run(sdd, encrypt=True), "begin\n" * 400
    for turn in range(30):
        prompt += f"turn {turn}: something is said\n"
        call = LlmCall("m", prompt, "p")
        seq = run.begin_call(call, "", None)
        answer = LlmAnswer(f"said {turn}")
        run.finish_call(call, answer, seq=seq, lane="", step_id=None, begun_s=0.0)
    run.close("completed")
    assert run.seal_problem is None
    assert len(bytes_of(sdd.blobs)) < 3 * len(prompt) + 30 * 400
    assert verify(sdd, run.dir).verdict == "verified"
    replay = open_run(sdd, replay=run.dir.run_id)
    row = replay.store.take(LlmCall("m", prompt, "p"), "")
    assert row is not None
    outcome = row.read_outcome(replay.store.blobs)
    assert isinstance(outcome, LlmAnswer)
    assert outcome.text == "said 29"
    replay.close("completed")


def test_forgetting_destroys_the_key_so_that_a_kept_copy_cannot_be_opened(
    sdd: SddDir, run: RunDir, tmp_path: Path
) -> None:
    shutil.copytree(sdd.blobs, tmp_path / "backup")
    done = bernstein("forget", run.run_id, "--bodies")
    assert done.returncode == 0, done.stderr
    assert not run.body_key.exists()
    assert not any(path.is_file() for path in sdd.blobs.rglob("*"))
    shutil.copytree(tmp_path / "backup", sdd.blobs, dirs_exist_ok=True)
    verdict = verify(sdd, run)
    assert verdict.verdict == "verified"
    assert "forgotten" in verdict.note
    with pytest.raises(RecordingError, match="forgotten"):
        run_plan(PLAN, sdd, replay=run.run_id)


def test_pruning_removes_the_bodies_of_an_encrypted_run(sdd: SddDir, run: RunDir) -> None:
    prune(sdd, [run], default_keys(sdd))
    assert not any(path.is_file() for path in sdd.blobs.rglob("*"))


def test_a_bundle_of_an_encrypted_run_opens_where_its_key_is_and_verifies_anywhere(
    sdd: SddDir, run: RunDir, tmp_path: Path
) -> None:
    target = tmp_path / "run.zip"
    export_run(run, sdd, default_keys(sdd), target, with_bodies=True)
    assert check(target, own_id(sdd))[0] == 0
    other = SddDir(tmp_path / "elsewhere" / ".sdd")
    keys = KeyStore(tmp_path / "other-keys", other.keys)
    taken = import_bundle(target, other, keys, own_id(sdd))
    verdict = verify_run(taken, other, keys)
    assert verdict.verdict == "verified"
    assert "encrypted, and the key" in verdict.note
    for path in (tmp_path / "keys").glob("bodies-*"):
        shutil.copy(path, tmp_path / "other-keys")
    assert verify_run(taken, other, keys).note == ""
    export_run(run, sdd, default_keys(sdd), tmp_path / "no.zip", with_bodies=False)
    assert check(tmp_path / "no.zip", own_id(sdd))[0] == 0
    assert (tmp_path / "no.zip").stat().st_size < target.stat().st_size


def test_the_second_verifier_takes_an_encrypted_bundle(
    sdd: SddDir, run: RunDir, tmp_path: Path
) -> None:
    export_run(run, sdd, default_keys(sdd), tmp_path / "run.zip", with_bodies=True)
    assert check_by_node(tmp_path / "run.zip", own_id(sdd))[0] == 0


def test_old_runs_open_after_the_wrapping_key_was_changed(
    sdd: SddDir, run: RunDir, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = json.loads(run.body_key.read_bytes())["kek"]
    after = body_keys(tmp_path / "keys").rotate()
    newer = record(sdd, monkeypatch)
    assert json.loads(newer.body_key.read_bytes())["kek"] == after != before
    assert run_plan(PLAN, sdd, replay=run.run_id).exit_code == 0


@pytest.fixture
def keyring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A keyring of this test alone, in a file."""
    ring = pytest.importorskip("keyring")
    backend = pytest.importorskip("keyrings.alt.file").PlaintextKeyring()
    backend.file_path = str(tmp_path / "keyring.cfg")
    before = ring.get_keyring()
    ring.set_keyring(backend)
    monkeypatch.setenv("BERNSTEIN_KEYRING", "1")
    secret._from_keyring.cache_clear()
    yield tmp_path / "keyring.cfg"
    ring.set_keyring(before)
    secret._from_keyring.cache_clear()


def test_private_keys_can_lie_in_the_system_keyring(
    sdd: SddDir, keyring: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = record(sdd, monkeypatch)
    assert verify(sdd, run).verdict == "verified"
    assert keyring.exists()
    kept = [p for p in (tmp_path / "keys").iterdir() if p.suffix in {".ed25519", ".key"}]
    assert len(kept) == 2
    assert all(path.read_text() == "in the system keyring\n" for path in kept)
    secret._from_keyring.cache_clear()
    assert run_plan(PLAN, sdd, replay=run.run_id).exit_code == 0
    keyring.unlink()
    secret._from_keyring.cache_clear()
    with pytest.raises(KeyUnavailableError, match="the system keyring holds no"):
        default_keys(sdd).signing_key()
    # The proof needs neither the private half nor the texts.
    verdict = verify(sdd, run)
    assert verdict.verdict == "verified"
    assert "encrypted, and the key" in verdict.note


def test_a_keyring_that_cannot_be_used_is_said(
    sdd: SddDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {
        "BERNSTEIN_KEYRING": "1",
        "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
        "PATH": os.environ["PATH"],
    }
    done = bernstein("audit", "rotate", env=env)
    assert done.returncode == 2
    assert "the system keyring cannot be used" in done.stderr
    assert "unset BERNSTEIN_KEYRING" in done.stderr


def test_a_fixture_s_body_that_was_changed_is_a_mismatch_before_it_is_served(
    sdd: SddDir, run: RunDir, tmp_path: Path
) -> None:
    name = rows(run.fixtures)[0]["response"]["encRef"]
    blob = sdd.blobs / name[:2] / name
    private = tmp_path / "private"
    private.write_text("of nobody's business")
    blob.unlink()
    blob.symlink_to(private)
    verdict = verify(sdd, run)
    assert (verdict.verdict, verdict.reason) == ("mismatch", "recording")
    with pytest.raises(BundleError):
        export_run(run, sdd, default_keys(sdd), tmp_path / "x.zip", with_bodies=True)
    with pytest.raises(RecordingError, match="does not hold"):
        run_plan(PLAN, sdd, replay=run.run_id)


def test_what_a_miss_showed_goes_with_its_run(sdd: SddDir, run: RunDir) -> None:
    missed = sdd.run(run_plan(PLAN.replace("Two", "Other"), sdd, replay=run.run_id).run_id)
    prune(sdd, [run, missed], default_keys(sdd))
    assert not any(path.is_file() for path in sdd.blobs.rglob("*"))


def test_a_lost_first_body_of_a_growing_history_is_forgotten_and_no_mismatch(sdd: SddDir) -> None:
    run, prompt = open_run(sdd, encrypt=True), "begin\n" * 400
    for turn in range(3):
        prompt += f"turn {turn}\n"
        call = LlmCall("m", prompt, "p")
        seq = run.begin_call(call, "", None)
        run.finish_call(call, LlmAnswer("a"), seq=seq, lane="", step_id=None, begun_s=0.0)
    run.close("completed")
    name = rows(run.dir.llm_calls)[0]["prompt"]["encRef"]
    (sdd.blobs / name[:2] / name).unlink()
    verdict = verify(sdd, run.dir)
    assert verdict.verdict == "verified"
    assert "1 bodies are forgotten" in verdict.note


def test_a_run_that_cannot_encrypt_leaves_nothing(
    sdd: SddDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERNSTEIN_KEYS_DIR", "/proc/nowhere")
    with pytest.raises(KeyUnavailableError):
        open_run(sdd, encrypt=True)
    assert sdd.list_runs() == []
