"""The private home of a recorded command: its configuration is kept, its credentials are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bernstein.capture.gateway.home import Home, read_home
from bernstein.errors import UnsafePathError
from bernstein.rundir import SddDir
from bernstein.seal.signing import default_keys
from bernstein.wire.profile import load_profile
from tests.clients import client
from tests.helpers import verify
from tests.upstream import Reply, messages, serving

pytestmark = pytest.mark.loopback

TOKEN = "sk-ant-oat01-" + "c4N4rY" * 6
CREDENTIALS = {
    "claudeAiOauth": {
        "accessToken": TOKEN,
        "refreshToken": TOKEN[::-1],
        "expiresAt": 4_000_000_000_000,
        "scopes": ["user:inference"],
        "subscriptionType": "max",
    }
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with configuration and a login."""
    made = tmp_path / "home"
    (made / ".claude" / "agents").mkdir(parents=True)
    (made / ".claude" / "CLAUDE.md").write_text(f"Be brief. The key is {TOKEN}. See <here>.")
    (made / ".claude" / "agents" / "one.md").write_text("agent one")
    (made / ".claude" / "history.jsonl").write_text("not named by the profile")
    (made / ".claude" / ".credentials.json").write_text(json.dumps(CREDENTIALS))
    return made


def bernstein(
    sdd: SddDir, home: Path, *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bernstein", "--sdd", str(sdd.path), *arguments],
        env={**os.environ, "HOME": str(home), **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def everything_below(folder: Path) -> bytes:
    files = (path for path in folder.rglob("*") if path.is_file())
    return b"".join(path.read_bytes() for path in files)


SHOW = "cd $HOME; find . -name '*.md' | sort; cat .claude/CLAUDE.md .claude/.credentials.json"


@pytest.mark.parametrize("env", [{}, {"BERNSTEIN_ENCRYPT": "1"}], ids=["clear", "encrypted"])
def test_a_replay_finds_the_recorded_configuration_and_no_credential(
    sdd: SddDir, home: Path, env: dict[str, str]
) -> None:
    options = ["--profile", "claude-code", "--", "sh", "-c", SHOW]
    done = bernstein(sdd, home, "record", *options, env=env)
    assert done.returncode == 0, done.stderr
    assert "./.claude/agents/one.md" in done.stdout
    assert TOKEN in done.stdout, "a recorded command is signed in"
    assert TOKEN.encode() not in everything_below(sdd.path)
    if env:
        assert b"Be brief" not in everything_below(sdd.path)
    assert verify(sdd, sdd.find_run("latest")).verdict == "verified"
    other = home.parent / "other"
    other.mkdir()
    done = bernstein(sdd, other, "replay", "latest", *options[2:])
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout
    assert "./.claude/agents/one.md" in done.stdout
    assert "Be brief. The key is <secret>. See <here>." in done.stdout
    kept = json.loads(done.stdout[done.stdout.index('{"claudeAiOauth"') :])["claudeAiOauth"]
    assert kept["scopes"] == ["user:inference"]
    assert kept["expiresAt"] == 4_102_444_800_000
    assert "history" not in done.stdout


def test_a_file_that_is_too_large_is_named(sdd: SddDir, home: Path) -> None:
    (home / ".claude" / "settings.json").write_text(" " * 300_000)
    done = bernstein(sdd, home, "record", "--profile", "claude-code", "--", "true")
    assert "note: ~/.claude/settings.json is too large to be kept" in done.stderr


@pytest.mark.parametrize("path", ["../escaped", "/tmp/escaped", "a/../../escaped", "", "a\0b"])
def test_a_hostile_recording_writes_nothing_outside_of_the_home(home: Path, path: str) -> None:
    with pytest.raises(UnsafePathError):
        Home({path: "x"}).write(home)
    assert not list(home.parent.rglob("escaped"))


def test_links_and_folders_in_the_home_are_read_as_what_they_are(home: Path) -> None:
    (home / ".claude" / "commands").mkdir()
    (home / ".claude" / "commands" / "loop").symlink_to(home / ".claude" / "commands")
    found = read_home(home, load_profile("claude-code"))
    assert set(found.files) == {".claude/CLAUDE.md", ".claude/agents/one.md"}
    assert found.links == {".claude/.credentials.json": home / ".claude" / ".credentials.json"}


def test_claude_code_that_was_signed_in_replays_without_its_login(
    sdd: SddDir, home: Path, tmp_path: Path
) -> None:
    seen: list[dict[str, Any]] = []

    def answer(path: str, body: dict[str, Any], number: int) -> Reply:
        seen.append(body)
        return Reply(messages({"text": "hello"}), kind="text/event-stream")

    command = ["--", client("claude"), "-p", "hi", "--model", "claude-sonnet-4-5"]
    with serving(answer) as upstream:
        env = {"ANTHROPIC_BASE_URL": upstream.base_url}
        done = bernstein(sdd, home, "record", *command, env=env)
        assert done.returncode == 0, done.stderr
        headers = [headers for _, headers, _ in upstream.seen]
    assert headers[0]["authorization"] == f"Bearer {TOKEN}"
    assert any("Be brief" in json.dumps(body) for body in seen)
    assert TOKEN.encode() not in everything_below(sdd.path)
    other = tmp_path / "other"
    other.mkdir()
    done = bernstein(sdd, other, "replay", "latest", *command)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "replay identical" in done.stderr
    assert default_keys(sdd) is not None
