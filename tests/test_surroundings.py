"""What differs between a recording and its replay, and does not matter; and what goes elsewhere."""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from bernstein import record
from bernstein.capture.gateway.session import GatewaySession
from bernstein.rundir import SddDir
from bernstein.wire.profile import profile_for
from tests.helpers import bernstein, rows, verify
from tests.test_gateway import ask, request, session, source_of
from tests.upstream import Reply, chat, own_answer, serving

pytestmark = pytest.mark.loopback


def ended_with(session_: GatewaySession) -> int:
    code: int = session_.code  # type: ignore[attr-defined]
    return code


def test_an_id_that_the_client_made_anew_is_put_back_into_answers(sdd: SddDir) -> None:
    rule = {
        "op": "rename",
        "path": "messages[*].content",
        "pattern": "agent (a[0-9a-f]{8})",
        "name": "agent",
    }
    profile = Path("ids.json")
    profile.write_text(json.dumps({"name": "ids", "version": 1, "rules": [rule]}))

    def answer(path: str, body: dict[str, Any], number: int) -> Reply:
        found = re.findall("agent (a[0-9a-f]{8})", json.dumps(body))
        text = f"wait for agent {found[-1]}" if found else "begin"
        return Reply(chat(text, stream=True), kind="text/event-stream")

    def talk(url: str, made: str) -> list[str]:
        first = ask(url, "/chat/completions", request("go"))
        second = ask(url, "/chat/completions", request(f"started agent {made}"))
        third = ask(url, "/chat/completions", request(f"agent {made} is done"))
        texts = []
        for _, pieces in (first, second, third):
            deltas = re.findall(rb'"content": ?"([^"]*)"', b"".join(pieces))
            texts.append(b"".join(deltas).decode())
        return texts

    with (
        serving(answer) as upstream,
        session(sdd, upstream.base_url, profile=str(profile)) as live,
    ):
        assert (
            talk(live.server.base_url("openai"), "a11111111")[1:]
            == ["wait for agent a11111111"] * 2
        )
    run = source_of(sdd)
    assert [row.get("ids") for row in rows(run.exchanges)] == [
        None,
        {"agent": ["a11111111"]},
        {"agent": ["a11111111"]},
    ]
    with session(sdd, replay=run.run_id) as again:
        said = talk(again.server.base_url("openai"), "a22222222")
    assert said == ["begin", "wait for agent a22222222", "wait for agent a22222222"]
    assert ended_with(again) == 0
    changed = run.exchanges.read_text().replace('"agent":["a11111111"]', '"agent":["a33333333"]')
    run.exchanges.write_text(changed)
    (run.path / "seal.json").unlink()
    assert verify(sdd, run).reason == "recording"


def test_what_is_asked_of_it_as_of_a_proxy_is_refused_and_told(
    sdd: SddDir, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(own_answer) as upstream, session(sdd, upstream.base_url) as live:
        ask(live.server.base_url("openai"), "/chat/completions", request("a"))
    with session(sdd, replay=source_of(sdd).run_id) as again:
        ask(again.server.base_url("openai"), "/chat/completions", request("a"))
        for asked in (
            b"CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\n",
            b"GET http://example.org/x HTTP/1.1\r\nHost: example.org\r\n\r\n",
        ):
            with socket.create_connection(("127.0.0.1", again.server.port)) as client:
                client.sendall(asked)
                assert client.recv(100).startswith(b"HTTP/1.1 403")
    said = capfd.readouterr().err
    assert "note: api.example.com:443 was reached for and refused (1x)" in said
    assert "note: example.org was reached for and refused (1x)" in said
    assert ended_with(again) == 0


def test_equal_requests_may_change_callers_without_a_wait(sdd: SddDir) -> None:
    def answer(path: str, body: dict[str, Any], number: int) -> Reply:
        return Reply(chat(f"answer {number}"), delay_s=[0.2, 0.6, 0.0][number - 1])

    def two(url: str, order: tuple[bool, bool]) -> None:
        def job(goes_on: bool) -> None:
            ask(url, "/chat/completions", request("equal"))
            if goes_on:
                ask(url, "/chat/completions", request("follow-up"))

        threads = {goes_on: threading.Thread(target=job, args=(goes_on,)) for goes_on in order}
        for goes_on in order:
            threads[goes_on].start()
            time.sleep(0.1)
        for thread in threads.values():
            thread.join()

    with serving(answer) as upstream, session(sdd, upstream.base_url) as live:
        two(live.server.base_url("openai"), (True, False))
    run = source_of(sdd)
    for order in ((True, False), (False, True)):
        with session(sdd, replay=run.run_id) as again:
            two(again.server.base_url("openai"), order)
        assert ended_with(again) == 0
        assert again.player is not None
        assert not again.player.hold.has_expired


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["claude", "-p", "x"], "claude-code"),
        (["/opt/bin/codex", "exec"], "codex"),
        (["env", "A=b", "gemini", "-p", "x"], "gemini-cli"),
        (["sh", "-c", "cd x && claude -p 'hello'"], "claude-code"),
        (["faketime", "-f", "+1 day", "timeout", "9", "claude"], "claude-code"),
        (["python", "agent.py", "ask claude"], "generic"),
        (["sh", "-c", "python agent.py"], "generic"),
    ],
)
def test_a_command_s_profile_is_that_of_the_client_in_it(argv: list[str], name: str) -> None:
    assert profile_for(argv) == name


def test_a_key_of_the_environment_has_the_same_names_in_a_replay(sdd: SddDir) -> None:
    script = "env | grep -o '^[A-Z]*_API_KEY' | sort | tr '\\n' ' '"
    env = {"GOOGLE_API_KEY": "AIza" + "x" * 35}
    done = bernstein("record", "--", "sh", "-c", script, env=env)
    assert done.stdout.strip() == "GOOGLE_API_KEY"
    done = bernstein("replay", "latest", "--", "sh", "-c", script)
    assert done.stdout.strip() == "GOOGLE_API_KEY"
    done = bernstein("record", "--", "sh", "-c", "true")
    done = bernstein("replay", "latest", "--", "sh", "-c", script)
    assert "ANTHROPIC_API_KEY" in done.stdout


def test_a_variable_with_more_than_the_base_url_names_the_upstream_too(sdd: SddDir) -> None:
    script = "echo $GEMINI_API_BASE; echo $ANTHROPIC_API_URL"
    env = {
        "GEMINI_API_BASE": "http://127.0.0.1:9/proxy/v1beta",
        "ANTHROPIC_API_URL": "http://127.0.0.1:8",
    }
    done = bernstein("record", "--", "sh", "-c", script, env=env)
    gemini, anthropic = done.stdout.splitlines()
    assert gemini.endswith("/google/v1beta")
    assert anthropic.endswith("/anthropic")
    info = source_of(sdd).read_info()
    assert info["upstreams"]["google"] == "http://127.0.0.1:9/proxy"
    assert info["upstreams"]["anthropic"] == "http://127.0.0.1:8"


def test_show_lists_the_profile_of_a_run(sdd: SddDir) -> None:
    assert bernstein("record", "--", "true").returncode == 0
    assert "profile generic, version 2, no rules\n" in bernstein("show", "latest").stdout
    assert bernstein("record", "--profile", "codex", "--", "true").returncode == 0
    said = bernstein("show", "latest").stdout
    assert "profile codex, version 3:\n" in said
    assert "  drop prompt_cache_key: " in said
    assert json.loads(bernstein("show", "latest", "--json").stdout)["profile"]["name"] == "codex"


def test_a_recording_in_a_folder_is_shown_checked_and_extended(sdd: SddDir) -> None:
    script = (
        "import json, os, sys, urllib.request as r;"
        "url = os.environ['OPENAI_BASE_URL'] + '/chat/completions';"
        "body = {'model': 'm', 'messages': [{'role': 'user', 'content': sys.argv[1]}]};"
        "print(r.urlopen(r.Request(url, json.dumps(body).encode())).read().decode())"
    )
    command = ["--", sys.executable, "-c", script]
    with serving(own_answer) as upstream:
        to = ["--upstream", f"openai={upstream.base_url}"]
        assert bernstein("record", *to, *command, "one").returncode == 0
        saved = bernstein("save", "latest", "saved/one")
        assert "bernstein replay saved/one --trust -- CMD…" in saved.stdout
        assert "exchange 0" in bernstein("show", "saved/one", "--answers").stdout
        assert "bernstein show saved/one --answers" in bernstein("show", "saved/one").stdout
        checked = bernstein("replay", "saved/one", "--verify")
        assert checked.returncode in {0, 2}, checked.stdout
        refused = bernstein("record", *to, "--extend", "saved/one", *command, "one")
        assert refused.returncode == 2
        assert f"(bernstein show {Path('saved/one').absolute()})" in refused.stderr
        done = bernstein("record", *to, "--extend", "saved/one", "--trust", *command, "two")
        assert done.returncode == 0, done.stderr
    assert "unused: exchange 0: POST /chat/completions (200)" in done.stderr
    assert "extended " in done.stderr
    assert "diverged" not in done.stderr


def test_a_project_s_folder_may_be_named_by_a_way_round(sdd: SddDir, tmp_path: Path) -> None:
    script = ["--", "sh", "-c", "echo $HOME"]
    Path("inner").mkdir()
    done = bernstein("--sdd", "inner/../.sdd", "record", *script)
    assert done.returncode == 0
    assert ".." not in done.stdout
    assert str(sdd.path.resolve()) in done.stdout


def test_tools_and_ids_of_a_run_are_shown(sdd: SddDir) -> None:
    with record(sdd_dir=sdd.path) as gateway:
        gateway.answer("tool", {"city": "Rome"}, lambda: {"degrees": 20})
    said = bernstein("show", gateway.run_id, "--answers").stdout
    assert "== tool {'asked': {'city': 'Rome'}}" in said
    assert "{'value': {'degrees': 20}}" in said
