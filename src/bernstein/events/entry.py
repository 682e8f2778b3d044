"""A journal row: its fields, its line, and the hashes that tie it to the row before.

    {"index":0,"event":"…","lane":"…","payload":{…},"payload_hash":"…","prev_hash":"…",
     "event_hash":"…","ts":"2026-11-30T14:43:00.123456Z","elapsed_s":0.000123}

The line has no white space but inside strings; ``ts`` and ``elapsed_s`` are the envelope and in no
hash of the chain.
"""

from __future__ import annotations

import re
from hashlib import sha256

import msgspec

GENESIS = "0" * 64
EVENT = re.compile(r"[a-z][a-z0-9_.]{0,63}")
LANE = re.compile(r"[A-Za-z0-9._/-]{0,128}")


class JournalEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row; ``payload`` is the canonical JSON as it stands in the line."""

    index: int
    event: str
    lane: str
    payload: msgspec.Raw
    payload_hash: str
    prev_hash: str
    event_hash: str
    ts: str
    elapsed_s: float


def payload_hash(event: str, lane: str, payload: bytes) -> str:
    """The hash of a payload in its place, 64 hex digits."""
    # sha256("bernstein.payload.v1\n" + event + "\n" + lane + "\n" + payload bytes of the row)
    return sha256(
        b"bernstein.payload.v1\n%b\n%b\n%b" % (event.encode(), lane.encode(), payload)
    ).hexdigest()


def event_hash(prev_hash: str, event: str, payload_hash: str, index: int) -> str:
    """The hash that chains a row to the one before it, 64 hex digits."""
    # sha256("bernstein.event.v1\n" + prev_hash + "\n" + event + "\n" + payload_hash + "\n" + index)
    return sha256(
        f"bernstein.event.v1\n{prev_hash}\n{event}\n{payload_hash}\n{index}".encode()
    ).hexdigest()


def to_line(entry: JournalEntry) -> bytes:
    """The row's only spelling, without the LF."""
    return (
        b'{"index":%d,"event":"%b","lane":"%b","payload":%b,"payload_hash":"%b","prev_hash":"%b",'
        b'"event_hash":"%b","ts":"%b","elapsed_s":%.6f}'
    ) % (
        entry.index,
        entry.event.encode(),
        entry.lane.encode(),
        bytes(entry.payload),
        entry.payload_hash.encode(),
        entry.prev_hash.encode(),
        entry.event_hash.encode(),
        entry.ts.encode(),
        entry.elapsed_s,
    )
