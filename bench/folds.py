"""Folding a million events against decoding the same lines."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.figures import Figure, best, drop
from bernstein import EventFile, project, project_tool_calls
from bernstein.canonical import JsonObject, canonical_bytes
from bernstein.events.entry import GENESIS, JournalEntry, event_hash, payload_hash, to_line

EVENTS = 1_000_000
_BODY = {"byteLength": 512, "digest": "ab" * 32}
_ASKED = {"model": "claude-sonnet-5-5", "provider": "anthropic", "stepId": "build/api/t1"}
_USED = {"inputTokens": 512, "outputTokens": 200, "cachedInputTokens": 0, "credits": 1234}


def rows(count: int) -> list[bytes]:
    """Lines of a journal: calls with their answers and usage, and a tool of each, in one lane."""
    head, lane, lines = GENESIS, "build/api", []
    for index in range(count):
        call_id = f"t1/{index // 5}"
        kinds: tuple[tuple[str, JsonObject], ...] = (
            ("model.call", {**_ASKED, "prompt": _BODY}),
            ("model.answer", {"answer": _BODY, "key": "cd" * 32, "outcome": "ok"}),
            ("model.usage", {**_ASKED, **_USED, "billingStatus": "metered"}),
            ("tool.proposed", {"stepId": lane, "toolCallId": call_id, "name": "r", "args": _BODY}),
            ("tool.result", {"toolCallId": call_id, "ok": True, "result": _BODY}),
        )
        kind, said = kinds[index % 5]
        payload = canonical_bytes(said)
        hashed = payload_hash(kind, lane, payload)
        chained = event_hash(head, kind, hashed, index)
        when, raw = "2026-11-30T14:43:00.123456Z", msgspec.Raw(payload)
        row = JournalEntry(index, kind, lane, raw, hashed, head, chained, when, 1.25)
        lines.append(to_line(row) + b"\n")
        head = chained
    return lines


def folding(folder: Path) -> list[Figure]:
    """Both folds of events in order, and one of the same events shuffled, which are sorted."""
    path, shuffled = folder / "rows.jsonl", folder / "shuffled.jsonl"
    lines = rows(EVENTS)
    path.write_bytes(b"".join(lines))
    random.Random(1).shuffle(lines)
    shuffled.write_bytes(b"".join(lines))
    del lines
    decode = msgspec.json.Decoder().decode

    def floor() -> None:
        with path.open("rb") as file:
            for line in file:
                decode(line)

    def timed(name: str, goal: float | str, work: Callable[[], object], rounds: int) -> Figure:
        times = best(floor, lambda: drop(work()), EVENTS, rounds)
        return Figure(name, goal, "decode the lines", *times)

    return [
        timed("project 1,000,000 events", 2, lambda: project(EventFile(path)), 5),
        timed("tool calls of them", 2, lambda: project_tool_calls(EventFile(path)), 5),
        timed("project them shuffled", "-", lambda: project(EventFile(shuffled)), 1),
    ]
