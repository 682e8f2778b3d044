"""Claude Code through the gateway: recorded once, replayed in other surroundings."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.clients import KEY, client, record, replay, run_client, said
from tests.helpers import events, rows
from tests.upstream import Reply, messages, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bernstein.rundir import SddDir

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(600)]

SSE = "text/event-stream"
# How long the tools take is a matter of the environment, so that a replay can have other speeds.
SLOW, FAST = "sleep ${SLOW_S:-0.4} && echo slow", "sleep ${FAST_S:-0} && echo fast"
SESSION = "12345678-1234-4234-8234-123456789abc"

Turns = list[list[dict[str, Any]]]


def command_of(prompt: str, *more: str) -> list[str]:
    return [
        *(client("claude"), "-p", prompt, "--output-format", "stream-json", "--verbose"),
        *("--model", "claude-sonnet-4-5", "--permission-mode", "acceptEdits"),
        *(*more, "--allowedTools", "Bash Write Read Task"),
    ]


def tool(name: str, **arguments: Any) -> dict[str, Any]:
    return {"tool": name, "input": arguments}


def agent(word: str, **more: Any) -> dict[str, Any]:
    prompt = f"Say the word SUB-{word}."
    return tool("Task", description=word, prompt=prompt, subagent_type="general-purpose", **more)


def look_and_write(folder: Path) -> Turns:
    return [
        [{"text": "I look."}, tool("Bash", command="pwd && ls")],
        [tool("Write", file_path=f"{folder}/made/out.txt", content="made\n")],
    ]


def waited_for(folder: Path) -> Turns:
    """Three tools at once, and two sub-agents that are waited for."""
    return [
        *look_and_write(folder),
        [
            tool("Bash", command=SLOW),
            tool("Bash", command=FAST),
            tool("Read", file_path=f"{folder}/made/out.txt"),
        ],
        [agent(word, run_in_background=False) for word in ("ONE", "TWO")],
        [{"text": "All of it is done."}],
    ]


def in_background(folder: Path) -> Turns:
    """Two sub-agents that tell when they are done, while their parent goes on."""
    return [
        *look_and_write(folder),
        [agent("ONE"), agent("TWO")],
        [tool("Bash", command="sleep 1 && echo waited")],
        [{"text": "All of it is done."}],
    ]


def claude_answers(
    turns: Turns, delay_s: float, sub_delay_s: float | None = None
) -> Callable[[str, dict[str, Any], int], Reply]:
    """Answers by content: the turn that follows those in the request, or a sub-agent's word."""

    def answer(path: str, body: dict[str, Any], number: int) -> Reply:
        if "count_tokens" in path or "messages" not in body:
            return Reply([b'{"input_tokens": 7}'])
        said = json.dumps(body["messages"][0])
        for place, word in enumerate(("ONE", "TWO")):
            if f"SUB-{word}" in said:
                after_s = delay_s if sub_delay_s is None else sub_delay_s * (2 - place)
                text = f"the word is {word}"
                return Reply(messages({"text": text}, salt=number), kind=SSE, delay_s=after_s)
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        blocks = turns[min(turn, len(turns) - 1)]
        stop = "tool_use" if any("tool" in block for block in blocks) else "end_turn"
        return Reply(messages(*blocks, stop=stop, salt=number), kind=SSE, delay_s=delay_s)

    return answer


def is_done(stdout: str) -> bool:
    return any(item.get("result") == "All of it is done." for item in said(stdout))


def results(stdout: str, folder: Path) -> list[str]:
    """What tools and agents said, without ids and times, and with the folders as variables."""
    kept = [
        json.dumps(block.get("content", block.get("text")))
        for item in said(stdout)
        if item["type"] in {"assistant", "user"}
        for block in item["message"]["content"]
        if isinstance(block, dict)
    ]
    text = "\n".join(kept).replace(str(folder), "<cwd>")
    for pattern in (r"/\S*/home(?=/)", r"/tmp/bernstein-\w+", r"-[\w-]{40,}", r"[0-9a-f-]{36}"):
        text = re.sub(pattern, "<varies>", text)
    text = re.sub(r"\ba[0-9a-f]{16}\b|duration_ms: \d+", "<varies>", text)
    return sorted(text.splitlines())


@pytest.mark.parametrize(
    ("turns", "delay_s"), [(waited_for, 0.0), (waited_for, 0.3), (in_background, 0.3)]
)
def test_claude_code_replays_in_other_folders_and_at_other_speeds(
    sdd: SddDir, tmp_path: Path, turns: Callable[[Path], Turns], delay_s: float
) -> None:
    command = command_of("make the file")
    there = tmp_path / "recorded here"
    there.mkdir()
    with serving(claude_answers(turns(there), delay_s)) as upstream:
        run, heard = record(sdd, command, there, upstream)
    assert is_done(heard)
    assert len({row["lane"] for row in rows(run.exchanges)}) == 3, "the main agent and two others"
    for folder, options, env in (
        (there, [], {}),
        (tmp_path / "deeper" / "and deeper" / "still", [], {}),
        (tmp_path / "elsewhere", ["--pace", "recorded"], {}),
        (tmp_path / "faster", [], {"SLOW_S": "0", "FAST_S": "0.5"}),
    ):
        again = replay(sdd, run, command, folder, options=options, env=env)
        assert is_done(again)
        assert results(again, folder) == results(heard, there)
    assert not (there / "made").exists()


def compacting(folder: Path) -> Callable[[str, dict[str, Any], int], Reply]:
    """Answers of a provider that finds the conversation too long, until it is summed up."""
    turns = look_and_write(folder)

    def answer(path: str, body: dict[str, Any], number: int) -> Reply:
        whole, last = json.dumps(body["messages"]), json.dumps(body["messages"][-1])
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        if "SUMMED UP" in whole:
            return Reply(messages({"text": "All of it is done."}, salt=number), kind=SSE)
        if "detailed summary" in last:
            text = f"<summary>SUMMED UP: {folder}/made/out.txt is made</summary>"
            return Reply(messages({"text": text}, salt=number), kind=SSE)
        if turn < len(turns):
            return Reply(messages(*turns[turn], stop="tool_use", salt=number), kind=SSE)
        too_long = "prompt is too long: 208214 tokens > 200000 maximum"
        error = {"type": "invalid_request_error", "message": too_long}
        return Reply([json.dumps({"type": "error", "error": error}).encode()], status=400)

    return answer


def test_claude_code_replays_its_compaction_in_another_session_and_folder(
    sdd: SddDir, tmp_path: Path
) -> None:
    there = tmp_path / "recorded here"
    there.mkdir()
    with serving(compacting(there)) as upstream:
        run, heard = record(sdd, command_of("make the file"), there, upstream)
    compactions = [e for e in said(heard) if e.get("subtype") == "compact_boundary"]
    assert [e["compact_metadata"]["trigger"] for e in compactions] == ["auto"]
    assert is_done(heard)
    for folder, more in ((there, ()), (tmp_path / "deeper" / "still", ("--session-id", SESSION))):
        again = replay(sdd, run, command_of("make the file", *more), folder)
        assert is_done(again)
        assert results(again, folder) == results(heard, there)


def test_claude_code_replays_in_another_session_and_forty_days_later(
    sdd: SddDir, tmp_path: Path
) -> None:
    library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
    if library is None:
        pytest.skip("faketime is not installed")
    there = tmp_path / "recorded here"
    there.mkdir()
    with serving(claude_answers(in_background(there), 0.3)) as upstream:
        run, heard = record(sdd, command_of("make the file"), there, upstream)
    # A semaphore of its own would clash between the client and its tools.
    clock = [f"LD_PRELOAD={library}", "FAKETIME=+40d", "FAKETIME_DISABLE_SHM=1"]
    later = ["env", *clock, *command_of("make the file", "--session-id", SESSION)]
    again = replay(sdd, run, later, tmp_path / "elsewhere")
    assert is_done(again)
    assert results(again, tmp_path / "elsewhere") == results(heard, there)
    assert timedelta(39) < begun(again) - begun(heard) < timedelta(41)


def begun(stdout: str) -> datetime:
    stamps = [item["timestamp"] for item in said(stdout) if "timestamp" in item]
    return datetime.fromisoformat(stamps[0])


def hello(path: str, body: dict[str, Any], number: int) -> Reply:
    return Reply(messages({"text": "hello"}), kind=SSE)


def test_claude_code_after_a_miss_ends_and_the_miss_is_told_once_a_lane(
    sdd: SddDir, tmp_path: Path
) -> None:
    command = [client("claude"), "-p", "make the file", "--model", "claude-sonnet-4-5"]
    with serving(hello) as up:
        env = {"ANTHROPIC_BASE_URL": up.base_url, "ANTHROPIC_API_KEY": KEY}
        done = run_client(sdd, "record", "--", *command, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "hello\n"
    command[2] = "make another file"
    done = run_client(sdd, "replay", "latest", "--", *command, cwd=tmp_path)
    assert done.returncode == 3
    assert "replay miss" in done.stdout
    assert "strict_violations=1" in done.stderr
    assert "make another file" in done.stderr
    assert len(events(sdd.list_runs()[-1], "model.call")) >= 1


_SERVER = """
import sys
from bernstein.capture.models.local import LocalProvider
print(LocalProvider("smollm2-135m")._loaded().listening_address, flush=True)
sys.stdin.read()
"""


@contextmanager
def embedded_server() -> Iterator[str]:
    """The embedded model in a process of its own: its address; it is gone behind the block."""
    command = [sys.executable, "-c", _SERVER]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
    finally:
        server.kill()
        server.communicate()


@pytest.mark.usefixtures("embedded_model")
def test_claude_code_and_the_embedded_model_replay_when_the_model_is_gone(
    sdd: SddDir, tmp_path: Path
) -> None:
    prompt = "Name a river and say one thing about it."
    command = [client("claude"), "--bare", "-p", prompt, "--model", "smollm2-135m", "--tools", ""]
    with embedded_server() as address:
        env = {"ANTHROPIC_BASE_URL": address, "ANTHROPIC_API_KEY": KEY}
        done = run_client(sdd, "record", "--", *command, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 10
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for _ in range(2):
        again = run_client(sdd, "replay", "latest", "--", *command, cwd=folder, env=env)
        assert again.returncode == 0, again.stderr
        assert again.stdout == done.stdout
        assert "misses=0 strict_violations=0 unused=0" in again.stderr
        assert "replay identical" in again.stderr
