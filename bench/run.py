"""Ratios of what we do to the floor that nobody can avoid, measured in turn in one run.

Each figure is the best of several rounds in which floor and code run one after the other.
``python -m bench.run [--json] [--only GROUP]``; nothing here passes or fails.
"""

from __future__ import annotations

import argparse
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

import msgspec

from bench import folds, gateway, stream
from bench.figures import ROUNDS, Figure, best, drop
from bernstein import (
    DeterministicStore,
    EventJournal,
    LlmAnswer,
    LlmCall,
    seal_journal_into_spine,
)
from bernstein.chain.verify import check_chain
from bernstein.events.entry import GENESIS, JournalEntry, event_hash, payload_hash, to_line
from bernstein.rundir import SddDir

CALLS = 20_000


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


ROWS = 1_000_000


def sample_journal(path: Path, rows: int) -> Path:
    """A journal of rows of about 500 bytes, whose chain holds; written past our own writer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = GENESIS
    with path.open("wb") as file:
        for n in range(rows):
            lane = f"stage/step-{n % 7}"
            payload = (
                b'{"model":"gpt-5","prompt":{"byteLength":%d,"digest":"%064x"},"provider":"openai",'
                b'"stepId":"%b"}'
            ) % (n, n, lane.encode())
            hashed = payload_hash("model.call", lane, payload)
            chained = event_hash(head, "model.call", hashed, n)
            ts, raw = "2026-11-30T14:43:00.123456Z", msgspec.Raw(payload)
            entry = JournalEntry(n, "model.call", lane, raw, hashed, head, chained, ts, n / 1000)
            file.write(to_line(entry) + b"\n")
            head = chained
    return path


class _FloorRow(msgspec.Struct):
    payload: msgspec.Raw


def verifying(folder: Path) -> list[Figure]:
    """Checking a chain against one parse that gives the payload and three hashes a row.

    Beside it the same with the standard library's json, as most ledgers in Python are made.
    """
    path = sample_journal(folder / "verify" / "journal.jsonl", ROWS)
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

    def with_json() -> None:
        head = GENESIS
        with path.open("rb") as file:
            for index, line in enumerate(file):
                row = json.loads(line)
                payload = json.dumps(row["payload"], sort_keys=True, separators=(",", ":"))
                hashed = payload_hash(row["event"], row["lane"], payload.encode())
                assert (row["index"], row["prev_hash"]) == (index, head)
                assert row["payload_hash"] == hashed
                head = event_hash(head, row["event"], hashed, index)
                assert row["event_hash"] == head

    what = "parse, 3 hashes"
    best_s = best(floor, code, ROWS, rounds=5)
    return [
        Figure("verify 1,000,000 rows", 1.6, what, *best_s),
        Figure("the same with json", "-", what, *best(floor, with_json, ROWS, rounds=1)),
    ]


def on_all_cores(folder: Path) -> Figure:
    """Verifying as many runs as there are cores in one command against one run by itself."""
    cores = os.cpu_count() or 1
    for n in range(cores):
        sample_journal(folder / "cores" / "runs" / f"r{n}" / "journal.jsonl", 250_000)

    def verify(*runs: str) -> Callable[[], None]:
        command = [sys.executable, "-m", "bernstein", "--sdd", str(folder / "cores"), "verify"]
        return lambda: drop(
            subprocess.run([*command, *runs], stdout=subprocess.DEVNULL, check=False)
        )

    times = best(verify("r0"), verify("--all"), 1, rounds=3)
    return Figure(f"verify {cores} runs at once", "near 1", "verify one", *times)


def many_runs(folder: Path) -> Figure:
    """``verify --all`` over 10,000 small sealed runs against reading their files."""
    project, count = SddDir(folder / "many" / ".sdd"), 10_000
    os.environ["BERNSTEIN_KEYS_DIR"] = str(folder / "keys")
    for n in range(count):
        run = project.new_run(f"run-{n:05}")
        with EventJournal(run.run_id, project.path) as journal:
            journal.append("run.started", {"agentId": "bench"})
            journal.append("run.finished", {"status": "completed"})
        run.write_info({"run_id": run.run_id, "status": "completed"})
        seal_journal_into_spine(run.run_id, project.path)

    def floor() -> None:
        for run in project.list_runs():
            for path in (run.journal, run.seal, run.run_json):
                hashlib.sha256(path.read_bytes()).hexdigest()

    def code() -> None:
        command = [sys.executable, "-m", "bernstein", "--sdd", str(project.path), "verify", "--all"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.endswith(f"{count} runs: {count} verified\n"), done.stdout[-200:]

    return Figure(
        "verify 10,000 runs", "-", "read and hash files", *best(floor, code, count, rounds=3)
    )


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


def durable(folder: Path, more_s: float = 0.0) -> Figure:
    """One fsync an event against sixteen threads that share them; the ratio is the gain.

    Each fsync takes ``more_s`` longer, as on a slower disk.
    """
    shared = EventJournal("durable", folder, durable=True)
    single = EventJournal("single", folder, durable=True)
    real = os.fsync

    def slower(fd: int) -> None:
        real(fd)
        time.sleep(more_s)

    def alone() -> None:
        for _ in range(16 * 50 // 4):
            single.append("a", {})

    def together() -> None:
        threads = [
            threading.Thread(target=lambda: [shared.append("a", {}) for _ in range(50)])
            for _ in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    if more_s:
        os.fsync = slower
    try:
        shared_s, alone_s = best(together, alone, 16 * 50, rounds=3)
    finally:
        os.fsync = real
    name = f"durable, fsync +{more_s * 1000:.0f} ms" if more_s else "durable, one thread"
    return Figure(name, ">=10", "durable, 16 threads", shared_s, alone_s * 4)


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", help="one group of figures")
    options = parser.parse_args()
    groups: dict[str, Callable[[Path], Figure | list[Figure]]] = {
        "help": lambda _: start_up("bernstein --help", 4, "-m", "bernstein", "--help"),
        "import": lambda _: start_up("import bernstein", 2, "-c", "import bernstein"),
        "replay": replaying,
        "load": loading,
        "record": recording,
        "verify": verifying,
        "folds": folds.folding,
        "cores": on_all_cores,
        "runs": many_runs,
        "append": appending,
        "durable": durable,
        "durable-2": lambda folder: durable(folder, 0.002),
        "durable-5": lambda folder: durable(folder, 0.005),
        "gateway-record": gateway.recording,
        "gateway-replay": gateway.replaying,
        "in-process": gateway.in_process,
        "stream": stream.streaming,
    }
    figures: list[Figure] = []
    for name in [options.only] if options.only else groups:
        with tempfile.TemporaryDirectory() as folder:
            found = groups[name](Path(folder))
            figures += [found] if isinstance(found, Figure) else found
    if options.json:
        print(json.dumps([{**f._asdict(), "ratio": f.ratio} for f in figures], indent=2))
        return
    print(f"Python {platform.python_version()}, best of {ROUNDS} rounds or fewer, in turn")
    print(f"{'what':<22}{'floor':<22}{'floor us':>12}{'ours us':>12}{'ratio':>8}{'goal':>8}")
    for f in figures:
        print(
            f"{f.name:<22}{f.floor:<22}{f.floor_s * 1e6:>12.1f}{f.code_s * 1e6:>12.1f}"
            f"{f.ratio:>8.2f}{f.goal:>8}"
        )


if __name__ == "__main__":
    main()
