"""Completion signals: whether what a step promised is there.

In a replay the files are looked at again; commands are not run again but answered from fixtures.
"""

from __future__ import annotations

import asyncio
import os
import signal as os_signal
import tempfile
from typing import TYPE_CHECKING

import msgspec

from bernstein.canonical import DigestRef, convert, digest_of
from bernstein.errors import CanonicalError, RecordingError, ReplayMissError, UnsafePathError
from bernstein.files import inside
from bernstein.recording.fixtures import fixture_key
from bernstein.settings import INSIDE_RUN, child_environment

if TYPE_CHECKING:
    from pathlib import Path

    from bernstein.capture.run import OpenRun
    from bernstein.runner.plan import Signal

COMMAND_TIMEOUT_S = 900.0
_MAX_OUTPUT_BYTES = 16 * 1024
_KIND = "command"


def file_signal_problem(signal: Signal, workspace: Path) -> str:
    """A line on why a ``path_exists`` or ``file_contains`` signal does not hold, or ""."""
    try:
        path = inside(workspace, signal.path.rstrip("/") or signal.path)
        if signal.type == "path_exists":
            return "" if path.exists() else f"{signal.path} is not there"
        text = path.read_text("utf-8", errors="surrogateescape")
    except UnsafePathError as error:
        return str(error)
    except OSError:
        return f"{signal.path} is not there"
    if signal.contains in text:
        return ""
    return f"{signal.path} does not contain {signal.contains!r}"


class CommandResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a command ended: its exit code, and the end of what it printed."""

    exitCode: int  # noqa: N815 - its name on the wire
    output: str

    def digest(self) -> DigestRef:
        """The DigestRef that a ``signal.checked`` row carries."""
        return digest_of(msgspec.to_builtins(self))

    def problem(self, command: str) -> str:
        """A line on why the command did not succeed; empty where it did."""
        if self.exitCode == 0:
            return ""
        tail = self.output.strip().rpartition("\n")[2][:200]
        return f"{command[:200]!r} ended with {self.exitCode}" + (f": {tail}" if tail else "")


async def run_command(command: str, workspace: Path, run: OpenRun, lane: str) -> CommandResult:
    """Run a command in the workspace; in a replay give its recorded result.

    Raises:
        ReplayMissError: A strict replay has no (further) result of this command.
        RecordingError: The recorded result is damaged.
    """
    key = fixture_key(_KIND, {"command": command})
    recorded = run.fixtures.take(_KIND, key, lane) if run.has_recording else None
    if recorded is not None:
        try:
            result = convert(recorded.response, CommandResult)
        except CanonicalError as error:
            raise RecordingError(
                f"the recorded result of {command[:200]!r} is damaged: {error}"
            ) from error
    else:
        if run.score.ends_cancelled:
            # The recorded run was cancelled during this command; so will this one be.
            await asyncio.wrap_future(run.score.turn(lane))
        if run.source is not None:
            miss = ReplayMissError(
                f"replay miss: no recorded result of the command {command[:200]!r}\n"
                "  record again with BERNSTEIN_REPLAY_RUN_ID unset",
                key=key,
                model="",
                reason="never_recorded",
            )
            run.store.register_miss(miss, lane)
        result = await _run_command(command, workspace)
    is_kept = recorded is not None and run.resumed is not None
    if run.records and not is_kept:
        run.fixtures.record(_KIND, key, lane, msgspec.to_builtins(result))
    return result


async def _run_command(command: str, workspace: Path) -> CommandResult:
    with tempfile.TemporaryFile() as output:
        try:
            process = await asyncio.create_subprocess_shell(
                command,
                cwd=workspace,
                env={**child_environment(), INSIDE_RUN: "1"},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            return CommandResult(126, f"it cannot be run: {error}")
        note = ""
        try:
            await asyncio.wait_for(process.wait(), COMMAND_TIMEOUT_S)
        except TimeoutError:
            note = f"\ntimed out after {COMMAND_TIMEOUT_S:g} s"
        finally:
            # Also what it left running in the background, and when we are cancelled.
            _end_group(process.pid)
        code = await process.wait()
        end = output.seek(0, os.SEEK_END)
        output.seek(max(end - _MAX_OUTPUT_BYTES, 0))
        text = output.read().decode("utf-8", "replace") + note
    return CommandResult(code if not note else 124, text)


def _end_group(pid: int) -> None:
    try:
        os.killpg(pid, os_signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
