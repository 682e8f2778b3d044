"""Steps that the built-in agent does with tools: what they may do, what is chained, what replays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bernstein.agents.tools import (
    TOOL_NAMES,
    ToolError,
    checked_arguments,
    describe_tool,
    parse_arguments,
    run_file_tool,
)
from bernstein.canonical import digest_of
from bernstein.capture.models.registry import close_providers
from bernstein.errors import PlanError
from bernstein.recording.blobs import BlobStore
from bernstein.recording.queue import load_recording
from bernstein.recording.rows import read_prompts
from bernstein.runner.plan_file import parse_plan
from tests.helpers import bernstein, events, no_model, rows, run_plan, script, verify
from tests.plans import pointed_at
from tests.test_isolate import isolates
from tests.upstream import Reply, serving

if TYPE_CHECKING:
    from bernstein.rundir import RunDir, SddDir
    from bernstein.runner.report import RunReport

ALL = ", ".join(TOOL_NAMES)


def plan_with(*, tools: str = ALL, more: str = "") -> str:
    """A plan with one step that has tools."""
    return (
        "name: P\nstages:\n  - name: s\n    steps:\n"
        f"      - {{title: Work, tools: [{tools}]{more}}}\n"
    )


def call(name: str, **arguments: Any) -> dict[str, str]:
    """A call of a tool, as a script answers with it."""
    return {"name": name, "args": json.dumps(arguments)}


def turns(*answers: list[dict[str, str]], last: str = "all is done") -> None:
    """Let the model ask for these tools, one list a turn, then say that it is done."""
    count = 0
    rules = []
    for answer in answers:
        before = f'"tool_call_id":"call-{count}"' if count else ""
        rules.append({"match": before, "text": f"turn {count}", "tool_calls": answer})
        count += len(answer)
    rules.append({"match": f'"tool_call_id":"call-{count}"', "text": last})
    script(*reversed(rules))


def told(run: RunDir) -> list[str]:
    """What the model was told of its tools, from its last request."""
    recorded = load_recording(run.llm_calls).rows
    *_, (_, last) = read_prompts(recorded, BlobStore(run.path.parents[1] / "blobs" / "sha256"))
    request = json.loads(last.split("\n", 1)[1])
    return [m["content"] for m in request["messages"] if m["role"] == "tool"]


def written(report: RunReport) -> dict[str, str]:
    return {path: (report.workspace / path).read_text() for path in report.artifacts}


def replayed(sdd: SddDir, report: RunReport, plan: str, **options: Any) -> RunReport:
    no_model()
    again = run_plan(plan, sdd, replay=report.run_id, **options)
    assert again.comparison is not None
    return again


# --- a whole step


def test_a_step_is_done_with_tools_and_replays_without_running_one(sdd: SddDir) -> None:
    Path("seed.txt").write_text("one\ntwo\n")
    plan = plan_with()
    command = "date +%s%N > stamp.txt; cat a.txt; rm seed.txt"
    turns(
        [call("list_files"), call("read_file", path="seed.txt", first_line=2)],
        [call("write_file", path="new/a.txt", content="hi\n"), call("search_files", text="tw")],
        [call("edit_file", path="new/a.txt", old="hi", new="ho")],
        [call("run_command", command=f"cd new && {command.replace('rm ', 'rm ../')}")],
    )
    report = run_plan(plan, sdd)
    assert report.status == "completed", report.failures
    run = sdd.run(report.run_id)
    assert told(run) == [
        "seed.txt",
        "two\n",
        "new/a.txt is written",
        "seed.txt:2:two",
        "new/a.txt is written",
        "exit code 0\nho\n",
    ]
    assert written(report).keys() == {"new/a.txt", "new/stamp.txt"}
    assert written(report)["new/a.txt"] == "ho\n"
    assert events(run, "artifact.removed")[0]["payload"]["path"] == "seed.txt"
    assert verify(sdd, run).verdict == "verified"
    again = replayed(sdd, report, plan)
    assert again.comparison.relation == "identical"
    assert written(again) == written(report)  # the time of the recording, so nothing ran
    assert again.head == report.head


def test_the_rows_of_a_call_are_proposed_approved_started_and_the_result(sdd: SddDir) -> None:
    turns([call("write_file", path="a", content="x"), call("run_command", command="exit 3")])
    report = run_plan(plan_with(), sdd)
    run = sdd.run(report.run_id)
    seen = [
        (row["event"], row["payload"]["toolCallId"], row["lane"])
        for row in events(run)
        if row["event"].startswith("tool.")
    ]
    lane = "s/work/t1"
    one, two = (f"{lane}/c{n}" for n in (1, 2))
    assert seen == [
        ("tool.proposed", one, lane),
        ("tool.proposed", two, lane),
        *((f"tool.{name}", one, lane) for name in ("approved", "started", "result")),
        *((f"tool.{name}", two, lane) for name in ("approved", "started", "result")),
    ]
    first, second = (row["payload"] for row in events(run, "tool.result"))
    assert (first["ok"], "exitCode" in first) == (True, False)
    assert (second["ok"], second["exitCode"]) == (False, 3)
    fixtures = rows(run.fixtures)
    assert [row["kind"] for row in fixtures] == ["step_tool", "step_tool"]
    assert first["result"]["digest"] == digest_of(fixtures[0]["response"]).digest
    assert {row["payload"]["actor"] for row in events(run, "tool.approved")} == {"policy"}


def test_a_changed_recorded_result_is_found(sdd: SddDir) -> None:
    turns([call("run_command", command="echo hello")])
    run = sdd.run(run_plan(plan_with(), sdd).run_id)
    run.seal.unlink()
    sdd.spine.unlink()
    assert verify(sdd, run).verdict == "prefix"
    run.fixtures.write_bytes(run.fixtures.read_bytes().replace(b"hello", b"hellx"))
    assert (verify(sdd, run).verdict, verify(sdd, run).reason) == ("mismatch", "recording")


def test_tools_that_run_again_are_compared(sdd: SddDir) -> None:
    plan = plan_with()
    turns([call("run_command", command="echo same; echo x > a.txt")])
    report = run_plan(plan, sdd)
    again = replayed(sdd, report, plan, tools="rerun")
    assert (again.comparison.relation, again.notes) == ("identical", [])
    turns([call("run_command", command="date +%N; echo x > a.txt")])
    report = run_plan(plan, sdd)
    again = replayed(sdd, report, plan, tools="rerun")
    assert (again.comparison.relation, again.exit_code) == ("diverged", 1)
    assert again.notes == ["s/work/t1/c1 gave another result when it ran again"]
    (row,) = events(sdd.run(again.run_id), "tool.result")
    assert again.comparison.step_index == row["index"]
    assert replayed(sdd, report, plan).comparison.relation == "identical"


# --- what is not let run


def test_a_tool_that_the_step_does_not_have_is_denied_and_its_name_is_nowhere(sdd: SddDir) -> None:
    made_up = "zyzzyva"
    turns([call("run_command", command="touch ran"), call(made_up)])
    report = run_plan(plan_with(tools="read_file"), sdd)
    run = sdd.run(report.run_id)
    assert told(run) == ["there is no such tool; there are read_file"] * 2
    denied = [row["payload"] for row in events(run, "tool.denied")]
    assert [(p["actor"], p["reason"]) for p in denied] == [("policy", "not_allowed")] * 2
    names = [row["payload"]["name"] for row in events(run, "tool.proposed")]
    assert names == ["run_command", "unknown"]
    assert made_up.encode() not in run.journal.read_bytes()
    assert not events(run, "tool.result")
    assert report.artifacts == {}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("{", "the arguments are no JSON object"),
        ("[]", "the arguments are no JSON object"),
        ('{"path": "a"}', "write_file needs content, a string"),
        ('{"path": "a", "content": 1}', "write_file needs content, a string"),
        ('{"path": "a", "content": "x", "mode": 7}', "write_file has no 'mode'"),
        ('{"path": "../a", "content": "x"}', "'../a' is not a path inside the folder"),
        ('{"path": "/tmp/a", "content": "x"}', "'/tmp/a' is not a path inside the folder"),
        ('{"path": "link/a", "content": "x"}', "'link/a' goes through a symbolic link"),
        ('{"path": ".git/config", "content": "x"}', ".git/config lies in a folder"),
        ('{"path": "x/.SDD/a", "content": "x"}', "x/.SDD/a lies in a folder"),
        ('{"path": "folder", "content": "x"}', "folder: Is a directory"),
    ],
)
def test_what_a_tool_cannot_do_is_told_to_the_model(
    sdd: SddDir, tmp_path: Path, arguments: str, why: str
) -> None:
    Path("folder").mkdir()
    Path("folder/in").touch()
    Path("link").symlink_to(tmp_path)
    turns([{"name": "write_file", "args": arguments}])
    report = run_plan(plan_with(), sdd)
    run = sdd.run(report.run_id)
    assert report.status == "completed"
    assert told(run)[0].startswith(why)
    (row,) = events(run, "tool.result")
    assert row["payload"]["ok"] is False
    assert report.artifacts == {}


def test_a_pipe_is_not_written_into(sdd: SddDir) -> None:
    turns(
        [call("run_command", command="mkfifo p")],
        [call("write_file", path="p", content="x"), call("read_file", path="p")],
    )
    run = sdd.run(run_plan(plan_with(), sdd).run_id)
    assert told(run)[1:] == ["p is no file", "p: there is no such file"]


def test_a_model_that_never_ends_is_stopped(sdd: SddDir) -> None:
    script({"text": "more", "tool_calls": [call("list_files")]})
    plan = plan_with(more=", max_turns: 3, retries: 2")
    report = run_plan(plan, sdd)
    assert [code for *_, code in report.steps] == ["budget_exceeded"]
    run = sdd.run(report.run_id)
    assert len(events(run, "model.call")) == len(events(run, "tool.result")) == 3
    assert replayed(sdd, report, plan).comparison.relation == "identical"


def test_a_step_that_does_not_write_its_file_is_tried_again_in_a_fresh_copy(sdd: SddDir) -> None:
    wrote = [call("write_file", path="other.txt", content="x")]
    script(
        {"match": "did not write.*tool_call_id", "text": "done"},
        {"match": "did not write", "text": "", "tool_calls": [call("list_files")], "times": 1},
        {"match": "tool_call_id", "text": "done"},
        {"text": "", "tool_calls": wrote},
    )
    plan = plan_with(more=", files: [a.txt], retries: 1")
    report = run_plan(plan, sdd)
    assert report.failures == ["s/work/t1: bad_answer: the model did not write a.txt"]
    assert told(sdd.run(report.run_id)) == ["there are no such files"]
    assert replayed(sdd, report, plan).comparison.relation == "identical"


# --- commands


def test_a_command_has_no_key_and_names_no_path_of_this_machine(
    sdd: SddDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "BERNSTEIN_KEYS_DIR"):
        monkeypatch.setenv(name, "do-not-tell")
    turns([call("run_command", command="pwd; echo $HOME $TMPDIR; env")])
    report = run_plan(plan_with(), sdd)
    (said,) = told(sdd.run(report.run_id))
    assert said.startswith("exit code 0\n.\n~ $TMPDIR\n")
    assert "do-not-tell" not in said
    assert str(Path.cwd()) not in said
    assert "BERNSTEIN_INSIDE_RUN=1\n" in said
    assert report.run_id not in said


def test_a_command_ends_with_all_that_it_started(sdd: SddDir) -> None:
    slow = "(sleep 3; touch late.txt) & sleep 60"
    by_itself = call("run_command", command="exit 124")
    timed = call("run_command", command=slow, timeout_s=1)
    turns([timed, call("run_command", command="ls"), by_itself])
    report = run_plan(plan_with(), sdd)
    first, second, third = told(sdd.run(report.run_id))
    assert third == "exit code 124\n"
    assert first == "exit code 124\n\n[ended after 1 s]"
    assert second == "exit code 0\n"


def test_the_middle_of_a_long_output_is_left_out(sdd: SddDir) -> None:
    turns([call("run_command", command="seq 1 20000")])
    report = run_plan(plan_with(), sdd)
    (said,) = told(sdd.run(report.run_id))
    assert len(said) < 17_000
    assert said.startswith("exit code 0\n1\n2\n")
    assert said.endswith("19999\n20000\n")
    assert "bytes are left out]" in said


@pytest.mark.skipif(not isolates(), reason="no namespaces here")
def test_an_isolated_command_has_no_network_and_its_folders_at_fixed_places(sdd: SddDir) -> None:
    Path("plan.yaml").write_text(plan_with())
    command = "pwd; cut -sd: -f1 /proc/net/dev | tr -d ' '; ls -A $SDD"
    rules = [
        {"match": "tool_call_id", "text": "done"},
        {"tool_calls": [call("run_command", command=command.replace("$SDD", str(sdd.path)))]},
    ]
    Path("answers.yaml").write_text(json.dumps({"answers": rules}))
    done = bernstein("run", "plan.yaml", "--isolate", "--model", "scripted:answers.yaml", "-q")
    assert done.returncode == 0, done.stderr
    assert told(sdd.find_run("latest")) == ["exit code 0\n.\nlo\n"]


def test_a_recording_of_more_files_than_are_kept_asks_for_tools_to_run_again(
    sdd: SddDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bernstein.runner.tool_results.MAX_CHANGED_BYTES", 100)
    plan = plan_with()
    turns([call("run_command", command="seq 1 100 > big.txt")])
    report = run_plan(plan, sdd)
    assert report.status == "completed"
    again = run_plan(plan, sdd, replay=report.run_id)
    assert any("--tools rerun" in failure for failure in again.failures)
    assert replayed(sdd, report, plan, tools="rerun").comparison.relation == "identical"


# --- models


@pytest.mark.usefixtures("embedded_model")
def test_the_embedded_model_is_told_of_tools_in_words(sdd: SddDir) -> None:
    plan = plan_with(tools="list_files, write_file", more=", max_turns: 3, temperature: 0")
    report = run_plan(plan, sdd, model="local")
    run = sdd.run(report.run_id)
    codes = {code for *_, code in report.steps}
    assert codes <= {None, "budget_exceeded", "bad_answer"}
    assert events(run, "tool.proposed")
    assert replayed(sdd, report, plan).comparison.relation == "identical"


# --- plans


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (", tools: [run]", "run_command"),
        (", approve: [run_command]", "name it in `tools:` too"),
        (", tools: [read_file], cli: claude", "is for the built-in agent"),
        (", max_turns: 0", "max_turns"),
    ],
)
def test_tools_that_a_plan_cannot_have_are_refused(more: str, why: str) -> None:
    text = f"name: P\nstages: [{{name: s, steps: [{{title: W{more}}}]}}]\n"
    with pytest.raises(PlanError) as error:
        parse_plan(text.encode(), "plan.yaml")
    assert why in str(error.value)


def test_tools_of_the_whole_plan_hold_for_the_built_in_agent_alone() -> None:
    text = (
        "name: P\ntools: [run_command, read_file]\napprove: [run_command]\n"
        "stages: [{name: s, steps: [{title: A}, {title: B, cli: codex}, {title: C, tools: []}]}]\n"
    )
    a, b, c = parse_plan(text.replace(", tools: []", "").encode(), "plan.yaml").steps
    assert a.tools == c.tools == ("read_file", "run_command")
    assert (a.approve, b.tools, b.approve) == (("run_command",), (), ())


# --- the file tools


def test_what_models_are_told_of_the_tools_is_part_of_the_key() -> None:
    described = [describe_tool(name) for name in TOOL_NAMES]
    known = "5946b35c"  # a change makes every recording of a step with tools miss
    assert digest_of(described).digest.startswith(known)


@pytest.mark.parametrize(
    ("name", "arguments", "gives"),
    [
        ("list_files", {}, "a.py\nd/b.py\nd/c.txt"),
        ("list_files", {"path": "d"}, "d/b.py\nd/c.txt"),
        ("list_files", {"pattern": "*.py"}, "a.py\nd/b.py"),
        ("list_files", {"pattern": "*.md"}, "there are no such files"),
        ("list_files", {"pattern": ".py"}, "there are no such files"),
        ("list_files", {"pattern": "d/*"}, "d/b.py\nd/c.txt"),
        ("read_file", {"path": "a.py", "first_line": 2, "last_line": 2}, "two\n"),
        ("search_files", {"text": "two"}, "a.py:2:two\nd/c.txt:1:two"),
        ("search_files", {"text": "two", "path": "d/"}, "d/c.txt:1:two"),
        ("search_files", {"text": "t.o"}, "there is no such line"),
    ],
)
def test_what_file_tools_give(
    tmp_path: Path, name: str, arguments: dict[str, Any], gives: str
) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "a.py").write_text("one\ntwo\nthree\n")
    (tmp_path / "d" / "b.py").write_bytes(b"\xff two")
    (tmp_path / "d" / "c.txt").write_text("two")
    checked = checked_arguments(name, arguments)
    assert run_file_tool(name, checked, tmp_path).text == gives


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("read_file", {"path": "b"}, "it is not a text file"),
        ("read_file", {"path": "none"}, "there is no such file"),
        ("list_files", {"path": "none"}, "there is no such folder"),
        ("edit_file", {"path": "a", "old": "x", "new": "y"}, "stands in a 2 times"),
        ("edit_file", {"path": "a", "old": "", "new": "y"}, "stands in a 0 times"),
    ],
)
def test_what_file_tools_refuse(
    tmp_path: Path, name: str, arguments: dict[str, Any], why: str
) -> None:
    (tmp_path / "a").write_text("x x")
    (tmp_path / "b").write_bytes(b"\xff")
    with pytest.raises(ToolError) as error:
        run_file_tool(name, checked_arguments(name, arguments), tmp_path)
    assert why in str(error.value)


def test_arguments_are_read_strictly() -> None:
    assert parse_arguments("") == {}
    assert parse_arguments('{"a": 1, "a": 2}') is None
    assert parse_arguments("nan") is None


def asks_for_two(path: str, body: dict[str, Any], number: int) -> Reply:
    """Two tools at once, of whichever provider is asked; then, once both came back, an end."""
    asked = [("write_file", {"path": f"{n}.txt", "content": n}) for n in ("a", "b")]
    is_back = "is written" in json.dumps(body)
    if path.endswith("/chat/completions"):
        assert not is_back or [m["tool_call_id"] for m in body["messages"][-2:]]
        calls = [
            {"id": f"x{n}", "type": "function", "function": {"name": t, "arguments": json.dumps(a)}}
            for n, (t, a) in enumerate(asked)
        ]
        said = {"content": "done"} if is_back else {"content": None, "tool_calls": calls}
        end = "stop" if is_back else "tool_calls"
        choice = {"index": 0, "finish_reason": end, "message": {"role": "assistant", **said}}
        base = {"id": "c", "object": "chat.completion", "created": number, "model": body["model"]}
        return json_reply({**base, "choices": [choice], "usage": None})
    if path.endswith("/messages"):
        blocks = [
            {"type": "tool_use", "id": f"x{n}", "name": t, "input": a}
            for n, (t, a) in enumerate(asked)
        ]
        content = [{"type": "text", "text": "done"}] if is_back else blocks
        usage = {"input_tokens": 1, "output_tokens": 1}
        base = {"id": "m", "type": "message", "role": "assistant", "model": body["model"]}
        end = "end_turn" if is_back else "tool_use"
        return json_reply({**base, "content": content, "stop_reason": end, "usage": usage})
    parts = [{"functionCall": {"name": t, "args": a}} for t, a in asked]
    content = {"role": "model", "parts": [{"text": "done"}] if is_back else parts}
    return json_reply({"candidates": [{"content": content, "finishReason": "STOP"}]})


def json_reply(value: dict[str, Any]) -> Reply:
    return Reply([json.dumps(value).encode()])


@pytest.mark.loopback
@pytest.mark.parametrize("model", ["openai:gpt-5", "anthropic:claude-x", "google:gemini-x"])
def test_a_provider_that_asks_for_two_tools_at_once(
    sdd: SddDir, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    plan = plan_with(more=", files: [a.txt, b.txt]")
    with serving(asks_for_two) as upstream:
        for name, value in pointed_at(upstream).items():
            monkeypatch.setenv(name, value)
        close_providers()
        report = run_plan(plan, sdd, model=model)
        close_providers()
    assert report.status == "completed", report.failures
    assert written(report) == {"a.txt": "a", "b.txt": "b"}
    assert len(upstream.seen) == 2
    ids = [row["payload"]["toolCallId"] for row in events(sdd.run(report.run_id), "tool.result")]
    assert ids == ["s/work/t1/c1", "s/work/t1/c2"]
    assert replayed(sdd, report, plan).comparison.relation == "identical"


def test_the_budget_holds_between_two_turns(sdd: SddDir) -> None:
    script(
        {"text": "more", "tool_calls": [call("list_files")], "usage": {"input": 1, "credits": 7}}
    )
    plan = "budget: 0.000010\n" + plan_with(more=", max_turns: 9")
    report = run_plan(plan, sdd)
    assert [code for *_, code in report.steps] == ["budget_exceeded"]
    assert len(events(sdd.run(report.run_id), "model.call")) == 2
    assert replayed(sdd, report, plan).comparison.relation == "identical"


def test_steps_with_tools_work_side_by_side_and_replay(sdd: SddDir) -> None:
    rules: list[dict[str, Any]] = []
    for name in "abcd":
        command = call("run_command", command=f"echo {name} > {name}.txt; sleep 0.0$((RANDOM % 9))")
        rules.append({"match": f'"Task: {name}.*call-2', "text": "done"})
        second = [call("read_file", path=f"{name}.txt")]
        rules.append({"match": f'"Task: {name}.*call-1', "text": "", "tool_calls": second})
        rules.append({"match": f'"Task: {name}', "text": "", "tool_calls": [command]})
    script(*rules)
    steps = "".join(f"      - {{title: {name}, tools: [{ALL}]}}\n" for name in "abcd")
    plan = f"name: P\nstages:\n  - name: s\n    steps:\n{steps}"
    report = run_plan(plan, sdd)
    assert report.status == "completed", report.failures
    for _ in range(5):
        again = replayed(sdd, report, plan)
        assert again.comparison.relation == "identical"
        assert written(again) == written(report) == {f"{n}.txt": f"{n}\n" for n in "abcd"}


def test_steps_that_change_one_file_at_the_same_time_do_not_both_win(sdd: SddDir) -> None:
    rules: list[dict[str, Any]] = []
    for name in "ab":
        write = call("write_file", path="one.txt", content=name)
        rules.append({"match": f'"Task: {name}.*call-1', "text": "done", "delay_s": 0.2})
        rules.append({"match": f'"Task: {name}', "text": "", "tool_calls": [write]})
    script(*rules)
    steps = "".join(f"      - {{title: {name}, tools: [{ALL}]}}\n" for name in "ab")
    report = run_plan(f"name: P\nstages:\n  - name: s\n    steps:\n{steps}", sdd)
    assert sorted(str(code) for *_, code in report.steps) == ["None", "file_refused"]


@pytest.mark.parametrize(
    "commands",
    [
        ("rm -r d; echo x > d", "rm d; mkdir d; echo o > d/f"),
        ("mv d e; ln -s e d", "rm d; mv e d"),
        ("rm -r d", "echo x > d", "rm d; mkdir d; echo o > d/f"),
    ],
)
def test_a_folder_that_becomes_a_file_and_back_is_recorded_and_replayed(
    sdd: SddDir, commands: tuple[str, ...]
) -> None:
    Path("d").mkdir()
    Path("d/f").write_text("o\n")
    turns(*([call("run_command", command=command)] for command in commands))
    report = run_plan(plan_with(), sdd)
    assert report.status == "completed", report.failures
    again = replayed(sdd, report, plan_with())
    assert again.comparison.relation == "identical"


def test_patterns_that_a_step_writes_remove_no_file_of_the_folder(sdd: SddDir) -> None:
    Path("old.txt").write_text("one\n")
    turns([call("run_command", command="echo '*.txt' > .bernsteinignore; echo two > old.txt")])
    report = run_plan(plan_with(), sdd)
    assert bernstein("apply", report.run_id).returncode == 0
    assert Path("old.txt").read_text() == "two\n"
