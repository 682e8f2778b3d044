"""Rounds of concurrent requests, recorded and replayed: who gets which answer.

Eight threads and 64 tasks ask at once, different things and equal ones, plain and streamed, over
loopback or over a transport, of a provider whose answers are all different and come in any order.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

import bernstein
from tests.upstream import Reply, chat, prompt_of, serving

THREADS, TASKS = 8, 64


class Round(NamedTuple):
    """What became of one round."""

    seam: str
    problem: str


class _Provider:
    """Answers each request otherwise, after a delay, and keeps the pieces that it sent."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._lock = threading.Lock()
        self.sent: dict[bytes, list[bytes]] = {}

    def answer(self, _path: str, body: dict[str, Any], number: int) -> Reply:
        with self._lock:
            delay_s = self._rng.random() * 0.04
        is_streamed = bool(body.get("stream"))
        text = f"{prompt_of(body)} is answered {number} " + "word " * (number % 7)
        pieces = chat(text, stream=is_streamed)
        with self._lock:
            self.sent[b"".join(pieces)] = pieces
        kind = "text/event-stream" if is_streamed else "application/json"
        return Reply(pieces, kind=kind, delay_s=delay_s)


def _jobs(rng: random.Random) -> list[dict[str, Any]]:
    """A body for each asker: two in three are like no other, the rest are of four kinds."""
    jobs = []
    for number in range(THREADS + TASKS):
        prompt = f"only {number}" if rng.random() < 2 / 3 else f"equal {rng.randrange(4)}"
        jobs.append(
            {
                "model": "m",
                "stream": rng.random() < 0.5,
                "messages": [{"role": "user", "content": prompt}],
            }
        )
    return jobs


def _ask_all(
    gateway: bernstein.ReplayGateway, jobs: list[dict[str, Any]], *, over_transport: bool
) -> list[list[bytes]]:
    """The pieces that each asker is given."""
    base = "https://api.openai.com/v1" if over_transport else gateway.base_url("openai")
    url = f"{base}/chat/completions"
    given: list[list[bytes]] = [[] for _ in jobs]

    def by_thread(number: int, client: httpx2.Client) -> None:
        with client.stream("POST", url, json=jobs[number]) as answer:
            given[number] = list(answer.iter_raw())

    async def by_task(number: int, client: httpx2.AsyncClient) -> None:
        async with client.stream("POST", url, json=jobs[number]) as answer:
            given[number] = [piece async for piece in answer.aiter_raw()]

    async def tasks() -> None:
        limits = httpx2.Limits(max_connections=TASKS)
        transport = gateway.async_transport() if over_transport else None
        async with httpx2.AsyncClient(transport=transport, limits=limits, timeout=60) as client:
            await asyncio.gather(*(by_task(THREADS + n, client) for n in range(TASKS)))

    transport = gateway.transport() if over_transport else None
    with httpx2.Client(transport=transport, timeout=60) as client:
        threads = [threading.Thread(target=by_thread, args=(n, client)) for n in range(THREADS)]
        threads.append(threading.Thread(target=lambda: asyncio.run(tasks())))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return given


def run_round(folder: Path, number: int) -> Round:
    """Record and replay one round below ``folder``."""
    rng = random.Random(number)
    jobs, over_transport = _jobs(rng), number % 2 == 1
    seam = "transport" if over_transport else "loopback"
    provider = _Provider(rng)
    sdd_dir = folder / f"round-{number}" / ".sdd"
    with (
        serving(provider.answer) as upstream,
        bernstein.record(sdd_dir=sdd_dir, upstreams={"openai": upstream.base_url}) as gateway,
    ):
        recorded = _ask_all(gateway, jobs, over_transport=over_transport)
    try:
        with bernstein.replay(gateway.run_id, sdd_dir=sdd_dir) as again:
            replayed = _ask_all(again, jobs, over_transport=over_transport)
    except bernstein.BernsteinError as error:
        return Round(seam, f"{type(error).__name__}: {error}")
    return Round(seam, _problem(jobs, recorded, replayed, provider, has_borders=over_transport))


def _problem(
    jobs: list[dict[str, Any]],
    recorded: list[list[bytes]],
    replayed: list[list[bytes]],
    provider: _Provider,
    *,
    has_borders: bool,
) -> str:
    bodies = [b"".join(pieces) for pieces in recorded]
    if len(set(bodies)) != len(jobs) or set(bodies) != provider.sent.keys():
        return "the answers of the provider are not all different, or not all there"
    groups: dict[str, list[int]] = {}
    for number, job in enumerate(jobs):
        groups.setdefault(json.dumps(job), []).append(number)
    for numbers in groups.values():
        # Which of equal requests of different askers came first is the askers' own affair.
        then = sorted(bodies[number] for number in numbers)
        if sorted(b"".join(replayed[number]) for number in numbers) != then:
            return f"askers {numbers} were given answers of others"
    for pieces in replayed:
        if has_borders and pieces != provider.sent[b"".join(pieces)]:
            return "a stream came in other pieces than the provider sent"
    return ""
