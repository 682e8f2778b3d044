"""Tools that somebody is asked about: the run parks, is decided on, and goes on, each tool once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bernstein.canonical import canonical_bytes
from bernstein.chain.decisions import compare_decisions
from bernstein.errors import BernsteinError, UsageError
from bernstein.rundir import SddDir
from bernstein.runner.pending import pending_calls
from bernstein.seal.approvals import RowRef, find_approval, record_thread_approval
from bernstein.seal.audit import audit_keys, check_audit
from bernstein.seal.body_key import bodies_of
from bernstein.seal.retention import choose_pruned
from bernstein.seal.signing import default_keys
from tests.helpers import bernstein, events, no_model, resume, rows, run_plan, script, verify
from tests.test_tools import call, told, turns

if TYPE_CHECKING:
    from bernstein.rundir import RunDir
    from bernstein.runner.report import RunReport
    from bernstein.seal.approvals import Decision

PLAN = (
    "name: P\nstages:\n  - name: s\n    steps:\n"
    "      - {title: Work, tools: [write_file, run_command], approve: [run_command]}\n"
)
CALL = "s/work/t1/c2"


def ask_for(command: str) -> None:
    """Let the model write a file, then ask for a command, then say that it is done."""
    turns([call("write_file", path="a.txt", content="a\n"), call("run_command", command=command)])


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file outside of every workspace, in which commands leave a line each."""
    return tmp_path / "outside.txt"


@pytest.fixture
def parked(sdd: SddDir, outside: Path) -> RunDir:
    ask_for(f"echo ran >> {outside}; echo b > b.txt")
    report = run_plan(PLAN, sdd)
    assert (report.status, report.exit_code, report.waiting) == ("parked", 2, [CALL])
    return sdd.run(report.run_id)


def decide(sdd: SddDir, run: RunDir, decision: Decision, actor: str = "alice") -> str:
    """Decide on the call that waits; gives what stands then."""
    keys = default_keys(sdd)
    (waits,) = pending_calls(run, bodies_of(run, sdd, keys))
    said = record_thread_approval(sdd, keys.folder, waits.row, decision, actor)
    return f"{said.decision} by {said.actor}"


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def replays_identically(sdd: SddDir, run: RunDir) -> None:
    no_model()
    again = run_plan(PLAN, sdd, replay=run.run_id)
    assert again.comparison is not None
    assert again.comparison.relation == "identical"
    assert written(again) == {"a.txt", "b.txt"}


def written(report: RunReport) -> set[str]:
    return {path for path in report.artifacts if (report.workspace / path).is_file()}


# --- parked, decided, gone on


def test_a_run_parks_with_nothing_run_and_nothing_sealed(
    sdd: SddDir, parked: RunDir, outside: Path
) -> None:
    assert parked.read_info()["status"] == "parked"
    assert not parked.seal.exists()
    assert verify(sdd, parked).verdict == "prefix"
    assert events(parked)[-1]["event"] == "tool.result"  # of the first call
    assert lines_of(outside) == 0
    assert "parked" in bernstein("runs").stdout
    shown = bernstein("show", "latest").stdout
    assert "tools: 2 asked for, 1 with a result, 0 denied;" in shown
    assert f"it waits for an approval: bernstein approve {parked.run_id}" in shown


def test_a_parked_run_is_not_pruned(sdd: SddDir, parked: RunDir) -> None:
    ask_for("true")
    for _ in range(2):
        run_plan(PLAN.replace(", approve: [run_command]", ""), sdd)
    assert parked not in choose_pruned(sdd, 1)
    assert len(choose_pruned(sdd, 1)) == 1


def test_tools_of_a_stranger_are_not_run_again_without_trust(sdd: SddDir, parked: RunDir) -> None:
    decide(sdd, parked, "approved")
    resume(sdd, parked)
    shutil.rmtree(default_keys(sdd).folder)  # whoever sealed it is a stranger now
    no_model()
    with pytest.raises(UsageError, match="use it with --trust"):
        run_plan(PLAN, sdd, replay=parked.run_id, tools="rerun")
    again = run_plan(PLAN, sdd, replay=parked.run_id)
    assert again.comparison is not None
    assert again.comparison.relation == "identical"


def test_a_replay_of_a_parked_run_misses_where_it_waits(sdd: SddDir, parked: RunDir) -> None:
    no_model()
    again = run_plan(PLAN, sdd, replay=parked.run_id)
    assert again.exit_code == 3
    assert f"nobody had decided on {CALL}" in str(again.miss)


def test_an_approved_tool_runs_once_and_the_run_replays(
    sdd: SddDir, parked: RunDir, outside: Path
) -> None:
    assert decide(sdd, parked, "approved") == "approved by alice"
    before = parked.journal.read_bytes()
    report = resume(sdd, parked)
    assert (report.status, written(report)) == ("completed", {"a.txt", "b.txt"})
    assert parked.journal.read_bytes().startswith(before)
    assert lines_of(outside) == 1
    decided = [row["payload"] for row in events(parked, "tool.approved")]
    assert [said["actor"] for said in decided] == ["policy", "alice"]
    assert verify(sdd, parked).verdict == "verified"
    replays_identically(sdd, parked)
    assert lines_of(outside) == 1


def test_an_encrypted_run_parks_and_goes_on_with_nothing_in_the_clear(
    sdd: SddDir, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERNSTEIN_ENCRYPT", "1")
    ask_for(f"echo zyzzyva >> {outside}; echo zyzzyva > b.txt")
    run = sdd.run(run_plan(PLAN, sdd).run_id)
    decide(sdd, run, "approved")
    assert resume(sdd, run).status == "completed"
    assert lines_of(outside) == 1
    kept = [run.journal, run.llm_calls, run.fixtures, *sdd.blobs.rglob("*")]
    assert not [p for p in kept if p.is_file() and b"zyzzyva" in p.read_bytes()]
    replays_identically(sdd, run)


def test_a_denied_tool_does_not_run_and_the_model_is_told(
    sdd: SddDir, parked: RunDir, outside: Path
) -> None:
    decide(sdd, parked, "denied", "bob")
    report = resume(sdd, parked)
    assert report.status == "completed"
    assert told(parked)[-1] == "somebody was asked whether it may run, and refused"
    (row,) = events(parked, "tool.denied")
    assert row["payload"] == {"toolCallId": CALL, "actor": "bob", "reason": "refused"}
    assert lines_of(outside) == 0
    no_model()
    again = run_plan(PLAN, sdd, replay=parked.run_id)
    assert again.head == report.head


def test_a_run_goes_on_from_its_beginning_whatever_became_of_the_folder(
    sdd: SddDir, outside: Path
) -> None:
    Path("kept.txt").write_text("as it began\n")
    two = PLAN + "      - {title: Then, tools: [run_command], approve: [run_command], "
    plan = two + "depends_on: [Work]}\n"
    script(
        {"match": '"Task: Then.*call-1', "text": "done"},
        {"match": '"Task: Then', "tool_calls": [call("run_command", command="cat kept.txt")]},
        {"match": "call-1", "text": "done"},
        {"tool_calls": [call("run_command", command="echo changed > kept.txt")]},
    )
    run = sdd.run(run_plan(plan, sdd).run_id)
    decide(sdd, run, "approved")
    assert resume(sdd, run).status == "parked"
    Path("kept.txt").write_text("somebody works here\n")
    decide(sdd, run, "approved")
    report = resume(sdd, run)
    assert report.status == "completed", report.failures
    assert told(run) == ["exit code 0\nchanged\n"]
    assert lines_of(outside) == 0


def test_a_plan_that_nobody_is_asked_about_never_parks(sdd: SddDir, outside: Path) -> None:
    ask_for(f"echo ran >> {outside}")
    report = run_plan(PLAN.replace("approve: [run_command]", "approve: []"), sdd)
    assert report.status == "completed"
    assert lines_of(outside) == 1


def test_steps_that_wait_keep_no_other_from_its_work(sdd: SddDir) -> None:
    ask_for("true")
    plan = PLAN + "      - {title: Other, tools: [write_file], files: [a.txt]}\n"
    report = run_plan(plan.replace("title: Work", "title: Work, priority: 1"), sdd)
    assert report.status == "parked"
    assert [(step_id, status) for step_id, _, status, _ in report.steps] == [
        ("s/work", "running"),
        ("s/other", "ok"),
    ]


# --- decisions


def test_approving_twice_is_one_approval_and_the_first_word_stands(
    sdd: SddDir, parked: RunDir
) -> None:
    assert decide(sdd, parked, "approved") == "approved by alice"
    assert decide(sdd, parked, "approved", "bob") == "approved by alice"
    assert decide(sdd, parked, "denied", "bob") == "approved by alice"
    assert len(rows(sdd.audit)) == 1
    keys = audit_keys(default_keys(sdd).folder)
    assert check_audit(sdd.audit, keys, None).verdict == "prefix"


def test_the_first_word_stands_whatever_becomes_of_the_order_of_lines(
    sdd: SddDir, parked: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:  # two who decide in the same moment
        patch.setattr("bernstein.seal.approvals.find_approval", lambda *_: None)
        decide(sdd, parked, "denied", "bob")
        decide(sdd, parked, "approved", "alice")
    assert decide(sdd, parked, "approved") == "denied by bob"
    first, second = sdd.audit.read_bytes().splitlines(keepends=True)
    sdd.audit.write_bytes(second + first)
    place = RowRef(
        parked.run_id, *(rows(sdd.audit)[0]["payload"][n] for n in ("index", "event_hash"))
    )
    said = find_approval(sdd, default_keys(sdd).folder, place)
    assert said is not None
    assert said.decision == "denied"


def test_a_decision_of_somebody_else_is_none(
    sdd: SddDir, parked: RunDir, tmp_path: Path, outside: Path
) -> None:
    keys = default_keys(sdd)
    (waits,) = pending_calls(parked, bodies_of(parked, sdd, keys))
    record_thread_approval(sdd, tmp_path / "other-keys", waits.row, "approved", "mallory")
    assert find_approval(sdd, keys.folder, waits.row) is None
    assert resume(sdd, parked).status == "parked"
    assert lines_of(outside) == 0


def test_an_edited_decision_is_none(sdd: SddDir, parked: RunDir) -> None:
    decide(sdd, parked, "denied")
    (row,) = rows(sdd.audit)
    place = RowRef(parked.run_id, row["payload"]["index"], row["payload"]["event_hash"])
    sdd.audit.write_text(sdd.audit.read_text().replace("denied", "approved"))
    assert find_approval(sdd, default_keys(sdd).folder, place) is None


def test_a_row_that_somebody_wrote_into_the_journal_approves_nothing(
    sdd: SddDir, parked: RunDir, outside: Path
) -> None:
    from bernstein import EventJournal

    with EventJournal(parked.run_id, sdd.path) as journal:
        journal.append("tool.approved", {"toolCallId": CALL, "actor": "alice"}, "s/work/t1")
    assert resume(sdd, parked).status == "parked"
    assert lines_of(outside) == 0


@pytest.mark.parametrize("actor", ["", " ", "a\nb", "x" * 129, "policy"])
def test_who_decides_has_a_name(sdd: SddDir, parked: RunDir, actor: str) -> None:
    with pytest.raises(UsageError):
        decide(sdd, parked, "approved", actor)
    assert not sdd.audit.exists()


# --- the command line


def test_what_waits_is_listed_with_what_is_asked_for(sdd: SddDir, parked: RunDir) -> None:
    done = bernstein("approve", "latest")
    assert done.returncode == 0
    assert done.stdout.startswith(f"{CALL}: run_command\n  {{")
    assert "echo ran >>" in done.stdout
    done = bernstein("approve", parked.run_id, "s/work/t1/c9")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"those that do: {CALL}" in done.stderr


def test_it_is_approved_and_goes_on_by_the_command_line(sdd: SddDir, outside: Path) -> None:
    park_by_command_line(f"echo ran >> {outside}; echo b > b.txt")
    run_id = sdd.find_run("latest").run_id
    done = bernstein("approve", "latest", "s/work/t1/c1")
    assert (done.returncode, f"bernstein approve {run_id} s/work/t1/c1" in done.stderr) == (2, True)
    done = bernstein("approve", run_id, "s/work/t1/c1", "--as", "alice")
    assert done.stdout.startswith("s/work/t1/c1 (run_command): approved by alice\n")
    assert "bernstein run --resume" in done.stdout
    done = bernstein("deny", run_id, "s/work/t1/c1", "--as", "bob")
    assert done.returncode == 2
    assert "was approved before, by alice: that stands" in done.stderr
    done = bernstein("run", "--resume", "latest")
    assert done.returncode == 0, done.stderr
    assert bernstein("run", "--resume", "latest").returncode == 2  # it has ended
    assert lines_of(outside) == 1
    done = bernstein("run", "plan.yaml", env={"BERNSTEIN_REPLAY_RUN_ID": "latest"})
    assert "replay identical" in done.stderr


BESIDE = "      - {title: Beside, cli: command, command: 'true'}\n"


@pytest.mark.parametrize("beside", ["", BESIDE])
def test_a_run_that_waits_takes_a_decision_while_it_runs(
    sdd: SddDir, outside: Path, beside: str
) -> None:
    Path("plan.yaml").write_text(PLAN + beside)
    rules = [
        {"match": "call-1", "text": "done"},
        {"tool_calls": [call("run_command", command=f"echo ran >> {outside}")]},
    ]
    Path("answers.yaml").write_text(json.dumps({"answers": rules}))
    command = [sys.executable, "-m", "bernstein", "run", "plan.yaml", "--wait", "-q"]
    process = subprocess.Popen([*command, "--model", "scripted:answers.yaml"])
    while not _waits(sdd):
        assert process.poll() is None
        time.sleep(0.05)
    assert bernstein("approve", sdd.find_run("latest").run_id, "s/work/t1/c1").returncode == 0
    assert process.wait(60) == 0
    assert lines_of(outside) == 1
    assert verify(sdd, sdd.find_run("latest")).verdict == "verified"


def _waits(sdd: SddDir) -> bool:
    try:
        return bool(events(sdd.find_run("latest"), "tool.proposed"))
    except (BernsteinError, OSError):
        return False


@pytest.mark.parametrize(
    "escape", ["", "env -u BERNSTEIN_INSIDE_RUN ", "env -i PATH=$PATH HOME=$REAL "]
)
def test_what_a_run_has_started_cannot_approve_its_tools(
    sdd: SddDir, parked: RunDir, tmp_path: Path, escape: str
) -> None:
    said = tmp_path / "said.txt"
    python = f"PYTHONPATH={os.pathsep.join(filter(None, sys.path))} {sys.executable}"
    real = os.environ["HOME"]
    command = (
        f"REAL={real}; {escape}BERNSTEIN_KEYS_DIR={os.environ['BERNSTEIN_KEYS_DIR']} {python} "
        f"-m bernstein --sdd {sdd.path} approve {parked.run_id} {CALL} > {said} 2>&1"
    )
    turns([call("run_command", command=command)])
    run_plan(PLAN.replace(", approve: [run_command]", ""), sdd)
    assert "this process was started by a run" in said.read_text()
    assert not sdd.audit.exists()


# --- kill -9, and many at once

_KILLED = """
import os, signal, sys
from pathlib import Path
from bernstein.capture.resumed import Resumed
from bernstein.chain.journal import EventJournal
from bernstein.recording.calls import DeterministicStore
from bernstein.recording.fixtures import FixtureStore
from bernstein.chain.decisions import DecisionLog
from bernstein.rundir import SddDir
from tests.helpers import resume, run_plan, script
from tests.test_approvals import PLAN, ask_for

left = int(sys.argv[1])

def dies(cls, name):
    was = getattr(cls, name)
    def now(*args, **kwargs):
        global left
        for _ in range(2):  # before, and behind it
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            if _ == 0:
                result = was(*args, **kwargs)
        return result
    setattr(cls, name, now)

for cls, name in ((EventJournal, "append_all"), (DeterministicStore, "record"),
                  (FixtureStore, "record"), (DecisionLog, "append")):
    dies(cls, name)
sdd = SddDir(Path(sys.argv[2]))
ask_for(sys.argv[3])
if sys.argv[4] == "run":
    run_plan(PLAN, sdd)
else:
    resume(sdd, sdd.find_run("latest"))
print("through")
"""


def killed(sdd: SddDir, point: int, command: str, how: str) -> bool:
    """Do it in a process that is killed at a point; whether it was."""
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(point), str(sdd.path), command, how],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert done.returncode in {0, -9}, done.stderr
    return done.returncode == -9


@pytest.mark.timeout(600)
def test_a_run_that_is_killed_at_any_point_goes_on_and_runs_no_tool_twice(
    sdd: SddDir, parked: RunDir, outside: Path, tmp_path: Path
) -> None:
    command = f"echo ran >> {outside}; echo b > b.txt"
    decide(sdd, parked, "approved")
    saved = tmp_path / "saved"
    shutil.copytree(sdd.path, saved, symlinks=True)
    point, ran = 0, set()
    while True:
        point += 1
        outside.unlink(missing_ok=True)
        was_killed = killed(sdd, point, command, "resume")
        if was_killed:
            ask_for(command)
            report = resume(sdd, parked)
            assert report.status == "completed", (point, report.failures)
        ran.add(lines_of(outside))
        assert verify(sdd, parked).verdict == "verified", point
        assert compare_decisions(parked.wal, parked.journal).first_difference is None, point
        if lines_of(outside):
            assert (parked.workspace / "a.txt").exists()
        if not was_killed:
            break
        shutil.rmtree(sdd.path)
        shutil.copytree(saved, sdd.path, symlinks=True)
    assert point > 20
    assert ran <= {0, 1}  # where it was killed between the start and the end, nobody knows: never 2
    assert 1 in ran


@pytest.mark.timeout(600)
def test_a_run_that_is_killed_before_it_parks_goes_on(outside: Path, tmp_path: Path) -> None:
    command = f"echo ran >> {outside}; echo b > b.txt"
    for point in range(1, 80, 3):
        fresh = SddDir(tmp_path / f"p{point}" / ".sdd")
        if not killed(fresh, point, command, "run"):
            break
        run = next(iter(fresh.list_runs()))
        if not run.has_begun():
            continue
        ask_for(command)
        report = resume(fresh, run)
        assert (report.status, report.waiting) == ("parked", [CALL]), point
    assert point > 30
    assert lines_of(outside) == 0


def test_an_older_state_of_the_run_lets_no_tool_run_again(
    sdd: SddDir, outside: Path, tmp_path: Path
) -> None:
    command = call("run_command", command=f"echo ran >> {outside}")
    turns([command], [command])
    run = sdd.run(run_plan(PLAN, sdd).run_id)
    decide(sdd, run, "approved")
    shutil.copytree(run.path, tmp_path / "older", symlinks=True)
    assert resume(sdd, run).status == "parked"  # on the second call
    shutil.rmtree(run.path)
    shutil.copytree(tmp_path / "older", run.path, symlinks=True)
    assert resume(sdd, run).status == "parked"
    assert lines_of(outside) == 1
    (row,) = events(run, "tool.result")
    assert row["payload"]["ok"] is False


def test_a_decision_that_a_kill_kept_from_the_chain_is_made_anew(
    sdd: SddDir, parked: RunDir
) -> None:
    decide(sdd, parked, "approved")
    last = rows(parked.wal)[-1]
    other = {**last, "index": last["index"] + 1, "decision": "retry"}
    with parked.wal.open("ab") as file:
        file.write(canonical_bytes(other) + b"\n")
    assert resume(sdd, parked).status == "completed"
    assert compare_decisions(parked.wal, parked.journal).first_difference is None


def test_many_who_let_one_run_go_on_at_once_run_its_tool_once(
    sdd: SddDir, parked: RunDir, outside: Path
) -> None:
    decide(sdd, parked, "approved")
    said = []

    def go_on(_: int) -> None:
        try:
            said.append(resume(sdd, parked).status)
        except UsageError as error:
            said.append(str(error).split(" ", 2)[2].split("\n")[0])

    with ThreadPoolExecutor(64) as pool:
        list(pool.map(go_on, range(200)))
    assert said.count("completed") == 1
    others = {
        "is going on already, in another process",
        "has ended: there is nothing to go on with",
    }
    assert set(said) <= {"completed", *others}
    assert lines_of(outside) == 1
    replays_identically(sdd, parked)


def park_by_command_line(command: str) -> None:
    """Park a run whose model can be asked from any process."""
    Path("plan.yaml").write_text(PLAN)
    asked = {"tool_calls": [call("run_command", command=command)]}
    rules = [{"match": "call-1", "text": "done"}, asked]
    Path("answers.yaml").write_text(json.dumps({"answers": rules}))
    done = bernstein("run", "plan.yaml", "--model", "scripted:answers.yaml")
    assert done.returncode == 2
    assert "waits for approval: s/work/t1/c1" in done.stdout


def test_many_processes_that_let_one_run_go_on_run_its_tool_once(
    sdd: SddDir, outside: Path
) -> None:
    park_by_command_line(f"echo ran >> {outside}")
    decide(sdd, sdd.find_run("latest"), "approved")
    command = [sys.executable, "-m", "bernstein", "run", "--resume", "latest", "-q"]
    processes = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(16)]
    assert sorted(process.wait(60) for process in processes) == [0, *[2] * 15]
    assert lines_of(outside) == 1


def test_a_run_that_would_go_on_otherwise_is_left_as_it_is(sdd: SddDir, parked: RunDir) -> None:
    decide(sdd, parked, "approved")
    info = json.loads(parked.run_json.read_bytes())
    step = info["plan"]["value"]["stages"][0]["steps"][0]
    step["description"] = "something else"
    parked.run_json.write_text(json.dumps(info))
    before = parked.journal.read_bytes()
    with pytest.raises(UsageError, match="cannot go on: at row 0"):
        resume(sdd, parked)
    assert parked.journal.read_bytes() == before
    assert not parked.seal.exists()
    assert parked.is_parked()


def test_a_run_that_cannot_go_on_says_why(sdd: SddDir, parked: RunDir) -> None:
    decide(sdd, parked, "approved")
    ended = sdd.run(resume(sdd, parked).run_id)
    with pytest.raises(UsageError, match="has ended"):
        resume(sdd, ended)
    no_model()
    again = sdd.run(run_plan(PLAN, sdd, replay=ended.run_id).run_id)
    again.seal.unlink()
    info = {**again.read_info(), "status": "running"}
    again.run_json.write_text(json.dumps(info))
    with pytest.raises(UsageError, match="is a replay"):
        resume(sdd, again)


# --- what stood in the way of going on


def test_a_command_behind_a_file_gives_what_it_gives_without_a_pause(
    sdd: SddDir, parked: RunDir
) -> None:
    decide(sdd, parked, "approved")
    resume(sdd, parked)
    _, result = rows(parked.fixtures)
    assert [change["path"] for change in result["response"]["changes"]] == ["b.txt"]


def test_a_run_of_a_copied_project_does_not_undo_the_original(
    sdd: SddDir, parked: RunDir, tmp_path: Path
) -> None:
    decide(sdd, parked, "approved")
    shutil.copytree(sdd.path, tmp_path / "copy" / ".sdd")
    report = resume(sdd, parked)
    copied = SddDir(tmp_path / "copy" / ".sdd")
    with pytest.raises(BernsteinError, match="is not its own"):
        resume(copied, copied.run(parked.run_id))
    assert written(report) == {"a.txt", "b.txt"}


def test_a_call_that_a_terminal_would_hide_is_shown(sdd: SddDir) -> None:
    args = '{"command":"echo evil",\r"timeout_s":     120     }'
    turns([{"name": "run_command", "args": args}])
    run_plan(PLAN, sdd)
    done = bernstein("approve", "latest")
    assert done.stdout.splitlines()[1] == "  " + args.replace("\r", "\\r")
