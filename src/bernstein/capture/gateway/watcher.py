"""Starts what ends a command's processes where we are killed, and ends them where we are not."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from bernstein.capture.gateway.watch import end_marked

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

_LOOKS = 100
_PROGRAM = Path(__file__).with_name("watch.py")


class Watcher:
    """Around a command: where we are killed inside the block, so is all that the command started.

    A process is one of the command's where its environment holds the gateway's secret. One that
    has cleared its environment is not found.
    """

    def __init__(self, mark: str, folders: Iterable[Path], *, ends_rest: bool) -> None:
        """Watch over a command.

        Args:
            mark: What stands in the environment of its processes.
            folders: What is removed where we are killed.
            ends_rest: Whether what it left running is ended at the block's end too.
        """
        self._mark = mark
        self._ends_rest = ends_rest
        self._program = subprocess.Popen(  # noqa: S603 - a program of ours
            [sys.executable, "-I", "-S", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        told = {"mark": mark, "folders": [str(folder) for folder in folders]}
        self._say(json.dumps(told))

    def _say(self, line: str) -> None:
        assert self._program.stdin is not None
        with suppress(OSError):  # it was killed: then it does not act
            self._program.stdin.write(line.encode() + b"\n")
            self._program.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._ends_rest:
            for _ in range(_LOOKS):  # what was just being started is there by the next
                if not end_marked(self._mark.encode()):
                    break
                time.sleep(0.01)
        self._say("done")
        assert self._program.stdin is not None
        with suppress(OSError):
            self._program.stdin.close()
        self._program.wait()
