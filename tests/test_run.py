from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from bernstein import verify_journal
from bernstein.capture.run import OpenRun
from bernstein.errors import (
    ModelUnavailableError,
    PlanError,
    RecordingError,
    ReplayMissError,
    UnknownRunError,
    UsageError,
)
from bernstein.events import trajectory as event
from bernstein.recording.answer import LlmAnswer
from bernstein.recording.texts import shared_ends
from bernstein.rundir import SddDir
from bernstein.runner.workspace import find_changes
from tests.helpers import (
    MODEL,
    ONE_TASK,
    TWO_TASKS,
    bernstein,
    events,
    no_model,
    rows,
    run_plan,
    script,
    unseal,
    verify,
)
from tests.pairs import is_faithful, run_pair

PLAN = """\
name: Small
stages:
  - name: Build
    steps:
      - {title: First, files: [a.txt, b.txt]}
      - title: Second
        files: [c.txt]
        completion_signals:
          - {type: path_exists, path: c.txt}
          - {type: file_contains, path: c.txt, contains: text}
          - {type: command, run: "grep -q text c.txt"}
  - name: Join
    depends_on: Build
    steps:
      - {title: Third, files: [d.txt]}
"""
RULES: list[dict[str, Any]] = [
    {"match": "Split one step.*Step: First", "text": TWO_TASKS},
    {"match": "Split one step", "text": ONE_TASK},
    {"match": "content of the file", "text": "text {n}", "usage": {"input": 7, "output": 2}},
]


def record(sdd: SddDir, plan: str = PLAN, *rules: dict[str, Any], **options: Any) -> Any:
    script(*(rules or RULES))
    report = run_plan(plan, sdd, **options)
    no_model()
    return report


def test_a_replay_has_the_head_of_its_recording_and_asks_no_model(sdd: SddDir) -> None:
    recorded = record(sdd)
    assert (recorded.status, recorded.exit_code, recorded.calls) == ("completed", 0, 7)
    replayed = run_plan(PLAN, sdd, replay="latest")
    assert is_faithful(recorded, replayed)
    assert replayed.exit_code == 0
    assert replayed.comparison is not None
    assert replayed.comparison.line() == f"replay identical head={recorded.head}"
    assert replayed.coverage is not None
    assert replayed.coverage.line() == (
        "replay-coverage hits=7 misses=0 strict_violations=0 unused=0 recorded=7 strict=true "
        "guard=python"
    )


@pytest.mark.parametrize("number", range(12))
def test_a_plan_of_eight_parallel_steps_replays_to_the_same_head(sdd: SddDir, number: int) -> None:
    recorded, replayed = run_pair(sdd, number)
    assert is_faithful(recorded, replayed)


def test_equal_live_runs_have_equal_heads_and_one_other_answer_changes_it(sdd: SddDir) -> None:
    plan = PLAN.replace("name: Small", "name: Small\nmax_agents: 1")
    first = record(sdd, plan).head
    assert record(sdd, plan).head == first
    rules = [*RULES[:2], {**RULES[2], "text": "other text {n}"}]
    assert record(sdd, plan, *rules).head != first


def test_every_row_of_a_run_is_in_its_chain_and_folds(sdd: SddDir) -> None:
    report = record(sdd)
    run = sdd.run(report.run_id)
    verdict = verify_journal(run.journal)
    assert (verdict.verdict, verdict.rows, verdict.head) == ("verified", report.rows, report.head)
    kinds = [row["event"] for row in events(run)]
    assert kinds[0] == event.RUN_STARTED
    assert kinds[-1] == event.RUN_FINISHED
    assert kinds.count(event.CHECKPOINT) == 2
    assert kinds.count(event.ARTIFACT_WRITTEN) == 4
    wal = rows(run.wal)
    made = [(row["decision"], row["stepId"], row["attempt"]) for row in wal]
    assert made == [
        (row["payload"]["decision"], row["payload"]["stepId"], row["payload"]["attempt"])
        for row in events(run, event.DECISION_MADE)
    ]
    assert [row["index"] for row in wal] == list(range(len(wal)))


def test_no_text_of_prompt_or_answer_is_in_the_journal(sdd: SddDir) -> None:
    rules = [*RULES[:2], {"text": "CANARY answer"}]
    report = record(sdd, PLAN.replace("Small", "CANARY plan"), *rules)
    assert "CANARY" not in sdd.run(report.run_id).journal.read_text()
    assert "CANARY" not in sdd.run(report.run_id).wal.read_text()


# --- what a head that is equal means: whatever is altered diverges at its own row


def alter_answer(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    finish, seen = OpenRun.finish_call, [0]

    def altered(self: OpenRun, call: Any, outcome: Any, **more: Any) -> None:
        seen[0] += 1
        if seen[0] == number:
            outcome = LlmAnswer(outcome.text + " altered", usage=outcome.usage)
        finish(self, call, outcome, **more)

    monkeypatch.setattr(OpenRun, "finish_call", altered)


def alter_row(monkeypatch: pytest.MonkeyPatch, name: str, number: int, member: str) -> None:
    append, seen = OpenRun.append, [0]

    def altered(self: OpenRun, kind: str, payload: Any, lane: str = "") -> Any:
        if kind == name:
            seen[0] += 1
            if seen[0] == number:
                payload = {**payload, member: "altered"}
        return append(self, kind, payload, lane)

    monkeypatch.setattr(OpenRun, "append", altered)


@pytest.mark.parametrize("number", [1, 2, 4, 6])
@pytest.mark.parametrize(
    "what", [event.MODEL_ANSWER, event.DECISION_MADE, event.ARTIFACT_WRITTEN, event.CHECKPOINT]
)
def test_what_is_altered_in_a_replay_diverges_at_its_own_row(
    sdd: SddDir, monkeypatch: pytest.MonkeyPatch, what: str, number: int
) -> None:
    recorded = record(sdd)
    own = [row["index"] for row in events(sdd.run(recorded.run_id), what)]
    number = min(number, len(own))
    if what == event.MODEL_ANSWER:
        alter_answer(monkeypatch, number)
    else:
        member = {event.DECISION_MADE: "decision", event.ARTIFACT_WRITTEN: "path"}
        alter_row(monkeypatch, what, number, member.get(what, "label"))
    replayed = run_plan(PLAN, sdd, replay=recorded.run_id)
    assert replayed.comparison is not None
    assert replayed.comparison.relation == "diverged"
    assert replayed.comparison.step_index == own[number - 1]
    assert replayed.exit_code == 1


def test_a_missing_and_an_extra_row_are_told_apart(
    sdd: SddDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = record(sdd)
    append = OpenRun.append

    def without_checkpoints(self: OpenRun, kind: str, payload: Any, lane: str = "") -> Any:
        if kind == event.CHECKPOINT:
            return None
        return append(self, kind, payload, lane)

    monkeypatch.setattr(OpenRun, "append", without_checkpoints)
    replayed = run_plan(PLAN, sdd, replay=recorded.run_id)
    assert replayed.comparison is not None
    first = events(sdd.run(recorded.run_id), event.CHECKPOINT)[0]["index"]
    assert replayed.comparison.step_index == first
    assert replayed.exit_code == 1


def test_coverage_is_recounted_from_the_files(sdd: SddDir) -> None:
    recorded = record(sdd)
    # A replay that loses a step: its answers stay unused, whatever anybody counted.
    cut = PLAN.replace("      - {title: First, files: [a.txt, b.txt]}\n", "")
    replayed = run_plan(cut, sdd, replay=recorded.run_id)
    assert replayed.coverage is not None
    assert replayed.coverage.hits + len(replayed.coverage.unused) == 7
    assert {answer.lane for answer in replayed.coverage.unused} >= {
        "build/first",
        "build/first/t1",
        "build/first/t2",
    }
    assert replayed.exit_code == 3  # the third step's prompt holds what the first one wrote
    journal = sdd.run(replayed.run_id).journal
    assert replayed.coverage.hits == sum(
        row["event"] == event.MODEL_ANSWER for row in rows(journal)
    )


# --- misses


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("name: Small", "name: Smaller", "prompt"),
        ("{title: Third,", "{title: Third, temperature: 0.5,", "temperature (recorded None"),
        ("{title: Third,", "{title: Third, model: 'scripted:other',", "model (recorded 'test'"),
        ("{title: Third,", "{title: Third, max_tokens: 9,", "max_tokens (recorded 8192, asked 9)"),
        ("name: Small", "name: Small\nconstraints: [be brief]", "Constraints: be brief"),
    ],
)
def test_drift_is_a_strict_miss_that_names_what_differs(
    sdd: SddDir, old: str, new: str, named: str
) -> None:
    recorded = record(sdd)
    replayed = run_plan(PLAN.replace(old, new), sdd, replay=recorded.run_id)
    assert replayed.exit_code == 3
    assert replayed.status == "failed"
    assert replayed.miss is not None
    assert named in str(replayed.miss)
    assert replayed.coverage is not None
    assert replayed.coverage.strict_violations == replayed.coverage.misses == 1
    last = events(sdd.run(replayed.run_id))[-1]
    assert last["payload"] == {"status": "failed", "reason": "replay_miss"} or (
        last["payload"]["reason"] == "replay_miss"
    )


def test_asking_once_more_than_recorded_is_a_miss(sdd: SddDir) -> None:
    recorded = record(sdd)
    calls = sdd.run(recorded.run_id).llm_calls
    # The last call of the recording is gone, and with it what would prove it.
    journal = sdd.run(recorded.run_id).journal
    unseal(sdd, sdd.run(recorded.run_id))
    kept = [line for line in journal.read_bytes().split(b"\n") if line]
    cut = next(n for n, line in enumerate(kept) if b'"model.answer","lane":"join/third/t1"' in line)
    journal.write_bytes(b"\n".join(kept[:cut]) + b"\n")
    lines = calls.read_bytes().split(b"\n")
    calls.write_bytes(b"\n".join(lines[:-2]) + b"\n")
    replayed = run_plan(PLAN, sdd, replay=recorded.run_id)
    assert replayed.exit_code == 3
    assert replayed.miss is not None
    assert replayed.miss.reason == "never_recorded"


def test_code_that_swallows_a_miss_still_ends_with_3(
    sdd: SddDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bernstein.agents import builtin
    from bernstein.runner import units

    recorded = record(sdd)
    do_task = builtin.do_task

    async def swallowing(*arguments: Any) -> Any:
        try:
            return await do_task(*arguments)
        except ReplayMissError:
            return []

    monkeypatch.setattr(units, "do_task", swallowing)
    plan = PLAN.replace("{title: Third,", "{title: Third, max_tokens: 9,")
    replayed = run_plan(plan, sdd, replay=recorded.run_id)
    assert replayed.exit_code == 3
    assert replayed.coverage is not None
    assert replayed.coverage.strict_violations == 1


def test_allowed_misses_go_live_and_the_new_recording_replays_by_itself(sdd: SddDir) -> None:
    recorded = record(sdd)
    plan = PLAN.replace("{title: Third,", "{title: Third, max_tokens: 9,")
    script(*RULES[:2], {"match": "content of the file", "text": "live"})
    mixed = run_plan(plan, sdd, replay=recorded.run_id, allow_live_miss=True)
    assert (mixed.exit_code, mixed.status) == (0, "completed")
    assert mixed.coverage is not None
    assert (mixed.coverage.hits, mixed.coverage.misses, len(mixed.coverage.unused)) == (6, 1, 1)
    assert mixed.coverage.strict_violations == 0
    assert len(rows(sdd.run(mixed.run_id).llm_calls)) == 7
    no_model()
    again = run_plan(plan, sdd, replay=mixed.run_id)
    assert is_faithful(mixed, again)


def test_a_replay_stands_for_its_source(sdd: SddDir) -> None:
    recorded = record(sdd)
    first = run_plan(PLAN, sdd, replay=recorded.run_id)
    second = run_plan(PLAN, sdd, replay=first.run_id)
    assert sdd.run(second.run_id).read_info()["source_run"] == recorded.run_id
    assert sdd.find_run("latest").run_id == recorded.run_id


def test_a_run_that_is_not_there_is_named(sdd: SddDir) -> None:
    record(sdd)
    with pytest.raises(UnknownRunError, match="no run 'nope'"):
        run_plan(PLAN, sdd, replay="nope")


def test_a_prefix_must_be_unique(sdd: SddDir) -> None:
    one, other = record(sdd), record(sdd)
    common = one.run_id[: shared_ends(one.run_id, other.run_id)[0]]
    with pytest.raises(UnknownRunError, match="start of 2 run ids"):
        run_plan(PLAN, sdd, replay=common)
    assert is_faithful(other, run_plan(PLAN, sdd, replay=other.run_id[:-1]))


@pytest.mark.parametrize("how", ["empty", "absent"])
def test_a_run_without_a_recording_is_a_miss(sdd: SddDir, how: str) -> None:
    calls = sdd.run(record(sdd).run_id).llm_calls
    calls.write_bytes(b"")
    if how == "absent":
        calls.unlink()
    with pytest.raises(ReplayMissError) as miss:
        run_plan(PLAN, sdd, replay="latest")
    assert miss.value.reason == "no_recording"


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_recording_that_its_journal_does_not_prove_is_not_served(
    sdd: SddDir, is_sealed: bool
) -> None:
    run = sdd.run(record(sdd).run_id)
    if not is_sealed:
        unseal(sdd, run)
    data = run.llm_calls.read_bytes()
    lines = data.split(b"\n")
    changes = {
        "text": data.replace(b"text 2", b"text X"),
        "error": data.replace(b'"ok":{', b'"error":{"class":"x","status":1,', 1),
        "lane": data.replace(b'"lane":"build/second"', b'"lane":"build/third"'),
        "key": data.replace(b'"key":"', b'"key":"0', 1),
        "prompt": data.replace(b"Step: First", b"Step: Frist", 1),
        "deleted": b"\n".join(lines[1:]),
        "cut": b"\n".join(lines[:-2]) + b"\n",
        "doubled": b"\n".join([*lines[:-1], lines[-2], b""]),
        "damaged": data.replace(b'"seq"', b'"sqe"', 1),
    }
    for name, changed in changes.items():
        assert changed != data, name
        run.llm_calls.write_bytes(changed)
        verdict = verify(sdd, run)
        assert (verdict.verdict, verdict.reason) == ("mismatch", "recording"), name
        with pytest.raises(RecordingError, match="not replayed"):
            run_plan(PLAN, sdd, replay=run.run_id)
    run.llm_calls.write_bytes(data)
    assert verify(sdd, run).verdict == ("verified" if is_sealed else "prefix")


def test_a_broken_journal_is_not_played_from(sdd: SddDir) -> None:
    run = sdd.run(record(sdd).run_id)
    run.journal.write_bytes(run.journal.read_bytes().replace(b'"attempt":1', b'"attempt":2', 1))
    with pytest.raises(RecordingError, match="row 1"):
        run_plan(PLAN, sdd, replay=run.run_id)


# --- failures, retries, budget


def test_a_failed_task_is_retried_as_the_plan_says_then_fails_its_dependants(sdd: SddDir) -> None:
    rules = [
        {"match": "file c.txt", "fail": {"class": "Bad", "status": 400, "text": "no"}},
        *RULES,
    ]
    plan = PLAN.replace("name: Small", "name: Small\nretries: 2")
    report = record(sdd, plan, *rules)
    assert (report.status, report.exit_code) == ("failed", 1)
    assert [(step_id, status, code) for step_id, _, status, code in report.steps] == [
        ("build/first", "ok", None),
        ("build/second", "error", "provider_error"),
        ("join/third", "error", "dependency_failed"),
    ]
    assert any("HTTP 400" in line for line in report.failures)
    decisions = [row["payload"] for row in events(sdd.run(report.run_id), event.DECISION_MADE)]
    retried = [d["attempt"] for d in decisions if d["decision"] == "retry"]
    assert retried == [2, 3]
    assert [d["stepId"] for d in decisions if d["decision"] == "skip"] == ["join/third"]
    replayed = run_plan(plan, sdd, replay=report.run_id)
    assert is_faithful(report, replayed)
    assert replayed.exit_code == 1


def test_a_call_that_fails_for_a_while_is_asked_again_and_both_are_rows(sdd: SddDir) -> None:
    rules = [
        {"match": "file c.txt", "fail": {"class": "Overloaded", "status": 529}, "times": 1},
        *RULES,
    ]
    report = record(sdd, PLAN, *rules)
    assert report.status == "completed"
    outcomes = [
        next(iter(row["outcome"]))
        for row in rows(sdd.run(report.run_id).llm_calls)
        if row["lane"] == "build/second/t1"
    ]
    assert outcomes == ["error", "ok"]
    assert is_faithful(report, run_plan(PLAN, sdd, replay=report.run_id))


def test_signals_that_do_not_hold_fail_the_step_and_a_retry_is_told_why(sdd: SddDir) -> None:
    rules = [
        *RULES[:2],
        {"match": "file c.txt.*", "text": "wrong", "times": 1},
        {"match": "not accepted: c.txt does not contain 'text'", "text": "right text"},
        RULES[2],
    ]
    assert record(sdd, PLAN, *rules).status == "failed"
    plan = PLAN.replace("name: Small", "name: Small\nretries: 1")
    report = record(sdd, plan, *rules)
    assert report.status == "completed"
    held = [row["payload"]["holds"] for row in events(sdd.run(report.run_id), event.SIGNAL_CHECKED)]
    assert held == [True, False, False, True, True, True]
    assert is_faithful(report, run_plan(plan, sdd, replay=report.run_id))


def test_commands_are_not_run_in_a_replay_but_answered_from_the_recording(
    sdd: SddDir, tmp_path: Path
) -> None:
    plan = PLAN.replace("grep -q text c.txt", f"echo ran >> {tmp_path}/ran")
    report = record(sdd, plan)
    assert (tmp_path / "ran").read_text() == "ran\n"
    assert is_faithful(report, run_plan(plan, sdd, replay=report.run_id))
    assert (tmp_path / "ran").read_text() == "ran\n"
    unseal(sdd, sdd.run(report.run_id))
    sdd.run(report.run_id).fixtures.unlink()
    replayed = run_plan(plan, sdd, replay=report.run_id)
    assert replayed.exit_code == 3
    assert "no recorded result of the command" in str(replayed.miss)
    assert replayed.coverage is not None
    assert replayed.coverage.misses == 1


def test_the_budget_is_kept(sdd: SddDir) -> None:
    rules = [{**rule, "usage": {"input": 1, "credits": 400_000}} for rule in RULES]
    plan = PLAN.replace("name: Small", 'name: Small\nbudget: "$1"\nmax_agents: 1')
    report = record(sdd, plan, *rules)
    assert report.status == "failed"
    assert report.credits == 1_200_000
    assert report.calls == 3
    assert {code for _, _, _, code in report.steps} == {"budget_exceeded", "dependency_failed"}
    assert is_faithful(report, run_plan(plan, sdd, replay=report.run_id))


@pytest.mark.parametrize(
    "command", ["sleep 30 & exit 0", "echo text; sleep 30 | cat & true", "x" * 60_000]
)
def test_a_command_is_over_when_it_ends_whatever_it_leaves_behind(
    sdd: SddDir, command: str
) -> None:
    plan = PLAN.replace("grep -q text c.txt", command)
    report = record(sdd, plan)
    assert (report.status == "completed") == ("sleep" in command)
    assert is_faithful(report, run_plan(plan, sdd, replay=report.run_id))


def test_a_recorded_result_that_was_changed_diverges_at_its_row(sdd: SddDir) -> None:
    plan = PLAN.replace("grep -q text c.txt", "echo said; exit 3")
    run = sdd.run(record(sdd, plan).run_id)
    unseal(sdd, run)
    data = run.fixtures.read_bytes()
    run.fixtures.write_bytes(data.replace(b'"output":"said', b'"output":"sbid'))
    replayed = run_plan(plan, sdd, replay=run.run_id)
    assert replayed.comparison is not None
    assert replayed.comparison.relation == "diverged"
    assert replayed.comparison.replayed is not None
    assert replayed.comparison.replayed.event == event.SIGNAL_CHECKED
    for hostile in (b'"response":"x"', b'"response":{}', b'"response":{"exitCode":"3"}'):
        start = data.index(b'"response"')
        run.fixtures.write_bytes(data[:start] + hostile + b',"seq":0}\n')
        broken = run_plan(plan, sdd, replay=run.run_id)
        assert broken.exit_code == 1
        assert any("damaged" in line for line in broken.failures)


@pytest.mark.parametrize("path", [".git/config", "a/.GIT/x", ".sdd/x", "x" * 300, "a/" * 600])
def test_a_file_that_no_step_may_write_is_refused_in_the_plan(sdd: SddDir, path: str) -> None:
    with pytest.raises(PlanError):
        run_plan(PLAN.replace("c.txt]", f"{path}]"), sdd, in_place=True)


def test_what_run_json_says_does_not_switch_a_check_off(sdd: SddDir) -> None:
    run = sdd.run(record(sdd).run_id)
    unseal(sdd, run)
    run.llm_calls.write_bytes(run.llm_calls.read_bytes().replace(b"text 2", b"EVIL 2"))
    info = run.read_info()
    for changed in ({**info, "records": False}, {}):
        run.write_info(changed)
        assert verify(sdd, run).verdict == "mismatch"
        with pytest.raises(RecordingError):
            run_plan(PLAN, sdd, replay=run.run_id)


def test_a_recording_behind_its_chain_is_believed_for_one_call_and_no_more(sdd: SddDir) -> None:
    run = sdd.run(record(sdd).run_id)
    unseal(sdd, run)
    lines = run.journal.read_bytes().split(b"\n")[:-1]
    answers = [n for n, line in enumerate(lines) if b'"event":"model.answer"' in line]
    for kept, verdict in ((answers[-1], "prefix"), (answers[-2], "mismatch"), (1, "mismatch")):
        run.journal.write_bytes(b"".join(line + b"\n" for line in lines[:kept]))
        assert verify(sdd, run).verdict == verdict, kept


@pytest.mark.parametrize("journal", [None, b""])
def test_a_run_that_was_killed_while_it_began_is_not_the_latest(
    sdd: SddDir, journal: bytes | None
) -> None:
    good, bad = record(sdd), sdd.new_run()
    bad.write_info({"run_id": bad.run_id, "kind": "plan", "records": True, "status": "running"})
    if journal is not None:
        bad.journal.write_bytes(journal)
    assert sdd.find_run("latest").run_id == good.run_id
    assert f"{bad.run_id}  interrupted" in bernstein("runs").stdout


@pytest.mark.parametrize(
    "info",
    [
        b"{",
        b"[]",
        b'{"plan":"x"}',
        b'{"argv":5}',
        b'{"seed":[1]}',
        b'{"status":[]}',
        b'{"default_model":"x"}',
        b'{"default_model":["a"]}',
        b"\xff",
    ],
)
def test_a_hostile_run_json_harms_its_own_run_alone(sdd: SddDir, info: bytes) -> None:
    good, bad = record(sdd), record(sdd)
    sdd.run(bad.run_id).run_json.write_bytes(info)
    done = bernstein("runs")
    assert done.returncode == 0
    assert "unreadable" in done.stdout
    assert sdd.find_run("latest").run_id == good.run_id
    for command in (("show",), ("replay",), ("apply",), ("replay", "--verify")):
        done = bernstein(command[0], bad.run_id, *command[1:])
        assert "fault of bernstein" not in done.stderr
        assert "Traceback" not in done.stderr


def test_a_recording_is_not_read_through_a_link(sdd: SddDir, tmp_path: Path) -> None:
    run = sdd.run(record(sdd).run_id)
    run.llm_calls.rename(tmp_path / "elsewhere")
    run.llm_calls.symlink_to(tmp_path / "elsewhere")
    assert verify(sdd, run).verdict == "mismatch"
    with pytest.raises(RecordingError):
        run_plan(PLAN, sdd, replay=run.run_id)


# --- surroundings


def test_a_replay_elsewhere_has_the_same_head(sdd: SddDir, tmp_path: Path) -> None:
    (Path.cwd() / "answers.yaml").write_text(json.dumps({"answers": RULES}))
    (Path.cwd() / "plan.yaml").write_text(PLAN)
    done = bernstein(
        "run",
        "plan.yaml",
        "--model",
        "scripted:answers.yaml",
        "--json",
        env={"PYTHONHASHSEED": "1", "TZ": "UTC", "LANG": "C.UTF-8"},
    )
    assert done.returncode == 0, done.stderr
    head = json.loads(done.stdout)["head"]
    elsewhere = tmp_path / "deeper" / "elsewhere"
    shutil.copytree(Path.cwd(), elsewhere)
    (elsewhere / "answers.yaml").unlink()
    surroundings = (
        {"PYTHONHASHSEED": "2", "TZ": "Asia/Kolkata", "LANG": "de_DE.UTF-8"},
        {"PYTHONHASHSEED": "77", "TZ": "America/St_Johns", "LANG": "C", "PYTHONUTF8": "0"},
    )
    for env in surroundings:
        done = bernstein(
            "run",
            "plan.yaml",
            "--json",
            cwd=elsewhere,
            env={**env, "BERNSTEIN_REPLAY_RUN_ID": "latest"},
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["head"] == head
        assert "replay identical" in done.stderr


def test_the_seed_seeds_random_and_comes_from_the_recording(sdd: SddDir) -> None:
    import random

    recorded = record(sdd, seed=5)
    drawn = random.random()
    run_plan(PLAN, sdd, replay=recorded.run_id, seed=6)
    assert random.random() == drawn
    assert sdd.run(recorded.run_id).read_info()["seed"] == 5


def test_a_run_works_in_its_own_copy_and_writes_nowhere_else(sdd: SddDir) -> None:
    Path("mine.txt").write_text("mine")
    report = record(sdd)
    assert sorted(path.name for path in Path.cwd().iterdir()) == [".sdd", "mine.txt"]
    assert (report.workspace / "mine.txt").read_text() == "mine"
    assert (report.workspace / "a.txt").read_text() == "text 1\n"
    assert [(c.path, c.kind) for c in find_changes(sdd.run(report.run_id))] == [
        (name, "added") for name in ("a.txt", "b.txt", "c.txt", "d.txt")
    ]


def test_a_folder_that_changed_is_said_where_the_replay_differs(sdd: SddDir) -> None:
    plan = PLAN.replace("path: c.txt}", "path: mine.txt}")
    Path("mine.txt").write_text("mine")
    report = record(sdd, plan)
    Path("mine.txt").unlink()
    replayed = run_plan(plan, sdd, replay=report.run_id)
    assert replayed.has_other_tree
    assert replayed.comparison is not None
    assert replayed.comparison.relation == "diverged"
    assert replayed.comparison.replayed is not None
    assert replayed.comparison.replayed.event == "signal.checked"
    assert replayed.exit_code == 1


def test_in_place_works_in_the_folder(sdd: SddDir) -> None:
    report = record(sdd, in_place=True)
    assert report.workspace == Path.cwd()
    assert Path("a.txt").read_text() == "text 1\n"


def test_a_symlink_out_of_the_workspace_is_not_written_through(sdd: SddDir, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    Path("out").symlink_to(outside)
    plan = PLAN.replace("c.txt", "out/c.txt")
    report = record(sdd, plan)
    assert report.status == "failed"
    assert list(outside.iterdir()) == []
    assert "file_refused" in {code for _, _, _, code in report.steps}


def test_a_goal_is_made_tasks_of_by_the_model(sdd: SddDir) -> None:
    plan = "goal: Write two poems\nfiles: [a.txt, b.txt]\n"
    report = record(sdd, plan, {"match": "Split one step", "text": TWO_TASKS}, RULES[2])
    assert report.status == "completed"
    assert sorted(report.artifacts) == ["a.txt", "b.txt"]
    assert is_faithful(report, run_plan(plan, sdd, replay=report.run_id))


def test_a_model_that_cannot_be_asked_leaves_no_run_behind(sdd: SddDir) -> None:
    with pytest.raises(ModelUnavailableError, match="cannot be read"):
        run_plan(PLAN, sdd, model="scripted:absent.yaml")
    assert sdd.list_runs() == []


def test_an_agent_that_is_not_there_is_named_before_anything_runs(sdd: SddDir) -> None:
    with pytest.raises(UsageError, match="claude"):
        run_plan(PLAN.replace("name: Small", "name: Small\ncli: claude"), sdd)
    assert sdd.list_runs() == []


def test_run_json_says_what_ran_and_none_of_it_is_hashed(sdd: SddDir) -> None:
    report = record(sdd)
    info = sdd.run(report.run_id).read_info()
    assert info["status"] == "completed"
    assert info["head"] == report.head
    assert info["default_model"] == MODEL.split(":")
    assert len(info["tree"]) == 64
    journal = sdd.run(report.run_id).journal.read_text()
    for secret in (report.run_id, str(Path.cwd()), str(os.getpid())):
        assert f'"{secret}' not in journal


def test_every_plan_of_others_runs_and_replays(sdd: SddDir, data: Path) -> None:
    rules = [
        {"match": "Split one step", "text": ONE_TASK},
        {"match": "for the folder", "text": "made.txt\nsome text"},
        {"match": ".", "text": "some text {n}"},
    ]
    for path in sorted((data / "plans").glob("*.yaml"))[::6]:
        plan = path.read_text()
        # The commands of these plans (pytest, mvn) belong to projects that are not here.
        plan = plan.replace("pytest ", "true ").replace("mvn ", "true ")
        report = record(sdd, plan, *rules)
        assert is_faithful(report, run_plan(plan, sdd, replay=report.run_id)), path
