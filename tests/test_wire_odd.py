"""Odd things on the wire and in programs: forks, half characters, answers of no known shape."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import httpx2
import pytest

import bernstein
from bernstein.errors import RecordedToolError
from bernstein.rundir import SddDir
from bernstein.wire.changed import changed_body
from bernstein.wire.ids import KnownIds
from bernstein.wire.secrets import Redactor
from tests.helpers import rows, verify
from tests.upstream import Reply, event, own_answer, serving

pytestmark = pytest.mark.loopback

KEY = "sk-abcdefghij0123456789"
URL = "https://api.openai.com/v1/chat/completions"


def body(text: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}]}


def in_child(work: Any) -> int:
    """The exit code of a forked child that does ``work``."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 - it is the child's end
            os._exit(7)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_neither_asks_over_its_parent_s_client_nor_ends_its_run(
    sdd: SddDir,
) -> None:
    with serving(own_answer) as upstream:
        to = {"openai": upstream.base_url}
        block = bernstein.record(sdd_dir=sdd.path, upstreams=to)
        with block as gateway, httpx2.Client(transport=gateway.transport()) as client:
            assert client.post(URL, json=body("one")).status_code == 200
            assert in_child(lambda: client.post(URL, json=body("child"))) == 7
            assert in_child(lambda: block.__exit__(None, None, None)) == 0
            assert client.post(URL, json=body("two")).status_code == 200
    run = sdd.run(gateway.run_id)
    assert [row["seq"] for row in rows(run.exchanges)] == [0, 1]
    assert verify(sdd, run).verdict == "verified"


@bernstein.tool
def charge(number: int) -> int:
    Path("charged").write_text(str(number))
    return number


def test_a_tool_in_a_spawned_child_is_refused_and_does_not_run_live(sdd: SddDir) -> None:
    with (
        bernstein.record(sdd_dir=sdd.path),
        multiprocessing.get_context("spawn").Pool(1) as pool,
        pytest.raises(bernstein.UsageError, match="child process"),
    ):
        pool.apply(charge, (3,))
    assert not Path("charged").exists()


@bernstein.tool
def shuffled(count: int) -> list[float]:
    return [bernstein.rng("dice").random() for _ in range(count)]


def test_what_a_tool_draws_does_not_move_the_program_s_numbers(sdd: SddDir) -> None:
    def draws() -> list[object]:
        return [
            shuffled(2),
            bernstein.rng("dice").random(),
            shuffled(3),
            bernstein.rng("dice").random(),
        ]

    with bernstein.record(sdd_dir=sdd.path) as gateway:
        said = draws()
    with bernstein.replay(gateway.run_id, sdd_dir=sdd.path):
        assert draws() == said


class TwoError(Exception):
    def __init__(self, number: int, text: str) -> None:
        super().__init__(number, text)


@pytest.mark.parametrize(
    "error",
    [TwoError(5, "bad"), KeyError(5), ValueError("a", "b"), ValueError(), OSError(2, "no", "f")],
)
def test_an_exception_of_a_tool_comes_back_as_itself(sdd: SddDir, error: Exception) -> None:
    def fail() -> Any:
        raise error

    with bernstein.record(sdd_dir=sdd.path) as gateway, pytest.raises(type(error)):
        gateway.answer("tool", {}, fail, [TwoError])
    with (
        bernstein.replay(gateway.run_id, sdd_dir=sdd.path) as again,
        pytest.raises(type(error)) as caught,
    ):
        again.answer("tool", {}, lambda: 1, [TwoError])
    assert str(caught.value) == str(error)
    assert caught.value.args == error.args
    assert type(caught.value) is type(error)
    if isinstance(error, OSError):
        assert isinstance(caught.value, OSError)
        assert (caught.value.errno, caught.value.filename) == (2, "f")


def test_an_exception_that_cannot_be_made_again_says_what_it_was(sdd: SddDir) -> None:
    with bernstein.record(sdd_dir=sdd.path) as gateway, pytest.raises(UnicodeDecodeError):
        gateway.answer("tool", {}, b"\xff".decode)
    with (
        bernstein.replay(gateway.run_id, sdd_dir=sdd.path) as again,
        pytest.raises(RecordedToolError, match="UnicodeDecodeError"),
    ):
        again.answer("tool", {}, lambda: 1)


@pytest.mark.parametrize("half", ["\\ud83d", "\\udc80"])
def test_half_a_character_beside_a_secret_is_kept_and_asked(sdd: SddDir, half: str) -> None:
    asked = f'{{"model":"m","messages":[{{"role":"user","content":"{half} {KEY}"}}]}}'.encode()

    def answer(path: str, value: Any, number: int) -> Reply:
        told = f'{{"choices":[{{"index":0,"delta":{{"content":"{half} {KEY}"}}}}]}}'
        return Reply([b"data: %b\n\n" % told.encode()], kind="text/event-stream")

    def ask(gateway: bernstein.ReplayGateway) -> httpx2.Response:
        return httpx2.post(f"{gateway.base_url('openai')}/chat/completions", content=asked)

    with serving(answer) as upstream:
        to = {"openai": upstream.base_url}
        with bernstein.record(sdd_dir=sdd.path, upstreams=to) as gateway:
            assert ask(gateway).status_code == 200
        assert upstream.seen[0][2] == asked
    run = sdd.run(gateway.run_id)
    assert KEY not in run.exchanges.read_text()
    assert not rows(run.exchanges)[0]["binary"]
    with bernstein.replay(run.run_id, sdd_dir=sdd.path) as again:
        assert half in ask(again).text


SHAPES = {
    "null call": '{"choices":[{"index":0,"delta":{"content":"hi","tool_calls":[null]}}]}',
    "null choice": '{"choices":[null]}',
    "delta is a text": '{"choices":[{"delta":"hi"}]}',
    "index is a list": '{"choices":[{"index":[1],"delta":{"content":"x"}}]}',
    "no number": '{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":1e400}]}',
    "large number": '{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":98765432109876543}]}',
    "half a token": '{"choices":[{"index":0,"delta":{"content":"x"}}],"usage":{"prompt_tokens":1,"completion_tokens":3.5}}',
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_an_answer_of_no_known_shape_is_kept_and_served(sdd: SddDir, shape: str) -> None:
    reply = Reply([b"data: %b\n\n" % shape.encode(), event("[DONE]")], kind="text/event-stream")

    def ask(gateway: bernstein.ReplayGateway) -> bytes:
        return httpx2.post(f"{gateway.base_url('openai')}/chat/completions", json=body("x")).content

    with serving(lambda *_: reply) as upstream:
        to = {"openai": upstream.base_url}
        with bernstein.record(sdd_dir=sdd.path, upstreams=to) as gateway:
            assert ask(gateway) == b"".join(reply.pieces)
    assert verify(sdd, sdd.run(gateway.run_id)).verdict == "verified"
    with bernstein.replay(gateway.run_id, sdd_dir=sdd.path) as again:
        assert ask(again) == b"".join(reply.pieces)


def choices(*texts: tuple[int, str], name: str = "content") -> list[bytes]:
    return [event({"choices": [{"index": n, "delta": {name: text}}]}) for n, text in texts]


CUT = {
    "two choices": choices((0, f"key {KEY[:9]}"), (1, "other"), (0, f"{KEY[9:]} end"), (1, "x")),
    "reasoning": choices((0, KEY[:9]), (0, KEY[9:]), name="reasoning_content"),
    "refusal": choices((0, KEY[:9]), (0, KEY[9:]), name="refusal"),
    "old function": [
        event({"choices": [{"delta": {"function_call": {"arguments": part}}}]})
        for part in (KEY[:9], KEY[9:])
    ],
    "parts": [
        event({"choices": [{"delta": {"content": [{"type": "text", "text": part}]}}]})
        for part in (KEY[:9], KEY[9:])
    ],
    "completions": [event({"choices": [{"text": part}]}) for part in (KEY[:9], KEY[9:])],
    "with a mark": [b"\xef\xbb\xbf", *choices((0, KEY[:9]), (0, KEY[9:]))],
}


@pytest.mark.parametrize("pieces", CUT.values(), ids=CUT)
@pytest.mark.parametrize("kind", ["chat", "other"])
def test_a_secret_that_is_cut_over_pieces_is_found(pieces: list[bytes], kind: str) -> None:
    redactor = Redactor([KEY])
    kept = b"".join(piece.data for piece in changed_body(kind, pieces, redactor)).decode()
    assert KEY[9:] not in kept
    assert "<secret>" in kept


@pytest.mark.parametrize("word", ["not-needed", "lm-studio", "password"])
def test_a_word_that_stands_for_a_key_is_no_secret(word: str) -> None:
    redactor = Redactor([word])
    redactor.learn([("authorization", f"Bearer {word}"), ("cookie", f"field={word}")], "")
    assert redactor.text(f"choose a {word}") == f"choose a {word}"


def test_forms_locations_and_short_tokens_are_kept_without_their_secrets() -> None:
    redactor = Redactor()
    assert redactor.body("a=b&client_secret=s3cr3tvalue&x=1") == "a=b&client_secret=<secret>&x=1"
    assert "s3cr3t12" not in redactor.query("access_token=s3cr3t12&page=2")
    assert redactor.query("page=12345678") == "page=12345678"
    assert "abcdefgh12345678" not in redactor.url("https://x.example/f?sig=abcdefgh12345678&n=1")


def test_each_answer_names_the_ids_of_its_own_request() -> None:
    import re

    known = KnownIds([re.compile(r"id (\d+)")])
    first = known.learn("a", {"id": ["1"]}, {"id": ["7"]})
    second = known.learn("b", {"id": ["1"]}, {"id": ["9"]})
    same = known.learn("c", {"id": ["1"]}, {"id": ["1"]})
    assert [ids.to_live("id 1") for ids in (first, second, same)] == ["id 7", "id 9", "id 1"]
    assert [ids.to_recorded("id 9") for ids in (first, second)] == ["id 9", "id 1"]
    later = known.learn("a", {}, {})
    assert later.to_live("id 1") == "id 7"
    swapped = known.learn("d", {"id": ["3", "4"]}, {"id": ["4", "3"]})
    assert swapped.to_live("id 3 id 4") == "id 4 id 3"


def test_an_extension_takes_no_file_that_a_recording_s_profile_names(
    sdd: SddDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.helpers import bernstein as run_command

    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_rsa").write_text("PRIVATE")
    profile = Path("theirs.json")
    profile.write_text(json.dumps({"name": "x", "version": 1, "home_files": [".ssh/*"]}))
    monkeypatch.setenv("HOME", str(home))
    with serving(own_answer) as upstream:
        to = ["--upstream", f"openai={upstream.base_url}"]
        script = "curl -s -d '{}' $OPENAI_BASE_URL/models; cat $HOME/.ssh/id_rsa 2>/dev/null; true"
        done = run_command("record", "--profile", "theirs.json", *to, "--", "sh", "-c", script)
        assert "PRIVATE" in done.stdout, "one's own profile may"
        done = run_command("record", "--extend", "latest", *to, "--", "sh", "-c", script)
        assert done.returncode == 0, done.stderr
    assert "PRIVATE" not in done.stdout
    assert "PRIVATE" not in sdd.list_runs()[-1].run_json.read_text()


@pytest.mark.parametrize("glob", ["/etc/*", "", ".", "**", "../x", "a/../../x", "*"])
def test_a_profile_names_files_below_a_folder_of_the_home(glob: str) -> None:
    from bernstein.wire.profile import parse_profile

    with pytest.raises(bernstein.UsageError):
        parse_profile(json.dumps({"name": "x", "version": 1, "home_files": [glob]}).encode())


def test_a_client_that_is_cancelled_before_the_head_leaves_no_exchange_open(sdd: SddDir) -> None:
    async def twice(gateway: bernstein.ReplayGateway) -> list[str]:
        async with httpx2.AsyncClient(transport=gateway.async_transport()) as client:
            out = []
            for prompt in ("slow", "quick"):
                try:
                    async with asyncio.timeout(0.4):
                        out.append((await client.post(URL, json=body(prompt))).text)
                except TimeoutError:
                    out.append("timed out")
            return out

    def answer(path: str, value: Any, number: int) -> Reply:
        prompt = value["messages"][0]["content"]
        return Reply([json.dumps({"said": prompt}).encode()], delay_s=2 if prompt == "slow" else 0)

    with serving(answer) as upstream:
        to = {"openai": upstream.base_url}
        with bernstein.record(sdd_dir=sdd.path, upstreams=to) as gateway:
            said = asyncio.run(twice(gateway))
    assert said == ["timed out", '{"said": "quick"}']
    assert [row["end"] for row in rows(sdd.run(gateway.run_id).exchanges)] == ["left", "complete"]
    with bernstein.replay(gateway.run_id, sdd_dir=sdd.path) as again:
        assert asyncio.run(twice(again)) == said
