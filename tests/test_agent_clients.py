"""Claude Code and Codex as the agents of a plan: side by side, compacting, and asked not to."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.clients import client, run_client
from tests.helpers import events, rows, verify
from tests.plans import (
    SSE,
    all_answers,
    folder_of,
    plan_of,
    pointed_at,
    with_clients,
)
from tests.test_agents import agents_of, start, wait_until
from tests.test_codex import responses
from tests.test_gemini import gemini_answers, turns_in
from tests.test_isolate import isolates
from tests.upstream import Reply, messages, serving

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping

    from bernstein.rundir import RunDir, SddDir

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(600)]

CLAUDE = "{title: by claude, cli: claude, model: claude-sonnet-4-5}"
CODEX = "{title: by codex, cli: codex, model: standin-1}"
GEMINI = "{title: by gemini, cli: gemini, model: gemini-2.5-flash}"
HAND = '{title: by hand, model: "openai:gpt-4o", files: [built.txt], complexity: low}'


def run(
    sdd: SddDir, plan: str, folder: Path, env: Mapping[str, str], *options: str
) -> subprocess.CompletedProcess[str]:
    (folder / "plan.yaml").write_text(plan)
    return run_client(sdd, "run", "plan.yaml", "-q", *options, cwd=folder, env=env)


def replay(
    sdd: SddDir, source: RunDir, plan: str, folder: Path, *options: str
) -> subprocess.CompletedProcess[str]:
    env = {**with_clients(), "BERNSTEIN_REPLAY_RUN_ID": source.run_id}
    return run(sdd, plan, folder, env, *options)


def made(run_dir: RunDir) -> dict[str, str]:
    root = run_dir.workspace
    return {str(p.relative_to(root)): p.read_text() for p in root.rglob("*.txt")}


def mutations(run_dir: RunDir) -> list[tuple[str, str]]:
    """Kind and lane of each change of a context."""
    found = events(run_dir, "provider_state_mutation")
    return [(row["payload"]["kind"], row["lane"]) for row in found]


def sight(run_dir: RunDir, provider: str) -> dict[str, str]:
    """How each kind could be seen, as the run says of a provider or client."""
    (row,) = (
        row["payload"]
        for row in events(run_dir, "provider_state_capability")
        if row["payload"]["provider"] == provider
    )
    return {kind: at["value"] for kind, at in row["kinds"].items()}


@isolates
def test_claude_codex_and_the_builtin_agent_replay_isolated_row_by_row(
    sdd: SddDir, tmp_path: Path
) -> None:
    client("claude")
    client("codex")
    work, plan = tmp_path / "work", plan_of(CLAUDE, CODEX, HAND, max_agents=3)
    (work / "README.md").write_text("hello\n")
    with serving(all_answers) as upstream:
        seeded = pointed_at(upstream, BERNSTEIN_DETERMINISTIC_SEED="42")
        done = run(sdd, plan, work, seeded)
    assert done.returncode == 0, done.stderr
    source = sdd.find_run("latest")
    assert verify(sdd, source).verdict == "verified"
    files = made(source)
    assert files == {
        "built.txt": "built\n",
        "made/claude.txt": "by claude\n",
        "made/codex.txt": "by codex\n",
    }
    for options in (["--isolate"], ["--isolate"], []):
        again = replay(sdd, source, plan, work, *options)
        assert again.returncode == 0, again.stderr
        assert "misses=0 strict_violations=0 unused=0" in again.stderr
        assert "replay identical" in again.stderr
        assert made(sdd.list_runs()[-1]) == files
    tools = [row["payload"]["name"] for row in events(source, "tool.proposed")]
    assert sorted(tools) == [
        *("Bash", "Bash", "Read", "Write"),
        *("command_execution", "command_execution"),
    ]


def in_its_folder(path: str, body: dict[str, Any], number: int) -> Reply:
    """What Gemini answers a client that says in which folder it works."""
    if "contents" not in body:
        return Reply([b"{}"])
    answer = gemini_answers(turns_in(Path(folder_of(body))), 0.1)
    return answer(path, body, number)


@pytest.mark.parametrize("options", [[], pytest.param(["--isolate"], marks=isolates)])
def test_a_plan_with_gemini_replays_identically(
    sdd: SddDir, tmp_path: Path, options: list[str]
) -> None:
    client("gemini")
    work, plan = tmp_path / "work", plan_of(GEMINI)
    (work / "README.md").write_text("hello\n")
    with serving(in_its_folder) as upstream:
        done = run(sdd, plan, work, pointed_at(upstream))
    assert done.returncode == 0, done.stderr
    source = sdd.find_run("latest")
    assert verify(sdd, source).verdict == "verified"
    assert made(source) == {"made/out.txt": "made\n"}
    for _ in range(2):
        again = replay(sdd, source, plan, work, *options)
        assert again.returncode == 0, again.stderr
        assert "misses=0 strict_violations=0 unused=0" in again.stderr
        assert "replay identical" in again.stderr
        assert made(sdd.list_runs()[-1]) == made(source)
    tools = [row["payload"]["name"] for row in events(source, "tool.proposed")]
    assert sorted(tools) == [
        *("invoke_agent", "invoke_agent", "read_file"),
        *("run_shell_command", "run_shell_command", "run_shell_command", "write_file"),
    ]


def compacting(path: str, body: dict[str, Any], number: int) -> Reply:
    """A provider that finds the conversation too long, until it is summed up."""
    if "count_tokens" in path or "messages" not in body:
        return Reply([b'{"input_tokens": 7}'])
    whole, last = json.dumps(body["messages"]), json.dumps(body["messages"][-1])
    turn = sum(message["role"] == "assistant" for message in body["messages"])
    if "SUMMED UP" in whole:
        return Reply(messages({"text": "All of it is done."}, salt=number), kind=SSE)
    if "detailed summary" in last:
        text = "<summary>SUMMED UP: the folder was looked at</summary>"
        return Reply(messages({"text": text}, salt=number), kind=SSE)
    if turn < 3:
        look = {"tool": "Bash", "input": {"command": f"echo {turn}; printf 'x%.0s' $(seq 3000)"}}
        return Reply(messages({"text": "I look."}, look, stop="tool_use", salt=number), kind=SSE)
    too_long = "prompt is too long: 208214 tokens > 200000 maximum"
    error = {"type": "invalid_request_error", "message": too_long}
    return Reply([json.dumps({"type": "error", "error": error}).encode()], status=400)


def test_a_compaction_of_claude_code_is_seen_in_its_stream_and_in_its_history(
    sdd: SddDir, tmp_path: Path
) -> None:
    client("claude")
    work, plan = tmp_path / "work", plan_of(CLAUDE)
    with serving(compacting) as upstream:
        done = run(sdd, plan, work, pointed_at(upstream))
    assert done.returncode == 0, done.stderr
    source = sdd.find_run("latest")
    assert mutations(source) == [
        ("compaction", "s/by-claude/t1/lane-1"),
        ("compaction", "s/by-claude/t1"),
    ]
    by_stream = events(source, "provider_state_mutation")[1]["payload"]
    assert by_stream["before_digest"] is not None
    assert by_stream["tokens"].keys() >= {"before", "after"}
    assert by_stream["flagged"] is False
    (session,) = sdd.provider_state.glob("*.jsonl")
    (said,) = rows(session)
    assert said["event"]["compact_metadata"]["trigger"] == "auto"
    assert session.stem == said["event"]["session_id"]
    assert verify(sdd, source).verdict == "verified"
    assert sight(source, "client/claude")["compaction"] == "observed"
    assert sight(source, "client/claude")["microcompaction"] == "declared-blind"
    again = replay(sdd, source, plan, work)
    assert again.returncode == 0, again.stderr
    assert "replay identical" in again.stderr


def test_with_a_seed_claude_code_is_asked_not_to_compact_and_its_failure_is_called_that(
    sdd: SddDir, tmp_path: Path
) -> None:
    client("claude")
    work, plan = tmp_path / "work", plan_of(CLAUDE)
    with serving(compacting) as upstream:
        done = run(sdd, plan, work, pointed_at(upstream, BERNSTEIN_DETERMINISTIC_SEED="7"))
    assert done.returncode == 1
    assert "its context is full and the run's seed asks it not to compact" in done.stderr
    source = sdd.find_run("latest")
    assert mutations(source) == []
    assert events(source, "agent.finished")[0]["payload"]["outcome"] == "context_exhausted"
    codes = {row["payload"].get("errorCode") for row in events(source, "step.finished")}
    assert codes == {"context_exhausted"}
    assert source.read_info()["agents"]["s/by-claude/t1"]["compaction"] == {
        "suppresses": True,
        "switches": {"DISABLE_AUTO_COMPACT": "1"},
    }
    again = replay(sdd, source, plan, work)
    assert again.returncode == 1, again.stderr
    assert "replay identical" in again.stderr


def in_mid_tool(path: str, body: dict[str, Any], number: int) -> Reply:
    """Two commands at once, of which one does not end."""
    if "count_tokens" in path or "messages" not in body:
        return Reply([b'{"input_tokens": 7}'])
    commands = ("echo begun", "touch in_mid_tool; sleep 60")
    tools = [{"tool": "Bash", "input": {"command": command}} for command in commands]
    return Reply(messages(*tools, stop="tool_use", salt=number), kind=SSE)


@pytest.mark.parametrize("whom", ["the run", "the client", "the client, asked"])
def test_claude_code_ended_in_mid_tool_is_ended_alike_in_a_replay(
    sdd: SddDir, tmp_path: Path, whom: str
) -> None:
    client("claude")
    title = f"ended by {os.getpid()}"  # is in no other process
    work, plan = tmp_path / "work", plan_of(CLAUDE.replace("by claude", title))
    with serving(in_mid_tool) as upstream:
        process = start(sdd, plan, work, pointed_at(upstream))
        wait_until(lambda: any(sdd.runs.glob("*/agents/*/workspace/in_mid_tool")))
        time.sleep(0.5)  # for what it prints of the command that ended
        if whom == "the run":
            process.send_signal(signal.SIGTERM)
        else:
            for pid in agents_of(f"Step: {title}"):
                os.kill(pid, signal.SIGTERM if "asked" in whom else signal.SIGKILL)
        code = process.wait(60)
    assert code == (143 if whom == "the run" else 1)
    source = sdd.find_run("latest")
    assert len(events(source, "tool.proposed")) == 2
    # One that is asked to end says of the open tool that it was broken off.
    assert len(events(source, "tool.result")) == (2 if "asked" in whom else 1)
    for _ in range(3):
        again = replay(sdd, source, plan, work)
        assert again.returncode == code, again.stderr
        assert "replay identical" in again.stderr


FULL = 250_000  # tokens: beyond nine tenths of the window that Codex takes for granted


def summed_up(path: str, body: dict[str, Any], number: int) -> Reply:
    """Answers that report a full window, to a client that is told of a small one."""
    if not path.endswith("/responses"):
        return Reply([b"{}"])
    if not body.get("tools"):
        return Reply(responses({"text": "The folder was looked at."}, salt=number), kind=SSE)
    turn = sum(item.get("type") == "function_call_output" for item in body["input"])
    if turn == 0 and "was looked at" not in json.dumps(body["input"]):
        shell = {"name": "exec_command", "arguments": json.dumps({"cmd": "ls"})}
        pieces = responses({"text": "I look."}, shell, salt=number)
        # What fills the window is told by the provider.
        full = b'"input_tokens": %d, "output_tokens": 9, "total_tokens": %d' % (FULL, FULL + 9)
        was = b'"input_tokens": 90, "output_tokens": 9, "total_tokens": 99'
        return Reply([piece.replace(was, full) for piece in pieces], kind=SSE)
    return Reply(responses({"text": "All of it is done."}, salt=number), kind=SSE)


@pytest.mark.parametrize("seed", [None, "7"])
def test_a_compaction_of_codex_is_seen_at_the_wire_alone_and_with_a_seed_it_is_flagged(
    sdd: SddDir, tmp_path: Path, seed: str | None
) -> None:
    client("codex")
    seeded = {"BERNSTEIN_DETERMINISTIC_SEED": seed} if seed else {}
    with serving(summed_up) as upstream:
        done = run(sdd, plan_of(CODEX), tmp_path / "work", pointed_at(upstream, **seeded))
    assert done.returncode == 0, done.stderr
    source = sdd.find_run("latest")
    assert mutations(source) == [("compaction", "s/by-codex/t1/lane-1")]
    assert sight(source, "client/codex")["compaction"] == "declared-blind"
    assert sight(source, "openai")["compaction"] == "observed"
    (row,) = events(source, "provider_state_mutation")
    # It is asked not to, and does: its limit holds only within its window.
    assert row["payload"]["flagged"] is (seed is not None)
    check = run_client(sdd, "replay", source.run_id, "--verify", cwd=tmp_path)
    assert check.returncode == (1 if seed else 0)
    assert check.stdout.startswith("flagged" if seed else "verified")
    assert seed is None or f"row {row['index']}" in check.stdout
    again = replay(sdd, source, plan_of(CODEX), tmp_path / "work")
    assert again.returncode == 0, again.stderr
    assert "replay identical" in again.stderr
