"""Real Python clients as commands: recorded against a stand-in, replayed without it.

Their programs lie in ``tests/clients_py``. They run in ``.clients/python``, which ``make sdk-clients``
makes; a test whose client is not there is skipped and says so.
"""

from __future__ import annotations

import base64
import json
import os
import random
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from bernstein.rundir import SddDir
from tests.helpers import rows, verify
from tests.upstream import Reply, Upstream, chat, event, messages, serving

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[1]
VENV = ROOT / ".clients" / "python"
PROGRAMS = Path(__file__).parent / "clients_py"
SSE = "text/event-stream"
REPLAYS = 2


# --- the stand-in

# A prompt says by itself which tools the model asks for: a line is a turn.
CALL = re.compile(r"call (\w+) (\{.*?\})")


class Asked:
    """What a request of any dialect asks: its first prompt, its last text, the turns behind it."""

    def __init__(self, prompt: str, last: str, turns: int) -> None:
        self.prompt = prompt
        self.last = last
        self.turns = turns

    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        """The tools that the model asks for in this turn."""
        lines = [line for line in self.prompt.splitlines() if CALL.match(line)]
        if self.turns >= len(lines):
            return []
        return [(name, json.loads(given)) for name, given in CALL.findall(lines[self.turns])]


def text_of(content: Any) -> str:
    """The text of a content that is a string or a list of blocks."""
    if isinstance(content, str):
        return content
    return "".join(str(block.get("text") or block.get("content") or "") for block in content or [])


def asked_in(items: Sequence[dict[str, Any]], is_call: Callable[[dict[str, Any]], bool]) -> Asked:
    """Read a conversation: calls that follow each other are one turn of the model."""
    users = [text_of(item.get("content")) for item in items if item.get("role") == "user"]
    flags = [is_call(item) for item in items]
    turns = sum(flag and not before for before, flag in zip([False, *flags], flags, strict=False))
    prompt = next((text for text in users if text), "")
    last = items[-1]
    return Asked(prompt, text_of(last.get("content") or last.get("output")), turns)


def chat_calls(
    calls: Sequence[tuple[str, dict[str, Any]]], number: int, *, stream: bool
) -> list[bytes]:
    """An answer of chat completions that asks for tools; a stream cuts their arguments."""
    base = {"id": f"chatcmpl-{number}", "created": 1, "model": "m"}
    tools = [
        {
            "index": n,
            "id": f"call_{number}_{n}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(given)},
        }
        for n, (name, given) in enumerate(calls)
    ]
    if not stream:
        message = {"role": "assistant", "content": None, "tool_calls": tools}
        choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
        counts = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        value = {**base, "object": "chat.completion", "usage": counts, "choices": [choice]}
        return [json.dumps(value).encode()]
    chunk = {**base, "object": "chat.completion.chunk"}
    deltas: list[Any] = [{"role": "assistant", "content": None, "tool_calls": tools}]
    out = [event({**chunk, "choices": [{"index": 0, "delta": delta}]}) for delta in deltas]
    end = {"index": 0, "delta": {}, "finish_reason": "tool_calls"}
    return [*out, event({**chunk, "choices": [end]}), event("[DONE]")]


def whole_message(pieces: Sequence[bytes]) -> list[bytes]:
    """The message that a stream of Anthropic's events tells."""
    value: dict[str, Any] = {}
    argument = ""
    for piece in pieces:
        told = json.loads(piece.split(b"data: ", 1)[1])
        if told["type"] == "message_start":
            value = told["message"]
        elif told["type"] == "content_block_start":
            value["content"].append(dict(told["content_block"]))
            argument = ""
        elif told["type"] == "content_block_delta":
            delta = told["delta"]
            value["content"][-1]["text"] = value["content"][-1].get("text", "") + delta.get(
                "text", ""
            )
            argument += delta.get("partial_json", "")
        elif told["type"] == "content_block_stop" and value["content"][-1]["type"] == "tool_use":
            del value["content"][-1]["text"]
            value["content"][-1]["input"] = json.loads(argument or "{}")
        elif told["type"] == "message_delta":
            value["stop_reason"] = told["delta"]["stop_reason"]
    return [json.dumps(value).encode()]


def response(
    text: str, calls: Sequence[tuple[str, dict[str, Any]]], number: int, *, stream: bool
) -> list[bytes]:
    """An answer of OpenAI's responses: a text or calls; a stream tells them item by item."""
    items: list[dict[str, Any]] = [
        {
            "type": "function_call",
            "id": f"fc_{number}_{n}",
            "call_id": f"call_{number}_{n}",
            "name": name,
            "arguments": json.dumps(given),
            "status": "completed",
        }
        for n, (name, given) in enumerate(calls)
    ] or [
        {
            "type": "message",
            "id": f"msg_{number}",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }
    ]
    value = {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": "m",
        "output": items,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 7,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 10,
        },
    }
    if not stream:
        return [json.dumps(value).encode()]
    told: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**value, "status": "in_progress", "output": []}}
    ]
    for index, item in enumerate(items):
        at = {"item_id": item["id"], "output_index": index}
        if item["type"] == "function_call":
            opened = {**item, "arguments": "", "status": "in_progress"}
            told.append({"type": "response.output_item.added", "item": opened, **at})
            given, of = item["arguments"], "response.function_call_arguments"
            told += [
                {"type": f"{of}.delta", "delta": given[n : n + 5], **at}
                for n in range(0, len(given), 5)
            ]
            told.append({"type": f"{of}.done", "arguments": given, "name": item["name"], **at})
        else:
            opened = {**item, "content": [], "status": "in_progress"}
            part = {"type": "output_text", "text": "", "annotations": []}
            inside = {**at, "content_index": 0}
            told.append({"type": "response.output_item.added", "item": opened, **at})
            told.append({"type": "response.content_part.added", "part": part, **inside})
            told += [
                {
                    "type": "response.output_text.delta",
                    "delta": text[n : n + 5],
                    "logprobs": [],
                    **inside,
                }
                for n in range(0, len(text), 5)
            ]
            done = {"type": "response.output_text.done", "text": text, "logprobs": [], **inside}
            full = {**part, "text": text}
            told += [done, {"type": "response.content_part.done", "part": full, **inside}]
        told.append({"type": "response.output_item.done", "item": item, **at})
    told.append({"type": "response.completed", "response": value})
    return [event({**one, "sequence_number": n}, one["type"]) for n, one in enumerate(told)]


def generated(
    text: str, calls: Sequence[tuple[str, dict[str, Any]]], number: int, *, stream: bool
) -> list[bytes]:
    """An answer of Gemini: a text or calls; a stream has a piece for every six characters."""
    parts: list[dict[str, Any]] = [
        {"functionCall": {"id": f"call_{number}_{n}", "name": name, "args": given}}
        for n, (name, given) in enumerate(calls)
    ]
    size = 6 if stream else len(text)
    parts = parts or [{"text": text[n : n + size]} for n in range(0, len(text), size)]
    base = {
        "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 3, "totalTokenCount": 10},
        "modelVersion": "m",
        "responseId": f"resp_{number}",
    }

    def piece(some: list[dict[str, Any]], **end: str) -> dict[str, Any]:
        return {"candidates": [{"index": 0, "content": {"role": "model", "parts": some}, **end}]}

    if not stream:
        return [json.dumps(piece(parts, finishReason="STOP") | base).encode()]
    return [
        *(event(piece([part]) | base) for part in parts[:-1]),
        event(piece(parts[-1:], finishReason="STOP") | base),
    ]


def embedded(body: dict[str, Any], number: int) -> list[bytes]:
    """An answer of OpenAI's embeddings: vectors that name their request."""
    texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
    vectors = [[float(number), float(n), 0.5] for n in range(len(texts))]
    as_base64 = body.get("encoding_format") == "base64"
    data = [
        {
            "object": "embedding",
            "index": n,
            "embedding": base64.b64encode(struct.pack("<3f", *vector)).decode()
            if as_base64
            else vector,
        }
        for n, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": 7, "total_tokens": 7}
    return [json.dumps({"object": "list", "model": "m", "data": data, "usage": usage}).encode()]


def by_chat(body: dict[str, Any], number: int) -> list[bytes]:
    asked = asked_in(body["messages"], lambda item: bool(item.get("tool_calls")))
    stream = bool(body.get("stream"))
    calls = asked.calls()
    if calls:
        return chat_calls(calls, number, stream=stream)
    return chat(f"{asked.last[-40:]} -> {number}", stream=stream)


def by_messages(body: dict[str, Any], number: int) -> list[bytes]:
    asked = asked_in(body["messages"], lambda item: item.get("role") == "assistant")
    calls = [{"tool": name, "input": given} for name, given in asked.calls()]
    stop = "tool_use" if calls else "end_turn"
    blocks = calls or [{"text": f"{asked.last[-40:]} -> {number}"}]
    told = messages(*blocks, stop=stop, salt=number)
    return told if body.get("stream") else whole_message(told)


def by_responses(body: dict[str, Any], number: int) -> list[bytes]:
    given = body["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    asked = asked_in(items, lambda item: item.get("type") == "function_call")
    text = f"{asked.last[-40:]} -> {number}"
    return response(text, asked.calls(), number, stream=bool(body.get("stream")))


def by_gemini(body: dict[str, Any], number: int, *, stream: bool) -> list[bytes]:
    items = [{"role": one.get("role"), "content": one["parts"]} for one in body["contents"]]
    asked = asked_in(items, lambda item: item.get("role") == "model")
    return generated(f"{asked.last[-40:]} -> {number}", asked.calls(), number, stream=stream)


def standin(seed: int = 1, longest_s: float = 0.05) -> Callable[[str, dict[str, Any], int], Reply]:
    """Answers of every dialect: each names its request and its number, after a time of its own."""

    def answer(path: str, body: dict[str, Any], number: int) -> Reply:
        delay_s = random.Random(f"{seed} {number}").random() * longest_s
        path = path.partition("?")[0]
        stream = bool(body.get("stream"))
        if path.endswith("/embeddings"):
            pieces = embedded(body, number)
        elif path.endswith("/count_tokens"):
            pieces = [json.dumps({"input_tokens": number}).encode()]
        elif path.endswith("/messages"):
            pieces = by_messages(body, number)
        elif path.endswith("/responses"):
            pieces = by_responses(body, number)
        elif path.endswith("/chat/completions"):
            pieces = by_chat(body, number)
        elif path.endswith(("GenerateContent", "generateContent")):
            stream = path.endswith("streamGenerateContent")
            pieces = by_gemini(body, number, stream=stream)
        else:
            return Reply([b'{"error":{"message":"not here"}}'], status=404, delay_s=delay_s)
        return Reply(pieces, kind=SSE if stream else "application/json", delay_s=delay_s)

    return answer


# --- the programs


def python_with(package: str) -> str:
    """The clients' Python; the test is skipped where it lacks the package."""
    python = VENV / "bin" / "python"
    if not list(VENV.glob(f"lib/python*/site-packages/{package}/__init__.py")):
        pytest.skip(f"{package} is not in {VENV.relative_to(ROOT)}: make sdk-clients")
    return str(python)


def pointed_at(upstream: Upstream) -> dict[str, str]:
    """The environment of whoever uses the stand-in as their provider."""
    return {
        "OPENAI_BASE_URL": f"{upstream.base_url}/v1",
        "ANTHROPIC_BASE_URL": upstream.base_url,
        "GOOGLE_GEMINI_BASE_URL": upstream.base_url,
        "OPENAI_API_KEY": "sk-canary-0123456789",
        "ANTHROPIC_API_KEY": "canary-anthropic-0123456789",
        "GEMINI_API_KEY": "canary-google-0123456789",
    }


def run_bernstein(
    sdd: SddDir, *arguments: str, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bernstein", "--sdd", str(sdd.path), *arguments],
        cwd=cwd,
        env={**os.environ, "MSWEA_COST_TRACKING": "ignore_errors", **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def record(sdd: SddDir, command: Sequence[str], seed: int) -> tuple[str, int]:
    """Record a command; what it printed, and how many requests the provider saw."""
    with serving(standin(seed)) as upstream:
        done = run_bernstein(sdd, "record", "--", *command, env=pointed_at(upstream))
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-2000:]
    run = sdd.find_run("latest")
    assert verify(sdd, run).verdict == "verified"
    assert b"canary" not in b"".join(p.read_bytes() for p in sdd.path.rglob("*") if p.is_file())
    assert len(rows(run.exchanges)) == len(upstream.seen), "something went round the gateway"
    return done.stdout, len(upstream.seen)


def assert_replayed(
    done: subprocess.CompletedProcess[str], recorded: str, request_count: int
) -> None:
    """A replay that asked all of the recording and nothing else, and printed the same bytes."""
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == recorded
    counts = f"hits={request_count} misses=0 strict_violations=0 unused=0 recorded={request_count}"
    assert counts in done.stderr
    assert "replay identical" in done.stderr or "replay equivalent" in done.stderr
    assert "note: a request that was recorded did not come" not in done.stderr


@pytest.mark.parametrize(
    ("program", "package", "request_count"),
    [
        ("openai", "openai", 47),
        ("anthropic", "anthropic", 48),
        ("google", "google/genai", 53),
        ("litellm", "litellm", 67),
        ("openai_agents", "agents", 48),
        ("pydantic_ai", "pydantic_ai", 39),
        ("langgraph", "langgraph/graph", 32),
    ],
)
def test_a_client_s_program_replays_byte_for_byte_without_its_provider(
    sdd: SddDir, program: str, package: str, request_count: int
) -> None:
    command = [python_with(package), str(PROGRAMS / f"{program}_client.py")]
    recorded, seen = record(sdd, command, seed=request_count)
    lines = recorded.splitlines()
    assert len(set(lines)) == len(lines), "each answer is another, or the test proves nothing"
    assert seen == request_count
    run = sdd.find_run("latest")
    for _ in range(REPLAYS):
        assert_replayed(run_bernstein(sdd, "replay", run.run_id, "--", *command), recorded, seen)


def test_eight_threads_of_sixty_four_tasks_each_get_their_own_answers(sdd: SddDir) -> None:
    python_with("anthropic")
    command = [python_with("openai"), str(PROGRAMS / "many_tasks.py")]
    recorded, seen = record(sdd, command, seed=5)
    lines = recorded.splitlines()
    assert seen == len(lines) == len(set(lines)) == 512
    run = sdd.find_run("latest")
    for _ in range(REPLAYS):
        assert_replayed(run_bernstein(sdd, "replay", run.run_id, "--", *command), recorded, seen)


MINI_TASK = """\
make two files
call bash {"command": "echo one > one.txt && pwd"}
call bash {"command": "cat one.txt one.txt > two.txt && cat two.txt"}
call bash {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}
"""


def test_mini_swe_agent_writes_its_files_again_in_another_folder(
    sdd: SddDir, tmp_path: Path
) -> None:
    python_with("minisweagent")
    mini = str(VENV / "bin" / "mini")
    command = [mini, "-y", "-t", MINI_TASK, "-m", "openai/standin-1", "--exit-immediately"]
    quiet = {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors"}
    folders = [tmp_path / name for name in ("recorded here", "again", "deeper/and deeper")]
    for folder in folders:
        folder.mkdir(parents=True)
    with serving(standin(9)) as upstream:
        env = pointed_at(upstream) | quiet
        done = run_bernstein(sdd, "record", "--", *command, cwd=folders[0], env=env)
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-2000:]
    run = sdd.find_run("latest")
    assert len(rows(run.exchanges)) == len(upstream.seen) == 3
    for folder in folders[1:]:
        done = run_bernstein(sdd, "replay", run.run_id, "--", *command, cwd=folder, env=quiet)
        assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-2000:]
        assert "hits=3 misses=0 strict_violations=0 unused=0 recorded=3" in done.stderr
        assert (folder / "two.txt").read_text() == "one\none\n"


# --- what would go round the gateway

OTHER_VARIABLES = (
    "ANTHROPIC_API_BASE",  # litellm reads it before ANTHROPIC_BASE_URL
    "ANTHROPIC_API_URL",  # LangChain does
    "AZURE_OPENAI_ENDPOINT",
    "GEMINI_API_BASE",  # litellm reads it instead of GOOGLE_GEMINI_BASE_URL
    "GOOGLE_VERTEX_BASE_URL",
    "GROQ_API_BASE",
    "OLLAMA_API_BASE",
)


@pytest.mark.parametrize("program", ["litellm", "langgraph"])
def test_a_variable_that_overrules_the_gateway_s_does_not_do_so_in_a_replay(
    sdd: SddDir, program: str
) -> None:
    package = {"langgraph": "langgraph/graph"}.get(program, program)
    command = [python_with(package), str(PROGRAMS / f"{program}_client.py")]
    recorded, seen = record(sdd, command, seed=3)
    with serving(standin()) as other:
        env = dict.fromkeys(OTHER_VARIABLES, other.base_url)
        done = run_bernstein(sdd, "replay", "latest", "--", *command, env=env)
    assert_replayed(done, recorded, seen)
    assert other.seen == []


def test_a_provider_on_loopback_that_is_not_the_gateway_s_is_shut_in_a_replay(sdd: SddDir) -> None:
    python_with("google/genai")
    command = [python_with("litellm"), str(PROGRAMS / "elsewhere.py")]
    run_bernstein(sdd, "record", "--", sys.executable, "-c", "")
    with serving(standin()) as other:
        env = dict.fromkeys(OTHER_VARIABLES, other.base_url)
        done = run_bernstein(sdd, "replay", "latest", "--", *command, env=env)
    assert done.stdout.count("was not answered") == 4, done.stdout + done.stderr
    assert other.seen == []
