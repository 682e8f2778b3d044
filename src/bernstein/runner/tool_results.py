"""What a tool of the built-in agent gave, with the files that it changed: recorded and made again.

A replay runs no tool: it tells the model what was recorded, and makes the recorded changes.
"""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from bernstein.agents.tools import ToolOutput
from bernstein.canonical import DigestRef, JsonObject, JsonValue, convert, digest_of
from bernstein.errors import CanonicalError, RecordingError, UnsafePathError, WorkspaceError
from bernstein.files import inside, remove_tree
from bernstein.recording.fixtures import STEP_TOOL, fixture_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bernstein.runner.workspace import Change

MAX_CHANGED_BYTES = 16 * 2**20


class ChangedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A file that a tool wrote or removed.

    Attributes:
        path: In the workspace, with ``/``.
        kind: What stands there now.
        content: Of a file, in base64; of a link, what it leads to.
    """

    path: str
    kind: Literal["file", "exec", "link", "removed"]
    content: str = ""


class StepToolResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A recorded result: what the model is told, and what was changed.

    Attributes:
        ok, exitCode, text: Of the output.
        changes: By path.
        is_partial: The tool changed more than is kept, so that a replay cannot make it again.
    """

    ok: bool
    text: str
    exitCode: int | None = None  # noqa: N815 - its name on the wire
    changes: tuple[ChangedFile, ...] = ()
    is_partial: bool = msgspec.field(name="partial", default=False)

    def to_json(self) -> JsonObject:
        """The response of its fixture."""
        value: JsonObject = msgspec.to_builtins(self)
        return value

    def digest(self) -> DigestRef:
        """The DigestRef of its ``tool.result`` row: of the fixture's response."""
        return digest_of(self.to_json())

    @property
    def output(self) -> ToolOutput:
        """What the model is told of it."""
        return ToolOutput(self.text, ok=self.ok, exit_code=self.exitCode)


def key_of(name: str, arguments: JsonValue) -> str:
    """The key of a call of a tool."""
    return fixture_key(STEP_TOOL, {"name": name, "arguments": arguments})


def result_of(output: ToolOutput, changes: Iterable[Change], folder: Path) -> StepToolResult:
    """What is recorded of a tool that has just run."""
    found = []
    size = 0
    for change in changes:
        file = _changed_file(change, folder)
        size += len(file.content)
        if size > MAX_CHANGED_BYTES:
            return StepToolResult(output.ok, output.text, output.exit_code, is_partial=True)
        found.append(file)
    return StepToolResult(output.ok, output.text, output.exit_code, tuple(found))


def _changed_file(change: Change, folder: Path) -> ChangedFile:
    path = folder / change.path
    try:
        # What is reached through a link that took the place of its folder is another file.
        if parent := os.path.split(change.path)[0]:
            inside(folder, parent)
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            return ChangedFile(change.path, "link", os.fsdecode(path.readlink()))
        if stat.S_ISDIR(mode):
            return ChangedFile(change.path, "removed")  # the files in it are changes of their own
        content = base64.b64encode(path.read_bytes()).decode()
    except (FileNotFoundError, NotADirectoryError, UnsafePathError):
        return ChangedFile(change.path, "removed")
    return ChangedFile(change.path, "exec" if mode & stat.S_IXUSR else "file", content)


def recorded_result(response: JsonValue) -> StepToolResult:
    """The result that a fixture holds.

    Raises:
        RecordingError: It holds none.
    """
    try:
        return convert(response, StepToolResult)
    except CanonicalError as error:
        raise RecordingError(f"the recorded result of a tool is damaged: {error}") from error


def make_again(result: StepToolResult, folder: Path) -> None:
    """Make a recorded tool's changes in a workspace.

    Raises:
        RecordingError: They cannot be made.
    """
    try:
        # What was removed goes first: a file can stand where its folder was, and the reverse.
        for change in sorted(result.changes, key=lambda change: change.kind != "removed"):
            parent, name = os.path.split(change.path)
            # What stands at the end is replaced, a link too; the way there leads through none.
            _make(change, (inside(folder, parent) if parent else folder) / inside(Path(), name))
    except (OSError, ValueError, WorkspaceError) as error:
        raise RecordingError(f"the recorded changes of a tool cannot be made: {error}") from error


def _make(change: ChangedFile, target: Path) -> None:
    if change.kind == "removed":
        target.unlink(missing_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir() and not target.is_symlink():
        remove_tree(target)  # what git ignores may be left in it
    if target.is_symlink() or change.kind == "link":
        target.unlink(missing_ok=True)
    if change.kind == "link":
        target.symlink_to(change.content)
        return
    target.write_bytes(base64.b64decode(change.content, validate=True))
    mode = target.stat().st_mode & 0o666
    target.chmod(mode | 0o100 if change.kind == "exec" else mode)
