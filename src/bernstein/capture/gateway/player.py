"""Answers requests from a recording, and explains those that it has no answer for.

Rule 1: nothing here opens a connection. Rule 2: after a strict miss nothing is served any more.
A miss is reported once a lane, however often the client asks again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from bernstein.canonical import DigestRef, convert
from bernstein.capture.gateway.causal import CausalHold
from bernstein.capture.gateway.explain import changed_entries, explain_exchange_miss
from bernstein.capture.gateway.quotes import first_quotes
from bernstein.errors import CanonicalError, ReplayMissError
from bernstein.recording.answer import Usage
from bernstein.wire.chained import Result, Said
from bernstein.wire.changed import Served, changed_body
from bernstein.wire.ids import KnownIds, Moved
from bernstein.wire.protocol import READ_KINDS, error_body, kind_of

if TYPE_CHECKING:
    from bernstein.capture.gateway.wire_run import Exchange, Response, WireRun
    from bernstein.recording.exchanges import ExchangeRow
    from bernstein.wire.chained import Terms
    from bernstein.wire.key import Match, Request

_TURN_S = 1.0  # how long a turn is waited for before it is looked whether it can come
_IN_PLAN_BOUND_S = 60.0  # in a plan a request of one lane waits for rows of other agents too
_LEFT_BOUND_S = 120.0  # how long we wait for a client to give up where it gave up


class Begin(NamedTuple):
    """Send status and headers."""

    status: int
    headers: list[tuple[str, str]]


class Wait(NamedTuple):
    """Wait for a future; answered with whether it was done within the bound."""

    ticket: Future[None]
    bound_s: float


class Pause(NamedTuple):
    """Let time pass."""

    seconds: float


class Linger(NamedTuple):
    """Send nothing until the client leaves, or time is up."""

    bound_s: float


# What a policy yields; bytes are a piece of the body, to be sent at once.
Effect: TypeAlias = Begin | Wait | Pause | Linger | bytes
Policy: TypeAlias = Generator[Effect, bool, None]
# What a request that is not recorded is refused with; None lets it go live.
Miss: TypeAlias = str | None


class Player:
    """Serves each recorded exchange once, in its lane."""

    def __init__(self, wire: WireRun, recorded: Terms, *, is_paced: bool, rerun: str) -> None:
        """Serve the source of the run of ``wire``.

        Args:
            wire: What is written of the replay.
            recorded: The terms of the recording; its folders are replaced by those of ``wire``.
            is_paced: Whether pieces come as slowly as they were recorded.
            rerun: The command that records again; a miss advises it.
        """
        source = wire.run.source
        assert source is not None
        self._wire = wire
        self._recorded = recorded
        self._is_paced = is_paced
        # An extension of a recording from before there were mutations finds them itself.
        is_watched = source.read_info().get("watches_context") is True
        self._has_mutations = is_watched or not wire.run.context.is_watched
        self._rerun = rerun
        self._rows = wire.run.source_exchanges(wire.lane)
        self.hold = CausalHold(self._rows, first_quotes(self._rows, wire.run.store.blobs))
        if wire.run.follows_score:
            self.hold.bound_s = _IN_PLAN_BOUND_S
        self._queues: dict[tuple[str, str], deque[ExchangeRow]] = {}
        for row in sorted(self._rows, key=lambda row: row.seq):
            self._queues.setdefault((row.lane, row.key), deque()).append(row)
        self._bound: dict[tuple[str, ...], str] = {}
        self._recorded_lanes = len({row.lane for row in self._rows})
        self._used: set[int] = set()
        self._missed: dict[str, str] = {}
        # How many requests a recorded agent made before it was ended: more of them are held.
        self.ends_after: int | None = None
        self._ids = KnownIds(recorded.profile.id_patterns)
        self._move = recorded.folders.moved_to(wire.terms.folders)

    def take(self, request: Request, match: Match) -> tuple[str, ExchangeRow | None]:
        """The lane of a request, and the row that answers it, reserved; None on a miss."""
        with self._wire.lock:
            lane = self._lane(request, match)
            if self._missed or (self._wire.run.is_strict and self._wire.run.store.first_miss):
                return lane, None
            queue = self._queues.get((lane, match.key))
            row = queue.popleft() if queue else None
            if row is not None:
                self._used.add(row.seq)
        return lane, row

    def _lane(self, request: Request, match: Match) -> str:
        client = self._wire.client_lane(request)
        if client is None:
            return self._wire.key_lane(match.key)
        if client in self._bound:
            return self._bound[client]
        # A lane of the client is bound to a recorded one at its first hit.
        taken = set(self._bound.values())
        waiting = [
            (queue[0].seq, lane)
            for (lane, key), queue in self._queues.items()
            if key == match.key and queue and lane not in taken
        ]
        fresh = self._wire.numbered_lane(self._recorded_lanes + len(self._bound) + 1)
        self._bound[client] = min(waiting)[1] if waiting else fresh
        return self._bound[client]

    def play(self, exchange: Exchange, row: ExchangeRow, response: Response) -> Policy:
        """What is done to serve a row, whoever asks over whatever.

        Closed before its end where the client has left; the row is free again then.
        """
        self.hold.arrived(row)
        body = row.read_response(self._wire.run.store.blobs)
        pieces = recorded = _cut(body, row.chunks)
        with self._wire.lock:
            ids = self._ids.learn(row.lane, row.ids, exchange.match.ids)
        moved = Moved(self._move, ids)
        if ids:
            response.to_recorded = ids.to_recorded
        if moved:
            cut = [piece.data for piece in pieces]
            pieces = changed_body(kind_of(row.method, row.path), cut, moved)
        response.headers = [(name, value) for name, value in row.response_headers]
        try:
            yield from self._hold_back(row, 0)
            if row.status:
                response.status = row.status
                yield Begin(row.status, response.headers)
            yield from self._send(exchange, row, response, pieces)
            if row.end == "left":
                # It got no more when it was recorded, and gave up: it gets no more now.
                response.lingers = True
                yield Linger(_LEFT_BOUND_S)
            if not pieces:
                yield from self._turn(row.lane)
            yield from self._wait(self.hold.wait_to_end(row))
        except GeneratorExit:
            self._wire.run.score.pass_on(row.lane)
            response.end = "left"
            if row.end != "left":
                self._give_back(row)
            elif self._wire.run.follows_score:
                for piece in pieces[-1:]:
                    self._wire.add(exchange, response, piece.data)
            return
        response.end = row.end
        if pieces == recorded and row.end == "complete":
            response.said = self._chained(row)

    def _send(
        self, exchange: Exchange, row: ExchangeRow, response: Response, pieces: list[Served]
    ) -> Policy:
        """Send the pieces of an answer, each when it may go."""
        # In a plan a client that gave up had left when its last piece came: it gets it no more now.
        is_withheld = row.end == "left" and self._wire.run.follows_score
        for piece in pieces[:-1] if is_withheld else pieces:
            if self._is_paced:
                due_s = exchange.begun_s + row.times_ms[piece.number] / 1000
                yield Pause(max(due_s - time.monotonic(), 0))
            if not self.hold.is_clear(row, piece.number):
                yield from self._hold_back(row, piece.number)
            if piece is pieces[-1]:
                # Before it: a client that has its last piece may leave at once.
                yield from self._turn(row.lane)
            self._wire.add(exchange, response, piece.data)
            response.is_all = piece is pieces[-1]
            yield piece.data

    def _chained(self, row: ExchangeRow) -> Said | None:
        """What the recording's chain has for a row: the n-th answer is of the row that ended n-th.

        This was checked, bytes and all, before the first answer was served.
        """
        answers = self._wire.run.source_chain.exchanges.answers
        if row.done >= len(answers) or not self._has_mutations:
            return None
        said = answers[row.done]
        if said.usage is None and row.status < 400 and kind_of(row.method, row.path) in READ_KINDS:
            return None  # perhaps a body that cannot be read: that is to be found again
        try:
            usage = None if said.usage is None else convert(said.usage, Usage)
        except CanonicalError:
            return None  # counts that are none: worked out anew
        ref = DigestRef(said.answer.digest, said.size_bytes)
        outcome: Result = "ok" if said.outcome == "ok" else "error"
        return Said(outcome, ref, usage, tuple(said.mutations))

    def ended(self, row: ExchangeRow) -> None:
        """What was served of a row is recorded, to its end or as far as the client took it."""
        if row.seq in self._used:
            self.hold.ended(row)

    def enter(self, row: ExchangeRow) -> Policy:
        """What is done before the request that ``row`` answers begins."""
        try:
            yield from self._wait(self.hold.wait_to_begin(row))
            yield from self._turn(row.lane)
        except GeneratorExit:
            self._wire.run.score.pass_on(row.lane)
            self._give_back(row)

    def _hold_back(self, row: ExchangeRow, piece: int) -> Policy:
        yield from self._wait(self.hold.wait(row, piece))

    def _wait(self, ticket: Future[None] | None) -> Policy:
        if ticket is not None and not (yield Wait(ticket, self.hold.bound_s)):
            self.hold.expire()

    def _turn(self, lane: str) -> Policy:
        """In a plan: wait until a lane may write its next row, as long as that one can come."""
        score = self._wire.run.score
        while self._wire.run.follows_score:
            if (yield Wait(score.turn_of_agent(lane), _TURN_S)):
                return
            score.loosen_if_stalled()

    async def await_turn(self, lane: str) -> None:
        """Like ``_turn``, where the client has gone already."""
        score = self._wire.run.score
        while self._wire.run.follows_score and not self._wire.run.is_closed:
            try:
                await asyncio.wait_for(asyncio.wrap_future(score.turn_of_agent(lane)), _TURN_S)
            except TimeoutError:
                score.loosen_if_stalled()
            else:
                return

    def is_past_its_end(self, requests: int) -> bool:
        """Whether a recorded agent had been ended before it made so many requests."""
        return self.ends_after is not None and requests >= self.ends_after

    def hold_for_ever(self) -> Policy:
        """Answer nothing: the recorded agent was ended before it asked this."""
        yield Linger(_LEFT_BOUND_S)

    def _give_back(self, row: ExchangeRow) -> None:
        with self._wire.lock:
            self._queues[row.lane, row.key].appendleft(row)
            self._used.discard(row.seq)
        self.hold.returned(row)

    def missed(self, exchange: Exchange) -> Miss:
        """Report a miss, once a lane. It takes time: it is looked for what comes nearest."""
        lane = exchange.lane
        self.hold.give_up()  # what comes now is not what was recorded
        if not self._wire.run.is_strict:
            self._report(exchange)
            return None
        with self._wire.lock:
            is_first = lane not in self._missed
            said = self._missed.setdefault(lane, "replay miss: asked for again after a miss")
        if is_first:
            said = self._missed[lane] = self._report(exchange)
        return said

    def refuse(self, exchange: Exchange, response: Response, said: str) -> Policy:
        """Answer a strict miss with 400 in the provider's shape."""
        response.status = 400
        response.headers = [("content-type", "application/json"), ("x-should-retry", "false")]
        data = json.dumps(error_body(exchange.request.provider, said)).encode()
        self._wire.add(exchange, response, data)
        yield Begin(400, response.headers)
        with suppress(GeneratorExit):
            yield data

    def _report(self, exchange: Exchange) -> str:
        source = self._wire.run.source
        assert source is not None
        info = source.read_info()
        miss = explain_exchange_miss(
            exchange,
            self._rows,
            used=self._used,
            terms=self._recorded,
            blobs=self._wire.run.store.blobs,
            source=source.run_id,
            was_cut=info.get("status") not in {"completed", "failed"},
            rerun=self._rerun,
            changed_files=changed_entries(
                info.get("tree_entries") or {},
                self._wire.run.dir.read_info().get("tree_entries") or {},
            ),
        )
        with suppress(ReplayMissError):
            self._wire.run.store.register_miss(miss, exchange.lane)
        return str(miss).split("\n", 1)[0]

    def moved(self, text: str) -> str:
        """A recorded text with the folders of this run."""
        return self._move.text(text)

    def unused(self) -> list[ExchangeRow]:
        """The recorded exchanges that nobody asked for."""
        return [row for row in self._rows if row.seq not in self._used]


def _cut(body: bytes, lengths: list[int]) -> list[Served]:
    pieces, at = [], 0
    for number, length in enumerate(lengths):
        pieces.append(Served(body[at : at + length], number))
        at += length
    return pieces
