"""One event loop in a thread of its own, on which every live request is made.

HTTP clients belong to one loop; with a loop of our own, callers may be threads, tasks of any loop,
or plain code.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from concurrent.futures import Future

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def _forget_after_fork() -> None:
    """A forked child has the loop's object but not its thread."""
    global _loop, _lock
    _loop, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)


def submit(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Run ``work`` on the portal's loop; its future can be waited for from anywhere."""
    return asyncio.run_coroutine_threadsafe(work, _running_loop())


def _running_loop() -> asyncio.AbstractEventLoop:
    global _loop  # noqa: PLW0603 - one loop a process is the point
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="bernstein-portal", daemon=True).start()
        return _loop
