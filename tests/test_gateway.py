"""The gateway between real SDKs and a loopback provider: recorded, and replayed without it."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from bernstein import record, replay
from bernstein.capture.gateway.session import GatewaySession
from bernstein.errors import DivergedError, ReplayMissError, UsageError
from bernstein.recording.answer import LlmAnswer
from bernstein.recording.blobs import BlobStore
from bernstein.recording.exchanges import load_exchanges
from bernstein.rundir import RunDir, SddDir
from bernstein.seal.body_key import bodies_of
from bernstein.seal.bundle import import_bundle
from bernstein.seal.export import export_run
from bernstein.seal.forget import forget_bodies
from bernstein.seal.signing import KeyStore, default_keys
from bernstein.settings import read_settings
from bernstein.wire.answers import read_answer
from bernstein.wire.changed import changed_body
from bernstein.wire.folders import Folders
from tests.helpers import bernstein, events, rows, verify
from tests.test_bundle import check, check_by_node
from tests.upstream import Reply, Upstream, chat, messages, own_answer, serving

pytestmark = pytest.mark.loopback

NOWHERE = "http://127.0.0.1:9"


@contextmanager
def session(
    sdd: SddDir, upstream: str = NOWHERE, *, replay: str | None = None, **more: Any
) -> Iterator[GatewaySession]:
    """A gateway in this process, with the upstream for every provider."""
    urls = {"openai": f"{upstream}/v1", "anthropic": upstream, "google": upstream}
    urls["openai"] = upstream
    settings = replace(read_settings(), replay_run_id=replay)
    opened = GatewaySession(sdd, settings, argv=["test"], upstreams=urls, **more)
    code = 1
    try:
        with opened:
            yield opened
            code = 0
    finally:
        opened.code = opened.finish(code)  # type: ignore[attr-defined]


def ask(
    base_url: str,
    path: str,
    body: Any,
    headers: dict[str, str] | None = None,
    method: str = "POST",
) -> tuple[int, list[bytes]]:
    """Status and pieces of a response, as a client that reads chunk borders sees them."""
    parts = urlsplit(base_url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(
        method, parts.path + path, data, {"Content-Type": "application/json", **(headers or {})}
    )
    response = connection.getresponse()
    pieces = []
    while line := response.fp.readline():
        size = int(line.split(b";")[0], 16)
        if size == 0:
            break
        pieces.append(response.fp.read(size))
        response.fp.read(2)
    else:
        pieces.append(b"<cut>")
    connection.close()
    return response.status, pieces


def request(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def source_of(sdd: SddDir) -> RunDir:
    return sdd.find_run("latest")


AGENT = """\
import sys
from openai import OpenAI
from anthropic import Anthropic
client = OpenAI()
word = sys.argv[1] if len(sys.argv) > 1 else "word"
for _ in range(2):
    said = client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": word}])
    print(said.choices[0].message.content)
stream = client.chat.completions.create(
    model="m", stream=True, messages=[{"role": "user", "content": "stream"}])
print("".join(part.choices[0].delta.content or "" for part in stream if part.choices))
with Anthropic().messages.stream(
    model="m", max_tokens=9, messages=[{"role": "user", "content": "hello"}]) as stream:
    print("".join(stream.text_stream))
"""


@pytest.fixture
def agent() -> list[str]:
    Path("agent.py").write_text(AGENT)
    return [sys.executable, "agent.py"]


def point_at(upstream: Upstream) -> dict[str, str]:
    return {
        "OPENAI_BASE_URL": f"{upstream.base_url}/v1",
        "ANTHROPIC_BASE_URL": upstream.base_url,
        "OPENAI_API_KEY": "sk-canary-openai-0123456789",
        "ANTHROPIC_API_KEY": "canary-anthropic-0123456789",
    }


def test_a_program_with_two_sdks_is_recorded_and_replayed_without_its_providers(
    sdd: SddDir, agent: list[str]
) -> None:
    with serving(own_answer) as upstream:
        recorded = bernstein("record", "--", *agent, env=point_at(upstream))
    assert recorded.returncode == 0, recorded.stderr
    assert recorded.stderr.startswith("recorded run ")
    run = source_of(sdd)
    assert verify(sdd, run).verdict == "verified"
    assert [row["payload"]["model"] for row in events(run, "model.call")] == ["m"] * 4
    assert len(events(run, "model.usage")) == 4
    for _ in range(3):
        replayed = bernstein("replay", run.run_id, "--", *agent)
        assert replayed.returncode == 0, replayed.stderr
        assert replayed.stdout == recorded.stdout
        assert "hits=4 misses=0" in replayed.stderr
        assert "guard=proxy" in replayed.stderr
        assert "replay identical" in replayed.stderr
    folder = b"".join(path.read_bytes() for path in sdd.path.rglob("*") if path.is_file())
    assert b"canary" not in folder


def test_a_changed_word_is_a_miss_that_names_it_and_ends_with_3(
    sdd: SddDir, agent: list[str]
) -> None:
    with serving(own_answer) as upstream:
        bernstein("record", "--", *agent, env=point_at(upstream))
    run = source_of(sdd)
    missed = bernstein("replay", run.run_id, "-v", "--", *agent, "another")
    assert missed.returncode == 3
    assert "replay miss: no recorded answer for this request" in missed.stderr
    assert "body.messages[0].content: recorded 'word', asked 'another'" in missed.stderr
    assert "misses=1 strict_violations=1 unused=4" in missed.stderr
    assert missed.stderr.count("unused: exchange") == 4
    (row,) = rows(sdd.list_runs()[-1].misses)
    assert row["nearest"]["differs"][0][0] == "body.messages[0].content"


# --- bytes and borders


def test_a_served_stream_has_the_bytes_and_borders_that_the_provider_sent(sdd: SddDir) -> None:
    sent = chat("a text that is cut into many pieces é ü 😀", stream=True)

    def answer(path: str, body: Any, number: int) -> Reply:
        return Reply(sent, kind="text/event-stream")

    with serving(answer) as upstream, session(sdd, upstream.base_url) as live:
        url = live.server.base_url("openai")
        assert ask(url, "/v1/chat/completions", request("x", stream=True)) == (200, sent)
    with session(sdd, replay="latest") as again:
        url = again.server.base_url("openai")
        assert ask(url, "/v1/chat/completions", request("x", stream=True)) == (200, sent)
    assert again.code == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("status", [400, 429, 500, 529])
def test_a_provider_s_failure_is_replayed_as_it_was(sdd: SddDir, status: int) -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "too much"}}
    pieces = [json.dumps(error).encode()]
    reply = Reply(pieces, status=status, headers=[("retry-after", "7")])
    with serving(lambda *_: reply) as upstream, session(sdd, upstream.base_url) as live:
        url = live.server.base_url("anthropic")
        assert ask(url, "/v1/messages", request("x")) == (status, pieces)
    with session(sdd, replay="latest") as again:
        assert ask(again.server.base_url("anthropic"), "/v1/messages", request("x"))[0] == status
    (row,) = rows(source_of(sdd).exchanges)
    assert ["retry-after", "7"] in row["response_headers"]
    assert [r["payload"]["outcome"] for r in events(source_of(sdd), "model.answer")] == ["error"]


def test_a_stream_that_broke_off_breaks_off_again_at_the_same_place(sdd: SddDir) -> None:
    pieces = messages({"text": "half of it"})[:4]
    reply = Reply(pieces, kind="text/event-stream", is_cut=True)
    with serving(lambda *_: reply) as upstream, session(sdd, upstream.base_url) as live:
        url = live.server.base_url("anthropic")
        assert ask(url, "/v1/messages", request("x"))[1] == [*pieces, b"<cut>"]
    run = source_of(sdd)
    assert rows(run.exchanges)[0]["end"] == "cut"
    assert verify(sdd, run).verdict == "verified"
    with session(sdd, replay="latest") as again:
        url = again.server.base_url("anthropic")
        assert ask(url, "/v1/messages", request("x"))[1] == [*pieces, b"<cut>"]
    assert again.code == 0  # type: ignore[attr-defined]


def test_a_provider_that_cannot_be_reached_is_replayed_like_that(sdd: SddDir) -> None:
    with session(sdd, NOWHERE) as live:
        status, pieces = ask(live.server.base_url("openai"), "/v1/responses", {"model": "m"})
    assert status == 502
    assert b"cannot be reached" in pieces[0]
    with session(sdd, replay="latest") as again:
        url = again.server.base_url("openai")
        assert ask(url, "/v1/responses", {"model": "m"}) == (502, pieces)


def test_what_asks_no_model_is_recorded_and_replayed_too(sdd: SddDir) -> None:
    reply = Reply([b'{"data":', b"[]}"])
    with serving(lambda *_: reply) as upstream, session(sdd, upstream.base_url) as live:
        url = live.server.base_url("openai")
        assert ask(url, "/v1/models?limit=2", b"", method="GET") == (200, reply.pieces)
    with session(sdd, replay="latest") as again:
        url = again.server.base_url("openai")
        assert ask(url, "/v1/models?limit=2", b"", method="GET") == (200, reply.pieces)
        assert ask(url, "/v1/models?limit=3", b"", method="GET")[0] == 400
    assert again.code == 3  # type: ignore[attr-defined]
    assert len(events(source_of(sdd), "http.response")) == 1


@pytest.mark.parametrize(
    "body", [b'{"a":1,"a":2}', b'{"n":12345678901234567890}', b"\xff\xfe", b"x"]
)
def test_a_body_without_a_canonical_spelling_is_matched_by_its_bytes(
    sdd: SddDir, body: bytes
) -> None:
    reply = Reply([b"\x00\xff binary"], kind="application/octet-stream")
    with serving(lambda *_: reply) as upstream, session(sdd, upstream.base_url) as live:
        assert ask(live.server.base_url("openai"), "/v1/x", body) == (200, reply.pieces)
    (row,) = rows(source_of(sdd).exchanges)
    assert (row["key_scheme"], row["binary"]) == ("raw.v1", True)
    assert verify(sdd, source_of(sdd)).verdict == "verified"
    with session(sdd, replay="latest") as again:
        url = again.server.base_url("openai")
        assert ask(url, "/v1/x", body) == (200, reply.pieces)
        assert ask(url, "/v1/x", body + b" ")[0] == 400


def test_a_recorded_pace_is_kept_where_it_is_asked_for(sdd: SddDir) -> None:
    reply = Reply(chat("x"), delay_s=0.4)
    with serving(lambda *_: reply) as upstream, session(sdd, upstream.base_url) as live:
        ask(live.server.base_url("openai"), "/v1/chat/completions", request("x"))
    with session(sdd, replay="latest", is_paced=True) as again:
        begun_s = time.monotonic()
        ask(again.server.base_url("openai"), "/v1/chat/completions", request("x"))
        assert time.monotonic() - begun_s > 0.35


# --- who asks what, at once


@pytest.mark.parametrize("prompts", [16, 20])
def test_threads_each_get_their_own_recorded_answers(
    sdd: SddDir, capsys: pytest.CaptureFixture[str], prompts: int
) -> None:
    """Distinct and equal requests, plain and streamed, with shuffled delays.

    Of 16 prompts a thread has its own. Of 20 some are those of several threads: who of them asks
    first is another one each time, and a run that raced with itself may be told as diverged.
    """
    jobs = [request(f"prompt {n % prompts}", stream=n // 24 == 1) for n in range(72)]

    def by_threads(url: str) -> list[Any]:
        answers: list[Any] = [None] * len(jobs)

        def work(first: int) -> None:
            for n in range(first, len(jobs), 8):
                answers[n] = ask(url, "/v1/chat/completions", jobs[n])

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers

    with serving(own_answer) as upstream, session(sdd, upstream.base_url) as live:
        recorded = by_threads(live.server.base_url("openai"))
    assert len({b"".join(pieces) for _, pieces in recorded}) == len(jobs)
    assert verify(sdd, source_of(sdd)).verdict == "verified"
    run = source_of(sdd)
    for _ in range(2):
        with session(sdd, replay=run.run_id) as again:
            replayed = by_threads(again.server.base_url("openai"))
        if prompts == 16:
            assert (again.code, replayed) == (0, recorded)  # type: ignore[attr-defined]
            assert "did not come" not in capsys.readouterr().err  # nothing waited in vain
        # Equal requests of different threads may change places; each answer is served once.
        for text in {json.dumps(job) for job in jobs}:
            mine = [n for n, job in enumerate(jobs) if json.dumps(job) == text]
            assert sorted(map(str, (recorded[n] for n in mine))) == sorted(
                map(str, (replayed[n] for n in mine))
            )


def test_sixty_four_gathered_tasks_of_a_real_sdk_get_their_own_answers(sdd: SddDir) -> None:
    openai = pytest.importorskip("openai", reason="the providers' packages are not installed")

    async def gathered(url: str) -> list[str]:
        client = openai.AsyncOpenAI(base_url=url + "/v1", api_key="x", max_retries=0)
        async with client:

            async def one(n: int) -> str:
                said = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": f"task {n}"}]
                )
                return str(said.choices[0].message.content)

            return list(await asyncio.gather(*(one(n) for n in range(64))))

    with serving(own_answer) as upstream, session(sdd, upstream.base_url) as live:
        recorded = asyncio.run(gathered(live.server.base_url("openai")))
    assert len(set(recorded)) == 64
    with session(sdd, replay="latest") as again:
        assert asyncio.run(gathered(again.server.base_url("openai"))) == recorded
    assert again.code == 0  # type: ignore[attr-defined]
    assert not again.player.hold.has_expired  # type: ignore[union-attr]


# --- misses


def test_after_a_miss_nothing_is_served_and_it_is_counted_once_a_lane(sdd: SddDir) -> None:
    with serving(own_answer) as upstream, session(sdd, upstream.base_url) as live:
        url = live.server.base_url("anthropic")
        for text in ("one", "two"):
            ask(url, "/v1/messages", request(text))
    with session(sdd, replay="latest") as again:
        url = again.server.base_url("anthropic")
        assert ask(url, "/v1/messages", request("one"))[0] == 200
        for _ in range(3):
            status, (body,) = ask(url, "/v1/messages", request("three"))
            assert status == 400
            said = json.loads(body)["error"]
            assert said["type"] == "invalid_request_error"
            assert "replay miss" in said["message"]
        assert ask(url, "/v1/messages", request("two"))[0] == 400
    assert again.code == 3  # type: ignore[attr-defined]
    assert len(rows(again.run.dir.misses)) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"model": "n"},
        {"temperature": 0.1},
        {"max_tokens": 2},
        {"tools": []},
        {"stream": True},
        {"seed": 1},
        {"stop": ["x"]},
        {"response_format": {"type": "json_object"}},
        {"top_p": 0.5},
        {"metadata": {"a": "b"}},
    ],
)
def test_drift_of_any_parameter_is_a_miss(sdd: SddDir, change: dict[str, Any]) -> None:
    with serving(own_answer) as upstream, session(sdd, upstream.base_url) as live:
        url = live.server.base_url("openai")
        ask(url, "/v1/chat/completions", request("x", temperature=0, max_tokens=1))
    with session(sdd, replay="latest") as again:
        url = again.server.base_url("openai")
        body = request("x", temperature=0, max_tokens=1) | change
        assert ask(url, "/v1/chat/completions", body)[0] == 400
        miss = again.run.store.first_miss
        assert miss is not None
        assert f"body.{next(iter(change))}" in str(miss)


def test_headers_that_determine_answers_are_in_the_key_and_others_are_not(sdd: SddDir) -> None:
    asked = {"anthropic-beta": "b, a", "anthropic-version": "1", "x-stainless-retry-count": "0"}
    with serving(own_answer) as upstream, session(sdd, upstream.base_url) as live:
        for _ in range(2):
            ask(live.server.base_url("anthropic"), "/v1/messages", request("x"), asked)
    with session(sdd, replay="latest") as again:
        url = again.server.base_url("anthropic")
        same = asked | {"anthropic-beta": "a,b", "x-stainless-retry-count": "3", "user-agent": "z"}
        assert ask(url, "/v1/messages", request("x"), same)[0] == 200
        other = asked | {"anthropic-beta": "a,b,c"}
        assert ask(url, "/v1/messages", request("x"), other)[0] == 400


# --- who may ask


def test_nobody_without_the_run_s_secret_learns_anything(sdd: SddDir) -> None:
    with serving(own_answer) as upstream, session(sdd, upstream.base_url) as live:
        root = f"http://127.0.0.1:{live.server.port}"
        url = live.server.base_url("openai")

        def status(address: str, headers: dict[str, str]) -> int:
            parts = urlsplit(address)
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
            connection.request("POST", parts.path, b"{}", headers)
            found = connection.getresponse().status
            connection.close()
            return found

        assert status(f"{root}/v1/chat/completions", {}) == 404
        assert status(f"{root}/wrong/openai/v1/chat/completions", {}) == 404
        assert status(f"{url}/v1/chat/completions", {"Origin": "http://evil"}) == 404
        assert status(url.replace("/openai", "/nobody") + "/v1/x", {}) == 404
        assert status(f"{url}/v1/responses", {"Upgrade": "websocket"}) == 426
        assert upstream.seen == []
    assert rows(source_of(sdd).exchanges) == []


def test_a_canary_in_every_place_is_in_no_file(sdd: SddDir) -> None:
    canary = "canary-0123456789abcdef"
    key = "sk-proj-" + "c4n4ry" * 8

    def answer(path: str, body: Any, number: int) -> Reply:
        text = f"you sent {canary} and {key}"
        return Reply(
            chat(text, stream=number == 2),
            kind="text/event-stream" if number == 2 else "application/json",
            headers=[("set-cookie", f"s={canary}"), ("x-request-id", canary)],
        )

    headers = {
        "Authorization": f"Bearer {canary}",
        "x-api-key": canary,
        "Cookie": f"a=b; session={canary}",
        "x-other": canary,
        "anthropic-beta": canary,
    }
    with serving(answer) as upstream, session(sdd, upstream.base_url) as live:
        url = live.server.base_url("openai")
        for n in range(3):
            body = request(f"my key is {key} {canary} {n}", stream=n == 1)
            status, pieces = ask(url, f"/v1/chat/completions?key={canary}&n={n}", body, headers)
            assert status == 200
            assert key.encode() in b"".join(pieces) or n == 1
        _, seen, body_seen = upstream.seen[0]
        assert seen["authorization"] == f"Bearer {canary}"
        assert canary.encode() in body_seen
    with session(sdd, replay="latest") as again:
        url = again.server.base_url("openai")
        other = {
            name: value.replace(canary, "another-0123456789") for name, value in headers.items()
        }
        text = "my key is sk-proj-" + "other0" * 8 + " another-0123456789 0"
        body = request(text, stream=False)
        said = ask(url, "/v1/chat/completions?key=another-0123456789&n=0", body, other)
        assert said[0] == 200, again.run.store.first_miss
        ask(url, f"/v1/chat/completions?key={canary}", request(f"{canary} missed"), headers)
    for path in sdd.path.rglob("*"):
        if path.is_file():
            assert canary.encode() not in path.read_bytes(), path
            assert b"c4n4ry" not in path.read_bytes(), path


# --- evidence


def recorded_run(sdd: SddDir, turns: int = 3) -> RunDir:
    with serving(own_answer) as upstream, session(sdd, upstream.base_url) as live:
        url = live.server.base_url("openai")
        for n in range(turns):
            ask(url, "/v1/chat/completions", request(f"turn {n} " + "history " * 300))
    return live.run.dir


def test_whatever_is_changed_in_recorded_exchanges_is_found(sdd: SddDir) -> None:
    run = recorded_run(sdd)
    data = run.exchanges.read_bytes()
    for place in range(0, len(data), 37):
        run.exchanges.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert verify(sdd, run).verdict == "mismatch", place
    for cut in range(0, len(data), 211):
        run.exchanges.write_bytes(data[:cut])
        assert verify(sdd, run).verdict == "mismatch", cut
    run.exchanges.write_bytes(data)
    # Without a seal the chain alone still proves requests and answers.
    run.seal.unlink()
    sdd.spine.unlink()
    assert verify(sdd, run).verdict == "prefix"
    run.exchanges.write_bytes(data.replace(b"answered", b"ANSWERED", 1))
    assert verify(sdd, run).verdict == "mismatch"
    run.exchanges.write_bytes(data.replace(b"turn 1", b"turn 9", 1))
    assert verify(sdd, run).verdict == "mismatch"


def test_a_bundle_of_exchanges_is_taken_by_every_verifier_and_forgotten_bodies_by_all(
    sdd: SddDir, tmp_path: Path
) -> None:
    run, keys = recorded_run(sdd), default_keys(sdd)
    (key_id,) = keys.own_ids()
    for with_bodies in (True, False):
        target = tmp_path / f"{with_bodies}.zip"
        export_run(run, sdd, keys, target, with_bodies=with_bodies)
        assert check(target, key_id)[0] == 0
        assert check_by_node(target, key_id)[0] == 0
        other = SddDir(tmp_path / f"there-{with_bodies}" / ".sdd")
        taken = import_bundle(target, other, KeyStore(tmp_path / "k", other.keys), key_id)
        assert taken.exchanges.exists()
    forget_bodies(run, sdd, keys)
    assert b"history" not in run.exchanges.read_bytes()
    assert verify(sdd, run).verdict == "verified"
    assert bodies_of(run, sdd, keys) is not None


def test_encrypted_exchanges_hold_no_text_and_replay(
    sdd: SddDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERNSTEIN_ENCRYPT", "1")
    run = recorded_run(sdd)
    monkeypatch.delenv("BERNSTEIN_ENCRYPT")
    files = b"".join(path.read_bytes() for path in sdd.path.rglob("*") if path.is_file())
    assert b"history" not in files
    assert b"answered" not in files
    assert verify(sdd, run).verdict == "verified"
    with session(sdd, replay=run.run_id) as again:
        url = again.server.base_url("openai")
        for n in range(3):
            body = request(f"turn {n} " + "history " * 300)
            assert ask(url, "/v1/chat/completions", body)[0] == 200
    assert again.code == 0  # type: ignore[attr-defined]


def _long_answer(path: str, body: Any, number: int) -> Reply:
    return Reply(chat(f"answer {number} " + "z" * 100))


def test_a_long_conversation_grows_by_what_is_new_in_it(sdd: SddDir) -> None:
    turns: list[dict[str, str]] = []
    with (
        serving(_long_answer) as upstream,
        session(sdd, upstream.base_url) as live,
    ):
        url = live.server.base_url("openai")
        for n in range(150):
            turns.append({"role": "user", "content": f"question {n} " + "y" * 100})
            body = {"model": "m", "messages": turns}
            assert ask(url, "/v1/chat/completions", body)[0] == 200
            turns.append({"role": "assistant", "content": f"answer {n + 1} " + "z" * 100})
    last = len(json.dumps(body))
    answers = 150 * len(b"".join(chat("answer 100 " + "z" * 100)))
    size = source_of(sdd).exchanges.stat().st_size
    size += sum(path.stat().st_size for path in sdd.blobs.rglob("*") if path.is_file())
    envelope = 150 * 900
    assert size < 3 * (last + answers) + envelope
    assert verify(sdd, source_of(sdd)).verdict == "verified"


# --- the command


def test_the_child_s_exit_code_streams_and_surroundings_are_its_own(sdd: SddDir) -> None:
    code = (
        "import os, sys; print(sys.stdin.read().upper()); print('err', file=sys.stderr);"
        "print(os.environ['HOME'], os.environ['TMPDIR']); open(os.environ['HOME']+'/x','w');"
        "print([n for n in os.environ if n.startswith('BERNSTEIN_')]); sys.exit(7)"
    )
    done = subprocess.run(
        [sys.executable, "-m", "bernstein", "record", "--", sys.executable, "-c", code],
        input="hello",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 7
    said, folders, hidden = done.stdout.splitlines()
    assert said == "HELLO"
    assert hidden == "['BERNSTEIN_INSIDE_RUN']"  # no setting of ours, and where it is
    assert "err" in done.stderr
    home, tmp = folders.split()
    assert ".sdd/runs/" in home
    assert len(tmp) < 60, "the path of a Unix socket has hardly a hundred characters"
    assert not Path(home).exists()
    assert not Path(tmp).exists()
    assert source_of(sdd).read_info()["status"] == "failed"
    assert verify(sdd, source_of(sdd)).verdict == "verified"


def test_a_program_that_does_not_end_in_time_is_ended(sdd: SddDir) -> None:
    code = "import time; time.sleep(60)"
    begun_s = time.monotonic()
    done = bernstein("record", "--timeout", "0.5", "--", sys.executable, "-c", code)
    assert time.monotonic() - begun_s < 20
    assert done.returncode == 128 + signal.SIGTERM
    assert "0.5 s are over" in done.stderr
    assert verify(sdd, source_of(sdd)).verdict == "verified"


def test_a_signal_to_us_reaches_the_program(sdd: SddDir) -> None:
    code = (
        "import signal, sys, time;"
        "signal.signal(signal.SIGTERM, lambda *a: sys.exit(5)); print('up', flush=True);"
        "time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "bernstein", "record", "--", sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 5
    process.stdout.close()


def test_what_is_not_a_program_or_not_a_wire_recording_is_said(sdd: SddDir) -> None:
    done = bernstein("record", "--", "/no/such/program")
    assert done.returncode == 2
    assert "there is no program /no/such/program" in done.stderr
    assert sdd.list_runs() == []
    assert bernstein("record").returncode == 2
    assert bernstein("record", "--upstream", "x", "--", "true").returncode == 2
    assert bernstein("record", "--profile", "nope", "--", "true").returncode == 2
    assert bernstein("replay", "nope", "--", "true").returncode == 2


def test_a_gateway_killed_in_the_middle_keeps_what_was_finished(sdd: SddDir) -> None:
    """SIGKILL while an answer streams: the finished exchanges are there, and replay says why."""
    release = threading.Event()

    def answer(path: str, body: Any, number: int) -> Reply:
        if number == 3:
            release.wait(20)
        return own_answer(path, body, number)

    script = (
        "import os, sys, json, urllib.request\n"
        "for n in range(4):\n"
        "    body = json.dumps({'model':'m','messages':[{'role':'user','content':str(n)}]}).encode()\n"
        "    url = os.environ['OPENAI_BASE_URL'] + '/chat/completions'\n"
        "    headers = {'Content-Type': 'application/json'}\n"
        "    urllib.request.urlopen(urllib.request.Request(url, body, headers)).read()\n"
        "    print(n, flush=True)\n"
    )
    with serving(answer) as upstream:
        process = subprocess.Popen(
            [sys.executable, "-m", "bernstein", "record", "--", sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={"PATH": "/usr/bin:/bin", "BERNSTEIN_KEYS_DIR": str(sdd.path.parent / "keys")}
            | point_at(upstream),
        )
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["0\n", "1\n"]
        while len(upstream.seen) < 3:
            time.sleep(0.01)
        process.kill()
        process.wait()
        release.set()
        process.stdout.close()
    run = source_of(sdd)
    assert len(rows(run.exchanges)) == 2
    assert len(events(run, "model.call")) == 3
    keys = {"BERNSTEIN_KEYS_DIR": str(sdd.path.parent / "keys")}
    assert bernstein("lineage", "seal", run.run_id, env=keys).returncode == 0
    assert bernstein("verify", run.run_id, env=keys).returncode == 0
    done = bernstein("replay", run.run_id, "--", sys.executable, "-c", script, env=keys)
    assert done.returncode == 3
    assert done.stdout == "0\n1\n"
    assert "came to no end: its recording stops after 2 exchanges" in done.stderr


# --- blocks of a program, saved recordings, extended ones


def test_a_block_of_a_program_is_recorded_saved_and_replayed_from_a_folder(
    sdd: SddDir, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with serving(own_answer) as upstream:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{upstream.base_url}/v1")
        with record() as opened:
            url = opened.base_url("openai")
            assert url in os.environ["OPENAI_BASE_URL"]
            first = ask(url, "/chat/completions", request("x"))
            with pytest.raises(UsageError, match="open already"), record():
                pass
        assert os.environ["OPENAI_BASE_URL"] == f"{upstream.base_url}/v1"
    target = tmp_path / "saved"
    assert bernstein("save", opened.run_id, str(target)).returncode == 0
    elsewhere = tmp_path / "elsewhere" / ".sdd"
    with replay(target, sdd_dir=elsewhere) as served:
        assert ask(served.base_url("openai"), "/chat/completions", request("x")) == first
    with pytest.raises(ReplayMissError, match="asked 'y'"), replay(target, sdd_dir=elsewhere) as s:
        ask(s.base_url("openai"), "/chat/completions", request("y"))
    with pytest.raises(DivergedError, match="diverged"), replay(target, sdd_dir=elsewhere):
        pass
    code = f"import urllib.request as u, os, json\n{POST}\nprint(post('x'))"
    done = bernstein("replay", str(target), "--", sys.executable, "-c", code)
    assert done.returncode == 2
    assert "--trust" in done.stderr
    done = bernstein("replay", str(target), "--trust", "--", sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    changed = target / "exchanges.jsonl"
    changed.write_text(changed.read_text().replace("answered", "ANSWERED"))
    done = bernstein("replay", str(target), "--trust", "--", sys.executable, "-c", code)
    assert done.returncode == 1
    assert "does not hold" in done.stderr


POST = """\
def post(text):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    asked = u.Request(url, body, {"Content-Type": "application/json"})
    return json.loads(u.urlopen(asked).read())["choices"][0]["message"]["content"]
"""


def test_an_extended_recording_serves_what_it_has_and_asks_only_the_rest(sdd: SddDir) -> None:
    def program(*words: str) -> list[str]:
        calls = "\n".join(f"print(post({word!r}))" for word in words)
        return [sys.executable, "-c", f"import urllib.request as u, os, json\n{POST}\n{calls}"]

    with serving(own_answer) as upstream:
        env = point_at(upstream)
        first = bernstein("record", "--", *program("a", "b"), env=env)
        assert len(upstream.seen) == 2
        more = program("a", "b", "c")
        second = bernstein("record", "--extend", "latest", "--", *more, env=env)
        assert len(upstream.seen) == 3
    assert second.returncode == 0, second.stderr
    assert second.stdout.startswith(first.stdout)
    assert "hits=2 misses=1 strict_violations=0" in second.stderr
    run = source_of(sdd)
    assert len(rows(run.exchanges)) == 3
    assert verify(sdd, run).verdict == "verified"
    third = bernstein("replay", run.run_id, "--", *more)
    assert (third.returncode, third.stdout) == (0, second.stdout)
    assert "replay identical" in third.stderr


def test_a_standing_gateway_serves_clients_that_others_start(sdd: SddDir, tmp_path: Path) -> None:
    def serve(upstream: str | None, *options: str) -> tuple[int, str, Any]:
        env_file = tmp_path / "gateway.env"
        process = subprocess.Popen(
            [sys.executable, "-m", "bernstein", "gateway", "--env-file", str(env_file), *options],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **({"OPENAI_BASE_URL": upstream} if upstream else {})},
        )
        assert process.stderr is not None
        process.stderr.readline()
        assert env_file.stat().st_mode & 0o777 == 0o600
        variables = dict(
            line.removeprefix("export ").split("=", 1) for line in env_file.read_text().splitlines()
        )
        url = variables["OPENAI_BASE_URL"].removesuffix("/v1")
        answer = ask(url, "/v1/chat/completions", request("x"))
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
        process.stderr.close()
        assert not env_file.exists()
        return process.wait(timeout=20), said, answer

    with serving(own_answer) as upstream:
        code, said, recorded = serve(f"{upstream.base_url}/v1")
    assert code == 0
    assert said.startswith("recorded run ")
    code, said, replayed = serve(None, "--replay", "latest")
    assert (code, replayed) == (0, recorded)
    assert "replay identical" in said


def test_show_and_explain_say_what_was_asked_and_missed(sdd: SddDir, agent: list[str]) -> None:
    with serving(own_answer) as upstream:
        bernstein("record", "--", *agent, env=point_at(upstream))
    run = source_of(sdd)
    shown = bernstein("show", run.run_id, "--answers").stdout
    assert "== exchange 0 in " in shown
    assert '"content":"word"' in shown
    assert "word answered 1" in shown
    assert f"bernstein replay {run.run_id} -- " in bernstein("replay", run.run_id).stdout
    assert bernstein("replay", run.run_id, "--explain").returncode == 2
    bernstein("replay", run.run_id, "--", *agent, "another")
    explained = bernstein("replay", run.run_id, "--explain").stdout
    assert "body.messages[0].content: recorded 'word', asked 'another'" in explained
    assert "1 misses in replay" in explained
    (miss,) = json.loads(bernstein("replay", run.run_id, "--explain", "--json").stdout)
    assert miss["reason"] == "never_recorded"


# --- what attacks found


def test_a_client_that_gave_up_gets_no_more_than_it_got_then(sdd: SddDir) -> None:
    def hanging_up(url: str, wait_s: float) -> bytes:
        """Read what comes within ``wait_s``, and hang up."""
        parts = urlsplit(url)
        body = json.dumps(request("x", stream=True)).encode()
        with socket.create_connection((parts.hostname, parts.port), timeout=wait_s) as connection:
            head = f"POST {parts.path}/v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            got = b""
            with suppress(TimeoutError):
                while part := connection.recv(4096):
                    got += part
            return got

    pieces = chat("a long answer", stream=True)
    release = threading.Event()

    def answer(path: str, body: Any, number: int) -> Reply:
        release.wait(10)
        return Reply(pieces, kind="text/event-stream")

    with serving(answer) as upstream, session(sdd, upstream.base_url) as live:
        assert hanging_up(live.server.base_url("openai"), 0.5) == b""
        release.set()
        time.sleep(0.3)
    (row,) = rows(source_of(sdd).exchanges)
    assert row["end"] == "left"
    with session(sdd, replay="latest") as again:
        got = hanging_up(again.server.base_url("openai"), 0.5)
    assert b"[DONE]" not in got
    assert not got.endswith(b"0\r\n\r\n"), "no clean end where there was none"


LEAK = "ghp_" + "LEAKS7aB" * 5
HIDDEN = {
    "behind an escaped newline": lambda secret: request(f"cat token\n{secret}"),
    "with an escape in it": lambda secret: (
        json.dumps(request(secret)).replace("_", "\\u005f").encode()
    ),
    "under its name": lambda secret: request("x", client_secret="plain-" + secret[4:20]),
}


@pytest.mark.parametrize("case", HIDDEN)
def test_a_secret_that_an_escape_or_a_delta_hides_is_found(sdd: SddDir, case: str) -> None:
    body = HIDDEN[case](LEAK)

    def answer(path: str, value: Any, number: int) -> Reply:
        # Each delta holds three characters of it.
        return Reply(chat(f"it is\n{LEAK}", stream=number == 1), kind="text/event-stream")

    with serving(answer) as upstream, session(sdd, upstream.base_url) as live:
        url = live.server.base_url("openai")
        assert ask(url, "/v1/chat/completions", body)[0] == 200
    files = b"".join(path.read_bytes() for path in sdd.path.rglob("*") if path.is_file())
    assert LEAK.encode() not in files
    assert LEAK[4:20].encode() not in files
    run = source_of(sdd)
    (row,) = load_exchanges(run.exchanges).rows
    said = read_answer("chat", 200, row.read_response(BlobStore(sdd.blobs)), is_whole=True)
    assert isinstance(said, LlmAnswer)
    assert said.text == "it is\n<secret>"
    assert verify(sdd, run).verdict == "verified"
    with session(sdd, replay="latest") as again:
        url = again.server.base_url("openai")
        assert ask(url, "/v1/chat/completions", body)[0] == 200


def test_what_proves_who_one_is_is_learned_in_every_form(sdd: SddDir) -> None:
    basic = base64.b64encode(b"user:p4ssw0rd-long").decode()
    headers = {
        "Authorization": f"Basic {basic}",
        "X-Subscription-Token": "subscription-0123456789",
        "Proxy-Authorization": "token lower-case-0123456789",
    }
    text = f"{basic} p4ssw0rd-long subscription-0123456789 lower-case-0123456789"
    with serving(own_answer) as upstream, session(sdd, upstream.base_url) as live:
        ask(live.server.base_url("openai"), "/v1/chat/completions", request(text), headers)
    (row,) = rows(source_of(sdd).exchanges)
    assert json.loads(row["request"])["messages"][0]["content"] == " ".join(["<secret>"] * 4)


def test_a_secret_that_is_learned_while_another_request_is_open_breaks_no_recording(
    sdd: SddDir,
) -> None:
    opened = threading.Event()

    def answer(path: str, body: Any, number: int) -> Reply:
        if number == 1:
            opened.wait(10)
        return own_answer(path, body, number)

    with serving(answer) as upstream, session(sdd, upstream.base_url) as live:
        url = live.server.base_url("openai")
        first = threading.Thread(
            target=ask, args=(url, "/v1/chat/completions", request("late-0123456789"))
        )
        first.start()
        while not upstream.seen:
            time.sleep(0.01)
        ask(url, "/v1/chat/completions", request("y"), {"Cookie": "a=late-0123456789"})
        opened.set()
        first.join()
    assert verify(sdd, source_of(sdd)).verdict == "verified"


def test_a_command_line_and_a_base_url_are_kept_without_their_secrets(sdd: SddDir) -> None:
    code = "import sys"
    env = {"OPENAI_API_KEY": "plain-canary-0123456789"}
    bernstein(
        "record",
        "--upstream",
        "openai=http://user:canary-pass@127.0.0.1:9/v1?key=canary-0123456789abc",
        "--",
        *(
            sys.executable,
            "-c",
            code,
            "--key=plain-canary-0123456789",
            "sk-canary-0123456789abcdef",
        ),
        env=env,
    )
    assert b"canary" not in source_of(sdd).run_json.read_bytes()


def test_a_signed_block_is_never_rewritten_and_siblings_of_a_folder_are_not_it() -> None:
    move = Folders({"cwd": "/tmp/a/app"}).moved_to(Folders({"cwd": "/tmp/other"}))
    block = {"type": "thinking", "thinking": "in /tmp/a/app", "signature": "Eq/tmp/a/app=="}
    value = {"content": [block, {"type": "text", "text": "in /tmp/a/app/x"}]}
    moved = move.value(value)
    assert moved["content"] == [block, {"type": "text", "text": "in /tmp/other/x"}]
    for same in ("/tmp/a/app-backup", "/tmp/a/app.old", "/mnt/tmp/a/app/y", "/tmp/a/apple"):
        assert move.text(same) == same
    for other, there in (
        ("file:///tmp/a/app/x", "file:///tmp/other/x"),
        ("/tmp/a/app.", "/tmp/other."),
    ):
        assert move.text(other) == there
    short = Folders({"cwd": "/srv"}).moved_to(Folders({"cwd": "/tmp/other"}))
    assert (
        short.text("non-srv create-srv /usr/srv /srv/x")
        == "non-srv create-srv /usr/srv /tmp/other/x"
    )
    odd = Folders({"cwd": "/tmp/é"}).moved_to(Folders({"cwd": '/q"d'}))
    (served,) = changed_body("chat", [json.dumps({"a": "/tmp/é/x"}).encode()], odd)
    assert json.loads(served.data) == {"a": '/q"d/x'}


def test_a_saved_folder_that_holds_something_of_yours_is_left_alone(sdd: SddDir) -> None:
    run = recorded_run(sdd)
    assert bernstein("save", run.run_id, "r").returncode == 0
    Path("r/README.md").write_text("mine")
    done = bernstein("save", run.run_id, "r")
    assert done.returncode == 2
    assert "README.md" in done.stderr
    assert Path("r/README.md").read_text() == "mine"


def test_a_base_url_with_a_path_of_its_own_is_asked_there(sdd: SddDir, agent: list[str]) -> None:
    with serving(own_answer) as upstream:
        env = point_at(upstream) | {"OPENAI_BASE_URL": f"{upstream.base_url}/v1beta/openai"}
        env |= {"HTTP_PROXY": NOWHERE, "http_proxy": NOWHERE}
        env |= {"NO_PROXY": "127.0.0.1"}  # for our own way to the provider
        done = bernstein("record", "--", *agent, env=env)
    assert done.returncode == 0, done.stderr
    assert upstream.seen[0][0] == "/v1beta/openai/chat/completions"


def test_agents_that_a_recording_does_not_have_get_lanes_of_their_own(sdd: SddDir) -> None:
    def asked(gateway: GatewaySession, session_id: str, text: str) -> int:
        headers = {"x-claude-code-session-id": session_id}
        return ask(gateway.server.base_url("anthropic"), "/v1/messages", request(text), headers)[0]

    with serving(own_answer) as upstream:
        with session(sdd, upstream.base_url, profile="claude-code") as live:
            asked(live, "s1", "one")
        urls = dict.fromkeys(("openai", "anthropic", "google"), upstream.base_url)
        source_of(sdd).run_json.read_bytes()
        settings = replace(read_settings(), replay_run_id="latest", allow_live_miss=True)
        more = GatewaySession(sdd, settings, argv=["test"], upstreams=urls)
        with more:
            for session_id, text in (("a", "one"), ("b", "two"), ("c", "three"), ("b", "four")):
                assert asked(more, session_id, text) == 200
        assert more.finish(0) == 0
    lanes = [row["lane"] for row in rows(source_of(sdd).exchanges)]
    assert lanes[0] == "lane-1"
    assert len(set(lanes)) == 3
    assert lanes[1] == lanes[3]
    with session(sdd, replay="latest") as again:
        for session_id, text in (("x", "one"), ("y", "two"), ("z", "three"), ("y", "four")):
            assert asked(again, session_id, text) == 200
    assert again.code == 0  # type: ignore[attr-defined]


def test_a_client_that_gives_up_during_a_hold_is_served_when_it_asks_again(sdd: SddDir) -> None:
    released = threading.Event()

    def answer(path: str, body: Any, number: int) -> Reply:
        if "first" in json.dumps(body):
            released.wait(5)  # the second request comes before the first answer
        return own_answer(path, body, number)

    with serving(answer) as upstream, session(sdd, upstream.base_url) as live:
        url = live.server.base_url("openai")
        args = (url, "/v1/chat/completions", request("first"))
        waiting = threading.Thread(target=ask, args=args)
        waiting.start()
        while not upstream.seen:
            time.sleep(0.01)
        ask(url, "/v1/chat/completions", request("second"))
        released.set()
        waiting.join()
    with session(sdd, replay="latest") as again:
        url = again.server.base_url("openai")
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=0.5)
        body = json.dumps(request("first"))
        connection.request("POST", f"{parts.path}/v1/chat/completions", body)
        with pytest.raises(TimeoutError):
            connection.getresponse()
        connection.close()
        time.sleep(0.2)
        answers: list[int] = []
        retry = threading.Thread(
            target=lambda: answers.append(ask(url, "/v1/chat/completions", request("first"))[0])
        )
        retry.start()
        time.sleep(0.2)
        assert ask(url, "/v1/chat/completions", request("second"))[0] == 200
        retry.join()
        assert answers == [200]
    assert again.run.store.first_miss is None


def test_a_hostile_profile_in_a_recording_is_a_mismatch_and_no_fault(sdd: SddDir) -> None:
    run = recorded_run(sdd)
    run.seal.unlink()
    sdd.spine.unlink()
    for pattern, to in (("(", ""), ("a", "\\g<9>")):
        info = run.read_info()
        rule = {"op": "rewrite", "path": "**", "pattern": pattern, "to": to}
        info["profile"] = {**info["profile"], "rules": [rule]}
        run.write_info(info)
        verdict = verify(sdd, run)
        assert (verdict.verdict, verdict.reason) == ("mismatch", "recording")
        done = bernstein("replay", run.run_id, "--trust", "--", sys.executable, "-c", "")
        assert done.returncode == 1
        assert "does not hold" in done.stderr
