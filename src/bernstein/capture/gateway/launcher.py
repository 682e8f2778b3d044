"""Starts an agent's command, so that it ends with us, and alone with the gateway where asked for.

Isolated (Linux), it has a network namespace whose only address is the gateway's, finds its folders
at fixed places, and finds nothing where the recordings and the keys are. The gateway itself stays
outside and only listens inside.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from bernstein.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_PROGRAM = Path(__file__).with_name("launch.py")
_ANSWER_S = 20.0

# Where an isolated command finds its folders, whatever they are outside.
FIXED = {"cwd": "/mnt/workspace", "home": "/mnt/home", "tmp": "/mnt/tmp"}
# Sockets of the system's services lie here; over one of them a command could reach the network.
_SERVICES = ("/run",)


class Launcher:
    """One command that is about to be started."""

    def __init__(
        self,
        *,
        is_isolated: bool,
        is_quiet: bool = False,
        output: BinaryIO | None = None,
        errors: BinaryIO | None = None,
    ) -> None:
        """Start what becomes the command.

        Args:
            is_isolated: Whether it is kept in namespaces of its own.
            is_quiet: Whether what it prints goes nowhere.
            output, errors: Where what it prints goes, in a session of its own and without an
                input; else its standard streams are ours.
        Raises:
            UsageError: It is to be isolated, and this system does not allow that.
        """
        if is_isolated and sys.platform != "linux":
            raise UsageError("--isolate needs Linux\n  leave it out: the proxy guard holds then")
        self._is_isolated = is_isolated
        self.listener: socket.socket | None = None
        ours, theirs = socket.socketpair()
        is_apart = output is not None
        nowhere = subprocess.DEVNULL if is_quiet else None
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603 - a program of ours
                [sys.executable, "-I", "-S", str(_PROGRAM), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL if is_apart else None,
                stdout=output or nowhere,
                stderr=errors or nowhere,
                start_new_session=is_apart,
            )
        self._channel = ours
        ours.settimeout(_ANSWER_S)
        self._tell({"isolated": is_isolated})
        error, descriptors = self._answer()
        if error is not None:
            self.close()
            raise UsageError(f"{error}\n  run it without --isolate")
        if descriptors:
            self.listener = socket.socket(
                socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=descriptors[0]
            )

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        hidden: Iterable[Path],
        readonly: Iterable[Path] = (),
    ) -> None:
        """Let it become the command.

        Args:
            argv: The command.
            env: Its environment; isolated, the folders in it are found at ``FIXED``.
            cwd: Its working directory.
            hidden: Folders that an isolated command finds empty.
            readonly: Folders that an isolated command can only read.
        Raises:
            UsageError: It cannot be run.
        """
        told: dict[str, object] = {"argv": list(argv), "env": dict(env), "cwd": str(cwd)}
        if self._is_isolated:
            # The private home can lie below the working directory, and so comes first.
            binds = {
                FIXED["home"]: env["HOME"],
                FIXED["tmp"]: env["TMPDIR"],
                FIXED["cwd"]: str(cwd),
            }
            told |= {
                "cwd": FIXED["cwd"],
                "env": _seen_from_inside(env, {path: place for place, path in binds.items()}),
                "binds": binds,
                "hidden": _everywhere([*hidden, *map(Path, _SERVICES)], cwd),
                "readonly": [str(path.resolve()) for path in readonly],
            }
        self._tell(told | {"parent": os.getpid()})
        error, _ = self._answer()
        if error is not None:
            self.process.wait()
            raise UsageError(f"{error}\n  name a program behind --")

    def close(self) -> None:
        """End what was not let run, and give up the channel to it."""
        self._channel.close()
        if self.listener is not None:
            self.listener.close()
        self.process.wait()

    def _tell(self, message: dict[str, object]) -> None:
        self._channel.sendall(json.dumps(message).encode() + b"\n")

    def _answer(self) -> tuple[str | None, list[int]]:
        """What it says went wrong, and what it hands over; nothing once the command runs."""
        said, descriptors = b"", []
        while not said.endswith(b"\n"):
            part, found, _, _ = socket.recv_fds(self._channel, 65536, 4)
            descriptors += found
            if not part:
                return None, descriptors
            said += part
        error: str | None = json.loads(said)["error"]
        return error, descriptors


def _seen_from_inside(env: Mapping[str, str], places: Mapping[str, str]) -> dict[str, str]:
    inside = dict(env)
    for name in ("HOME", "TMPDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        for path, place in places.items():
            if inside[name] == path or inside[name].startswith(f"{path}/"):
                inside[name] = place + inside[name].removeprefix(path)
                break
    return inside | {"PWD": FIXED["cwd"]}


def _everywhere(hidden: Iterable[Path], cwd: Path) -> list[str]:
    """Each folder by its own path, and where it shows in the workspace."""
    found: list[str] = []
    for path in hidden:
        real = path.resolve()
        found.append(str(real))
        if real.is_relative_to(cwd):
            found.append(str(Path(FIXED["cwd"], real.relative_to(cwd))))
    return found
