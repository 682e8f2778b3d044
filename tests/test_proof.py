"""Diff, state at a step, decisions, and the lineage commands, on runs and by hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bernstein import EventJournal, diff_journals, execution_fingerprint, rebuild_state
from bernstein.chain.diff import JournalDiff
from bernstein.errors import ProofError, RecordingError, UsageError
from bernstein.rundir import RunDir, SddDir
from bernstein.seal.checkpoint import make_checkpoint, parse_checkpoint
from bernstein.seal.signing import default_keys
from bernstein.seal.spine import read_spine
from tests.helpers import bernstein, rows, run_plan
from tests.test_seal import PLAN, make_run


def write(tmp_path: Path, name: str, *events: tuple[str, str, dict[str, Any]]) -> Path:
    with EventJournal(name, tmp_path) as journal:
        for event, lane, payload in events:
            journal.append(event, payload, lane)
    return journal.path


def step(n: int, **more: Any) -> tuple[str, str, dict[str, Any]]:
    return ("step.started", "s", {"stepId": f"s{n}", "depth": 0, **more})


MUTATION = ("provider_state_mutation", "s", {"kind": "compaction"})
CLEARING = ("provider_state_mutation", "s", {"kind": "tool_result_clearing"})
STEPS = [step(n) for n in range(12)]


@pytest.mark.parametrize(
    ("right", "index", "reason", "realigned"),
    [
        ([*STEPS[:5], step(5, label="x"), *STEPS[6:]], 5, "payload", (6, 6)),
        ([*STEPS[:5], *STEPS[6:]], 5, "missing", (6, 5)),
        ([*STEPS[:5], step(77), *STEPS[5:]], 5, "extra", (5, 6)),
        ([*STEPS[:5], STEPS[6], STEPS[5], *STEPS[7:]], 5, "order", (7, 7)),
        (STEPS[:5], 5, "missing", None),
        ([*STEPS, step(12)], 12, "extra", None),
        ([*STEPS[:5], ("checkpoint", "s", {}), *STEPS[6:]], 5, "event", (6, 6)),
        ([*STEPS[:5], MUTATION, *STEPS[5:]], 5, "provider_state_mutation", (5, 6)),
    ],
)
def test_the_first_difference_has_a_reason_and_says_how_it_goes_on(
    tmp_path: Path, right: list[Any], index: int, reason: str, realigned: tuple[int, int] | None
) -> None:
    found = diff_journals(write(tmp_path, "a", *STEPS), write(tmp_path, "b", *right))
    assert isinstance(found, JournalDiff)
    assert (found.step_index, found.reason, found.realigned) == (index, reason, realigned)


def test_two_mutations_of_different_kinds_are_both_named(tmp_path: Path) -> None:
    found = diff_journals(
        write(tmp_path, "a", *STEPS, MUTATION), write(tmp_path, "b", *STEPS, CLEARING)
    )
    assert found is not None
    assert found.kinds == ("compaction", "tool_result_clearing")
    assert found.step_index == 12


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ("model.answer", "model_answer"),
        ("tool.result", "tool_result"),
        ("decision.made", "decision"),
    ],
)
def test_what_differs_is_named_by_what_it_is(tmp_path: Path, event: str, reason: str) -> None:
    left = write(tmp_path, "a", (event, "s", {"x": {"y": [1, 2]}, "z": 1}))
    right = write(tmp_path, "b", (event, "s", {"x": {"y": [1, 3]}}))
    found = diff_journals(left, right)
    assert found is not None
    assert found.reason == reason
    assert [(f.path, f.left, f.right) for f in found.fields] == [("x.y[1]", 2, 3), ("z", 1, None)]


def test_equal_journals_have_no_difference(tmp_path: Path) -> None:
    left, right = write(tmp_path, "a", *STEPS), write(tmp_path, "b", *STEPS)
    assert diff_journals(left, right) is None


# --- state at a step


def test_the_state_at_a_step_holds_the_events_before_it_and_no_other(tmp_path: Path) -> None:
    body = {"digest": "0" * 64, "byteLength": 2}
    proposed = {"stepId": "s0", "toolCallId": "c1", "name": "bash", "args": body}
    journal = write(
        tmp_path,
        "a",
        ("run.started", "", {"agentId": "x"}),
        step(0),
        ("tool.proposed", "s", proposed),
        MUTATION,
        ("tool.result", "s", {"toolCallId": "c1", "ok": True, "result": body}),
        ("run.finished", "", {"status": "completed"}),
    )
    states = [json.loads(rebuild_state(journal, n, "r")) for n in range(7)]
    assert [s["status"] for s in states] == ["pending", *["running"] * 5, "completed"]
    assert [len(s["openToolCalls"]) for s in states] == [0, 0, 0, 1, 1, 0, 0]
    assert [len(s["providerState"]) for s in states] == [0, 0, 0, 0, 1, 1, 1]
    assert [len(s["steps"]) for s in states] == [0, 0, 1, 1, 1, 1, 1]
    heads = [row["event_hash"] for row in rows(journal)]
    assert [s["head"] for s in states] == ["0" * 64, *heads]
    assert all(rebuild_state(journal, n, "r") == rebuild_state(journal, n, "r") for n in range(7))
    for wrong in (-1, 7):
        with pytest.raises(UsageError):
            rebuild_state(journal, wrong)


def test_the_state_is_rebuilt_only_from_a_chain_that_holds(tmp_path: Path) -> None:
    journal = write(tmp_path, "a", *STEPS)
    journal.write_bytes(journal.read_bytes().replace(b'"s7"', b'"s9"'))
    assert json.loads(rebuild_state(journal, 7))["events"] == 7
    with pytest.raises(RecordingError, match="row 7: payload"):
        rebuild_state(journal, 8)


# --- on the command line


@pytest.fixture
def run(sdd: SddDir) -> RunDir:
    return make_run(sdd)


def test_diff_on_the_command_line(sdd: SddDir, run: RunDir, tmp_path: Path) -> None:
    replayed = run_plan(PLAN, sdd, replay=run.run_id)
    assert bernstein("replay", "diff", run.run_id, replayed.run_id).stdout == "equal: every row\n"
    other = make_run(sdd)
    exported = tmp_path / "exported.jsonl"
    shutil.copy(other.journal, exported)
    exported.write_bytes(exported.read_bytes())
    done = bernstein("replay", "diff", run.run_id, str(exported))
    assert done.returncode in (0, 1)
    lines = exported.read_bytes().split(b"\n")
    exported.write_bytes(b"\n".join(lines[:-2]) + b"\n")
    done = bernstein("replay", "diff", other.run_id, str(exported), "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["reason"] == "missing"
    exported.write_bytes(exported.read_bytes().replace(b'"attempt":1', b'"attempt":7', 1))
    assert bernstein("replay", "diff", run.run_id, str(exported)).returncode == 2
    assert bernstein("replay", "diff", run.run_id).returncode == 2
    assert bernstein("replay", "diff", run.run_id, "nope").returncode == 2


def test_from_step_on_the_command_line(sdd: SddDir, run: RunDir) -> None:
    one = bernstein("replay", run.run_id, "--from-step", "9")
    assert one.returncode == 0
    assert json.loads(one.stdout)["events"] == 9
    assert one.stdout == bernstein("replay", run.run_id, "--from-step", "9").stdout
    assert bernstein("replay", run.run_id, "--from-step", "9999").returncode == 2


def test_verify_many_runs(sdd: SddDir, run: RunDir) -> None:
    other = make_run(sdd)
    done = bernstein("verify", "--all")
    assert done.returncode == 0
    assert done.stdout.endswith("2 runs: 2 verified\n")
    other.wal.write_bytes(other.wal.read_bytes().replace(b'"attempt":1', b'"attempt":2', 1))
    done = bernstein("verify", "--all", "--json")
    assert done.returncode == 1
    verdicts = {row["run_id"]: row["reason"] for row in json.loads(done.stdout)}
    assert verdicts == {run.run_id: None, other.run_id: "recording"}
    assert bernstein("verify", run.run_id).returncode == 0
    assert bernstein("verify").returncode == 2
    run.journal.unlink()
    done = bernstein("verify", "--all", "--json")
    assert {row["run_id"]: row["reason"] for row in json.loads(done.stdout)} == {
        run.run_id: "missing",
        other.run_id: "recording",
    }
    shutil.rmtree(run.path)
    done = bernstein("verify", "--all")
    assert done.returncode == 1
    assert f"{run.run_id} mismatch" in done.stdout


def test_determinism_of_one_run_and_of_two(sdd: SddDir, run: RunDir) -> None:
    replayed = sdd.run(run_plan(PLAN, sdd, replay=run.run_id).run_id)
    assert execution_fingerprint(run.wal) == execution_fingerprint(replayed.wal)
    done = bernstein("verify", "--determinism", run.run_id, replayed.run_id)
    assert (done.returncode, done.stdout.split()[0]) == (0, "equal:")
    assert bernstein("verify", "--determinism", run.run_id).returncode == 0
    lines = replayed.wal.read_bytes().split(b"\n")
    replayed.wal.write_bytes(lines[0].replace(b'"attempt":1', b'"attempt":2') + b"\n")
    done = bernstein("verify", "--determinism", run.run_id, replayed.run_id, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["first_difference"] == 0
    assert bernstein("verify", "--determinism", replayed.run_id).returncode == 1
    replayed.wal.unlink()
    assert bernstein("verify", "--determinism", run.run_id, replayed.run_id).returncode == 2


def test_lineage_says_where_a_file_came_from(sdd: SddDir, run: RunDir) -> None:
    bernstein("apply", run.run_id)
    origin = json.loads(bernstein("lineage", "why", "a.txt", "--json").stdout)
    assert origin["run"] == run.run_id
    assert origin["step"] == "s/one/t1"
    assert origin["model"] == "scripted:test"
    assert origin["matched_by"] == "content"
    written = rows(run.journal)[origin["row"]]
    assert written["payload"]["content"]["digest"] == origin["sha256"]
    Path("renamed.txt").write_bytes(Path("a.txt").read_bytes())
    assert bernstein("lineage", "why", "renamed.txt").returncode == 0
    Path("mine.txt").write_text("mine")
    assert bernstein("lineage", "why", "mine.txt").returncode == 2


def test_a_checkpoint_kept_elsewhere_finds_a_rewritten_spine(
    sdd: SddDir, run: RunDir, tmp_path: Path
) -> None:
    assert bernstein("lineage", "verify").returncode == 0
    kept = tmp_path / "checkpoint.txt"
    kept.write_text(bernstein("lineage", "checkpoint").stdout)
    origin, size, *_ = kept.read_text().split("\n")
    assert origin.startswith("bernstein/spine/")
    assert size == "2"
    proof = tmp_path / "proof.json"
    proof.write_text(bernstein("lineage", "prove", run.run_id).stdout)
    make_run(sdd)
    for file in (kept, proof):
        done = bernstein("lineage", "check", str(file))
        assert (done.returncode, done.stderr) == (0, "")
    assert bernstein("lineage", "check", str(kept), "--key", "0" * 64).returncode == 1
    # The whole project made anew, with the same key: everything holds, but not the checkpoint.
    shutil.rmtree(sdd.path)
    make_run(sdd)
    make_run(sdd)
    assert bernstein("lineage", "verify").returncode == 0
    done = bernstein("lineage", "check", str(kept))
    assert done.returncode == 1
    assert "rewritten" in done.stderr
    for old, new in ((b'"size', b'"sise'), (b'"inclusion": [', b'"inclusion": ["00"')):
        changed = proof.read_bytes().replace(old, new)
        if changed != proof.read_bytes():
            proof.write_bytes(changed)
            assert bernstein("lineage", "check", str(proof)).returncode == 1


def test_a_spine_that_does_not_hold_is_named(sdd: SddDir, run: RunDir) -> None:
    sdd.spine.write_bytes(sdd.spine.read_bytes().replace(b'"kind":"run"', b'"kind":"received"'))
    done = bernstein("lineage", "verify")
    assert done.returncode == 1
    assert "entry 1" in done.stderr
    sdd.spine.unlink()
    assert bernstein("lineage", "verify").returncode == 2


@pytest.mark.parametrize("event", ["tool.proposed", "tool.result", "step.started", "model.usage"])
def test_rows_of_another_shape_are_refused_and_named(tmp_path: Path, event: str) -> None:
    journal = write(tmp_path, "a", step(1), (event, "", {}))
    with pytest.raises(UsageError, match=f"event 1 is not a {event}"):
        rebuild_state(journal, 2)


def test_a_checkpoint_has_one_spelling(sdd: SddDir, run: RunDir) -> None:
    keys = default_keys(sdd)
    key = keys.signing_key()
    text = make_checkpoint(read_spine(sdd.spine, keys).entries, key).text
    assert parse_checkpoint(text).is_signed_by(key.public)
    for place in range(len(text) - 1):
        for bit in range(7):
            changed = text[:place] + chr(ord(text[place]) ^ 1 << bit) + text[place + 1 :]
            try:
                is_signed = parse_checkpoint(changed).is_signed_by(key.public)
            except ProofError:
                continue
            assert not is_signed, (place, bit)
