"""Becomes the command that it is told to run, in its own namespaces where that is asked for.

A program by itself, run without site packages: it imports nothing of ours. It is told what to do
over the socket whose number is its argument, and says there what went wrong; when the command runs
it is that command, with its own process id and standard streams.

    it is told   {"isolated": bool}
    it says      {"error": null or text}, with a listening socket where it is isolated
    it is told   {"argv", "env", "cwd", "parent", "binds": {place: folder}, "hidden": [folder],
                  "readonly": [folder]}
    it says      {"error": text}, or nothing: the command runs
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import signal
import socket
import struct
import sys
from typing import Any

_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 2, 4, 4096, 16384, 1 << 18
_MS_REMOUNT = 32
# Of statvfs(3), and of mount(2).
_KEPT_FLAGS = {2: 2, 4: 4, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 24, 38
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_LAST_CAPABILITY = 63

_libc: Any = ctypes.CDLL(None, use_errno=True)


class _RefusedError(Exception):
    """The system does not let us."""


def _call(function: Any, *arguments: object) -> None:
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _mount(
    source: str | None, target: str, kind: str | None, flags: int, options: str | None = None
) -> None:
    encoded = [None if x is None else os.fsencode(x) for x in (source, target, kind)]
    data = None if options is None else options.encode()
    _call(_libc.mount, *encoded, ctypes.c_ulong(flags), data)


def _leave_the_network() -> None:
    """Go into new namespaces whose only network is a loopback of their own."""
    uid, gid = os.getuid(), os.getgid()
    try:
        _call(_libc.unshare, _CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWNET)
    except OSError as error:
        if uid != 0 or error.errno not in {errno.EPERM, errno.ENOSPC, errno.EINVAL}:
            raise _RefusedError(f"this system gives no namespaces ({error.strerror})") from error
        try:
            _call(_libc.unshare, _CLONE_NEWNS | _CLONE_NEWNET)
        except OSError as again:
            raise _RefusedError(f"this system gives no namespaces ({again.strerror})") from again
    else:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        name, flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", name, flags | _IFF_UP))


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _arrange(binds: dict[str, str], hidden: list[str], readonly: list[str]) -> None:
    """Show folders at fixed places, nothing where something is hidden, and some to read alone."""
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    folders = {place: os.open(path, os.O_PATH | os.O_DIRECTORY) for place, path in binds.items()}
    for root in {os.path.dirname(place) for place in binds}:
        _mount("tmpfs", root, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0755,size=64k")
    for place, folder in folders.items():
        os.mkdir(place)
        _mount(f"/proc/self/fd/{folder}", place, None, _MS_BIND | _MS_REC)
        os.close(folder)
    for path in hidden:
        if os.path.isdir(path):
            flags = _MS_RDONLY | _MS_NOSUID | _MS_NODEV
            _mount("tmpfs", path, "tmpfs", flags, "mode=0555,size=4k")
    for path in readonly:
        if os.path.isdir(path):
            _mount(path, path, None, _MS_BIND | _MS_REC)
            # What was set of it before has to stay set.
            kept = os.statvfs(path).f_flag
            flags = sum(ours for theirs, ours in _KEPT_FLAGS.items() if kept & theirs)
            _mount(None, path, None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY | flags)


def _give_up_rights() -> None:
    """Whatever the command is, it cannot undo what was arranged."""
    for capability in range(_LAST_CAPABILITY + 1):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    _call(_libc.prctl, _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def main(channel: socket.socket) -> int:
    """Do what is told over ``channel``."""
    told = channel.makefile("r", encoding="utf-8")

    def say(error: str | None, descriptors: tuple[int, ...] = ()) -> None:
        message = json.dumps({"error": error}).encode() + b"\n"
        socket.send_fds(channel, [message], list(descriptors))

    is_isolated = json.loads(told.readline())["isolated"]
    if is_isolated:
        try:
            _leave_the_network()
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            listener.bind(("127.0.0.1", 0))
        except (_RefusedError, OSError) as error:
            say(str(error))
            return 1
        say(None, (listener.fileno(),))
        listener.close()
    else:
        say(None)
    line = told.readline()
    if not line:
        return 1  # whoever started us has gone
    what = json.loads(line)
    try:
        if is_isolated:
            _arrange(what["binds"], what["hidden"], what["readonly"])
            _give_up_rights()
            if os.getsid(0) != os.getpid():
                os.setsid()  # a terminal of its own would take what it types for the user's
        os.chdir(what["cwd"])
    except OSError as error:
        say(f"the command cannot be isolated: {error}")
        return 1
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != what["parent"]:
            return 1
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(what["argv"][0], what["argv"], what["env"])
    except OSError as error:
        say(f"{what['argv'][0]} cannot be run: {error.strerror}")
    return 1


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    channel_ = socket.socket(fileno=int(sys.argv[1]))
    channel_.set_inheritable(False)  # its end says that the command runs
    sys.exit(main(channel_))
