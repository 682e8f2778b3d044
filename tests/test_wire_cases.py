"""Requests and responses that recorders are known to get wrong, over loopback and over a transport."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

import bernstein
from bernstein.rundir import SddDir
from tests.helpers import events, rows, verify
from tests.upstream import Reply, chat, event, messages, serving

pytestmark = [pytest.mark.loopback, pytest.mark.parametrize("seam", ["loopback", "transport"])]

Work = Callable[[httpx2.Client], Any]


@contextmanager
def client(gateway: bernstein.ReplayGateway, seam: str) -> Iterator[httpx2.Client]:
    over_transport = seam == "transport"
    base = "https://api.openai.com/v1" if over_transport else gateway.base_url("openai")
    transport = gateway.transport() if over_transport else None
    with httpx2.Client(base_url=base, transport=transport, timeout=20) as made:
        yield made


def both(sdd: SddDir, seam: str, answer: Any, work: Work) -> tuple[Any, Any, list[dict[str, Any]]]:
    """What ``work`` gives while it is recorded, what in a replay, and the recorded rows."""
    with serving(answer) as upstream:
        to = {"openai": upstream.base_url}
        with (
            bernstein.record(sdd_dir=sdd.path, upstreams=to) as gateway,
            client(gateway, seam) as asks,
        ):
            recorded = work(asks)
    run = sdd.run(gateway.run_id)
    assert verify(sdd, run).verdict == "verified"
    with bernstein.replay(run.run_id, sdd_dir=sdd.path) as again, client(again, seam) as asks:
        replayed = work(asks)
    return recorded, replayed, rows(run.exchanges)


def pieces_of(reply: Reply) -> Any:
    return lambda *_: reply


def ask(asks: httpx2.Client, **more: Any) -> httpx2.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **more}
    return asks.post("/chat/completions", json=body)


def test_the_same_upload_is_one_key_and_other_bytes_are_another(sdd: SddDir, seam: str) -> None:
    def answer(path: str, body: Any, number: int) -> Reply:
        return Reply([b'{"id": "file-%d"}' % number])

    def upload(asks: httpx2.Client, data: bytes) -> str:
        files = {"file": ("a.txt", data, "text/plain")}
        return asks.post("/files", files=files, data={"purpose": "assistants"}).text

    def work(asks: httpx2.Client) -> list[str]:
        return [upload(asks, data) for data in (b"one", b"two", b"one")]

    recorded, replayed, kept = both(sdd, seam, answer, work)
    assert replayed == recorded
    assert [row["key_scheme"] for row in kept] == ["form.v1"] * 3
    keys = [row["key"] for row in kept]
    assert keys[0] == keys[2] != keys[1]
    with (
        pytest.raises(bernstein.ReplayMissError),
        bernstein.replay("latest", sdd_dir=sdd.path) as again,
        client(again, seam) as asks,
    ):
        upload(asks, b"three")


def test_a_body_that_comes_from_an_iterator_arrives_whole(sdd: SddDir, seam: str) -> None:
    data = json.dumps({"model": "m", "messages": [{"role": "user", "content": "y" * 5000}]})

    def parts() -> Iterator[bytes]:
        for start in range(0, len(data), 700):
            yield data[start : start + 700].encode()

    def answer(path: str, body: dict[str, Any], number: int) -> Reply:
        return Reply(chat(f"{len(body['messages'][0]['content'])} characters"))

    def work(asks: httpx2.Client) -> str:
        headers = {"content-type": "application/json"}
        return asks.post("/chat/completions", content=parts(), headers=headers).text

    recorded, replayed, _ = both(sdd, seam, answer, work)
    assert "5000 characters" in recorded
    assert replayed == recorded


def test_an_async_stream_with_an_async_body_is_recorded(sdd: SddDir, seam: str) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b'{"model": "m", "stream": true, '
        yield b'"messages": [{"role": "user", "content": "z"}]}'

    async def asked(gateway: bernstein.ReplayGateway) -> list[bytes]:
        over_transport = seam == "transport"
        base = "https://api.openai.com/v1" if over_transport else gateway.base_url("openai")
        transport = gateway.async_transport() if over_transport else None
        async with (
            httpx2.AsyncClient(transport=transport, base_url=base) as asks,
            asks.stream("POST", "/chat/completions", content=parts()) as got,
        ):
            return [piece async for piece in got.aiter_raw()]

    reply = Reply(chat("pieces of it", stream=True), kind="text/event-stream")
    with serving(pieces_of(reply)) as upstream:
        to = {"openai": upstream.base_url}
        with bernstein.record(sdd_dir=sdd.path, upstreams=to) as gateway:
            recorded = asyncio.run(asked(gateway))
    assert b"".join(recorded) == b"".join(reply.pieces)
    with bernstein.replay(gateway.run_id, sdd_dir=sdd.path) as again:
        assert b"".join(asyncio.run(asked(again))) == b"".join(reply.pieces)


def test_a_client_that_leaves_an_endless_stream_leaves_a_recording(sdd: SddDir, seam: str) -> None:
    over = threading.Event()

    class Endless(list[bytes]):
        def __iter__(self) -> Iterator[bytes]:
            number = 0
            while not over.is_set() and number < 5000:
                number += 1
                yield event({"n": number})

    def work(asks: httpx2.Client) -> list[str]:
        seen: list[str] = []
        with asks.stream("POST", "/chat/completions", json={"stream": True}) as got:
            for line in got.iter_lines():
                if line:
                    seen.append(line)
                if len(seen) == 3:
                    return seen
        return seen

    reply = Reply(Endless(), kind="text/event-stream")
    with serving(pieces_of(reply)) as upstream:
        to = {"openai": upstream.base_url}
        with bernstein.record(sdd_dir=sdd.path, upstreams=to) as gateway:
            with client(gateway, seam) as asks:
                recorded = work(asks)
            until = threading.Event()
            for _ in range(200):  # the gateway sees that the client has left
                if rows(sdd.run(gateway.run_id).exchanges):
                    break
                until.wait(0.02)
        over.set()
    assert len(recorded) == 3
    assert [row["end"] for row in rows(sdd.run(gateway.run_id).exchanges)] == ["left"]
    with bernstein.replay(gateway.run_id, sdd_dir=sdd.path) as again, client(again, seam) as asks:
        assert work(asks) == recorded


def test_an_answer_without_a_body_that_says_it_is_packed(sdd: SddDir, seam: str) -> None:
    reply = Reply([], headers=[("Content-Encoding", "gzip")])

    def work(asks: httpx2.Client) -> tuple[int, bytes]:
        got = asks.head("/models")
        return got.status_code, got.content

    recorded, replayed, _ = both(sdd, seam, pieces_of(reply), work)
    assert recorded == replayed == (200, b"")


@pytest.mark.parametrize("packing", ["gzip", "deflate", "br", "zstd", "x-unknown"])
def test_a_packed_body_is_unpacked_where_that_is_known_and_kept_where_not(
    sdd: SddDir, seam: str, packing: str
) -> None:
    plain = b"".join(chat("a packed answer"))
    packed = {"gzip": gzip.compress(plain), "deflate": zlib.compress(plain)}.get(packing)
    data = b"\x8bnot for us \xff\xfe" if packed is None else packed
    reply = Reply([data[:7], data[7:]], headers=[("Content-Encoding", packing)])

    def work(asks: httpx2.Client) -> tuple[bytes, str | None]:
        with asks.stream("POST", "/chat/completions", json={"model": "m"}) as got:
            return b"".join(got.iter_raw()), got.headers.get("content-encoding")

    recorded, replayed, _ = both(sdd, seam, pieces_of(reply), work)
    assert replayed == recorded
    assert recorded == ((plain, None) if packed is not None else (data, packing))


ODD = "a\u2028b\u2029c\x85d\x0be\x1cf \u00e9\U0001f600"


@pytest.mark.parametrize("size", [1, 2, 3, 64])
def test_odd_line_ends_and_cut_characters_come_through(sdd: SddDir, seam: str, size: int) -> None:
    delta = {"choices": [{"index": 0, "delta": {"content": ODD}}]}
    data = b"data: " + json.dumps(delta, ensure_ascii=False).encode() + b"\n\n" + event("[DONE]")
    pieces = [data[start : start + size] for start in range(0, len(data), size)]

    def work(asks: httpx2.Client) -> bytes:
        return ask(asks, stream=True).content

    recorded, replayed, kept = both(
        sdd, seam, pieces_of(Reply(pieces, kind="text/event-stream")), work
    )
    assert recorded == replayed == data
    answer = events(sdd.list_runs()[0], "model.answer")
    assert len(answer) == 1
    assert kept[0]["response"] == data.decode()


def test_an_error_inside_a_stream_that_began_well_is_an_error(sdd: SddDir, seam: str) -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    pieces = [*messages({"text": "half of"})[:3], event(error, "error")]

    def work(asks: httpx2.Client) -> tuple[int, bytes]:
        got = asks.post("/v1/messages", json={"model": "m", "messages": []})
        return got.status_code, got.content

    recorded, replayed, _ = both(
        sdd, seam, pieces_of(Reply(pieces, kind="text/event-stream")), work
    )
    assert recorded == replayed == (200, b"".join(pieces))
    run = sdd.list_runs()[0]
    assert [item["payload"]["outcome"] for item in events(run, "model.answer")] == ["error"]


def test_interleaved_tool_arguments_stay_whole(sdd: SddDir, seam: str) -> None:
    """Two calls whose arguments come in turns, and name the folder across the cuts."""
    here = str(Path.cwd())
    texts = [json.dumps({"path": f"{here}/one"}), json.dumps({"path": f"{here}/two"})]
    cut = [[text[n : n + 5] for n in range(0, len(text), 5)] for text in texts]
    pieces = []
    for turn in range(max(map(len, cut))):
        for index, parts in enumerate(cut):
            call: dict[str, Any] = {
                "index": index,
                "function": {"arguments": "".join(parts[turn : turn + 1])},
            }
            if turn == 0:
                call |= {"id": f"call_{index}", "type": "function"}
                call["function"]["name"] = f"tool_{index}"
            pieces.append(event({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}))
    pieces.append(event("[DONE]"))

    def work(asks: httpx2.Client) -> list[str]:
        found = ["", ""]
        for line in ask(asks, stream=True).text.splitlines():
            if line.startswith("data: {"):
                for item in json.loads(line[6:])["choices"][0]["delta"]["tool_calls"]:
                    found[item["index"]] += item["function"]["arguments"]
        return found

    recorded, replayed, _ = both(
        sdd, seam, pieces_of(Reply(pieces, kind="text/event-stream")), work
    )
    assert recorded == replayed == texts


def test_clients_that_come_and_go_leave_no_thread_and_no_file_open(sdd: SddDir, seam: str) -> None:
    reply = Reply(chat("a long answer " * 20, stream=True), kind="text/event-stream")
    with serving(pieces_of(reply)) as upstream:
        to = {"openai": upstream.base_url}
        with bernstein.record(sdd_dir=sdd.path, upstreams=to) as gateway:
            before, open_before = threading.active_count(), 0
            for number in range(60):
                with (
                    client(gateway, seam) as asks,
                    asks.stream("POST", "/chat/completions", json={"n": number}) as got,
                ):
                    next(got.iter_raw())
                if number == 9:
                    open_before = len(list(Path("/proc/self/fd").iterdir()))
            assert threading.active_count() <= before + 2
            left = threading.Event()
            for _ in range(100):
                if len(list(Path("/proc/self/fd").iterdir())) <= open_before + 4:
                    break
                left.wait(0.05)
            assert len(list(Path("/proc/self/fd").iterdir())) <= open_before + 4
    assert len(rows(sdd.run(gateway.run_id).exchanges)) == 60
