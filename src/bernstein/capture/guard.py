"""Keeps a strict replay from the network: ``guard=python``.

An audit hook sees every connection and name look-up that Python's sockets make, in every thread,
and cannot be taken out again. It does not see what an extension's own code or another process does.
"""

from __future__ import annotations

import socket
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

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
_refusals: list[tuple[Callable[[str], Exception], frozenset[tuple[str, int]]]] = []
_is_installed = False


def _hook(event: str, args: tuple[object, ...]) -> None:
    if not _refusals or event not in _WATCHED:
        return
    first = args[0] if args else None
    if isinstance(first, socket.socket) and first.family == getattr(socket, "AF_UNIX", -1):
        return
    refusal, allowed = _refusals[-1]
    target = first if event.startswith("socket.get") else args[-1]
    address = args[:2] if event.startswith("socket.get") else target
    if address is None:
        return  # over a connection, which was let through when it was made
    if isinstance(address, tuple) and len(address) >= 2 and _is_allowed(address, allowed):
        return
    raise refusal(f"{target}")


def _is_allowed(address: tuple[object, ...], allowed: frozenset[tuple[str, int]]) -> bool:
    host, port = address[0], address[1]
    return any(host == known and str(port) == str(number) for known, number in allowed)


def _with_numbers(allowed: Iterable[tuple[str, int]]) -> frozenset[tuple[str, int]]:
    """The addresses by name and by number: a name is connected to by its numbers."""
    found = set(allowed)
    for host, port in list(found):
        with suppress(OSError):
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found |= {(str(info[4][0]), port) for info in infos}
    return frozenset(found)


@contextmanager
def no_network(
    refusal: Callable[[str], Exception], allowed: Iterable[tuple[str, int]] = ()
) -> Iterator[None]:
    """Refuse every connection of this process until the block ends.

    Args:
        refusal: Makes the exception to raise, of the address that was reached for.
        allowed: Addresses, as host and port, that may be reached all the same.
    """
    global _is_installed  # noqa: PLW0603 - a hook is of the process
    with _lock:
        if not _is_installed:
            sys.addaudithook(_hook)
            _is_installed = True
        entry = (refusal, _with_numbers(allowed))
        _refusals.append(entry)
    try:
        yield
    finally:
        with _lock:
            _refusals.remove(entry)
