"""Codex through the gateway: recorded once, replayed in other surroundings."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.clients import KEY, client, record, replay, run_client
from tests.helpers import rows
from tests.upstream import Reply, event, serving

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bernstein.rundir import SddDir

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(600)]

PATCH = "*** Begin Patch\n*** Add File: {}/made/out.txt\n+made\n*** End Patch"
# How long the tools take is a matter of the environment, so that a replay can have other speeds.
SLOW, FAST = "sleep ${SLOW_S:-0.4} && echo slow", "sleep ${FAST_S:-0} && echo fast"
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

Turns = list[list[dict[str, Any]]]
DONE = {"text": "All of it is done."}


def call(name: str, namespace: str | None = None, **arguments: str) -> dict[str, Any]:
    found = {"name": name, "arguments": json.dumps(arguments)}
    return found if namespace is None else {**found, "namespace": namespace}


def listed_turns(folder: Path) -> Turns:
    """Turns for a model whose tools stand in a list."""

    def shell(command: str) -> dict[str, Any]:
        return call("exec_command", cmd=command)

    def spawn(word: str) -> dict[str, Any]:
        return call("spawn_agent", "multi_agent_v1", message=f"Say the word SUB-{word}.")

    return [
        [{"text": "I look."}, shell("pwd && ls")],
        [{"name": "apply_patch", "input": PATCH.format(folder)}],
        [shell(SLOW), shell(FAST), shell(f"cat '{folder}/made/out.txt'")],
        [spawn("ONE"), spawn("TWO")],
        [shell("sleep 1 && echo waited")],
        [DONE],
    ]


def script(code: str) -> dict[str, Any]:
    return {"name": "exec", "namespace": "functions", "input": code}


def task(word: str) -> dict[str, Any]:
    message = f"Say the word SUB-{word}."
    name = word.lower()
    return call("spawn_agent", "collaboration", task_name=name, message=message, fork_turns="none")


def scripted_turns(folder: Path) -> Turns:
    """Turns for a model that has one tool for its work, which runs JavaScript."""
    patch = json.dumps(PATCH.format(folder))
    commands = [SLOW, FAST, f"cat '{folder}/made/out.txt'"]
    together = ", ".join(f"tools.exec_command({json.dumps({'cmd': c})})" for c in commands)
    return [
        [{"text": "I look."}, script('text(await tools.exec_command({cmd: "pwd && ls"}));')],
        [script(f"text(await tools.apply_patch({patch}));")],
        [script(f"for (const r of await Promise.all([{together}])) text(r.output);")],
        [task("ONE"), task("TWO")],
        [script('text((await tools.exec_command({cmd: "sleep 1 && echo waited"})).output);')],
        [DONE],
    ]


def waiting_turns(folder: Path) -> Turns:
    """Turns that wait for each of two agents."""
    wait = call("wait_agent", "collaboration")
    return [*scripted_turns(folder)[:2], [task("ONE"), task("TWO")], [wait], [wait], [DONE]]


def responses(*items: dict[str, Any], salt: int) -> list[bytes]:
    """An answer of OpenAI's responses as a stream, texts and arguments cut every seven."""
    base = {"id": f"resp_{salt}", "object": "response", "created_at": 1, "model": "m"}
    out: list[bytes] = []

    def add(kind: str, **more: Any) -> None:
        out.append(event({"type": kind, "sequence_number": len(out), **more}, kind))

    add("response.created", response={**base, "status": "in_progress", "output": []})
    whole = []
    for place, item in enumerate(items):
        at = {"item_id": f"item_{salt}_{place}", "output_index": place}
        call = {"id": at["item_id"], "call_id": f"call_{salt}_{place}", "status": "completed"}
        if "text" in item:
            content = [{"type": "output_text", "text": item["text"], "annotations": []}]
            done = {"type": "message", "id": at["item_id"], "role": "assistant", "content": content}
            begun, text = {**done, "content": []}, item["text"]
            kind = "response.output_text"
            at["content_index"] = 0
        elif "input" in item:
            done = {"type": "custom_tool_call", **call, **item}
            begun, text, kind = (
                {**done, "input": ""},
                item["input"],
                "response.custom_tool_call_input",
            )
        else:
            done = {"type": "function_call", **call, **item}
            begun, text = {**done, "arguments": ""}, item["arguments"]
            kind = "response.function_call_arguments"
        add("response.output_item.added", output_index=place, item=begun)
        for n in range(0, len(text), 7):
            add(f"{kind}.delta", **at, delta=text[n : n + 7])
        add("response.output_item.done", output_index=place, item=done)
        whole.append(done)
    usage = {"input_tokens": 90, "output_tokens": 9, "total_tokens": 99}
    add(
        "response.completed",
        response={**base, "status": "completed", "output": whole, "usage": usage},
    )
    return out


def codex_answers(
    turns: Turns, delay_s: float, sub_delays_s: tuple[float, float] | None = None
) -> Callable[[str, dict[str, Any], int], Reply]:
    """Answers by content: the turn that follows the calls of a request, or a sub-agent's word."""

    def answer(path: str, body: dict[str, Any], number: int) -> Reply:
        kind = "text/event-stream"
        calls = [item["call_id"] for item in body["input"] if item["type"].endswith("_call")]
        turn = len({call.split("_")[1] for call in calls})
        items = turns[min(turn, len(turns) - 1)]
        said = json.dumps(body["input"])
        after_s = delay_s
        for place, word in enumerate(("ONE", "TWO")):
            if not calls and f"SUB-{word}" in said:
                items = [{"text": f"the word is {word}"}]
                after_s = delay_s if sub_delays_s is None else sub_delays_s[place]
        return Reply(responses(*items, salt=number), kind=kind, delay_s=after_s)

    return answer


@pytest.mark.parametrize("delay_s", [0.0, 0.3])
@pytest.mark.parametrize(
    ("model", "turns"), [("gpt-5.5", listed_turns), ("gpt-6-sol", scripted_turns)]
)
def test_codex_replays_in_other_folders_at_other_speeds_and_on_another_day(
    sdd: SddDir, tmp_path: Path, model: str, turns: Callable[[Path], Turns], delay_s: float
) -> None:
    command = [client("codex"), "exec", "--json", "--skip-git-repo-check", "-m", model, "make it"]
    there = tmp_path / "recorded here"
    there.mkdir()
    with serving(codex_answers(turns(there), delay_s)) as upstream:
        run, heard = record(sdd, command, there, upstream, env={"TZ": "Etc/GMT+12"})
    assert len({row["lane"] for row in rows(run.exchanges)}) == 3, "the main agent and two others"
    repository = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    deeper = tmp_path / "deeper" / "and deeper" / "still"
    assert events(heard)[-2]["item"]["text"] == "All of it is done."
    for folder, options, env in (
        (there, [], {}),
        (deeper, [], {"TZ": "Etc/GMT-14"}),  # always another day
        (repository, ["--pace", "recorded"], {}),
        (tmp_path / "faster", [], {"SLOW_S": "0", "FAST_S": "0.5"}),
    ):
        again = replay(sdd, run, command, folder, options=options, env=env)
        assert sorted(same(again, folder)) == sorted(same(heard, there))
    assert not (there / "made").exists()
    (repository / "one_more.txt").write_text("what ls prints is part of the request")
    done = run_client(sdd, "replay", run.run_id, "--", *command, cwd=repository)
    assert done.returncode == 3
    assert "hits=1 misses=1 strict_violations=1" in done.stderr
    assert "one_more.txt" in done.stderr


def test_codex_waits_for_two_agents_as_it_did(sdd: SddDir, tmp_path: Path) -> None:
    options = ["--json", "--skip-git-repo-check", "-m", "gpt-6-sol"]
    command = [client("codex"), "exec", *options, "make it"]
    there = tmp_path / "recorded here"
    there.mkdir()
    with serving(codex_answers(waiting_turns(there), 0.3, (0.8, 2.0))) as upstream:
        run, heard = record(sdd, command, there, upstream)
    for pace in ("fast", "recorded"):
        again = replay(sdd, run, command, tmp_path / pace, options=["--pace", pace])
        assert sorted(same(again, tmp_path / pace)) == sorted(same(heard, there))


def test_codex_with_its_built_in_provider_asks_for_a_websocket_and_goes_on_without_it(
    sdd: SddDir, tmp_path: Path
) -> None:
    # The address of the gateway is known inside alone.
    pointed = """-c model_provider='"openai"' -c openai_base_url="\\"$OPENAI_BASE_URL\\"" """
    exe = (
        f"exec {client('codex')} exec --json --skip-git-repo-check -m gpt-6-sol {pointed} 'make it'"
    )
    there = tmp_path / "recorded here"
    there.mkdir()
    key = {"CODEX_API_KEY": KEY}
    with serving(codex_answers(scripted_turns(there), 0.3)) as upstream:
        options = ["--profile", "codex"]
        run, heard = record(sdd, ["sh", "-c", exe], there, upstream, options=options, env=key)
        paths = {path for path, _, _ in upstream.seen}
    assert paths == {"/v1/responses"}, "the gateway has answered the Upgrade by itself"
    folder = tmp_path / "elsewhere"
    again = replay(sdd, run, ["sh", "-c", exe], folder)
    assert sorted(same(again, folder)) == sorted(same(heard, there))


def same(stdout: str, folder: Path) -> list[str]:
    """What was said, without the ids of threads and items, and with the folder as a variable."""
    ids: dict[str, str] = {}
    text = UUID.sub(lambda found: ids.setdefault(found[0], f"<{len(ids)}>"), stdout)
    # How far an agent that was just started has come is a race inside of Codex.
    text = re.sub(r'"status":"(?:pending_init|running)"', '"status":"begun"', text)
    return re.sub(r'"item_\d+"', '"item"', text.replace(str(folder), "<cwd>")).splitlines()


def events(stdout: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stdout.splitlines()]
