"""Plans with real agents, and the providers that stand in for theirs."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tests.clients import CLIENTS, KEY
from tests.test_codex import responses
from tests.upstream import Reply, chat, messages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.upstream import Upstream

SSE = "text/event-stream"
_FOLDER = re.compile(
    r"(?:[Ww]orking directory: |<cwd>|Workspace Directories:\*\*\\n  - )(/[^\s\"\\<]+)"
)
Turns = list[list[dict[str, Any]]]


def folder_of(body: dict[str, Any]) -> str:
    """The folder that a client says it works in."""
    found = _FOLDER.search(json.dumps(body))
    assert found is not None
    return found[1]


def claude_turns(folder: str) -> Turns:
    """Look, write a file by its whole path, run two commands, end."""
    path = f"{folder}/made/claude.txt"
    return [
        [{"text": "I look."}, {"tool": "Bash", "input": {"command": "pwd && ls"}}],
        [{"tool": "Write", "input": {"file_path": path, "content": "by claude\n"}}],
        [
            {"tool": "Bash", "input": {"command": "sleep 0.2 && cat made/claude.txt"}},
            {"tool": "Read", "input": {"file_path": path}},
        ],
        [{"text": "All of it is done."}],
    ]


def codex_turns(folder: str) -> Turns:
    """Look, write a file, end."""

    def shell(command: str) -> dict[str, Any]:
        return {"name": "exec_command", "arguments": json.dumps({"cmd": command})}

    write = f"mkdir -p made && echo by codex > {folder}/made/codex.txt"
    return [
        [{"text": "I look."}, shell("pwd && ls")],
        [shell(write)],
        [{"text": "All of it is done."}],
    ]


def all_answers(path: str, body: dict[str, Any], number: int) -> Reply:
    """What each of the providers answers."""
    if "count_tokens" in path:
        return Reply([b'{"input_tokens": 7}'])
    if path.endswith("/responses"):
        turns = codex_turns(folder_of(body))
        turn = sum(item.get("type") in {"function_call_output"} for item in body["input"])
        return Reply(responses(*turns[min(turn, len(turns) - 1)], salt=number), kind=SSE)
    if path.endswith("/chat/completions"):
        text = json.dumps(body["messages"])
        said = '{"tasks":[{"id":"t1","title":"only","files":[1],"depends_on":[]}]}'
        return Reply(chat(said if "Name the one task" in text or "Split one" in text else "built"))
    if "messages" not in body:
        return Reply([b"{}"])
    turns = claude_turns(folder_of(body))
    turn = sum(message["role"] == "assistant" for message in body["messages"])
    blocks = turns[min(turn, len(turns) - 1)]
    stop = "tool_use" if any("tool" in block for block in blocks) else "end_turn"
    return Reply(messages(*blocks, stop=stop, salt=number), kind=SSE)


def pointed_at(upstream: Upstream, **more: str) -> Mapping[str, str]:
    """The environment of a run whose providers are a stand-in, with the clients on its path."""
    return {
        "ANTHROPIC_API_KEY": KEY,
        "ANTHROPIC_BASE_URL": upstream.base_url,
        "GEMINI_API_KEY": KEY,
        "GOOGLE_GEMINI_BASE_URL": upstream.base_url,
        "OPENAI_API_KEY": KEY,
        "OPENAI_BASE_URL": f"{upstream.base_url}/v1",
        **with_clients(),
        **more,
    }


def with_clients() -> dict[str, str]:
    """The path with the clients on it."""
    import os

    return {"PATH": f"{CLIENTS}:{os.environ['PATH']}"}


def plan_of(*steps: str, **top: object) -> str:
    """A plan with one stage of these steps, each a line of YAML."""
    head = "".join(f"{name}: {value}\n" for name, value in top.items())
    lines = "".join(f"      - {step}\n" for step in steps)
    return f"name: agents\n{head}stages:\n  - name: s\n    steps:\n{lines}"


def command_step(title: str, *argv: str, more: str = "") -> str:
    """A step that runs a command."""
    return f"{{title: {title}, cli: command, command: {json.dumps(list(argv))}{more}}}"


# A program that asks a model twice, and writes down what it said.
ASK = """
import json, os, sys, urllib.request

def ask(text):
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    headers = {"content-type": "application/json", "authorization": "Bearer x"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]

first = ask(sys.argv[1])
with open(sys.argv[2], "w") as file:
    file.write(first + "\\n" + ask("more of " + first) + "\\n")
"""
