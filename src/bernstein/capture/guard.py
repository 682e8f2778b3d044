"""Keeps a strict replay from the network: ``guard=python``.

An audit hook sees every connection and name look-up that Python's sockets make, in every thread,
and cannot be taken out again. It does not see what an extension's own code or another process does.
"""

from __future__ import annotations

import socket
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bernstein.errors import ReplayMissError

if TYPE_CHECKING:
    from collections.abc import Iterator

_WATCHED = frozenset(
    {
        "socket.connect",
        "socket.sendto",
        "socket.sendmsg",
        "socket.getaddrinfo",
        "socket.gethostbyname",
    }
)
_lock = threading.Lock()
_holders = 0
_is_installed = False


def _hook(event: str, args: tuple[object, ...]) -> None:
    if _holders and event in _WATCHED:
        first = args[0] if args else None
        if isinstance(first, socket.socket) and first.family == getattr(socket, "AF_UNIX", -1):
            return
        target = args[1] if event in {"socket.connect", "socket.sendto"} else first
        raise ReplayMissError(
            f"replay miss: the program reached for the network ({target}) in a strict replay\n"
            "  let misses go to the live model: BERNSTEIN_REPLAY_ALLOW_LIVE_MISS=1",
            key="",
            model="",
            reason="never_recorded",
        )


@contextmanager
def no_network() -> Iterator[None]:
    """Refuse every connection of this process until the block ends."""
    global _holders, _is_installed  # noqa: PLW0603 - a guard is of the process
    with _lock:
        if not _is_installed:
            sys.addaudithook(_hook)
            _is_installed = True
        _holders += 1
    try:
        yield
    finally:
        with _lock:
            _holders -= 1
