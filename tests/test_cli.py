from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bernstein.cli import COMMANDS
from bernstein.rundir import SddDir
from tests.helpers import ONE_TASK, bernstein, rows

PLAN = "name: P\nstages: [{name: a, steps: [{title: X, files: [x.txt]}, {title: Y}]}]\n"


@pytest.fixture(autouse=True)
def _files() -> None:
    Path("plan.yaml").write_text(PLAN)
    Path("answers.yaml").write_text(
        json.dumps(
            {"answers": [{"match": "Split one step", "text": ONE_TASK}, {"text": "answer {n}"}]}
        )
    )


def record() -> str:
    done = bernstein("run", "plan.yaml", "--model", "scripted:answers.yaml", "--json")
    assert done.returncode == 0, done.stderr
    run_id: str = json.loads(done.stdout)["run_id"]
    return run_id


def test_help_names_every_command_and_imports_no_parser() -> None:
    code = (
        "import sys; from bernstein.cli import main; main(['--help']); "
        "print([m for m in ('click', 'msgspec', 'yaml', 'asyncio', 'json') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
    for name in COMMANDS:
        assert f"\n  {name}" in done.stdout
    assert bernstein("--help").stdout == bernstein().stdout == bernstein("-h").stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_page_with_an_example(name: str) -> None:
    done = bernstein(name, "--help")
    assert done.returncode == 0
    assert "Example" in done.stdout
    assert done.stderr == ""


def test_version() -> None:
    assert bernstein("--version").stdout.startswith("bernstein ")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["rnu"], 2, "did you mean 'run'?"),
        (["--nope"], 2, "--nope"),
        (["run"], 2, "PLAN"),
        (["run", "absent.yaml"], 2, "absent.yaml:1:1"),
        (["run", "plan.yaml", "--model", "nope:x"], 2, "no provider 'nope'"),
        (["run", "plan.yaml", "--model", "scripted:absent"], 2, "absent"),
        (["show", "nope"], 2, "no run 'nope'"),
        (["show", "../x"], 2, "no run"),
        (["replay", "latest"], 2, "no recording"),
        (["apply", "latest"], 2, "no recording"),
    ],
)
def test_a_wrong_use_is_two_lines_and_exit_2(arguments: list[str], code: int, said: str) -> None:
    done = bernstein(*arguments)
    assert done.returncode == code
    assert done.stdout == ""
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("bernstein: ")
    assert len(done.stderr.strip().split("\n")) >= 2


@pytest.mark.parametrize(
    "env",
    [
        {"BERNSTEIN_DETERMINISTIC_SEED": "x"},
        {"BERNSTEIN_DETERMINISTIC_SEED": "-1"},
        {"BERNSTEIN_REPLAY_ALLOW_LIVE_MISS": "yes"},
        {"BERNSTEIN_RECORD": "2"},
    ],
)
def test_a_variable_with_a_value_it_cannot_take_is_named(env: dict[str, str]) -> None:
    done = bernstein("run", "plan.yaml", env=env)
    assert done.returncode == 2
    assert next(iter(env)) in done.stderr


def test_a_run_its_table_and_its_replay() -> None:
    done = bernstein(
        "run",
        "plan.yaml",
        "--model",
        "scripted:answers.yaml",
        env={"BERNSTEIN_DETERMINISTIC_SEED": "42"},
    )
    assert done.returncode == 0
    assert "a/x   ok" in done.stdout
    assert "bernstein apply" in done.stdout
    assert "a/x/t1: working" in done.stderr
    Path("answers.yaml").unlink()
    again = bernstein("run", "plan.yaml", env={"BERNSTEIN_REPLAY_RUN_ID": "latest"})
    assert again.returncode == 0
    *_, coverage, comparison = again.stderr.strip().split("\n")
    assert coverage == (
        "replay-coverage hits=4 misses=0 strict_violations=0 unused=0 recorded=4 "
        "strict=true guard=python"
    )
    assert comparison.startswith("replay identical head=")
    quiet = bernstein("run", "plan.yaml", "-q", env={"BERNSTEIN_REPLAY_RUN_ID": "latest"})
    assert (quiet.stdout, quiet.stderr) == ("", f"{coverage}\n{comparison}\n")


def test_a_miss_is_shown_with_its_diff_and_exit_3() -> None:
    record()
    Path("plan.yaml").write_text(PLAN.replace("name: P", "name: Q"))
    done = bernstein("run", "plan.yaml", "-q", env={"BERNSTEIN_REPLAY_RUN_ID": "latest"})
    assert done.returncode == 3
    assert "-Split one step of the plan 'P'" in done.stderr
    assert "+Split one step of the plan 'Q'" in done.stderr
    assert "BERNSTEIN_REPLAY_ALLOW_LIVE_MISS=1" in done.stderr
    assert "misses=1 strict_violations=1" in done.stderr
    assert "replay diverged at step 0" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_without_recording_has_nothing_to_replay() -> None:
    done = bernstein(
        "run",
        "plan.yaml",
        "--model",
        "scripted:answers.yaml",
        "--json",
        env={"BERNSTEIN_RECORD": "0"},
    )
    run_id = json.loads(done.stdout)["run_id"]
    assert not (Path(".sdd/runs") / run_id / "llm_calls.jsonl").exists()
    done = bernstein("run", "plan.yaml", env={"BERNSTEIN_REPLAY_RUN_ID": run_id})
    assert done.returncode == 3
    assert "no recorded calls" in done.stderr


def test_dry_run_prints_the_graph_and_makes_nothing() -> None:
    done = bernstein("run", "plan.yaml", "--dry-run")
    assert done.returncode == 0
    assert "a/x [builtin] -> x.txt" in done.stdout
    assert not Path(".sdd").exists()
    assert json.loads(bernstein("run", "plan.yaml", "--dry-run", "--json").stdout)["name"] == "P"


def test_runs_show_and_replay_agree_on_a_run() -> None:
    assert "no runs" in bernstein("runs").stdout
    run_id = record()
    listed = json.loads(bernstein("runs", "--json").stdout)
    assert [row["run_id"] for row in listed] == [run_id]
    shown = json.loads(bernstein("show", "latest", "--json").stdout)
    assert shown["status"] == "completed"
    assert [step["stepId"] for step in shown["steps"]] == ["a/x", "a/y"]
    header = json.loads(bernstein("replay", run_id, "--json").stdout)
    assert header["head"] == listed[0]["head"]
    assert "replay it" in bernstein("replay", run_id).stdout
    assert "a/x/t1" in bernstein("show", run_id[:20]).stdout


def test_verify_names_the_key_and_the_first_bad_row() -> None:
    run_id = record()
    run = Path(".sdd/runs") / run_id
    done = bernstein("replay", run_id, "--verify")
    assert done.returncode == 0
    assert re.fullmatch(
        r"verified: \d+ rows, head [0-9a-f]{64}\n  sealed by [0-9a-f]{64}\n", done.stdout
    )
    good = (run / "journal.jsonl").read_bytes()
    (run / "journal.jsonl").write_bytes(good.replace(b'"attempt":1', b'"attempt":3', 1))
    done = bernstein("replay", run_id, "--verify", "--json")
    assert done.returncode == 1
    verdict = json.loads(done.stdout)
    assert (verdict["reason"], verdict["step_index"]) == ("payload", 1)
    report = json.loads((run / "divergence_report.json").read_text())
    assert report["step_index"] == 1
    assert report["expected_hash"] == verdict["expected_hash"]
    assert report["actual_hash"] == verdict["actual_hash"]
    (run / "journal.jsonl").write_bytes(good)
    assert bernstein("replay", run_id, "--verify").returncode == 0
    assert not (run / "divergence_report.json").exists()
    (run / "seal.json").unlink()
    Path(".sdd/lineage/spine.jsonl").unlink()
    done = bernstein("replay", run_id, "--verify")
    assert done.returncode == 2
    assert done.stdout.startswith("prefix: ")


def test_apply_brings_files_over() -> None:
    run_id = record()
    assert "1 file would change" in bernstein("apply", run_id, "--dry-run").stdout
    assert not Path("x.txt").exists()
    done = bernstein("apply", run_id)
    assert "+answer" in done.stdout
    assert Path("x.txt").read_text().startswith("answer")


def test_apply_does_not_write_into_a_folder_that_is_in_the_way() -> None:
    run_id = record()
    Path("x.txt").mkdir()
    for arguments in (("--dry-run",), ()):
        done = bernstein("apply", run_id, *arguments)
        assert done.returncode == 2
        assert "x.txt" in done.stderr
    assert list(Path("x.txt").iterdir()) == []
    Path("x.txt").rmdir()
    assert "1 file brought over" in bernstein("apply", run_id, "-q").stdout
    assert "nothing to bring over" in bernstein("apply", run_id).stdout


def test_sdd_is_taken_from_option_and_variable(tmp_path: Path) -> None:
    option, variable = tmp_path / "option", tmp_path / "variable"
    run = ("run", "plan.yaml", "-q", "--model", "scripted:answers.yaml")
    bernstein("--sdd", str(option), *run)
    bernstein(*run, env={"BERNSTEIN_SDD_DIR": str(variable)})
    assert len(SddDir(option).list_runs()) == len(SddDir(variable).list_runs()) == 1
    assert not Path(".sdd").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_cleanly_and_its_replay_ends_like_it(number: signal.Signals) -> None:
    Path("answers.yaml").write_text(
        json.dumps(
            {
                "answers": [
                    {"match": "Split one step", "text": ONE_TASK},
                    {"match": "file x.txt", "text": "quick"},
                    {"text": "late", "delay_s": 60},
                ]
            }
        )
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "bernstein", "run", "plan.yaml", "--model", "scripted:answers.yaml"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    (run,) = _wait_for(lambda: SddDir(Path(".sdd")).list_runs() if _artifact() else [])
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert "Traceback" not in err
    assert "cancelled" in out
    last = rows(run.journal)[-1]
    assert (last["event"], last["payload"]["status"]) == ("run.finished", "cancelled")
    assert run.read_info()["status"] == "cancelled"
    replayed = bernstein("run", "plan.yaml", env={"BERNSTEIN_REPLAY_RUN_ID": run.run_id})
    assert "replay identical" in replayed.stderr
    assert replayed.returncode == 128 + number


def test_a_signal_during_a_command_is_replayed_too() -> None:
    Path("plan.yaml").write_text(
        "stages: [{name: a, steps: [{title: X, files: [x.txt], completion_signals: "
        "[{type: command, run: 'sleep 30'}]}]}]"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "bernstein", "run", "plan.yaml", "--model", "scripted:answers.yaml"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    (run,) = _wait_for(lambda: SddDir(Path(".sdd")).list_runs() if _artifact() else [])
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    replayed = bernstein("run", "plan.yaml", env={"BERNSTEIN_REPLAY_RUN_ID": run.run_id})
    assert replayed.returncode == 130, replayed.stderr
    assert "replay identical" in replayed.stderr


def test_a_variable_that_means_nothing_is_named() -> None:
    done = bernstein("runs", env={"BERNSTEIN_REPLAY_RUNID": "x"})
    assert "did you mean BERNSTEIN_REPLAY_RUN_ID?" in done.stderr


def test_show_answers_prints_what_was_asked_and_said() -> None:
    run_id = record()
    done = bernstein("show", run_id, "--answers")
    assert "Write the whole content of the file x.txt" in done.stdout
    assert "-- answer\nanswer" in done.stdout


def test_show_does_not_show_what_does_not_hold() -> None:
    run_id = record()
    journal = Path(".sdd/runs") / run_id / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b"stepId", b"stepIx", 1))
    done = bernstein("show", run_id)
    assert done.returncode == 1
    assert "row 1 (payload)" in done.stderr


def _artifact() -> bool:
    return any(
        b"a/x/t1" in path.read_bytes() and b"step.finished" in path.read_bytes()
        for path in Path(".sdd").glob("runs/*/journal.jsonl")
    )


def _wait_for(condition: object) -> list[object]:
    assert callable(condition)
    for _ in range(600):
        if found := condition():
            time.sleep(0.2)
            return list(found)
        time.sleep(0.05)
    raise AssertionError("it did not come")


def test_a_closed_pipe_is_no_fault(tmp_path: Path) -> None:
    record()
    done = subprocess.run(
        f"{sys.executable} -m bernstein show latest | true",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "fault of bernstein" not in done.stderr


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        target = Path("/proc/nowhere")
    else:
        target = tmp_path / "closed"
        target.mkdir(mode=0o500)
    done = bernstein(
        "--sdd", str(target / "sdd"), "run", "plan.yaml", "--model", "scripted:answers.yaml"
    )
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert str(target) in done.stderr
