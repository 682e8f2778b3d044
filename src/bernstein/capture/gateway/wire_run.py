"""The exchanges of one run: counted, chained and recorded as they begin and end.

Exchanges come over the server's own thread and over those of the program: all of it is safe for
threads.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from bernstein.errors import UsageError
from bernstein.events import trajectory as event
from bernstein.jsonl import utc_now
from bernstein.wire.chained import Asked, Said, Terms, said_of
from bernstein.wire.changed import changed_body
from bernstein.wire.history import (
    FOLLOWED_KINDS,
    KEY_LANE_CHARS,
    Histories,
    is_key_lane,
    request_reports,
)
from bernstein.wire.key import Match, Request, match_of, without_secrets
from bernstein.wire.protocol import MODEL_KINDS, READ_KINDS, Kind, kind_of, model_of
from bernstein.wire.reported import mutation_of_report

if TYPE_CHECKING:
    from collections.abc import Callable

    from bernstein.capture.run import OpenRun
    from bernstein.events.provider_state import Mutation
    from bernstein.recording.exchanges import ExchangeEnd
    from bernstein.wire.secrets import Redactor

# Headers of a response that are kept; any other may carry what is nobody's business.
_KEPT_HEADERS = frozenset(
    {
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-type",
        "etag",
        "location",
        "openai-model",
        "openai-version",
        "request-id",
        "retry-after",
        "retry-after-ms",
        "x-request-id",
        "x-should-retry",
    }
)


class Piece(NamedTuple):
    """A piece of a body: when it came, in milliseconds after the request, and among what.

    ``arrived`` is how many requests had arrived by then.
    """

    at_ms: int
    arrived: int
    data: bytes


@dataclass(slots=True)
class Response:
    """A response as far as it has come.

    Attributes:
        status: The HTTP status; 0 as long as there is none.
        headers: Names and values as they came.
        chunks: The pieces of the body.
        end: How it ended.
        is_all: Whether the last piece of a served one is among the chunks.
        said: What a served one comes to, where it was sent as it was recorded.
        to_recorded: Makes of the ids in a served one those of the recording.
        lingers: Whether no more of it comes: the recorded client had given up here.
    """

    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    chunks: list[Piece] = field(default_factory=list)
    end: ExchangeEnd = "complete"
    is_all: bool = False
    said: Said | None = None
    to_recorded: Callable[[str], str] | None = None
    lingers: bool = False

    @property
    def body(self) -> bytes:
        """The pieces joined."""
        return b"".join(piece.data for piece in self.chunks)


@dataclass(slots=True)
class Exchange:
    """An exchange that has begun."""

    request: Request  # as it is asked
    kept: Request  # as it is recorded
    match: Match
    kind: Kind
    lane: str
    seq: int
    after: int
    begun_s: float


class WireRun:
    """What a gateway writes of its run."""

    def __init__(self, run: OpenRun, terms: Terms, redactor: Redactor, lane: str = "") -> None:
        """Write into ``run``, in lanes below ``lane`` where that is not empty."""
        self.run = run
        self.terms = terms
        self.redactor = redactor
        self.lane = lane
        self._count = run.exchange_count
        self._lanes: dict[tuple[str, ...], str] = {}
        self._histories = Histories()
        self.request_count = 0
        self.lock = threading.Lock()  # never held while a file is written
        self.open: dict[int, tuple[Exchange, Response]] = {}

    def match(self, request: Request) -> tuple[Request, Match]:
        """A request as it is kept, and what that is matched by; its secrets are remembered."""
        with self.lock:
            self.redactor.learn(request.headers, request.query)
        kept = without_secrets(request, self.terms.profile, self.redactor)
        return kept, match_of(kept, self.terms.profile, self.terms.folders)

    def client_lane(self, request: Request) -> tuple[str, ...] | None:
        """The values of the headers that say which session or agent asks; None without any."""
        values = [request.header(name) for name in self.terms.profile.lane_headers]
        return tuple(v or "" for v in values) if any(values) else None

    def lane_of(self, request: Request, match: Match) -> str:
        """The lane of a request that is recorded: by first appearance, else its key."""
        client = self.client_lane(request)
        if client is None:
            return self.key_lane(match.key)
        with self.lock:
            return self._lanes.setdefault(client, self.numbered_lane(len(self._lanes) + 1))

    def numbered_lane(self, number: int) -> str:
        """The lane of the session or agent that appeared as this one, from 1."""
        return f"{self.lane}/lane-{number}" if self.lane else f"lane-{number}"

    def key_lane(self, key: str) -> str:
        """The lane of requests that name no session: their key, or below a step its beginning."""
        return f"{self.lane}/{key[:KEY_LANE_CHARS]}" if self.lane else key

    def begin(
        self, request: Request, kept: Request, match: Match, lane: str
    ) -> tuple[Exchange, Response]:
        """Count and chain a request; its response is filled in as it comes.

        Raises:
            UsageError: This is a forked child: it inherits the client, and not the run.
        """
        if self.run.pid != os.getpid():
            raise UsageError(
                "a forked child asks over a client of its parent, and the run is not its own\n"
                "  make a client in the child: it finds the gateway by its base URL"
            )
        kind = kind_of(kept.method, kept.path)
        with self.run.rows():
            seq, after = self._count.begun, self._count.done
            self._count.begun += 1
            self.request_count += 1
            digest = match.digest
            if kind in MODEL_KINDS:
                model = model_of(kept.path, match.body)
                payload = event.model_call(None, kept.provider, model, digest)
                row = (event.MODEL_CALL, payload)
            else:
                row = (event.HTTP_REQUEST, event.http_request(digest))
            self.run.append_all([row], lane, self._mutations_asked(kind, kept, match, lane))
        exchange = Exchange(request, kept, match, kind, lane, seq, after, time.monotonic())
        self.open[seq] = (exchange, Response())
        return self.open[seq]

    def _mutations_asked(
        self, kind: Kind, kept: Request, match: Match, lane: str
    ) -> list[Mutation]:
        """What a request shows of a changed context."""
        if kind in READ_KINDS:
            has_lane = kind in FOLLOWED_KINDS and not is_key_lane(lane, match.key)
            self.run.context.sights.asked(kept.provider, kind, match.body, has_lane=has_lane)
        reports = request_reports(kind, kept.path, match, lane, self._histories)
        for report in reports:
            self.run.context.sights.found(kept.provider, report.kind)
        profile, prepare = self.terms.profile, self.terms.folders.to_variables
        return [mutation_of_report(report, profile, prepare) for report in reports]

    def add(self, exchange: Exchange, response: Response, data: bytes) -> None:
        """A piece of a response has come."""
        at_ms = int((time.monotonic() - exchange.begun_s) * 1000)
        response.chunks.append(Piece(at_ms, self._count.begun, data))

    def end(self, exchange: Exchange, response: Response) -> None:
        """Record and chain what came of a request."""
        if self.open.pop(exchange.seq, None) is None:
            return
        if self.run.exchanges is not None or response.said is None:
            response = self._without_secrets(exchange, response)
        is_whole = response.end in {"complete", "unreachable"}
        said = response.said or said_of(
            exchange.kind,
            response.status,
            response.body,
            self._chained_text(response),
            is_whole=is_whole,
            terms=self.terms,
            asked=Asked(exchange.kept.path, exchange.match.body),
        )
        with self.run.rows():
            if self.run.is_closed:
                return
            if self.run.exchanges is not None:
                text = exchange.kept.body.decode("utf-8", "surrogateescape")
                self.run.exchanges.write(self._row(exchange, response), text, response.body)
            self._count.done += 1
            self._note_sights(exchange, response, said)
            self._chain(exchange, said)

    def _note_sights(self, exchange: Exchange, response: Response, said: Said) -> None:
        """Note what of an exchange could be seen."""
        sights, provider, kind = self.run.context.sights, exchange.kept.provider, exchange.kind
        if kind in READ_KINDS:
            sights.ended(provider, response.end)
            is_body_known = exchange.match.scheme == "wire.v1"
            if response.status and not (said.is_read and is_body_known):
                sights.unread(provider, kind)
        for mutation in said.mutations:
            sights.found(provider, mutation.kind)

    def _chained_text(self, response: Response) -> Callable[[str], str]:
        """What makes a text of an answer the one that is chained."""
        to_variables, to_recorded = self.terms.folders.to_variables, response.to_recorded
        if to_recorded is None:
            return to_variables
        return lambda text: to_variables(to_recorded(text))

    def _row(self, exchange: Exchange, response: Response) -> dict[str, object]:
        request, match = exchange.kept, exchange.match
        row: dict[str, object] = {
            "seq": exchange.seq,
            "begun": self._count.begun,
            "after": exchange.after,
            "done": self._count.done,
            "lane": exchange.lane,
            "key": match.key,
            "key_scheme": match.scheme,
            "provider": request.provider,
            "origin": request.origin,
            "method": request.method,
            "path": request.path,
            "query": request.query,
            "headers": match.request["headers"],
            "status": response.status,
            "response_headers": [list(pair) for pair in response.headers],
            "chunks": [len(piece.data) for piece in response.chunks],
            "times_ms": [piece.at_ms for piece in response.chunks],
            "arrived": [piece.arrived for piece in response.chunks],
            "end": response.end,
            "ts": utc_now(),
            "elapsed_s": round(time.monotonic() - exchange.begun_s, 6),
        }
        # In an encrypted run no text of a body stands in the clear.
        keeps_ids = match.ids and not self.run.store.own_blobs.encrypts
        return {**row, "ids": match.ids} if keeps_ids else row

    def _chain(self, exchange: Exchange, said: Said) -> None:
        request, match = exchange.kept, exchange.match
        if exchange.kind not in MODEL_KINDS:
            payload = event.http_response(match.key, said.outcome, said.answer)
            self.run.append_all([(event.HTTP_RESPONSE, payload)], exchange.lane, said.mutations)
            return
        self.run.call_count += 1
        rows = [(event.MODEL_ANSWER, event.model_answer(match.key, said.outcome, said.answer))]
        if said.usage is not None:
            self.run.count_usage(said.usage)
            model = model_of(request.path, match.body)
            usage = event.model_usage(None, request.provider, model, said.usage.to_json())
            rows.append((event.MODEL_USAGE, usage))
        self.run.append_all(rows, exchange.lane, said.mutations)

    def _kept_header(self, name: str, value: str) -> str:
        return self.redactor.url(value) if name.lower() == "location" else self.redactor.text(value)

    def _without_secrets(self, exchange: Exchange, response: Response) -> Response:
        headers = [
            (name, self._kept_header(name, value))
            for name, value in response.headers
            if name.lower() in _KEPT_HEADERS or "ratelimit" in name.lower()
        ]
        served = changed_body(
            exchange.kind, [piece.data for piece in response.chunks], self.redactor
        )
        chunks = [response.chunks[n]._replace(data=data) for data, n in served]
        return replace(response, headers=headers, chunks=chunks)
