"""What a stream of rows costs to one viewer and to many, and how many rows a second it bears live.

``python -m bench.stream`` measures the live one; the ratios are a group of ``bench.run``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route

from bench.figures import Figure, best
from bernstein import EventJournal
from bernstein.capture.gateway.server import loopback_listener
from bernstein.rundir import SddDir
from bernstein.seal.signing import default_keys
from bernstein.show.access import Access
from bernstein.show.app import make_app
from bernstein.show.tail import Tail

TOKEN = "token-of-this-measurement"  # noqa: S105 - it opens nothing
VIEWERS = 200
NOT_READING = 10
_LATE_S = 1.0
_ROOT = Path(__file__).parents[1]


def serve(folder: Path, run_id: str) -> None:
    """A server of ours, and beside it a bare generator of the same events out of memory."""
    sdd = SddDir(folder)
    tail = Tail(sdd.run(run_id))
    pieces, at = [], 0
    while (piece := tail.read(at)).end > at:
        pieces.append(piece.frames)
        at = piece.end
    events = [event + b"\n\n" for piece in pieces for event in piece.split(b"\n\n")[:-1]]

    async def floor(request: Request) -> Response:
        del request

        async def generate() -> AsyncIterator[bytes]:
            for event in events:
                yield event

        return StreamingResponse(generate(), media_type="text/event-stream")

    ours = make_app(sdd, default_keys(sdd), Access(TOKEN))
    app = Starlette(routes=[Route("/floor", floor), Mount("/", ours)])
    listener = loopback_listener()
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_config=None, access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


@contextmanager
def serving(folder: Path, run_id: str) -> Iterator[tuple[int, int]]:
    """A server in a process of its own; gives its port and its process."""
    command = [sys.executable, "-m", "bench.stream", "--serve", str(folder), run_id]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=_ROOT) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.02)
        try:
            yield port, process.pid
        finally:
            process.terminate()


def connected(port: int, path: str) -> socket.socket:
    """A connection that has asked for a path."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.sendall(
        f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {TOKEN}\r\n"
        "\r\n".encode()
    )
    return sock


def read_all(port: int, path: str, viewers: int) -> int:
    """Read a stream that ends, so often at once; gives the bytes that came."""
    total = 0
    with selectors.DefaultSelector() as selector:
        for _ in range(viewers):
            sock = connected(port, path)
            sock.setblocking(False)
            selector.register(sock, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                data = sock.recv(2**18)
                total += len(data)
                if not data:
                    selector.unregister(sock)
                    sock.close()
    return total


def streaming(folder: Path) -> list[Figure]:
    """A finished journal to one viewer and to many, against a generator of the same events."""
    figures = []
    for viewers, rows in ((1, 20_000), (VIEWERS, 1000)):
        with EventJournal(f"run-{viewers}", folder) as journal:
            for number in range(rows - 1):
                payload = {"stepId": "build/api", "n": number, "text": "x" * 40}
                journal.append("custom.row", payload, "build/api")
            journal.append("run.finished", {"status": "completed"})

        def reads(port: int, path: str, viewers: int = viewers) -> Callable[[], None]:
            def work() -> None:
                read_all(port, path, viewers)

            return work

        with serving(folder, f"run-{viewers}") as (port, _):
            ours = reads(port, f"/api/runs/run-{viewers}/events")
            floor_s, code_s = best(reads(port, "/floor"), ours, rows * viewers, 3)
        name = f"stream to {viewers}"
        figures.append(Figure(name, 2, "an event a yield", floor_s, code_s))
    return figures


# --- live


def write(folder: str, rate: int, seconds: float) -> None:
    """Append rows at a rate, each with the time at which it was."""
    began, count = time.time(), round(rate * seconds)
    with EventJournal("live", Path(folder)) as journal:
        for number in range(count):
            due = began + number / rate
            if (wait := due - time.time()) > 0:
                time.sleep(wait)
            journal.append("custom.row", {"n": number, "at": f"{time.time():.6f}"})
        journal.append("run.finished", {"status": "completed"})


def live(rate: int, seconds: float) -> dict[str, float]:
    """Stream a run that is written at a rate to all viewers; what came to those who read."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with EventJournal("live", folder) as journal:
            journal.append("run.started", {"agentId": "bench"})
        lock = SddDir(folder).run("live").lock
        holder = subprocess.Popen(["flock", "--no-fork", str(lock), "sleep", "600"])
        with serving(folder, "live") as (port, pid):
            try:
                return _watch(name, (rate, seconds), port, pid, holder.kill)
            finally:
                holder.kill()
                holder.wait()


def _watch(
    folder: str, load: tuple[int, float], port: int, pid: int, end: Callable[[], None]
) -> dict[str, float]:
    rate, seconds = load
    idle = [connected(port, "/api/runs/live/events") for _ in range(NOT_READING)]
    readers = [connected(port, "/api/runs/live/events") for _ in range(VIEWERS - NOT_READING)]
    delays: list[float] = []
    whole = bytearray()  # what the first one gets
    sizes = dict.fromkeys(
        readers, 0
    )  # of the others the bytes are counted, and the end is looked at
    tails: dict[socket.socket, bytes] = {}
    last = f"id: {round(rate * seconds) + 1}\n".encode()
    before = _resident_mb(pid)
    writer = multiprocessing.get_context("spawn").Process(
        target=write, args=(folder, rate, seconds)
    )
    writer.start()
    complete, most = 0, before
    ended: float | None = None
    with selectors.DefaultSelector() as selector:
        for sock in readers:
            selector.register(sock, selectors.EVENT_READ)
        while selector.get_map() and (ended is None or time.time() < ended + 60):
            for key, _ in selector.select(0.2):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                data = sock.recv(2**18)
                now = time.time()
                sizes[sock] += len(data)
                if sock is readers[0]:
                    whole += data
                    delays += [now - at for at in _times(data)]
                seen = tails.get(sock, b"")[-200:] + data
                tails[sock] = last if last in seen else seen[-200:]
                if not data:
                    complete += last in seen
                    selector.unregister(sock)
            if ended is None and not writer.is_alive():
                ended = time.time()
                end()
            most = max(most, _resident_mb(pid))
    late = time.time() - (ended or time.time())
    for sock in (*idle, *readers):
        sock.close()
    ids = [int(line[4:]) for line in whole.splitlines() if line.startswith(b"id: ")]
    in_order = ids == list(range(len(ids)))
    return {
        "rate": rate,
        "complete": complete if in_order and len(set(sizes.values())) == 1 else 0,
        "median_ms": statistics.median(delays) * 1000 if delays else -1,
        "late_s": late,
        "before_mb": before,
        "most_mb": most,
    }


def _times(data: bytes) -> Iterator[float]:
    for part in data.split(b'"at":"')[1:]:
        with contextlib.suppress(ValueError):
            yield float(part[:17])


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    """Find the highest rate at which every viewer who reads is at the end within a second."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", nargs=2, metavar=("FOLDER", "RUN"))
    parser.add_argument("--seconds", type=float, default=8)
    options = parser.parse_args()
    if options.serve:
        serve(Path(options.serve[0]), options.serve[1])
        return
    rate = 100
    while True:
        found = live(rate, options.seconds)
        print(json.dumps({name: round(value, 2) for name, value in found.items()}), flush=True)
        if found["complete"] < VIEWERS - NOT_READING or found["late_s"] > _LATE_S:
            return
        rate *= 2


if __name__ == "__main__":
    main()
