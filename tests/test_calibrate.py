"""What varies by itself between two runs of a client, and the profile that is suggested for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bernstein.rundir import SddDir
from bernstein.wire.profile import profile_of
from bernstein.wire.variation import Variation, find_variations, suggested_rules
from tests.upstream import Reply, chat, serving

AGENT = """
import datetime, json, os, sys, time, urllib.request, uuid

session = str(uuid.uuid4())

def ask(messages):
    body = {
        "model": "m",
        "messages": messages,
        "metadata": {"session": session, "at": time.time()},
        "user": session,
    }
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]

history = [{"role": "user", "content": f"Today's date is {datetime.date.today()}. In {os.getcwd()}."}]
for _ in range(3):
    begun = time.time()
    history.append({"role": "assistant", "content": ask(history)})
    ms = int((time.time() - begun) * 1000)
    said = f"files: {sorted(os.listdir('.'))}\\nWall time: {ms} ms\\nChunk ID: {os.urandom(3).hex()}"
    history.append({"role": "user", "content": said})
    open("made.txt", "w").write("made")
print("done", sys.argv[1:])
"""


def answer(path: str, body: dict[str, Any], number: int) -> Reply:
    return Reply(chat(f"answer {len(body['messages'])}"))


def bernstein(sdd: SddDir, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bernstein", "--sdd", str(sdd.path), *arguments],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.loopback
def test_a_client_is_calibrated_and_replays_under_the_suggested_profile(
    sdd: SddDir, tmp_path: Path
) -> None:
    Path("agent.py").write_text(AGENT)
    profile = tmp_path / "agent.json"
    with serving(answer) as upstream:
        to = ["--upstream", f"openai={upstream.base_url}/v1"]
        command = ["--", sys.executable, "agent.py"]
        plain = bernstein(sdd, "record", *to, *command)
        assert plain.returncode == 0, plain.stderr
        Path("made.txt").unlink()
        assert bernstein(sdd, "replay", "latest", *command).returncode == 3
        Path("made.txt").unlink(missing_ok=True)
        done = bernstein(sdd, "calibrate", *to, "--out", str(profile), *command)
        assert done.returncode == 0, done.stdout + done.stderr
        assert not Path("made.txt").exists(), "it worked in the folder itself"
        for line in (
            "body.metadata.at: number: ",
            "body.metadata.session: uuid: ",
            "body.user: uuid: ",
            "body.messages[*].content: number behind 'Wall time: ': ",
            "body.messages[*].content: hex behind 'Chunk ID: ': ",
        ):
            assert line in done.stdout
        times = 3 if shutil.which("faketime") else 2
        assert f"3 requests recorded; {3 * times} of their repetitions differed" in done.stdout
        has_clock = 'content: date behind "Today\'s date is "' in done.stdout
        assert has_clock == ("the clock was not moved" not in done.stdout)
        done = bernstein(sdd, "record", "--profile", str(profile), *to, *command)
        assert done.returncode == 0, done.stderr
    Path("made.txt").unlink()
    done = bernstein(sdd, "replay", "latest", *command)
    assert done.returncode == 0, done.stderr
    assert "replay identical" in done.stderr


@pytest.mark.loopback
def test_a_client_that_does_not_vary_needs_no_profile(sdd: SddDir) -> None:
    steady = AGENT.replace("str(uuid.uuid4())", "'s'").replace("time.time()", "0")
    steady = steady.replace("datetime.date.today()", "0").replace("os.urandom(3).hex()", "0")
    Path("agent.py").write_text(steady)
    with serving(answer) as upstream:
        to = ["--upstream", f"openai={upstream.base_url}/v1"]
        done = bernstein(sdd, "calibrate", *to, "--", sys.executable, "agent.py")
    assert done.returncode == 0
    assert "3 requests recorded; 0 of their repetitions differed" in done.stdout
    assert "{" not in done.stdout


@pytest.mark.loopback
def test_a_command_that_asks_nobody_is_said(sdd: SddDir) -> None:
    done = bernstein(sdd, "calibrate", "--", "true")
    assert done.returncode == 2
    assert "asked no provider" in done.stderr


@pytest.mark.loopback
def test_what_no_rule_can_hold_is_listed_and_ends_with_1(sdd: SddDir) -> None:
    extra = 'history = [{"role": "system", "content": "x"}] * (os.getpid() % 7 + 1) + '
    Path("agent.py").write_text(AGENT.replace("history = ", extra, 1))
    with serving(answer) as upstream:
        to = ["--upstream", f"openai={upstream.base_url}/v1"]
        found = [
            bernstein(sdd, "calibrate", *to, "--", sys.executable, "agent.py") for _ in range(2)
        ]
    # Two process ids in three that end on the same number are rare, and four of them rarer.
    assert any(done.returncode == 1 and "other: '" in done.stdout for done in found)


# --- the differences themselves

OLD = {"a": "Wall time: 0.5 s\nid c0ffee12", "list": [2, 1], "n": 1, "gone": None, "same": "x"}
NEW = {"a": "Wall time: 10.25 s\nid beef0123", "list": [1, 2], "n": 2, "same": "x"}


def test_each_kind_of_difference_is_named() -> None:
    assert list(find_variations(OLD, NEW)) == [
        Variation("a", "number", "Wall time: ", "0.5", "10.25"),
        Variation("a", "hex", "id ", "c0ffee12", "beef0123"),
        Variation("gone", "other", "", "None", "None"),
        Variation("list", "order", "", "[2, 1]", "[1, 2]"),
        Variation("n", "number", "", "1", "2"),
    ]


def test_the_suggested_rules_unify_what_varied_and_nothing_else() -> None:
    rules = suggested_rules(find_variations({**OLD, "gone": 1}, {**NEW, "gone": 1}))
    profile = profile_of({"name": "x", "version": 1, "rules": rules})

    def under(value: dict[str, Any]) -> Any:
        return profile.normalise({**value, "gone": 1}, None)

    assert under(OLD) == under(NEW)
    for near in (
        {**OLD, "a": "Wall clock: 0.5 s\nid c0ffee12"},
        {**OLD, "a": "Wall time: 0.5 s\nno c0ffee12"},
        {**OLD, "list": [2, 3]},
        {**OLD, "same": "y"},
    ):
        assert under(near) != under(OLD)


texts = st.text(alphabet="ab0- .:\n", max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner),
    max_leaves=8,
)


@given(values, values)
def test_equal_values_vary_nowhere_and_others_somewhere(old: Any, new: Any) -> None:
    assert list(find_variations(old, old)) == []
    is_same = json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True)
    found = list(find_variations(old, new))
    assert bool(found) != is_same
    profile_of({"name": "x", "version": 1, "rules": suggested_rules(found)})


@pytest.mark.loopback
def test_a_folder_that_is_not_as_it_was_is_named_first_in_a_miss(sdd: SddDir) -> None:
    Path("agent.py").write_text(
        AGENT.replace("str(uuid.uuid4())", "'s'").replace("time.time()", "0")
    )
    Path("sub").mkdir()
    Path("sub/file.txt").write_text("one")
    with serving(answer) as upstream:
        to = ["--upstream", f"openai={upstream.base_url}/v1"]
        done = bernstein(sdd, "record", *to, "--", sys.executable, "agent.py")
    assert done.returncode == 0, done.stderr
    Path("sub/file.txt").write_text("two")
    done = bernstein(sdd, "replay", "latest", "--", sys.executable, "agent.py")
    assert done.returncode == 3
    lines = done.stderr.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("replay miss"))
    assert lines[first + 1] == (
        "  the folder is not as it was when this was recorded: made.txt (new), sub (changed)"
    )
