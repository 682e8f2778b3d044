from __future__ import annotations

import json
import os
import threading
from hashlib import sha256
from hmac import digest
from pathlib import Path

import pytest

from bernstein.canonical import canonical_bytes
from bernstein.errors import JournalError, KeyUnavailableError, UsageError
from bernstein.rundir import RunDir, SddDir
from bernstein.seal.audit import AuditChain, audit_keys, check_audit
from bernstein.seal.retention import prune
from bernstein.seal.seals import highest_sealed_audit
from bernstein.seal.secret import SecretKeys
from bernstein.seal.signing import default_keys
from tests.helpers import bernstein, rows
from tests.test_seal import make_run


@pytest.fixture
def keys() -> SecretKeys:
    return audit_keys(Path(os.environ["BERNSTEIN_KEYS_DIR"]))


@pytest.fixture
def chain(sdd: SddDir, keys: SecretKeys) -> AuditChain:
    opened = AuditChain(sdd.audit, keys)
    for n in range(4):
        opened.append("thread.approval", {"n": n, "text": "ü\u2028"})
    return opened


@pytest.fixture
def run(sdd: SddDir, chain: AuditChain) -> RunDir:
    return make_run(sdd)


def test_a_row_can_be_worked_out_by_hand(sdd: SddDir, chain: AuditChain) -> None:
    before = "0" * 64
    for row in rows(sdd.audit):
        stated = row.pop("hmac")
        folder = Path(os.environ["BERNSTEIN_KEYS_DIR"])
        key = bytes.fromhex((folder / f"audit-{row['key_id']}.key").read_text())
        assert sha256(key).hexdigest() == row["key_id"]
        assert row["prev_hash"] == before
        expected = digest(key, b"bernstein.audit.v1\n" + canonical_bytes(row), "sha256").hex()
        assert stated == expected
        before = stated


def test_it_is_verified_up_to_what_a_seal_names_and_a_prefix_beyond(
    sdd: SddDir, keys: SecretKeys, run: RunDir, chain: AuditChain
) -> None:
    sealed = highest_sealed_audit(sdd, default_keys(sdd))
    assert sealed is not None
    assert sealed.rows == 4
    assert check_audit(sdd.audit, keys, sealed).verdict == "verified"
    chain.append("thread.approval", {"n": 4})
    check = check_audit(sdd.audit, keys, sealed)
    assert (check.verdict, check.index, check.rows) == ("prefix", 4, 5)
    assert check_audit(sdd.audit, keys, None).verdict == "prefix"


def test_every_flipped_bit_and_every_cut_is_a_mismatch(
    sdd: SddDir, keys: SecretKeys, run: RunDir
) -> None:
    sealed = highest_sealed_audit(sdd, default_keys(sdd))
    data = sdd.audit.read_bytes()
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << (at % 8)
        sdd.audit.write_bytes(changed)
        check = check_audit(sdd.audit, keys, sealed)
        assert check.verdict in {"mismatch", "unchecked"}
        assert check.index == data.count(b"\n", 0, at)
    for cut in range(len(data)):
        sdd.audit.write_bytes(data[:cut])
        assert check_audit(sdd.audit, keys, sealed).verdict == "mismatch"
    sdd.audit.unlink()
    assert check_audit(sdd.audit, keys, sealed).verdict == "mismatch"


def test_without_the_key_nothing_is_checked(sdd: SddDir, keys: SecretKeys, run: RunDir) -> None:
    other = audit_keys(Path("elsewhere"))
    check = check_audit(sdd.audit, other, highest_sealed_audit(sdd, default_keys(sdd)))
    assert check.verdict == "unchecked"
    done = bernstein("audit", "verify", env={"BERNSTEIN_KEYS_DIR": str(Path.cwd() / "none")})
    assert done.returncode == 2


def test_old_rows_hold_after_the_key_was_rotated(
    sdd: SddDir, keys: SecretKeys, chain: AuditChain
) -> None:
    first = keys.current()[0]
    keys.rotate()
    chain.append("thread.approval", {"n": 4})
    assert rows(sdd.audit)[-1]["key_id"] != first
    assert check_audit(sdd.audit, keys, None).rows == 5
    (Path(os.environ["BERNSTEIN_KEYS_DIR"]) / f"audit-{first}.key").unlink()
    assert check_audit(sdd.audit, keys, None).verdict == "unchecked"


def test_threads_make_one_chain(sdd: SddDir, keys: SecretKeys) -> None:
    def work() -> None:
        opened = AuditChain(sdd.audit, keys)
        for _ in range(10):
            opened.append("a", {})

    keys.current()
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert check_audit(sdd.audit, keys, None).rows == 80


def test_what_cannot_be_chained_is_refused(
    sdd: SddDir, keys: SecretKeys, chain: AuditChain
) -> None:
    with pytest.raises(UsageError):
        chain.append("Wrong Type", {})
    with sdd.audit.open("ab") as file:
        file.write(b"torn")
    assert chain.append("a", {}).index == 4  # a torn line is set aside
    with sdd.audit.open("ab") as file:
        file.write(b"broken\n")
    with pytest.raises(JournalError):
        chain.append("a", {})
    with pytest.raises(KeyUnavailableError):
        AuditChain(sdd.audit, audit_keys(Path("/proc/nowhere"))).append("a", {})


def test_audit_on_the_command_line(sdd: SddDir, run: RunDir) -> None:
    done = bernstein("audit", "verify", "--json")
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (0, "verified")
    sdd.audit.write_bytes(sdd.audit.read_bytes().replace(b'"n":2', b'"n":9'))
    done = bernstein("audit", "verify")
    assert done.returncode == 1
    assert done.stdout.startswith("mismatch at row 2: hmac")
    assert bernstein("audit", "rotate").returncode == 0


def test_no_chain_cannot_be_checked(sdd: SddDir) -> None:
    assert bernstein("audit", "verify").returncode == 2


def test_what_a_pruned_run_sealed_of_the_chain_still_counts(
    sdd: SddDir, keys: SecretKeys, run: RunDir, chain: AuditChain
) -> None:
    prune(sdd, [run], default_keys(sdd))
    sealed = highest_sealed_audit(sdd, default_keys(sdd))
    assert sealed is not None
    assert sealed.rows == 4
    assert check_audit(sdd.audit, keys, sealed).verdict == "verified"
    lines = sdd.audit.read_bytes().splitlines(keepends=True)
    sdd.audit.write_bytes(b"".join(lines[:-1]))
    assert check_audit(sdd.audit, keys, sealed).verdict == "mismatch"


def test_without_the_seal_of_the_last_run_nothing_says_that_these_are_all_rows(
    sdd: SddDir, keys: SecretKeys, run: RunDir, chain: AuditChain
) -> None:
    prune(sdd, [run], default_keys(sdd))
    older = make_run(sdd)
    assert highest_sealed_audit(sdd, default_keys(sdd)) is not None
    prune(sdd, [older], default_keys(sdd))
    sdd.audit_seal.unlink()
    check = check_audit(sdd.audit, keys, highest_sealed_audit(sdd, default_keys(sdd)))
    assert check.verdict == "prefix"
    sdd.audit_seal.write_text('{"audit":{"count":1000000}}')
    check = check_audit(sdd.audit, keys, highest_sealed_audit(sdd, default_keys(sdd)))
    assert check.verdict == "prefix"
