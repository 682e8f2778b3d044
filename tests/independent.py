"""A verifier that imports nothing of the project: the specification read a second time."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path


def check(path: Path) -> tuple[bool, int, str]:
    """Whether a journal's chain holds, how many rows do, and the head so far."""
    head = "0" * 64
    index = 0
    *lines, rest = path.read_bytes().split(b"\n")
    for line in lines:
        try:
            hashed = _check_row(line, index, head)
        except (ValueError, KeyError, TypeError, AttributeError):
            hashed = None
        if hashed is None:
            return False, index, head
        head = hashed
        index += 1
    return rest == b"", index, head


def _check_row(line: bytes, index: int, head: str) -> str | None:
    row = json.loads(line)
    start = line.find(b'"payload":') + len(b'"payload":')
    payload = line[start : line.rfind(b',"payload_hash":"')]
    event, lane = row["event"].encode(), row["lane"].encode()
    spelled = (
        b'{"index":%d,"event":"%s","lane":"%s","payload":%s,"payload_hash":"%s",'
        b'"prev_hash":"%s","event_hash":"%s","ts":"%s","elapsed_s":%.6f}'
    ) % (
        row["index"],
        event,
        lane,
        payload,
        row["payload_hash"].encode(),
        row["prev_hash"].encode(),
        row["event_hash"].encode(),
        row["ts"].encode(),
        row["elapsed_s"],
    )
    hashed = hashlib.sha256(b"bernstein.payload.v1\n" + event + b"\n" + lane + b"\n" + payload)
    chained = hashlib.sha256(
        f"bernstein.event.v1\n{head}\n{row['event']}\n{hashed.hexdigest()}\n{index}".encode()
    ).hexdigest()
    holds = (
        line == spelled
        and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", row["ts"], re.ASCII)
        and math.copysign(1, row["elapsed_s"]) > 0
        and (row["index"], row["prev_hash"]) == (index, head)
        and (row["payload_hash"], row["event_hash"]) == (hashed.hexdigest(), chained)
    )
    return chained if holds else None
