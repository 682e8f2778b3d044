"""An agent's process beside its gateway: started, watched, ended with all that it started."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, BinaryIO

from bernstein.capture.gateway.child import environment, surroundings
from bernstein.capture.gateway.launcher import Launcher
from bernstein.capture.gateway.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from bernstein.capture.gateway.seat import Seat

_POLL_S = 0.02
_TERM_S = 5.0
_READ_BYTES = 2**20
_KEPT_END_BYTES = 16 * 2**20


@dataclass(slots=True)
class Ended:
    """How a process ended: its code, negative for a signal; and whether its time was up."""

    code: int
    was_timed_out: bool = False


class Printed:
    """What a process prints, in memory: secrets can be in it, and none reaches the disk.

    Not a pipe: a client that ends at once loses what a pipe has not taken yet.
    """

    def __init__(self, name: str) -> None:
        """Make an empty one."""
        memory = getattr(os, "memfd_create", None)
        fd = -1 if memory is None else memory(f"bernstein-{name}")
        # Elsewhere a file without a name.
        self.file: BinaryIO = os.fdopen(fd, "w+b") if fd >= 0 else TemporaryFile()  # noqa: SIM115
        self._position = 0

    def more(self) -> Iterator[bytes]:
        """What was printed since this was asked last."""
        while data := os.pread(self.file.fileno(), _READ_BYTES, self._position):
            self._position += len(data)
            yield data

    def ends(self) -> tuple[bytes, int]:
        """What was printed, of very much its beginning and its end; and how much is left out."""
        fd = self.file.fileno()
        size = os.fstat(fd).st_size
        if size <= 2 * _KEPT_END_BYTES:
            return _read(fd, 0, size), 0
        begin = _read(fd, 0, _KEPT_END_BYTES)
        end = _read(fd, size - _KEPT_END_BYTES, _KEPT_END_BYTES)
        return begin + b"\n" + end, size - 2 * _KEPT_END_BYTES


def _read(fd: int, start: int, count: int) -> bytes:
    parts: list[bytes] = []
    while count > 0 and (data := os.pread(fd, min(count, _READ_BYTES), start)):
        parts.append(data)
        start, count = start + len(data), count - len(data)
    return b"".join(parts)


class AgentProcess:
    """One run of an agent's command; ``run`` ends with it, whatever happens."""

    def __init__(
        self,
        seat: Seat,
        folder: Path,
        hidden: Sequence[Path],
        readonly: Sequence[Path],
        *,
        is_isolated: bool,
    ) -> None:
        """Prepare a run.

        Args:
            seat: Its place at the run.
            folder: Where it works.
            hidden: Folders that an isolated agent finds empty.
            readonly: Folders that it can only read.
            is_isolated: Whether it is kept in namespaces of its own.
        """
        self._seat = seat
        self._folder = folder
        self._hidden = hidden
        self._readonly = readonly
        self._is_isolated = is_isolated
        self.stdout, self.stderr = Printed("stdout"), Printed("stderr")

    async def run(
        self,
        argv: Sequence[str],
        timeout_s: float,
        take: Callable[[bytes], None],
        end_with: Callable[[], int | None],
    ) -> Ended:
        """Run a command to its end.

        Args:
            argv: The command.
            timeout_s: When it is ended.
            take: Is given what it prints, as it comes.
            end_with: Says the signal that it is to be ended with now; None lets it go on.
        Raises:
            UsageError: It cannot be started.
        """
        deadline_s = time.monotonic() + timeout_s
        seat = self._seat
        launcher = Launcher(
            is_isolated=self._is_isolated, output=self.stdout.file, errors=self.stderr.file
        )
        process = launcher.process
        try:
            server = seat.serve(launcher.listener)
            with (
                server,
                surroundings(seat.home, seat.tmp) as made,
                Watcher(server.gateway.token, (seat.home, seat.tmp), ends_rest=True),
            ):
                seat.write_home()
                env = environment(
                    server,
                    made,
                    seat.upstreams,
                    is_replay=seat.is_replay,
                    key_names=seat.known_key_names,
                    policy=seat.policy,
                )
                launcher.run(argv, env, self._folder, self._hidden, self._readonly)
                try:
                    while process.poll() is None:
                        self._feed(take)
                        if not server.is_alive:
                            await _end(process, signal.SIGTERM)
                        elif (number := end_with()) is not None:
                            await _end(process, number)
                        elif time.monotonic() > deadline_s:
                            await _end(process, signal.SIGTERM)
                            return Ended(process.wait(), was_timed_out=True)
                        await asyncio.sleep(_POLL_S)
                    return Ended(process.wait())
                finally:
                    _signal_group(process, signal.SIGKILL)
                    process.wait()
                    self._feed(take)
        finally:
            launcher.close()
            seat.end_open()

    def _feed(self, take: Callable[[bytes], None]) -> None:
        for data in self.stdout.more():
            take(data)


async def _end(process: subprocess.Popen[bytes], number: int) -> None:
    """Signal a process and its group, and kill them where that is not enough."""
    _signal_group(process, number)
    bound_s = time.monotonic() + _TERM_S
    while process.poll() is None and time.monotonic() < bound_s:
        await asyncio.sleep(_POLL_S)
    if process.poll() is None:
        _signal_group(process, signal.SIGKILL)


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
