"""Runs over HTTP: a list, one run, and its rows as they come, as server-sent events; and the page.

Rule: an event's id is the row's index, and its data the row as it stands; so who was away goes on
behind the last one, whichever server it meets.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from itertools import islice
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from bernstein.canonical import MAX_INT
from bernstein.chain.diff import diff_journals, to_json
from bernstein.errors import (
    BernsteinError,
    StaleDecisionError,
    UnknownRunError,
    UsageError,
)
from bernstein.fold.run import project
from bernstein.fold.source import EventFile
from bernstein.recording.misses import read_misses
from bernstein.seal.body_key import bodies_of
from bernstein.show.access import refused
from bernstein.show.decide import decide, told_call, waiting_calls
from bernstein.show.evidence import evidence_of
from bernstein.show.site import page_file, page_response
from bernstein.show.tail import Tails
from bernstein.show.texts import text_of
from bernstein.show.told import told_run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from starlette.requests import Request

    from bernstein.rundir import RunDir, SddDir
    from bernstein.seal.signing import KeyStore
    from bernstein.show.access import Access
    from bernstein.show.tail import Tail

    Handler = Callable[[Request], Awaitable[Response]]

KEEP_ALIVE_S = 15.0
_MAX_DECISION_BYTES = 4096
_HEADERS = {
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
    "X-Content-Type-Options": "nosniff",
}


def make_app(
    sdd: SddDir, keys: KeyStore, access: Access, keep_alive_s: float = KEEP_ALIVE_S
) -> Starlette:
    """The server's application.

    Args:
        sdd: The project whose runs are shown.
        keys: What seals are checked with, and decisions signed.
        access: Who may read, and who may decide.
        keep_alive_s: After how many seconds without an event a comment is sent.
    Source: docs/live.md.
    """
    api = _Api(sdd, keys, access, keep_alive_s)
    run = "/api/runs/{run_id}"
    routes: list[tuple[str, Handler, str]] = [
        ("/api/openapi.json", _openapi, "GET"),
        ("/api/session", api.session, "GET"),
        ("/api/session", api.session, "POST"),
        ("/api/runs", api.runs, "GET"),
        (run, api.run, "GET"),
        (f"{run}/projection", api.projection, "GET"),
        (f"{run}/events", api.events, "GET"),
        (f"{run}/evidence", api.evidence, "GET"),
        (f"{run}/misses", api.misses, "GET"),
        (f"{run}/diff/{{other}}", api.diff, "GET"),
        (f"{run}/texts/{{index}}", api.text, "GET"),
        (f"{run}/approvals", api.waiting, "GET"),
        (f"{run}/approvals", api.decide, "POST"),
    ]
    if access.operator is None:
        routes.pop()
    return Starlette(
        routes=[
            *(Route(path, _guarded(access, call), methods=[how]) for path, call, how in routes),
            Route("/", _own(access, _page)),
            Route("/{name}", _own(access, _page)),
        ],
        exception_handlers={HTTPException: _http_error},
        lifespan=api.lifespan,
    )


def _own(access: Access, handler: Handler) -> Handler:
    """A handler for requests to this server by a name of its own."""

    async def owned(request: Request) -> Response:
        return access.refuse_host(request) or await handler(request)

    return owned


def _guarded(access: Access, handler: Handler) -> Handler:
    async def guarded(request: Request) -> Response:
        denied = access.refuse(request)
        if denied is not None:
            return denied
        try:
            return await handler(request)
        except UnknownRunError as error:
            return _error(404, error)
        except BernsteinError as error:
            return _error(400 if isinstance(error, UsageError) else 409, error)
        except OSError as error:
            return refused(500, error.strerror or "the file system refuses")

    return _own(access, guarded)


def _error(status: int, error: BernsteinError) -> Response:
    return refused(status, str(error).split("\n", 1)[0])


async def _http_error(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _page(request: Request) -> Response:
    return page_response(request.path_params.get("name", "index.html"))


async def _openapi(request: Request) -> Response:
    del request
    return Response(page_file("openapi.json"), headers=_HEADERS, media_type="application/json")


class _Api:
    def __init__(self, sdd: SddDir, keys: KeyStore, access: Access, keep_alive_s: float) -> None:
        self._sdd = sdd
        self._keys = keys
        self._access = access
        self._keep_alive_s = keep_alive_s
        self._tails = Tails()

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Close what viewers left open when the server ends."""
        del app
        try:
            yield
        finally:
            self._tails.close()

    async def session(self, request: Request) -> Response:
        """Say what can be done here; to a POST with the token give a page its cookie too."""
        access = self._access
        value = {"decides": access.operator is not None, "texts": access.shows_texts}
        response = JSONResponse(value, headers=_HEADERS)
        if request.method == "POST":
            self._access.let_in(request, response)
        return response

    async def runs(self, request: Request) -> Response:
        """The runs, newest first, as many as are asked for."""
        limit = _count(request.query_params.get("limit", str(MAX_INT)))
        listed = await asyncio.to_thread(
            lambda: [told_run(run) for run in islice(reversed(self._sdd.list_runs()), limit)]
        )
        return JSONResponse(listed, headers=_HEADERS)

    async def run(self, request: Request) -> Response:
        """What a run is."""
        return JSONResponse(told_run(self._find(request)), headers=_HEADERS)

    async def projection(self, request: Request) -> Response:
        """What a run did so far."""
        run = self._find(request)
        done = await asyncio.to_thread(lambda: project(EventFile(run.journal, run.run_id)))
        return Response(done.to_bytes(), headers=_HEADERS, media_type="application/json")

    async def evidence(self, request: Request) -> Response:
        """A run's seal as it stands, the key that it names, and what a check of it all says."""
        run = self._find(request)
        told = await asyncio.to_thread(evidence_of, run, self._sdd, self._keys)
        return JSONResponse(told, headers=_HEADERS)

    async def misses(self, request: Request) -> Response:
        """What a replay asked for and did not find, with the nearest that was recorded."""
        run = self._find(request)
        told = await asyncio.to_thread(
            lambda: read_misses(run, bodies_of(run, self._sdd, self._keys))
        )
        return JSONResponse(told, headers=_HEADERS)

    async def diff(self, request: Request) -> Response:
        """Where two runs part, or null."""
        left, right = self._find(request), self._find(request, "other")
        found = await asyncio.to_thread(diff_journals, left.journal, right.journal)
        told = None if found is None else to_json(found)
        value = {"left": left.run_id, "right": right.run_id, "diff": told}
        return JSONResponse(value, headers=_HEADERS)

    async def text(self, request: Request) -> Response:
        """What was asked or said in a row."""
        if not (self._access.shows_texts or self._access.may_decide(request)):
            return _no_operator(self._access)
        run, index = self._find(request), _count(request.path_params["index"])
        text = await asyncio.to_thread(text_of, run, self._sdd, self._keys, index)
        shown = None if text is None else text.encode("utf-8", "replace").decode()
        return JSONResponse({"text": shown}, headers=_HEADERS)

    async def waiting(self, request: Request) -> Response:
        """The calls that wait for a decision."""
        if not self._access.may_decide(request):
            return _no_operator(self._access)
        run = self._find(request)
        calls = await asyncio.to_thread(waiting_calls, self._sdd, self._keys_dir, run)
        return JSONResponse([told_call(call) for call in calls], headers=_HEADERS)

    async def decide(self, request: Request) -> Response:
        """Take a decision."""
        if not self._access.may_decide(request):
            return _no_operator(self._access)
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return refused(415, "a decision is application/json")
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > _MAX_DECISION_BYTES:
                return refused(413, "a decision is smaller")
        run = self._find(request)
        if run.run_id != request.path_params["run_id"]:
            raise StaleDecisionError("a decision names its run by its whole id")
        said = await asyncio.to_thread(decide, self._sdd, self._keys_dir, run, body)
        return JSONResponse(said, 201, _HEADERS)

    async def events(self, request: Request) -> Response:
        """The rows behind the one that was seen last, and then those that come."""
        run, after = self._find(request), _last_seen(request)
        with self._tails.of(run) as tail:
            at = tail.place_behind(after)
            has_all = tail.is_over and tail.read(at).end == at and after is not None
            if has_all and not run.is_parked():
                return Response(status_code=204, headers=_HEADERS)
        return StreamingResponse(
            self._stream(run, at),
            media_type="text/event-stream; charset=utf-8",
            headers=_HEADERS,
        )

    async def _stream(self, run: RunDir, at: int) -> AsyncIterator[bytes]:
        with self._tails.of(run) as tail:
            yield b"retry: 1000\n\n"
            async for frames in _frames(tail, at, self._keep_alive_s):
                yield frames

    @property
    def _keys_dir(self) -> Path:
        return self._keys.folder

    def _find(self, request: Request, name: str = "run_id") -> RunDir:
        run = self._sdd.find_run(request.path_params[name])
        if not run.journal.exists():
            raise UnknownRunError(f"run {run.run_id} has no journal")
        return run


async def _frames(tail: Tail, at: int, keep_alive_s: float) -> AsyncIterator[bytes]:
    """The events from a place on, comments where there are none for long, and the end."""
    has_end = False
    while True:
        # Before the read: what a run writes last is there once it runs no more.
        is_over = tail.is_over
        piece = tail.read(at)
        if piece.end > at:
            at, has_end = piece.end, piece.has_end
            yield piece.frames
        elif is_over or piece.is_broken:
            status = "finished" if has_end else "interrupted"
            if piece.is_broken:
                status = "broken"
            elif tail.run.is_parked():
                status = "parked"
            yield b"event: end\ndata: %b\n\n" % json.dumps({"run": status}).encode()
            return
        elif not await tail.grown(keep_alive_s):
            yield b": nothing new\n\n"


def _last_seen(request: Request) -> int | None:
    """The index of the row that was seen last; the header wins over the address.

    Raises:
        UsageError: It is none.
    """
    said = request.headers.get("last-event-id") or request.query_params.get("last_event_id")
    return None if said is None else _count(said)


def _count(said: str) -> int:
    if not (said.isascii() and said.isdigit() and len(said) <= 16 and int(said) <= MAX_INT):
        raise UsageError(f"{said[:40]!r} is no index of a row, and no count")
    return int(said)


def _no_operator(access: Access) -> Response:
    if access.operator is None:
        return refused(403, "this server takes no decisions, and shows no texts without --texts")
    return refused(403, "this takes the operator's token, as a bearer")
