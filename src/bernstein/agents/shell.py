"""Runs a command of the built-in agent in its workspace, and ends all that the command started.

It has no key, a private home and no input; isolated, it has no network and finds its folders at
fixed places. What it prints names no path of this machine.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, cast

from bernstein.agents.tools import MAX_OUTPUT_CHARS, MAX_TIMEOUT_S, ToolError, ToolOutput
from bernstein.capture.gateway.child import environment_without_keys, surroundings
from bernstein.capture.gateway.launcher import FIXED, Launcher
from bernstein.capture.gateway.watcher import Watcher
from bernstein.settings import INSIDE_RUN

_POLL_S = 0.02
_TIMED_OUT = 124


@dataclass(frozen=True, slots=True)
class Shell:
    """Where the commands of one attempt run.

    Attributes:
        run_id: The run that they are part of; it stands in their environment.
        folder: Their workspace.
        home, tmp: Their private folders, made for each command.
        is_isolated: Whether each is kept in namespaces of its own.
        hidden: Folders that an isolated one finds empty.
        readonly: Folders that it can only read.
    """

    run_id: str
    folder: Path
    home: Path
    tmp: Path
    is_isolated: bool
    hidden: tuple[Path, ...]
    readonly: tuple[Path, ...]

    async def run(self, command: str, timeout_s: int) -> ToolOutput:
        """Run a command to its end.

        Raises:
            ToolError: It cannot be run so.
            UsageError: It is to be isolated, and this system does not allow that.
        """
        if not 1 <= timeout_s <= MAX_TIMEOUT_S:
            raise ToolError(f"timeout_s: from 1 to {MAX_TIMEOUT_S}")
        if "\0" in command:
            raise ToolError("command: it holds a NUL")
        # It tells the processes of this command from all others.
        mark = f"{self.run_id}/{secrets.token_hex(8)}"
        with TemporaryFile() as output:
            file = cast("BinaryIO", output)
            ended = await self._run(command, timeout_s, file, mark)
            text = self._read(file).replace(mark, "1")
        code = _TIMED_OUT if ended is None else ended
        if ended is None:
            text += f"\n[ended after {timeout_s} s]"
        said = f"exit code {code}\n{text}"
        return ToolOutput(said, ok=code == 0, exit_code=code)

    async def _run(self, command: str, timeout_s: int, output: BinaryIO, mark: str) -> int | None:
        """Its exit code; None where its time was up."""
        launcher = Launcher(is_isolated=self.is_isolated, output=output, errors=output)
        process = launcher.process
        try:
            with (
                surroundings(self.home, self.tmp) as made,
                Watcher(mark, (self.home, self.tmp), ends_rest=True),
            ):
                env = environment_without_keys(made) | {INSIDE_RUN: mark}
                argv = ["/bin/sh", "-c", command]
                launcher.run(argv, env, self.folder, self.hidden, self.readonly)
                deadline_s = time.monotonic() + timeout_s
                try:
                    while process.poll() is None:
                        if time.monotonic() > deadline_s:
                            return None
                        await asyncio.sleep(_POLL_S)
                    code = process.wait()
                    return code if code >= 0 else 128 - code
                finally:
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        finally:
            launcher.close()

    def _read(self, output: BinaryIO) -> str:
        """Beginning and end of what was printed, without the paths of this machine."""
        size = output.seek(0, os.SEEK_END)
        output.seek(0)
        half = MAX_OUTPUT_CHARS // 2
        data = output.read(half if size > 2 * half else size)
        if size > 2 * half:
            output.seek(size - half)
            data += f"\n[{size - 2 * half} bytes are left out]\n".encode() + output.read(half)
        text = data.decode("utf-8", "replace")
        for path, name in self._names():
            text = text.replace(path, name)
        return text

    def _names(self) -> list[tuple[str, str]]:
        """Each folder as a command sees it, and what stands for it; the longest come first."""
        found = {FIXED["cwd"]: ".", FIXED["home"]: "~", FIXED["tmp"]: "$TMPDIR"}
        for path, name in ((self.folder, "."), (self.home, "~"), (self.tmp, "$TMPDIR")):
            found |= {str(path): name, str(path.resolve()): name}
        return sorted(found.items(), key=lambda pair: -len(pair[0]))
