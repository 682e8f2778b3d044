"""Gemini CLI through the gateway: recorded once, replayed in other surroundings."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from bernstein.rundir import SddDir
from tests.clients import KEY, client, record, replay, run_client, said
from tests.upstream import Reply, event, serving

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(600)]

# How long the tools take is a matter of the environment, so that a replay can have other speeds.
SLOW, FAST = "sleep ${SLOW_S:-0.4} && echo slow", "sleep ${FAST_S:-0} && echo fast"

Turns = list[list[dict[str, Any]]]


def call(name: str, **args: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": args}}


def turns_in(folder: Path) -> Turns:
    return [
        [{"text": "I look."}, call("run_shell_command", command="pwd && ls")],
        [call("write_file", file_path=f"{folder}/made/out.txt", content="made\n")],
        [
            call("run_shell_command", command=SLOW),
            call("run_shell_command", command=FAST),
            call("read_file", file_path=f"{folder}/made/out.txt"),
        ],
        [
            call("invoke_agent", agent_name="generalist", prompt=f"Say the word SUB-{word}.")
            for word in ("ONE", "TWO")
        ],
        [{"text": "All of it is done."}],
    ]


def generated(parts: list[dict[str, Any]], salt: int) -> list[bytes]:
    """An answer of Gemini as a stream, one part an event and texts cut every seven."""
    usage = {"promptTokenCount": 90, "candidatesTokenCount": 9, "totalTokenCount": 99}
    cut: list[dict[str, Any]] = []
    for part in parts:
        text = part.get("text", "")
        cut += [{"text": text[n : n + 7]} for n in range(0, len(text), 7)] or [part]
    out = []
    for place, part in enumerate(cut):
        content = {"role": "model", "parts": [part]}
        end = {"finishReason": "STOP"} if place == len(cut) - 1 else {}
        value = {"candidates": [{"content": content, "index": 0, **end}], "usageMetadata": usage}
        out.append(event({**value, "modelVersion": "m", "responseId": f"answer-{salt}"}))
    return out


def gemini_answers(turns: Turns, delay_s: float) -> Callable[[str, dict[str, Any], int], Reply]:
    """Answers by content: the turn that follows those of the model, or a sub-agent's."""

    def answer(path: str, body: dict[str, Any], number: int) -> Reply:
        turn = sum(content["role"] == "model" for content in body["contents"])
        said = json.dumps([c for c in body["contents"] if c["role"] == "user"][:2])
        parts = turns[min(turn, len(turns) - 1)]
        for word in ("ONE", "TWO"):
            if f"SUB-{word}" in said:
                parts = [call("complete_task", result={"response": f"the word is {word}"})]
        return Reply(generated(parts, number), kind="text/event-stream", delay_s=delay_s)

    return answer


def hello(path: str, body: dict[str, Any], number: int) -> Reply:
    return Reply(generated([{"text": "hello"}], number), kind="text/event-stream")


def command_of(prompt: str) -> list[str]:
    return [
        *(client("gemini"), "-p", prompt, "--output-format", "stream-json"),
        *("--approval-mode", "yolo", "-m", "gemini-2.5-flash"),
    ]


def same(stdout: str, folder: Path) -> list[str]:
    """What was said, without times and ids, and with the folder as a variable."""
    found = re.sub(r'"(?:timestamp|tool_id|session_id)":"[^"]*"|"duration_ms":\d+', "", stdout)
    return found.replace(str(folder), "<cwd>").splitlines()


@pytest.mark.parametrize("delay_s", [0.0, 0.3])
def test_gemini_replays_in_other_folders_at_other_speeds_and_on_another_day(
    sdd: SddDir, tmp_path: Path, delay_s: float
) -> None:
    command = command_of("make it")
    there = tmp_path / "recorded here"
    there.mkdir()
    with serving(gemini_answers(turns_in(there), delay_s)) as upstream:
        run, heard = record(sdd, command, there, upstream, env={"TZ": "Etc/GMT+12"})
    assert "All of it is done." in "".join(e.get("content", "") for e in said(heard))
    for folder, options, env in (
        (there, [], {}),
        (
            tmp_path / "deeper" / "and deeper" / "still",
            [],
            {"TZ": "Etc/GMT-14"},
        ),  # always another day
        (tmp_path / "elsewhere", ["--pace", "recorded"], {}),
        (tmp_path / "faster", [], {"SLOW_S": "0", "FAST_S": "0.5"}),
    ):
        again = replay(sdd, run, command, folder, options=options, env=env)
        assert sorted(same(again, folder)) == sorted(same(heard, there))
    assert not (there / "made").exists()


def test_gemini_replays_where_the_folder_that_it_lists_holds_its_runs(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "a.txt").write_text("a")
    (folder / "b.txt").write_text("b")
    sdd = SddDir(folder / ".sdd")
    with serving(hello) as up:
        env = {"GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": up.base_url}
        done = run_client(sdd, "record", "--", *command_of("hello"), cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    first = sdd.find_run("latest").run_id
    for _ in range(2):
        done = run_client(sdd, "replay", first, "--", *command_of("hello"), cwd=folder)
        assert done.returncode == 0, done.stderr[-3000:]
        assert "hits=1 misses=0" in done.stderr
    (folder / "src" / "c.txt").write_text("c")
    done = run_client(sdd, "replay", first, "--", *command_of("hello"), cwd=folder)
    assert "replay miss" in done.stderr, "what the folder holds besides is part of the request"
