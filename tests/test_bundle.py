from __future__ import annotations

import io
import os
import random
import shutil
import stat
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from bernstein.errors import BundleError, RecordingError
from bernstein.rundir import RunDir, SddDir
from bernstein.seal.bundle import import_bundle
from bernstein.seal.export import export_run
from bernstein.seal.signing import KeyStore, default_keys
from tests.helpers import bernstein, no_model, run_plan, script, verify
from tests.test_seal import PLAN, RULES, make_run

VERIFIER = Path(__file__).parents[1] / "verifier" / "verify.py"


@pytest.fixture
def run(sdd: SddDir) -> RunDir:
    return make_run(sdd)


@pytest.fixture
def bundle(sdd: SddDir, run: RunDir, tmp_path: Path) -> Path:
    export_run(run, sdd, default_keys(sdd), tmp_path / "run.zip", with_bodies=True)
    return tmp_path / "run.zip"


@pytest.fixture
def elsewhere(tmp_path: Path) -> tuple[SddDir, KeyStore]:
    """Another user's project and keys."""
    sdd = SddDir(tmp_path / "elsewhere" / ".sdd")
    return sdd, KeyStore(tmp_path / "other-keys", sdd.keys)


def own_id(sdd: SddDir) -> str:
    (key_id,) = default_keys(sdd).own_ids()
    return key_id


def check(bundle: Path, *arguments: str) -> tuple[int, str]:
    """What the verifier of a release says, in a process without any code of ours."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(VERIFIER), str(bundle), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def check_by_node(bundle: Path, *arguments: str) -> tuple[int, str]:
    """What the second verifier says; it is skipped where there is no node."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not here")
    done = subprocess.run(
        [node, str(VERIFIER.with_name("verify.mjs")), str(bundle), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def verdict_elsewhere(sdd: SddDir, keys: KeyStore, run_id: str) -> str:
    from bernstein.seal.evidence import verify_run

    return verify_run(sdd.run(run_id), sdd, keys).verdict


def test_a_bundle_is_the_same_byte_for_byte(
    sdd: SddDir, run: RunDir, bundle: Path, tmp_path: Path
) -> None:
    make_run(sdd)  # the spine has grown since
    export_run(run, sdd, default_keys(sdd), tmp_path / "again.zip", with_bodies=True)
    assert (tmp_path / "again.zip").read_bytes() == bundle.read_bytes()


def test_the_verifier_of_a_release_agrees(sdd: SddDir, run: RunDir, bundle: Path) -> None:
    code, said = check(bundle, own_id(sdd))
    assert code == 0
    assert said.startswith(f"verified: run {run.run_id}, completed")
    assert check(bundle)[0] == 2
    assert check(bundle, "0" * 64)[0] == 1


def test_two_verifiers_in_two_languages_agree(sdd: SddDir, tmp_path: Path) -> None:
    odd = "\udc00 ü\u2028😀 \x7f"
    script(
        *RULES[:2],
        {"text": odd + "x" * 70_000},
    )
    first = sdd.run(
        run_plan(PLAN.replace("title: One", f"title: 'Öne 😀 {'y' * 2000}'"), sdd).run_id
    )
    run = make_run(sdd)
    for number, made in enumerate((first, run)):
        for with_bodies in (True, False):
            bundle = tmp_path / f"{number}-{with_bodies}.zip"
            export_run(made, sdd, default_keys(sdd), bundle, with_bodies=with_bodies)
            assert check(bundle, own_id(sdd)) == check_by_node(bundle, own_id(sdd))
            assert check(bundle, own_id(sdd))[0] == 0
            assert check_by_node(bundle, "0" * 64)[0] == 1
            assert check_by_node(bundle)[0] == 2
    good, draw = bundle.read_bytes(), random.Random(8)
    with zipfile.ZipFile(bundle) as opened:
        names = opened.namelist()
    for name in names:
        for _ in range(4):
            bundle.write_bytes(good)
            flip_bit(bundle, name, draw)
            assert check_by_node(bundle, own_id(sdd))[0] == check(bundle, own_id(sdd))[0] == 1


def test_the_verifier_is_one_file_that_imports_the_standard_library_alone() -> None:
    text = VERIFIER.read_text()
    imports = {line.split()[1] for line in text.split("\n") if line.startswith("import ")}
    assert imports == {"base64", "hashlib", "json", "re", "sys", "zipfile", "zlib"}
    assert "from bernstein" not in text
    published = (VERIFIER.parent / "SHA256SUMS").read_text().split()
    for digest, name in zip(published[::2], published[1::2], strict=True):
        assert sha256((VERIFIER.parent / name).read_bytes()).hexdigest() == digest
    assert published[1::2] == ["verify.mjs", "verify.py"]


def test_a_run_is_verified_elsewhere_once_its_key_is_trusted(
    sdd: SddDir, run: RunDir, bundle: Path, elsewhere: tuple[SddDir, KeyStore]
) -> None:
    other, keys = elsewhere
    import_bundle(bundle, other, keys, None)
    assert verdict_elsewhere(other, keys, run.run_id) == "prefix"
    shutil.rmtree(other.path)
    with pytest.raises(BundleError, match="not by"):
        import_bundle(bundle, other, keys, "0" * 64)
    assert other.list_runs() == []
    import_bundle(bundle, other, keys, own_id(sdd))
    assert verdict_elsewhere(other, keys, run.run_id) == "verified"
    with pytest.raises(BundleError, match="already"):
        import_bundle(bundle, other, keys, own_id(sdd))


def test_an_imported_run_replays(
    sdd: SddDir, run: RunDir, bundle: Path, elsewhere: tuple[SddDir, KeyStore]
) -> None:
    other, _ = elsewhere
    keys = default_keys(other)
    import_bundle(bundle, other, keys, own_id(sdd))
    no_model()
    replayed = run_plan(PLAN, other, replay=run.run_id)
    assert replayed.comparison is not None
    assert replayed.comparison.relation == "identical"


def test_without_bodies_everything_else_still_verifies(
    sdd: SddDir, elsewhere: tuple[SddDir, KeyStore], tmp_path: Path
) -> None:
    script(*RULES[:2], {"text": "CANARY" * 20_000, "usage": {"input": 1}})
    run = sdd.run(run_plan(PLAN.replace("One", "CANARY"), sdd).run_id)
    target = tmp_path / "bare.zip"
    export_run(run, sdd, default_keys(sdd), target, with_bodies=False)
    with zipfile.ZipFile(target) as opened:
        for name in opened.namelist():
            if not name.endswith(("run.json", "journal.jsonl")):
                assert b"CANARY" not in opened.read(name), name
    assert check(target, own_id(sdd))[0] == 0
    other, keys = elsewhere
    import_bundle(target, other, keys, own_id(sdd))
    assert verdict_elsewhere(other, keys, run.run_id) == "verified"
    full = tmp_path / "full.zip"
    export_run(run, sdd, default_keys(sdd), full, with_bodies=True)
    assert check(full, own_id(sdd))[0] == 0


def flip_bit(bundle: Path, name: str, draw: random.Random) -> None:
    def flip(members: dict[str, bytes]) -> dict[str, bytes]:
        data = bytearray(members[name])
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        return {**members, name: bytes(data)}

    rewrite(bundle, flip)


def rewrite(bundle: Path, change: Any) -> None:
    """Write a bundle anew with its members changed."""
    with zipfile.ZipFile(bundle) as opened:
        members = {name: opened.read(name) for name in opened.namelist()}
    members = change(members)
    with zipfile.ZipFile(bundle, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, data in members.items():
            opened.writestr(name, data)


def test_whatever_is_changed_in_a_bundle_both_verifiers_refuse(
    sdd: SddDir, run: RunDir, bundle: Path, elsewhere: tuple[SddDir, KeyStore]
) -> None:
    other, keys = elsewhere
    good = bundle.read_bytes()
    draw = random.Random(5)
    with zipfile.ZipFile(bundle) as opened:
        names = opened.namelist()
    for name in names:
        for _ in range(12):
            bundle.write_bytes(good)
            flip_bit(bundle, name, draw)
            code, said = check(bundle, own_id(sdd))
            assert code == 1, (name, said)
            with pytest.raises(BundleError):
                import_bundle(bundle, other, keys, own_id(sdd))
            assert other.list_runs() == []
    for name in names:
        bundle.write_bytes(good)
        rewrite(bundle, lambda members, name=name: {k: v for k, v in members.items() if k != name})
        assert check(bundle, own_id(sdd))[0] == 1
        with pytest.raises(BundleError):
            import_bundle(bundle, other, keys, own_id(sdd))


@pytest.mark.parametrize(
    "name",
    [
        "../escape",
        "/absolute",
        "x/../../y",
        "r/other.txt",
        "r/blobs/short",
        "a/journal.jsonl\n",
        "latest/journal.jsonl",
        ".hidden/journal.jsonl",
        "r/workspace/x",
    ],
)
def test_a_member_with_another_name_is_refused(
    sdd: SddDir, tmp_path: Path, name: str, bundle: Path
) -> None:
    rewrite(bundle, lambda members: {**members, name: b"x"})
    with pytest.raises(BundleError):
        import_bundle(bundle, SddDir(tmp_path / "o"), default_keys(sdd), None)


def test_a_body_that_nothing_refers_to_or_that_is_another_is_not_taken(
    sdd: SddDir, run: RunDir, bundle: Path, tmp_path: Path
) -> None:
    name = f"{run.run_id}/blobs/{sha256(b'big prompt').hexdigest()}"
    for content in (b"poison", b"big prompt"):
        rewrite(bundle, lambda members, content=content: {**members, name: content})
        other = SddDir(tmp_path / "o")
        with pytest.raises(BundleError):
            import_bundle(bundle, other, default_keys(sdd), None)
        assert not any(path.is_file() for path in other.blobs.rglob("*"))


def test_an_import_that_a_crash_cut_is_finished_by_the_next(
    sdd: SddDir, run: RunDir, bundle: Path, elsewhere: tuple[SddDir, KeyStore]
) -> None:
    other, keys = elsewhere
    import_bundle(bundle, other, keys, own_id(sdd))
    other.spine.unlink()
    assert verdict_elsewhere(other, keys, run.run_id) == "mismatch"
    import_bundle(bundle, other, keys, own_id(sdd))
    assert verdict_elsewhere(other, keys, run.run_id) == "verified"


def test_links_bombs_and_garbage_are_refused(sdd: SddDir, run: RunDir, tmp_path: Path) -> None:
    target, other = tmp_path / "bad.zip", SddDir(tmp_path / "o")

    def refused() -> None:
        with pytest.raises(BundleError):
            import_bundle(target, other, default_keys(sdd), None)
        assert other.list_runs() == []

    with zipfile.ZipFile(target, "w") as opened:
        info = zipfile.ZipInfo("r/journal.jsonl")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        opened.writestr(info, "/etc/passwd")
    refused()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("r/journal.jsonl", b"\0" * 2**26)
    refused()
    with zipfile.ZipFile(target, "w") as opened:
        opened.writestr("r/journal.jsonl", b"")
        with pytest.warns(UserWarning, match="Duplicate"):
            opened.writestr("r/journal.jsonl", b"")
    refused()
    for data in (b"", b"PK\5\6" + b"\0" * 18, os.urandom(200)):
        target.write_bytes(data)
        refused()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as opened:
        opened.writestr("r/journal.jsonl", b"x" * 100)
    target.write_bytes(buffer.getvalue()[:-30])
    refused()


def test_a_run_whose_bodies_are_forgotten_still_verifies_and_no_longer_replays(
    sdd: SddDir, tmp_path: Path
) -> None:
    secret, shared = "SECRET " * 20_000, "SHARED " * 20_000
    script(*RULES[:2], {"match": "file a.txt", "text": secret}, {"text": shared})
    run = sdd.run(run_plan(PLAN, sdd).run_id)
    script(*RULES[:2], {"text": shared})
    other = sdd.run(run_plan(PLAN, sdd).run_id)
    no_model()
    assert bernstein("forget", run.run_id).returncode == 2
    done = bernstein("forget", run.run_id, "--bodies")
    assert done.returncode == 0, done.stderr
    assert f"stays: run {other.run_id} holds it too" in done.stdout
    verdict = verify(sdd, run)
    assert verdict.verdict == "verified"
    assert "forgotten" in verdict.note
    left = b"".join(p.read_bytes() for p in (run.llm_calls, *sdd.blobs.rglob("*")) if p.is_file())
    assert b"SECRET" not in left
    assert bernstein("forget", other.run_id, "--bodies").stdout.count("stays") == 0
    assert not any(path.is_file() for path in sdd.blobs.rglob("*"))
    assert b"SHARED" in left
    assert verify(sdd, other).verdict == "verified"
    with pytest.raises(RecordingError, match="forgotten"):
        run_plan(PLAN, sdd, replay=run.run_id)
    export_run(run, sdd, default_keys(sdd), tmp_path / "x.zip", with_bodies=True)
    assert check(tmp_path / "x.zip", own_id(sdd))[0] == 0


def test_a_run_that_does_not_hold_is_not_exported(sdd: SddDir, run: RunDir, tmp_path: Path) -> None:
    run.wal.write_bytes(run.wal.read_bytes()[:-1])
    with pytest.raises(BundleError, match="mismatch"):
        export_run(run, sdd, default_keys(sdd), tmp_path / "x.zip", with_bodies=True)
    assert not (tmp_path / "x.zip").exists()


def test_export_and_import_on_the_command_line(sdd: SddDir, run: RunDir, tmp_path: Path) -> None:
    done = bernstein("export", run.run_id, "-o", "run.zip")
    assert done.returncode == 0
    fingerprint = done.stdout.split()[-1]
    env = {"BERNSTEIN_KEYS_DIR": str(tmp_path / "theirs")}
    there = ("--sdd", str(tmp_path / "there"))
    done = bernstein(*there, "import", "run.zip", "--trust-key", fingerprint, env=env)
    assert done.returncode == 0, done.stderr
    assert bernstein(*there, "verify", run.run_id, env=env).returncode == 0
    assert bernstein("import", "run.zip", "--trust-key", "short").returncode == 2
    assert bernstein("import", "plan.yaml").returncode == 2
    assert verify(sdd, run).verdict == "verified"


def test_a_received_run_is_verified_by_the_proof_that_it_carries(
    sdd: SddDir, run: RunDir, bundle: Path, elsewhere: tuple[SddDir, KeyStore]
) -> None:
    other, keys = elsewhere
    proof = import_bundle(bundle, other, keys, own_id(sdd)).proof
    data = proof.read_bytes()
    for place in range(0, len(data), 7):
        proof.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert verdict_elsewhere(other, keys, run.run_id) == "mismatch", place
    proof.unlink()
    assert verdict_elsewhere(other, keys, run.run_id) == "mismatch"
    proof.write_bytes(data)
    assert verdict_elsewhere(other, keys, run.run_id) == "verified"


def test_what_a_kill_left_of_an_import_is_no_hindrance(
    sdd: SddDir, run: RunDir, bundle: Path, elsewhere: tuple[SddDir, KeyStore]
) -> None:
    other, keys = elsewhere
    (other.path / ".import-dead").mkdir(parents=True)
    (other.path / ".import-file").write_text("")
    import_bundle(bundle, other, keys, own_id(sdd))
    assert not list(other.path.glob(".import-*"))


def test_a_text_that_packs_well_is_exported_so_that_it_can_be_imported(
    sdd: SddDir, elsewhere: tuple[SddDir, KeyStore], tmp_path: Path
) -> None:
    script(*RULES[:2], {"text": "a" * 5_000_000})
    run = sdd.run(run_plan(PLAN, sdd).run_id)
    no_model()
    export_run(run, sdd, default_keys(sdd), tmp_path / "x.zip", with_bodies=True)
    other, keys = elsewhere
    assert import_bundle(tmp_path / "x.zip", other, keys, own_id(sdd)).journal.exists()
    assert check(tmp_path / "x.zip", own_id(sdd))[0] == 0
