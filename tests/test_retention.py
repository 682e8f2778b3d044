from __future__ import annotations

from pathlib import Path

import pytest

from bernstein.errors import SettingsError
from bernstein.rundir import RunDir, SddDir
from bernstein.seal.retention import choose_pruned, prune, prune_to
from bernstein.seal.signing import default_keys
from bernstein.seal.spine import read_spine
from bernstein.settings import read_settings
from tests.helpers import bernstein, no_model, open_run, run_plan, script, verify

PLAN = "stages: [{name: s, steps: [{title: One, files: [a.txt]}]}]"
TASK = '{"tasks":[{"id":"t1","title":"x","files":[1],"depends_on":[]}]}'


def make(sdd: SddDir, text: str = "text") -> RunDir:
    script({"match": "Split one step", "text": TASK}, {"text": text})
    report = run_plan(PLAN, sdd)
    no_model()
    return sdd.run(report.run_id)


def names(sdd: SddDir) -> list[str]:
    return [run.run_id for run in sdd.list_runs()]


def test_replays_go_first_then_the_oldest(sdd: SddDir) -> None:
    first, second = make(sdd), make(sdd)
    replay = sdd.run(run_plan(PLAN, sdd, replay=first.run_id).run_id)
    third = make(sdd)
    order = [run.run_id for run in choose_pruned(sdd, 1)]
    assert order == [replay.run_id, first.run_id, second.run_id]
    assert choose_pruned(sdd, 4) == []
    prune(sdd, choose_pruned(sdd, 2), default_keys(sdd))
    assert names(sdd) == [second.run_id, third.run_id]


def test_it_acts_when_a_run_ends_and_counts_that_run(
    sdd: SddDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERNSTEIN_REPLAY_RETENTION", "2")
    made = [make(sdd).run_id for _ in range(4)]
    assert names(sdd) == made[-2:]
    monkeypatch.delenv("BERNSTEIN_REPLAY_RETENTION")
    make(sdd)
    assert len(names(sdd)) == 3


def test_what_a_kill_left_of_a_pruned_run_goes_with_the_next_prune(
    sdd: SddDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, kept = make(sdd), make(sdd)

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bernstein.seal.retention.shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            prune_to(sdd, 1, default_keys(sdd))
    assert [path.name for path in sdd.runs.glob(".*")] == [f".pruned-{gone.run_id}"]
    assert prune_to(sdd, 1, default_keys(sdd)) == []
    assert list(sdd.runs.glob(".*")) == []
    assert names(sdd) == [kept.run_id]
    assert bernstein("verify", "--all").returncode == 0


def test_a_running_run_its_source_and_a_pinned_run_stay(sdd: SddDir, tmp_path: Path) -> None:
    source, pinned, other = make(sdd), make(sdd), make(sdd)
    pinned.keep.touch()
    (sdd.runs / "linked").symlink_to(other.path)
    (sdd.runs / "not a run").mkdir()
    running = open_run(sdd, replay=source.run_id)
    assert [run.run_id for run in choose_pruned(sdd, 1)] == [other.run_id]
    prune(sdd, choose_pruned(sdd, 1), default_keys(sdd))
    assert set(names(sdd)) == {source.run_id, pinned.run_id, running.dir.run_id}
    assert (sdd.runs / "linked").is_symlink()
    assert (sdd.runs / "not a run").is_dir()
    running.close("completed")


def test_a_pruned_run_reads_as_pruned_and_the_others_are_verified(sdd: SddDir) -> None:
    old, new = make(sdd), make(sdd)
    prune(sdd, [old], default_keys(sdd))
    reading = read_spine(sdd.spine, default_keys(sdd))
    assert reading.broken_at is None
    assert [e.kind for e in reading.entries if e.run_id == old.run_id][-1] == "pruned"
    assert verify(sdd, new).verdict == "verified"


def test_the_run_that_ends_stays_whatever_is_pinned_and_is_reported_on(
    sdd: SddDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make(sdd)
    source.keep.touch()
    monkeypatch.setenv("BERNSTEIN_REPLAY_RETENTION", "1")
    replayed = run_plan(PLAN, sdd, replay=source.run_id)
    assert replayed.exit_code == 0
    assert replayed.coverage is not None
    assert names(sdd) == [source.run_id, replayed.run_id]
    missed = run_plan(PLAN.replace("One", "Two"), sdd, replay=source.run_id)
    assert missed.exit_code == 3
    assert names(sdd) == [source.run_id, missed.run_id]
    assert make(sdd).path.exists()


def test_a_recording_that_cannot_be_read_keeps_what_it_may_hold(sdd: SddDir) -> None:
    first, second = make(sdd, "s" * 70_000), make(sdd, "s" * 70_000)
    with second.llm_calls.open("ab") as file:
        file.write(b"garbage\n")
    prune(sdd, [first], default_keys(sdd))
    assert any(path.is_file() for path in sdd.blobs.rglob("*"))


def test_a_large_body_goes_with_the_last_run_that_holds_it(sdd: SddDir) -> None:
    shared, own = "s" * 70_000, "o" * 70_000
    first, second = make(sdd, shared), make(sdd, shared)
    third = make(sdd, own)
    blobs = [path for path in sdd.blobs.rglob("*") if path.is_file()]
    assert len(blobs) == 2
    prune(sdd, [first, third], default_keys(sdd))
    (left,) = [path for path in sdd.blobs.rglob("*") if path.is_file()]
    assert shared.encode() in left.read_bytes()
    assert verify(sdd, second).verdict == "verified"


@pytest.mark.parametrize("text", ["0", "-1", "many", "", "1.5", "٣"])
def test_a_number_that_keeps_nothing_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="BERNSTEIN_REPLAY_RETENTION"):
        read_settings({"BERNSTEIN_REPLAY_RETENTION": text})


def test_prune_on_the_command_line(sdd: SddDir) -> None:
    old, pinned, new = make(sdd), make(sdd), make(sdd)
    assert bernstein("runs", "keep", pinned.run_id).returncode == 0
    done = bernstein("runs", "prune", "--keep", "1", "--dry-run")
    assert done.stdout == f"would remove {old.run_id}\n"
    assert len(names(sdd)) == 3
    assert bernstein("runs", "prune").returncode == 2
    assert bernstein("runs", "prune", "--keep", "1").stdout == f"removed {old.run_id}\n"
    assert names(sdd) == [pinned.run_id, new.run_id]
    assert bernstein("runs", "keep", "--off", pinned.run_id).returncode == 0
    assert bernstein("runs", "prune", "--keep", "1").stdout == f"removed {pinned.run_id}\n"
