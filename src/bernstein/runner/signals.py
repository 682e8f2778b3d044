"""Completion signals: whether what a step promised is there.

In a replay the files are looked at again; commands are not run again but answered from fixtures.
"""

from __future__ import annotations

import asyncio
import os
import signal as os_signal
from typing import TYPE_CHECKING

from bernstein.errors import ReplayMissError, UnsafePathError
from bernstein.recording.fixtures import fixture_key
from bernstein.rundir import inside
from bernstein.settings import child_environment

if TYPE_CHECKING:
    from pathlib import Path

    from bernstein.canonical import JsonObject
    from bernstein.capture.run import OpenRun
    from bernstein.runner.plan import Signal

COMMAND_TIMEOUT_S = 900.0
_MAX_OUTPUT_CHARS = 16 * 1024
_KIND = "command"


def file_signal_holds(signal: Signal, workspace: Path) -> tuple[bool, str]:
    """Whether a ``path_exists`` or ``file_contains`` signal holds, and a line on why not."""
    if signal.type == "path_exists":
        return _path_exists(signal, workspace)
    return _file_contains(signal, workspace)


def _path_exists(signal: Signal, workspace: Path) -> tuple[bool, str]:
    try:
        holds = inside(workspace, signal.path.rstrip("/") or signal.path).exists()
    except UnsafePathError as error:
        return False, str(error)
    return holds, "" if holds else f"{signal.path} is not there"


def _file_contains(signal: Signal, workspace: Path) -> tuple[bool, str]:
    try:
        text = inside(workspace, signal.path).read_text("utf-8", errors="surrogateescape")
    except (OSError, UnsafePathError):
        return False, f"{signal.path} is not there"
    holds = signal.contains in text
    return holds, "" if holds else f"{signal.path} does not contain {signal.contains!r}"


async def command_succeeds(
    command: str, workspace: Path, run: OpenRun, lane: str
) -> tuple[bool, str]:
    """Whether a command ends with 0, and a line on why not; in a replay as it was recorded.

    Raises:
        ReplayMissError: A strict replay has no (further) result of this command.
    """
    key = fixture_key(_KIND, {"command": command})
    response = run.fixtures.take(_KIND, key, lane) if run.source is not None else None
    if response is None:
        if run.source is not None:
            miss = ReplayMissError(
                f"replay miss: no recorded result of the command {command!r}\n"
                "  record again with BERNSTEIN_REPLAY_RUN_ID unset",
                key=key,
                model="",
                reason="never_recorded",
            )
            run.store.register_miss(miss, lane)
        response = await _run_command(command, workspace)
    if run.records:
        run.fixtures.record(_KIND, key, lane, response)
    code = response["exitCode"]
    if code == 0:
        return True, ""
    tail = response["output"].strip().rpartition("\n")[2][:200]
    return False, f"{command!r} ended with {code}" + (f": {tail}" if tail else "")


async def _run_command(command: str, workspace: Path) -> JsonObject:
    process = await asyncio.create_subprocess_shell(
        command,
        cwd=workspace,
        env=child_environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), COMMAND_TIMEOUT_S)
    except TimeoutError:
        output = f"timed out after {COMMAND_TIMEOUT_S:g} s".encode()
    finally:
        # Also what it left running in the background, and when we are cancelled.
        _end_group(process.pid)
    if process.returncode is None:
        await process.wait()
    text = output.decode("utf-8", "replace")[-_MAX_OUTPUT_CHARS:]
    return {"exitCode": process.returncode, "output": text}


def _end_group(pid: int) -> None:
    try:
        os.killpg(pid, os_signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
