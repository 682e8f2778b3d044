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
}


@pytest.mark.parametrize("case", CLAUDE)
def test_a_rule_unifies_what_needs_it_and_nothing_near(case: str) -> None:
    one, other, near = (key_of("claude-code", body).key for body in CLAUDE[case])
    assert one == other
    assert near != one
    assert len({key_of("generic", body).key for body in CLAUDE[case]}) == 3


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
