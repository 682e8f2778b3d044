"""Profiles on the requests of real clients: what a rule must unify, and what it must not."""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bernstein.errors import UsageError
from bernstein.wire.folders import Folders
from bernstein.wire.key import Match, Request, match_of
from bernstein.wire.profile import PROFILES, load_profile, parse_profile

PAIRS = [
    ("claude-code", "claude-code-2.1.197/tools"),
    ("claude-code", "claude-code-2.1.197/bare"),
    ("claude-code", "claude-code-2.1.197/subagents"),
    ("claude-code", "claude-code-2.1.332/tools"),
    ("claude-code", "claude-agent-sdk-0.2.189/tools"),
    ("codex", "codex-0.171.0/tools"),
    ("gemini-cli", "gemini-cli-0.61.0/tools"),
    ("generic", "pydantic-ai-2.68.0/concurrent"),
]


def key_of(profile: str, body: Any, path: str = "/v1/messages", headers: Any = ()) -> Match:
    request = Request("POST", "p", "https://p", path, "", list(headers), json.dumps(body).encode())
    return match_of(request, load_profile(profile), Folders({}))


def matches(profile: str, capture: Path) -> list[Match]:
    rows = [json.loads(line) for line in capture.read_text().splitlines()]
    return [
        key_of(profile, row["body"], row["path"], [tuple(h) for h in row["headers"]])
        for row in rows
        if row["method"] == "POST"
    ]


@pytest.mark.parametrize(("profile", "name"), PAIRS)
def test_two_runs_of_a_real_client_have_the_same_keys(data: Path, profile: str, name: str) -> None:
    first, second = (
        matches(profile, data / "captures" / f"{name}.run{n}.requests.jsonl") for n in (1, 2)
    )
    assert Counter(m.key for m in first) == Counter(m.key for m in second)
    # Six gathered runs over three prompts ask the same in pairs; nobody else asks twice.
    assert len({m.key for m in first}) in {len(first), len(first) // 2}


@pytest.mark.parametrize(("profile", "name"), [p for p in PAIRS if p[0] != "generic"])
def test_without_its_profile_a_client_that_varies_matches_nothing(
    data: Path, profile: str, name: str
) -> None:
    first, second = (
        {m.key for m in matches("generic", data / "captures" / f"{name}.run{n}.requests.jsonl")}
        for n in (1, 2)
    )
    assert first != second


def claude(*results: dict[str, Any], **more: Any) -> dict[str, Any]:
    calls = [
        {"type": "tool_use", "id": name, "name": "Bash", "input": {}} for name in ("one", "two")
    ]
    return {
        "model": "m",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "go"}]},
            {"role": "assistant", "content": calls},
            {"role": "user", "content": list(results)},
        ],
        **more,
    }


def result(name: str, text: str, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": name, "content": text, **more}


def task(agent: str, session: str) -> str:
    path = f"/tmp/claude-0/-work/{session}-0000-4000-8000-000000000000/tasks/{agent}.output"
    return f"<task-id>{agent}</task-id><output-file>{path}</output-file><status>done</status>"


def resumed(agent: str, ref: str) -> str:
    pin = f'"pin":{{"id":"{agent}","name":"{agent}","ref":"{ref}"}}'
    said = f"Resuming agent {agent[:7]}"
    return f'{{"success":true,"message":"{said}","resumedAgentId":"{agent}",{pin}}}'


REMINDER = "<system-reminder>tokens left</system-reminder>"

# What the rules of claude-code must unify, and beside it what they must not.
CLAUDE = {
    "results in order of completion": (
        claude(result("one", "a"), result("two", "b", cache_control={"type": "ephemeral"})),
        claude(result("two", "b"), result("one", "a", cache_control={"type": "ephemeral"})),
        claude(result("one", "b"), result("two", "a")),
    ),
    "a reminder on another result": (
        claude(result("one", "a"), result("two", f"b\n\n{REMINDER}")),
        claude(result("two", "b"), result("one", f"a\n\n{REMINDER}")),
        claude(result("one", "a"), result("two", f"b\n\n{REMINDER.replace('left', 'gone')}")),
    ),
    "session and device": (
        claude(metadata={"user_id": '{"session_id":"x"}'}),
        claude(metadata={"user_id": '{"session_id":"y"}'}),
        claude(metadata={"user_id": '{"session_id":"y"}', "other": 1}),
    ),
    "the day": (
        claude({"type": "text", "text": "Today's date is 2026-11-30"}),
        claude({"type": "text", "text": "Today's date is 2027-01-09"}),
        claude({"type": "text", "text": "The deadline is 2027-01-09"}),
    ),
    "agents": (
        claude(result("one", "agentId: a0123456789abcdef x"), result("two", "b")),
        claude(result("one", "agentId: afedcba9876543210 x"), result("two", "b")),
        claude(result("one", "agentId: a0123456789abcdef y"), result("two", "b")),
    ),
    "durations": (
        claude(result("one", "<usage>duration_ms: 12</usage>")),
        claude(result("one", "<usage>duration_ms: 345</usage>")),
        claude(result("one", "<usage>tokens: 345</usage>")),
    ),
    "a background agent's task": (
        claude(result("one", task("a0123456789abcdef", "0" * 8))),
        claude(result("one", task("afedcba9876543210", "1" * 8))),
        claude(result("one", task("afedcba9876543210", "1" * 8).replace("done", "failed"))),
    ),
    "an agent that is written to": (
        claude(result("one", resumed("a0123456789abcdef", "e0d37f"))),
        claude(result("one", resumed("afedcba9876543210", "123abc"))),
        claude(result("one", resumed("afedcba9876543210", "123abc").replace("true", "false"))),
    ),
    "one agent's task and another's": (
        claude(result("one", task("a" * 17, "0" * 8) + task("a" * 17, "0" * 8))),
        claude(result("one", task("ab" + "a" * 15, "0" * 8) + task("ab" + "a" * 15, "0" * 8))),
        claude(result("one", task("a" * 17, "0" * 8) + task("ab" + "a" * 15, "0" * 8))),
    ),
}


def output(*values: Any) -> dict[str, Any]:
    """A request of Codex with these items in its input, or what tools have answered."""
    items = [v if isinstance(v, dict) else {"type": "x_output", "output": v} for v in values]
    return {"model": "m", "input": items}


def printed(text: str) -> list[dict[str, Any]]:
    return [{"type": "input_text", "text": text}]


def from_agent(author: str, text: str, salt: str = "") -> dict[str, Any]:
    said = f"Message Type: FINAL_ANSWER\nSender: {author}\nPayload:\n{text}"
    content = printed(said)
    return {"type": "agent_message", "id": f"m{salt}{text}", "author": author, "content": content}


def surroundings(date: str, zone: str, shell: str = "bash") -> dict[str, Any]:
    text = (
        f"<environment_context>\n  <shell>{shell}</shell>\n  <current_date>{date}</current_date>\n"
        f"  <timezone>{zone}</timezone>\n</environment_context>"
    )
    return output({"type": "message", "content": printed(text)})


CHUNK = '{{"chunk_id":"{}","wall_time_seconds":{},"original_token_count":{},"output":"{}"}}'

CODEX = {
    "a command's time and id": (
        output("Chunk ID: 0899a8\nWall time: 0.0000 seconds\nOriginal token count: 5\na"),
        output("Chunk ID: 743cd8\nWall time: 1.2500 seconds\nOriginal token count: 9\na"),
        output("Chunk ID: 743cd8\nWall time: 1.2500 seconds\nOriginal token count: 9\nb"),
    ),
    "a script's time": (
        output(printed("Script completed\nWall time 0.1 seconds\nOutput:\n")),
        output(printed("Script completed\nWall time 12.0 seconds\nOutput:\n")),
        output(printed("Script failed\nWall time 0.1 seconds\nOutput:\n")),
    ),
    "a command's result as an object": (
        output(printed(CHUNK.format("743cd8", "0.000006099", 20, "a"))),
        output(printed(CHUNK.format("b78d27", "4.7e-6", 21, "a"))),
        output(printed(CHUNK.format("b78d27", "4.7e-6", 21, "b"))),
    ),
    "a command that goes on": (
        output("Process running with session ID 43225\n", '{"session_id": 43225}'),
        output("Process running with session ID 7486\n", '{"session_id": 7486}'),
        output("Process running with session ID 7486\n", '{"session_id": 43225}'),
    ),
    "answers of agents as they end": (
        output(from_agent("/root/one", "a"), from_agent("/root/two", "b")),
        output(from_agent("/root/two", "b", "x"), from_agent("/root/one", "a", "x")),
        output(from_agent("/root/one", "b"), from_agent("/root/two", "a")),
    ),
    "the day and the zone": (
        surroundings("2026-11-30", "Etc/UTC"),
        surroundings("2027-01-09", "Europe/Berlin"),
        surroundings("2027-01-09", "Europe/Berlin", "zsh"),
    ),
    "when an item was made": (
        output(
            {"type": "message", "internal_chat_message_metadata_passthrough": {"create_time": 1}}
        ),
        output(
            {"type": "message", "internal_chat_message_metadata_passthrough": {"create_time": 2}}
        ),
        output({"type": "message", "internal_chat_message_metadata_passthrough": {"other": 2}}),
    ),
}


def gemini(*texts: str, system: str = "") -> dict[str, Any]:
    parts = [{"text": text} for text in texts]
    return {"contents": [{"role": "user", "parts": parts}], "systemInstruction": system}


def listing(*lines: str) -> dict[str, Any]:
    return gemini("\n".join(["Showing up to 200 items", "", "/here/", *lines, "", "</x>"]))


DAY = "Today's date is {} (formatted according to the user's locale)."
SKILL = "<location>{}/@google/gemini-cli/bundle/builtin/{}</location>"

GEMINI = {
    "the day in any language": (
        gemini(DAY.format("Monday, November 30, 2026")),
        gemini(DAY.format("Samstag, 9. Januar 2027")),
        gemini(DAY.format("Samstag, 9. Januar 2027").replace("date", "task")),
    ),
    "runs in the listing": (
        listing("├───a.txt", "├───.sdd/", "│   ├───x", "│   └───runs/...", "└───src/", "    └───b"),
        listing("├───a.txt", "├───.sdd/...", "└───src/", "    └───b"),
        listing("├───a.txt", "├───.sdd/...", "└───src/", "    └───c"),
    ),
    "runs as the last item": (
        listing("├───a.txt", "└───.sdd/", "    └───runs/", "        └───1/"),
        listing("└───a.txt"),
        listing("├───a.txt", "└───runs/"),
    ),
    "a folder of another name": (
        listing("├───.sdd/", "│   └───x", "└───.sdd-more/", "    └───b"),
        listing("└───.sdd-more/", "    └───b"),
        listing("└───.sdd-more/", "    └───x"),
    ),
    "where the client is installed": (
        gemini(system=SKILL.format("/usr/lib/node_modules", "one")),
        gemini(system=SKILL.format("/home/me/.nvm/versions/node/v24/lib/node_modules", "one")),
        gemini(system=SKILL.format("/usr/lib/node_modules", "two")),
    ),
}

CASES = [
    (profile, name, bodies)
    for profile, cases in (("claude-code", CLAUDE), ("codex", CODEX), ("gemini-cli", GEMINI))
    for name, bodies in cases.items()
]


@pytest.mark.parametrize(
    ("profile", "bodies"), [(p, b) for p, _, b in CASES], ids=[c[1] for c in CASES]
)
def test_a_rule_unifies_what_needs_it_and_nothing_near(profile: str, bodies: Any) -> None:
    one, other, near = (key_of(profile, body).key for body in bodies)
    assert one == other
    assert near != one
    assert len({key_of("generic", body).key for body in bodies}) == 3


def notice(agent: str, text: str) -> dict[str, Any]:
    said = (
        f'<subagent_notification>{{"agent_id":"{agent}","done":"{text}"}}</subagent_notification>'
    )
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": said}]}


def test_codex_notices_in_any_order_are_the_same_and_another_text_is_not() -> None:
    one, two = "01890000-0000-7000-8000-000000000001", "01890000-0000-7000-8000-00000000000a"
    first = {"input": [notice(one, "a"), notice(two, "b")]}
    second = {"input": [notice(one, "b"), notice(two, "a")]}
    third = {"input": [notice(one, "a"), notice(two, "c")]}
    keys = [key_of("codex", body, "/v1/responses").key for body in (first, second, third)]
    assert keys[0] == keys[1]
    assert keys[0] != keys[2]


def test_every_change_of_a_real_request_that_no_rule_names_changes_the_key(data: Path) -> None:
    capture = data / "captures" / "claude-code-2.1.332" / "tools.run1.requests.jsonl"
    body = [json.loads(line) for line in capture.read_text().splitlines()][-1]["body"]
    key = key_of("claude-code", body).key
    changed = 0
    for path in _leaves(body):
        other = copy.deepcopy(body)
        place: Any = other
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = "another value" if place[path[-1]] != "another value" else "x"
        if path[:2] == ("metadata", "user_id"):
            continue
        changed += 1
        is_mark = path[-2:-1] == ("cache_control",)
        assert key_of("claude-code", other).key != key or is_mark, path
    assert changed > 40


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [leaf for name in value for leaf in _leaves(value[name], (*path, name))]
    if isinstance(value, list):
        return [leaf for n, item in enumerate(value) for leaf in _leaves(item, (*path, n))]
    return [path]


# --- folders


def test_folders_stand_as_variables_longest_first_and_not_inside_a_longer_name() -> None:
    folders = Folders({"cwd": "/home/me/proj", "home": "/home/me"})
    text = "/home/me/proj/a /home/me/.x /home/me/project /home/men -home-me-proj/m"
    assert folders.to_variables(text) == ("<cwd>/a <home>/.x <home>/project /home/men <cwd-slug>/m")


def test_a_path_cut_over_many_pieces_is_moved_where_it_begins() -> None:
    move = Folders({"cwd": "/home/me/proj"}).moved_to(Folders({"cwd": "/new"}))
    text = 'write "/home/me/proj/a.txt" and /home/me/proj, not /home/me/projects'
    moved = 'write "/new/a.txt" and /new, not /home/me/projects'
    for size in (1, 2, 3, 7, 100):
        pieces = [text[n : n + size] for n in range(0, len(text), size)]
        got = move.pieces(pieces)
        assert "".join(got) == moved, size
        assert len(got) == len(pieces)
    assert move.pieces(["nothing", " here"]) == ["nothing", " here"]
    assert not Folders({"cwd": "/a/b"}).moved_to(Folders({"cwd": "/a/b"}))


# --- profiles as files


def test_every_profile_says_why_it_has_each_rule() -> None:
    for name in PROFILES:
        profile = load_profile(name)
        assert profile.name == name
        assert all(rule.why for rule in profile.rules)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        '{"name":"x","version":1,"rules":[{"op":"burn","path":"a"}]}',
        '{"name":"x","version":1,"rules":[{"op":"rewrite","path":"a","pattern":"("}]}',
        '{"name":"x","version":1,"more":1}',
        '{"name":"x","version":1,"rules":[{"op":"rename","path":"a","pattern":"a"}]}',
        '{"name":"x","version":1,"rules":[{"op":"rewrite","path":"a","pattern":"a","to":"\\\\g<7>"}]}',
    ],
)
def test_what_is_no_profile_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a profile"):
        parse_profile(text.encode())


def test_ids_of_one_name_share_their_numbers() -> None:
    def body(call: str, response: str) -> dict[str, Any]:
        parts = [{"functionCall": {"id": call}}, {"functionCall": {"id": "b"}}]
        answers = [{"functionResponse": {"id": response}}]
        return {"contents": [{"parts": parts}, {"parts": answers}]}

    keys = {key_of("gemini-cli", body(*ids)).key for ids in (("a", "a"), ("c", "c"))}
    assert len(keys) == 1
    assert key_of("gemini-cli", body("a", "b")).key not in keys
