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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_WATCHED = frozenset(
    {
        "socket.connect",
        "socket.sendto",
        "socket.sendmsg",
        "socket.getaddrinfo",
        "socket.gethostbyname",
        "socket.gethostbyaddr",
        "socket.getnameinfo",
    }
)
_lock = threading.Lock()
_refusals: list[Callable[[str], Exception]] = []
_is_installed = False


def _hook(event: str, args: tuple[object, ...]) -> None:
    if not _refusals or event not in _WATCHED:
        return
    first = args[0] if args else None
    if isinstance(first, socket.socket) and first.family == getattr(socket, "AF_UNIX", -1):
        return
    target = first if event.startswith("socket.get") else args[-1]
    raise _refusals[-1](f"{target}")


@contextmanager
def no_network(refusal: Callable[[str], Exception]) -> Iterator[None]:
    """Refuse every connection of this process until the block ends.

    Args:
        refusal: Makes the exception to raise, of the address that was reached for.
    """
    global _is_installed  # noqa: PLW0603 - a hook is of the process
    with _lock:
        if not _is_installed:
            sys.addaudithook(_hook)
            _is_installed = True
        _refusals.append(refusal)
    try:
        yield
    finally:
        with _lock:
            _refusals.remove(refusal)
