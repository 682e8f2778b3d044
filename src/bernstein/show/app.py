"""Runs over HTTP: a list, one run, and its rows as they come, as server-sent events.

Rule: an event's id is the row's index, and its data the row as it stands; so who was away goes on
behind the last one, whichever server it meets.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from bernstein.canonical import MAX_INT
from bernstein.errors import BernsteinError, UnknownRunError, UsageError
from bernstein.fold.run import project
from bernstein.fold.source import EventFile
from bernstein.show.tail import Tails

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request

    from bernstein.rundir import RunDir, SddDir
    from bernstein.show.access import Access
    from bernstein.show.tail import Tail

    Handler = Callable[[Request], Awaitable[Response]]

KEEP_ALIVE_S = 15.0
_HEADERS = {
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
    "X-Content-Type-Options": "nosniff",
}
_TOLD = ("kind", "source_run", "seed", "started", "finished", "strict")


def make_app(sdd: SddDir, access: Access, keep_alive_s: float = KEEP_ALIVE_S) -> Starlette:
    """The server's application.

    Args:
        sdd: The project whose runs are shown.
        access: Who may read.
        keep_alive_s: After how many seconds without an event a comment is sent.
    Source: docs/live.md.
    """
    api = _Api(sdd, keep_alive_s)
    routes = {
        "/api/runs": api.runs,
        "/api/runs/{run_id}": api.run,
        "/api/runs/{run_id}/events": api.events,
    }
    return Starlette(
        routes=[Route(path, _guarded(access, handler)) for path, handler in routes.items()]
    )


def _guarded(access: Access, handler: Handler) -> Handler:
    async def guarded(request: Request) -> Response:
        refused = access.refuse(request)
        if refused is not None:
            return refused
        try:
            return await handler(request)
        except UnknownRunError as error:
            return _error(404, error)
        except BernsteinError as error:
            return _error(400 if isinstance(error, UsageError) else 409, error)
        except OSError as error:
            return JSONResponse({"error": error.strerror}, 500)

    return guarded


def _error(status: int, error: BernsteinError) -> Response:
    return JSONResponse({"error": str(error).split("\n", 1)[0]}, status)


class _Api:
    def __init__(self, sdd: SddDir, keep_alive_s: float) -> None:
        self._sdd = sdd
        self._keep_alive_s = keep_alive_s
        self._tails = Tails()

    async def runs(self, request: Request) -> Response:
        """The runs, newest first."""
        del request
        listed = await asyncio.to_thread(
            lambda: [_told(r) for r in reversed(self._sdd.list_runs())]
        )
        return JSONResponse(listed, headers=_HEADERS)

    async def run(self, request: Request) -> Response:
        """What a run is, and what it did so far."""
        run = self._find(request)
        done = await asyncio.to_thread(lambda: project(EventFile(run.journal, run.run_id)))
        return JSONResponse({**_told(run), "projection": done.to_json()}, headers=_HEADERS)

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

    def _find(self, request: Request) -> RunDir:
        run = self._sdd.find_run(request.path_params["run_id"])
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
        elif is_over:
            status = "finished" if has_end else "interrupted"
            if tail.run.is_parked():
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
    if said is None:
        return None
    if not (said.isascii() and said.isdigit() and len(said) <= 16 and int(said) <= MAX_INT):
        raise UsageError(f"{said[:40]!r} is no id of an event: it is a row's index")
    return int(said)


def _told(run: RunDir) -> dict[str, Any]:
    info = run.read_info()
    return {
        "run_id": run.run_id,
        "status": run.status(),
        "name": (info.get("plan") or {}).get("name"),
        **{name: info.get(name) for name in _TOLD},
    }
