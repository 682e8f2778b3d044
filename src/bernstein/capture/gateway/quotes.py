"""Where an answer of one lane is first quoted in another: a sub-agent's last words, for example.

A client that is told something in the background puts it into the next request that it makes. The
request before that one was made without it, whenever it came, and so the answer waits for it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from bernstein.errors import ForgottenBodyError
from bernstein.recording.answer import LlmAnswer
from bernstein.recording.exchanges import read_requests
from bernstein.recording.texts import shared_ends
from bernstein.wire.answers import read_answer
from bernstein.wire.protocol import MODEL_KINDS, kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bernstein.recording.blobs import BlobStore
    from bernstein.recording.exchanges import ExchangeRow

_MIN_CHARS = 8  # a shorter answer stands in many texts by chance


def first_quotes(rows: Sequence[ExchangeRow], blobs: BlobStore) -> dict[int, int]:
    """By ``seq`` of an answer, the ``seq`` of the first request of another lane that quotes it.

    Only lanes that a client names are looked at, and of each request what it adds to the one before
    it in its lane.
    """
    named = [row for row in rows if row.lane != row.key]
    if len({row.lane for row in named}) < 2:
        return {}
    # Not the requests themselves: each holds those before it, and all of them may be gigabytes.
    added: dict[int, str] = {}
    before: dict[str, str] = {}
    for row, text in read_requests(list(rows), blobs):
        if text is not None:
            head, tail = shared_ends(before.get(row.lane, ""), text)
            added[row.seq] = text[head : len(text) - tail]
            before[row.lane] = text
    quotes: dict[int, int] = {}
    waiting: dict[int, tuple[str, str]] = {}
    for row in sorted(named, key=lambda row: row.seq):
        for seq, (lane, quote) in list(waiting.items()):
            if lane != row.lane and quote in added.get(row.seq, ""):
                quotes[seq] = row.seq
                del waiting[seq]
        said = _text_of(row, blobs)
        if len(said) >= _MIN_CHARS:
            waiting[row.seq] = (row.lane, json.dumps(said, ensure_ascii=False)[1:-1])
    return quotes


def _text_of(row: ExchangeRow, blobs: BlobStore) -> str:
    kind = kind_of(row.method, row.path)
    if kind not in MODEL_KINDS or row.end != "complete":
        return ""
    try:
        answer = read_answer(kind, row.status, row.read_response(blobs), is_whole=True)
    except ForgottenBodyError:
        return ""
    return answer.text if isinstance(answer, LlmAnswer) else ""
