"""Ratios of what we do to the floor that nobody can avoid, measured in turn in one run.

Each figure is the best of several rounds in which floor and code run one after the other.
``python -m bench.run [--json]``; nothing here passes or fails.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from bernstein import DeterministicStore, EventJournal, LlmAnswer, LlmCall
from bernstein.chain.verify import check_chain

ROUNDS = 7
CALLS = 20_000


class Figure(NamedTuple):
    """One line of the report; times in seconds for one unit of work."""

    name: str
    goal: float | str
    floor: str
    floor_s: float
    code_s: float

    @property
    def ratio(self) -> float:
        """How many times the floor."""
        return self.code_s / self.floor_s


def best(floor: Callable[[], None], code: Callable[[], None], units: int) -> tuple[float, float]:
    """The best time a unit of each, run in turn."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for side, work in enumerate((floor, code)):
            start = time.perf_counter()
            work()
            times[side].append((time.perf_counter() - start) / units)
    return min(times[0]), min(times[1])


def start_up(name: str, goal: float, *arguments: str) -> Figure:
    """A process of ours against an interpreter that does nothing."""

    def spawn(*command: str) -> Callable[[], None]:
        def work() -> None:
            for _ in range(5):
                subprocess.run([sys.executable, *command], stdout=subprocess.DEVNULL, check=True)

        return work

    floor_s, code_s = best(spawn("-c", "pass"), spawn(*arguments), 5)
    return Figure(name, goal, "python -c pass", floor_s, code_s)


def two_kb_call(number: int) -> LlmCall:
    """A request of about 2 KB with the page's inputs."""
    return LlmCall("gpt-5", f"{number} " + "lorem ipsum dolor sit amet " * 70, "openai", 0.7, 100)


def replaying(folder: Path) -> Figure:
    """``get_replay`` against the SHA-256 of the same request."""
    path = folder / "replay.jsonl"
    store = DeterministicStore(record_to=path, blobs=folder / "blobs")
    calls = [two_kb_call(n) for n in range(2000)]
    for _ in range(ROUNDS):
        for call in calls:
            store.record(call, LlmAnswer("yes"), seq=store.begin(), begun_s=0.0)
    store.close()
    replay = DeterministicStore(replay_from=path, blobs=folder / "blobs")
    preimages = [
        f"{c.model}\0{c.prompt}\0{c.provider}\0{c.temperature!r}\0{c.max_tokens}".encode()
        for c in calls
    ]

    def floor() -> None:
        for preimage in preimages:
            hashlib.sha256(preimage).hexdigest()

    def code() -> None:
        for c in calls:
            assert c.prompt is not None
            replay.get_replay(c.model, c.prompt, c.provider, c.temperature, c.max_tokens)

    return Figure("get_replay", 3, "SHA-256 of the request", *best(floor, code, len(calls)))


def loading(folder: Path) -> Figure:
    """Opening a recording against parsing its lines."""
    path = folder / "load.jsonl"
    store = DeterministicStore(record_to=path, blobs=folder / "blobs")
    for n in range(CALLS):
        store.record(two_kb_call(n), LlmAnswer("yes"), seq=store.begin(), lane=f"l{n}", begun_s=0.0)
    store.close()

    def floor() -> None:
        with path.open("rb") as file:
            rows = [msgspec.json.decode(line) for line in file]
        assert len(rows) == CALLS

    def code() -> None:
        DeterministicStore(replay_from=path, blobs=folder / "blobs")

    return Figure("load 20,000 calls", 1.5, "parse the lines", *best(floor, code, CALLS))


def recording(folder: Path) -> Figure:
    """Recording a call against writing the same bytes to an open file."""
    path = folder / "record.jsonl"
    store = DeterministicStore(record_to=path, blobs=folder / "blobs")
    calls = [two_kb_call(n) for n in range(2000)]
    answer = LlmAnswer("yes")
    store.record(calls[0], answer, seq=store.begin(), begun_s=0.0)
    line = path.read_bytes()
    fd = os.open(folder / "floor", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def floor() -> None:
        for _ in calls:
            os.write(fd, line)

    def code() -> None:
        for n, call in enumerate(calls):
            store.record(call, answer, seq=store.begin(), lane=f"l{n}", begun_s=0.0)

    return Figure("record a call", 2, "write the same bytes", *best(floor, code, len(calls)))


ROWS = 100_000


def _sample_journal(folder: Path, rows: int) -> Path:
    """A journal of rows of about 500 bytes."""
    with EventJournal("bench", folder) as journal:
        for n in range(rows):
            journal.append(
                "model.call",
                {
                    "stepId": f"stage/step-{n % 7}",
                    "provider": "openai",
                    "model": "gpt-5",
                    "prompt": {"digest": f"{n:064x}", "byteLength": n},
                },
                f"stage/step-{n % 7}",
            )
    return journal.path


class _FloorRow(msgspec.Struct):
    payload: msgspec.Raw


def verifying(folder: Path) -> Figure:
    """Checking a chain against one parse that gives the payload and three hashes a row."""
    path = _sample_journal(folder, ROWS)
    decode = msgspec.json.Decoder(_FloorRow).decode

    def floor() -> None:
        whole = hashlib.sha256()
        with path.open("rb") as file:
            for line in file:
                payload = bytes(decode(line).payload)
                hashlib.sha256(payload).hexdigest()
                hashlib.sha256(line[-300:-100]).hexdigest()
                whole.update(line)

    def code() -> None:
        assert check_chain(path).rows == ROWS

    return Figure("verify 100,000 rows", 1.6, "parse, 3 hashes", *best(floor, code, ROWS))


def appending(folder: Path) -> Figure:
    """A buffered append against lock, read of the tail, two hashes, one write, unlock."""
    journal = EventJournal("append", folder)
    payload = {
        "stepId": "stage/step",
        "provider": "openai",
        "model": "gpt-5",
        "prompt": {"digest": "0" * 64, "byteLength": 7},
    }
    journal.append("model.call", payload, "stage/step")
    line = journal.path.read_bytes()
    fd = os.open(folder / "append-floor", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.write(fd, line)

    def floor() -> None:
        for _ in range(5000):
            fcntl.flock(fd, fcntl.LOCK_EX)
            size = os.fstat(fd).st_size
            os.pread(fd, 512, max(size - 512, 0))
            hashlib.sha256(line[:200]).hexdigest()
            hashlib.sha256(line[200:400]).hexdigest()
            os.write(fd, line)
            fcntl.flock(fd, fcntl.LOCK_UN)

    def code() -> None:
        for _ in range(5000):
            journal.append("model.call", payload, "stage/step")

    return Figure("append, buffered", 3, "lock, tail, write", *best(floor, code, 5000))


def durable(folder: Path) -> Figure:
    """One fsync an event against sixteen threads that share them; the ratio is the gain."""
    shared = EventJournal("durable", folder, durable=True)
    single = EventJournal("single", folder, durable=True)

    def alone() -> None:
        for _ in range(160):
            single.append("a", {})

    def together() -> None:
        threads = [
            threading.Thread(target=lambda: [shared.append("a", {}) for _ in range(10)])
            for _ in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    shared_s, alone_s = best(together, alone, 160)
    return Figure("durable, one thread", ">=10", "durable, 16 threads", shared_s, alone_s)


def main() -> None:
    """Measure everything and print it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures = [
            start_up("bernstein --help", 4, "-m", "bernstein", "--help"),
            start_up("import bernstein", 2, "-c", "import bernstein"),
            replaying(folder),
            loading(folder),
            recording(folder),
            verifying(folder),
            appending(folder),
            durable(folder),
        ]
    if "--json" in sys.argv:
        print(json.dumps([{**f._asdict(), "ratio": f.ratio} for f in figures], indent=2))
        return
    print(f"Python {platform.python_version()}, best of {ROUNDS} rounds in turn")
    print(f"{'what':<20}{'floor':<24}{'floor us':>10}{'ours us':>10}{'ratio':>8}{'goal':>6}")
    for f in figures:
        print(
            f"{f.name:<20}{f.floor:<24}{f.floor_s * 1e6:>10.1f}{f.code_s * 1e6:>10.1f}"
            f"{f.ratio:>8.2f}{f.goal:>6}"
        )


if __name__ == "__main__":
    main()
