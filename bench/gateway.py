"""What the gateway costs, against the same client talking to the same bytes without it."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import uvicorn

import bernstein
from bench.figures import Figure, best
from bernstein.wire.folders import Folders
from bernstein.wire.key import Request, match_of, without_secrets
from bernstein.wire.profile import load_profile
from bernstein.wire.secrets import Redactor

TEXT = "the quick brown fox jumps over a lazy dog, and " * 42
PIECES = 20
Asgi = Callable[[dict[str, Any], Any, Any], Awaitable[None]]


# --- a provider of bytes


def _answer() -> bytes:
    message = {"role": "assistant", "content": TEXT}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    base = {"id": "c", "created": 1, "model": "m", "object": "chat.completion"}
    return json.dumps({**base, "usage": usage, "choices": [choice]}).encode()


def _events() -> list[bytes]:
    delta = {"choices": [{"index": 0, "delta": {"content": "x" * 100}}]}
    piece = b"data: " + json.dumps(delta).encode() + b"\n\n"
    return [*[piece] * (PIECES - 1), b"data: [DONE]\n\n"]


async def provider(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """An ASGI app: a plain answer, a stream, or a slow one whose pieces say when they were sent."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    kind = b"application/json" if scope["path"].endswith("completions") else b"text/event-stream"
    headers = [(b"content-type", kind)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    pieces = [_answer()] if kind == b"application/json" else _events()
    for piece in pieces:
        if scope["path"].endswith("slow"):
            await asyncio.sleep(0.004)
            piece = b"data: %d\n\n" % time.monotonic_ns()  # noqa: PLW2901 - stamped as it goes
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@contextmanager
def own_process() -> Iterator[str]:
    """The provider in a process of its own: its base URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.gateway"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextmanager
def own_thread(app: Asgi) -> Iterator[str]:
    """An app on loopback, in a thread: its base URL."""
    config = uvicorn.Config(app, port=0, log_level="critical", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@contextmanager
def gateway_process(sdd_dir: Path, *arguments: str) -> Iterator[str]:
    """A standing gateway in a process of its own, as a client finds it: its base URL."""
    env_file = sdd_dir.parent / "gateway.env"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "bernstein", "--sdd", str(sdd_dir), "gateway"),
            *("--env-file", str(env_file), *arguments),
        ],
        stderr=subprocess.DEVNULL,
    )
    while not env_file.exists() or not env_file.read_text().endswith("\n"):
        time.sleep(0.01)
        assert process.poll() is None, "the gateway has ended"
    variables = dict(
        line.removeprefix("export ").split("=", 1) for line in env_file.read_text().splitlines()
    )
    try:
        yield variables["OPENAI_BASE_URL"]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


# --- a client of bytes


class Client:
    """One kept connection."""

    def __init__(self, base_url: str) -> None:
        host, _, path = base_url.removeprefix("http://").partition("/")
        self._path = f"/{path}" if path else ""
        self.connection = http.client.HTTPConnection(host)
        self.connection.connect()

    def ask(self, path: str, body: bytes) -> bytes:
        """Ask once and read all of it."""
        headers = {"Content-Type": "application/json"}
        self.connection.request("POST", self._path + path, body, headers)
        return self.connection.getresponse().read()

    def first_byte_s(self, path: str, body: bytes) -> float:
        """How long the first byte of a body takes."""
        begun = time.perf_counter()
        self.connection.request("POST", self._path + path, body, {"Content-Type": "text/plain"})
        response = self.connection.getresponse()
        response.read(1)
        taken = time.perf_counter() - begun
        response.read()
        return taken

    def piece_delays_s(self, path: str, body: bytes) -> list[float]:
        """How long each stamped piece was on its way."""
        self.connection.request("POST", self._path + path, body, {"Content-Type": "text/plain"})
        response = self.connection.getresponse()
        delays = []
        while piece := response.read1():
            sent_ns = int(piece.removeprefix(b"data: ").split(b"\n", 1)[0])
            delays.append((time.monotonic_ns() - sent_ns) / 1e9)
        return delays


def body_of(number: int, size_bytes: int = 1600) -> bytes:
    """A request that no other is like."""
    prompt = f"prompt {number} " + "words " * (size_bytes // 6)
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": prompt}]}).encode()


# --- figures


def recording(folder: Path) -> list[Figure]:
    """What the gateway adds to the first byte and to a piece, while it records."""
    first: list[list[float]] = [[], []]
    piece: list[list[float]] = [[], []]
    with (
        own_process() as url,
        gateway_process(folder / ".sdd", "--upstream", f"openai={url}") as gateway,
    ):
        sides = [Client(url), Client(gateway)]
        for number in range(120):
            for side, client in enumerate(sides):
                first[side].append(client.first_byte_s("/chat/completions", body_of(number)))
        for number in range(12):
            for side, client in enumerate(sides):
                piece[side] += client.piece_delays_s("/slow", body_of(number))
        for client in sides:
            client.connection.close()
    direct_s, ours_s = (statistics.median(times) for times in first)
    piece_s, our_piece_s = (statistics.median(times) for times in piece)
    return [
        Figure("added to 1st byte", 2, "direct", direct_s, ours_s - direct_s),
        Figure("added to a piece", 4, "direct", piece_s, our_piece_s - piece_s),
    ]


def _replay(folder: Path, name: str, path: str, bodies: list[bytes], profile: str) -> float:
    """The best time a request of three replays."""
    sdd_dir = folder / name / ".sdd"
    sdd_dir.parent.mkdir()
    with (
        own_process() as url,
        gateway_process(sdd_dir, "--upstream", f"openai={url}", "--profile", profile) as gateway,
    ):
        _asked(gateway, path, bodies)
    times = []
    for _ in range(3):
        with gateway_process(sdd_dir, "--replay", "latest") as gateway:
            times.append(_asked(gateway, path, bodies))
    return min(times)


def _asked(base_url: str, path: str, bodies: list[bytes]) -> float:
    """The time a request."""
    client = Client(base_url)
    begun = time.perf_counter()
    for body in bodies:
        client.ask(path, body)
    taken = time.perf_counter() - begun
    client.connection.close()
    return taken / len(bodies)


def replaying(folder: Path) -> list[Figure]:
    """A replayed request against an app that does nothing but give the same bytes."""
    bodies = [body_of(number) for number in range(400)]
    bare: dict[str, float] = {}
    with own_process() as url:
        for path in ("/chat/completions", "/stream"):
            bare[path] = min(_asked(url, path, bodies) for _ in range(3))
    plain_s = _replay(folder, "plain", "/chat/completions", bodies, "generic")
    stream_s = _replay(folder, "stream", "/stream", bodies, "generic")
    return [
        Figure("replay a request", 2, "bare app", bare["/chat/completions"], plain_s),
        Figure("replay a stream", 2, "bare app", bare["/stream"], stream_s),
        _large(folder),
        *_vcr(folder, bodies, plain_s),
    ]


def _large(folder: Path) -> Figure:
    """A request of 100 kB under the longest profile, against parsing, rules and hashing alone."""
    tools = [{"name": f"t{n}", "description": "what it does " * 40} for n in range(140)]

    def body(number: int) -> bytes:
        said = {"role": "user", "content": [{"type": "text", "text": f"prompt {number}"}]}
        return json.dumps({"model": "m", "tools": tools, "messages": [said]}).encode()

    bodies = [body(number) for number in range(60)]
    profile, redactor, folders = load_profile("claude-code"), Redactor(), Folders({"cwd": "/a/b"})

    def match(data: bytes) -> None:
        request = Request("POST", "openai", "http://127.0.0.1", "/chat/completions", "", [], data)
        match_of(without_secrets(request, profile, redactor), profile, folders)

    floor_s, _ = best(lambda: [match(data) for data in bodies] and None, lambda: None, 60)
    ours_s = _replay(folder, "large", "/chat/completions", bodies, "claude-code")
    return Figure("replay 100 kB", 4, "parse, rules, hash", floor_s, ours_s)


def _vcr(folder: Path, bodies: list[bytes], ours_s: float) -> list[Figure]:
    """The same requests through vcrpy: how many times it takes what we take."""
    try:
        import vcr
    except ImportError:
        return []
    cassette = str(folder / "cassette.yaml")
    recorder = vcr.VCR(match_on=["method", "path", "body"])
    with own_process() as url, recorder.use_cassette(cassette, record_mode="once"):
        client = Client(url)
        for body in bodies:
            client.ask("/chat/completions", body)
    with recorder.use_cassette(cassette, record_mode="none"):
        begun = time.perf_counter()
        client = Client(url)
        for body in bodies:
            client.ask("/chat/completions", body)
        vcr_s = (time.perf_counter() - begun) / len(bodies)
    return [Figure("vcrpy, replay", "5 or more", "ours", ours_s, vcr_s)]


def in_process(folder: Path) -> list[Figure]:
    """1,000 calls of an SDK over a transport, open and close included."""
    import openai

    count = 1000
    answer = httpx2.Response(200, headers={"content-type": "application/json"}, content=_answer())

    def mock() -> httpx2.MockTransport:
        return httpx2.MockTransport(
            lambda _: httpx2.Response(200, headers=answer.headers, content=answer.content)
        )

    def calls(transport: Any, base_url: str = "https://api.openai.com/v1") -> None:
        client = openai.OpenAI(
            api_key="sk-none",
            base_url=base_url,
            http_client=None if transport is None else httpx2.Client(transport=transport),
        )
        for number in range(count):
            client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": f"prompt {number}"}]
            )

    runs: list[str] = []

    def record() -> None:
        with bernstein.record(sdd_dir=folder / ".sdd") as gateway:
            calls(gateway.transport(inner=mock()))
        runs.append(gateway.run_id)

    def replay() -> None:
        with bernstein.replay(runs[-1], sdd_dir=folder / ".sdd") as gateway:
            calls(gateway.transport())

    calls(mock())
    mock_s, record_s = best(lambda: calls(mock()), record, count, 3)
    again_s, replay_s = best(lambda: calls(mock()), replay, count, 3)
    with own_process() as url:
        loopback_s, _ = best(lambda: calls(None, url), lambda: None, count, 2)
    return [
        Figure("replay in process", 1.2, "SDK on a mock", again_s, replay_s),
        Figure("record adds", "0.14", "SDK on loopback", loopback_s, record_s - mock_s),
    ]


def main() -> None:
    """Serve the provider on a free port of loopback, and say where."""
    with own_thread(provider) as url:
        print(url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
