"""Where a call belongs: its run, lane and step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

from bernstein.capture.program import CallScope, process_scope
from bernstein.errors import UsageError
from bernstein.events.entry import LANE

_scope: ContextVar[CallScope | None] = ContextVar("bernstein_scope", default=None)


@contextmanager
def use_scope(scope_: CallScope) -> Iterator[None]:
    """Let the calls of this context belong to ``scope_``."""
    token = _scope.set(scope_)
    try:
        yield
    finally:
        _scope.reset(token)


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Give the calls made inside a lane of their own, so that they replay among themselves.

    Args:
        name: ``[A-Za-z0-9._/-]{1,128}``; inside another scope it is put behind that one's name.
    """
    outer = current_scope()
    lane = f"{outer.lane}/{name}" if outer.lane else name
    if not name or not LANE.fullmatch(lane):
        raise UsageError(
            f"scope {name!r} gives the lane {lane!r}, which does not match {LANE.pattern}"
        )
    with use_scope(replace(outer, lane=lane)):
        yield


def current_scope() -> CallScope:
    """The scope of calls made here: the one in use, else that of the program's own run."""
    here = _scope.get()
    if here is None:
        return process_scope()
    if here.run.pid != os.getpid():
        # A forked child: its calls are a run of their own, in the same lane.
        return replace(process_scope(), lane=here.lane)
    return here
