"""Logs of events that no run made: drawn, with every kind and every optional member."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from bernstein.fold.source import TrajectoryEvent

BANDS = ("metered", "priced", "estimated", "unsupported")
NAMES = ("a", "b", "ab", "\u00fc \U0001f600", "line\u2028", 'q"\\', "\ud800")


def envelope(item: TrajectoryEvent) -> bytes:
    """The line of an event in a file of events."""
    when = "2026-11-30T14:43:00.5Z"
    around = {"eventId": "e", "runId": item.run_id, "seq": item.seq, "version": 1}
    value = {**around, "occurredAt": when, "kind": item.kind, "payload": item.payload}
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def folded_by_node(logs: Iterable[list[dict[str, Any]]]) -> list[str]:
    """What an implementation of the two folds that is not ours prints of logs, two lines each."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    given = "".join(json.dumps(log) + "\n" for log in logs).encode()
    fold = [node, str(Path(__file__).with_name("fold.mjs"))]
    done = subprocess.run(fold, input=given, capture_output=True, check=True)
    return done.stdout.decode().split("\n")[:-1]


def body(draw: Random) -> dict[str, Any]:
    """A digest of nothing."""
    ref = {"digest": f"{draw.getrandbits(256):064x}", "byteLength": draw.randrange(1000)}
    return {**ref, "encRef": f"{draw.getrandbits(256):064x}"} if draw.random() < 0.2 else ref


def some(draw: Random, **members: Any) -> dict[str, Any]:
    """Some of these members."""
    return {name: value for name, value in members.items() if draw.random() < 0.5}


def payload(draw: Random, kind: str) -> dict[str, Any]:
    """A payload of a kind that keeps its rules."""
    name, other = draw.choice(NAMES), draw.choice(NAMES)
    match kind:
        case "run.started":
            return {"agentId": name, **some(draw, input=body(draw), labels={name: other})}
        case "run.finished":
            status = draw.choice(("completed", "failed", "cancelled"))
            return {"status": status, **some(draw, output=body(draw), reason="timeout")}
        case "step.started":
            depth = draw.randrange(4)
            return {"stepId": name, "depth": depth, **some(draw, parentStepId=other, label=name)}
        case "step.finished":
            status = draw.choice(("ok", "error"))
            return {"stepId": name, "status": status, **some(draw, errorCode="timeout")}
        case "model.call":
            step = some(draw, stepId=other)
            return {"provider": name, "model": other, "prompt": body(draw), **step}
        case "model.usage":
            band = draw.choice(BANDS)
            counts = {n: draw.randrange(2**40) for n in ("inputTokens", "outputTokens")}
            cost = draw.randrange(2**40) if band in {"metered", "priced"} else 0
            more = some(draw, cachedInputTokens=draw.randrange(9), stepId=other)
            more |= some(draw, priceBookVersion="book") if band == "priced" else {}
            what = {"provider": name, "model": other, "billingStatus": band, "credits": cost}
            return {**what, **counts, **more}
        case "tool.proposed":
            return {"stepId": name, "toolCallId": other, "name": name, "args": body(draw)}
        case "tool.approved":
            return {"toolCallId": name, "actor": other}
        case "tool.denied":
            return {"toolCallId": name, "actor": other, **some(draw, reason="refused")}
        case "tool.result":
            code = some(draw, exitCode=draw.randrange(-9, 256))
            return {"toolCallId": name, "ok": draw.random() < 0.5, "result": body(draw), **code}
        case "checkpoint":
            return {"checkpointId": name, **some(draw, label=other, state=body(draw))}
    raise AssertionError(kind)
