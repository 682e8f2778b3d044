"""The built-in agent's tools: files of its workspace, and commands that are run there.

Rule: a file tool reads and writes inside of the workspace and nowhere else, and what it gives is
the same for the same files.
"""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from bernstein.canonical import JsonObject, decode_strict, utf8
from bernstein.errors import CanonicalError, UnsafePathError
from bernstein.files import inside
from bernstein.tree import PRIVATE_FOLDERS, list_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_OUTPUT_CHARS = 16_000
DEFAULT_TIMEOUT_S = 120
MAX_TIMEOUT_S = 900
_MAX_FILE_BYTES = 4 * 2**20
_NOT_TEXT = "it is not a text file"


class ToolOutput(msgspec.Struct, frozen=True):
    """What a tool gave.

    Attributes:
        text: What the model is told.
        ok: Whether it did what it was asked for.
        exit_code: Of a command.
        written: The path that a file tool wrote, or "".
    """

    text: str
    ok: bool = True
    exit_code: int | None = None
    written: str = ""


class ToolError(Exception):
    """Why a tool cannot do what it is asked for; the text is for the model."""


class _Parameter(NamedTuple):
    """An argument of a tool; without a default it has to be given."""

    type: type[str] | type[int]
    default: str | int | None = None


class _Tool(NamedTuple):
    """What a model is told of a tool. A change here is another request, and so another key."""

    description: str
    parameters: dict[str, _Parameter]


_TOOLS = {
    "list_files": _Tool(
        "List the files below a folder of the workspace, one a line.",
        {"path": _Parameter(str, "."), "pattern": _Parameter(str, "*")},
    ),
    "read_file": _Tool(
        "Read a text file, or its lines from first_line to last_line.",
        {
            "path": _Parameter(str),
            "first_line": _Parameter(int, 1),
            "last_line": _Parameter(int, 1_000_000),
        },
    ),
    "write_file": _Tool(
        "Write a whole text file; folders that are not there are made.",
        {"path": _Parameter(str), "content": _Parameter(str)},
    ),
    "edit_file": _Tool(
        "Replace a piece of a text file that stands in it exactly once.",
        {"path": _Parameter(str), "old": _Parameter(str), "new": _Parameter(str)},
    ),
    "search_files": _Tool(
        "Find the lines that hold a text, as path:line:text.",
        {"text": _Parameter(str), "path": _Parameter(str, ".")},
    ),
    "run_command": _Tool(
        "Run a shell command in the workspace; given are its output and its exit code.",
        {"command": _Parameter(str), "timeout_s": _Parameter(int, DEFAULT_TIMEOUT_S)},
    ),
}
TOOL_NAMES = tuple(_TOOLS)
_TYPES = {str: "string", int: "integer"}


def describe_tool(name: str) -> JsonObject:
    """A tool as a model is told of it: name, description, parameters as JSON Schema."""
    tool = _TOOLS[name]
    return {
        "name": name,
        "description": tool.description,
        "parameters": {
            "type": "object",
            "properties": {
                known: {"type": _TYPES[parameter.type]}
                | ({} if parameter.default is None else {"default": parameter.default})
                for known, parameter in tool.parameters.items()
            },
            "required": [known for known, p in tool.parameters.items() if p.default is None],
        },
    }


def parse_arguments(text: str) -> JsonObject | None:
    """The arguments that a model gave, or None where they are no JSON object."""
    try:
        value = decode_strict(text.encode("utf-8", "surrogatepass")) if text.strip() else {}
    except CanonicalError:
        return None
    return value if isinstance(value, dict) else None


def checked_arguments(name: str, given: JsonObject | None) -> dict[str, Any]:
    """The arguments of a call, with those that were left out.

    Raises:
        ToolError: They are not those of the tool.
    """
    if given is None:
        raise ToolError("the arguments are no JSON object")
    parameters = _TOOLS[name].parameters
    for known in given:
        if known not in parameters:
            raise ToolError(f"{name} has no {known!r}; it has {', '.join(parameters)}")
    found = {}
    for known, parameter in parameters.items():
        value = given.get(known, parameter.default)
        if type(value) is not parameter.type:
            raise ToolError(f"{name} needs {known}, a {_TYPES[parameter.type]}")
        found[known] = value
    return found


def run_file_tool(name: str, arguments: dict[str, Any], workspace: Path) -> ToolOutput:
    """Do what a file tool is asked for.

    Raises:
        ToolError: It cannot be done.
    """
    try:
        return _FILE_TOOLS[name](workspace, **arguments)
    except UnsafePathError as error:
        raise ToolError(str(error).split("\n", 1)[0]) from error
    except UnicodeDecodeError as error:
        raise ToolError(_NOT_TEXT) from error
    except OSError as error:
        raise ToolError(f"{arguments.get('path', '')}: {error.strerror}") from error


def _list_files(workspace: Path, path: str, pattern: str) -> ToolOutput:
    found = [
        name
        for name in _files(workspace, path)
        if any(fnmatch.fnmatchcase(known, pattern) for known in (name, Path(name).name))
    ]
    return ToolOutput(_bounded("\n".join(found) or "there are no such files"))


def _read_file(workspace: Path, path: str, first_line: int, last_line: int) -> ToolOutput:
    lines = _read(workspace, path).splitlines(keepends=True)
    return ToolOutput(_bounded("".join(lines[max(first_line - 1, 0) : max(last_line, 0)])))


def _write_file(workspace: Path, path: str, content: str) -> ToolOutput:
    _write(workspace, path, content)
    return ToolOutput(f"{path} is written", written=path)


def _edit_file(workspace: Path, path: str, old: str, new: str) -> ToolOutput:
    text = _read(workspace, path)
    count = text.count(old) if old else 0
    if count != 1:
        raise ToolError(f"the piece stands in {path} {count} times; it has to stand there once")
    _write(workspace, path, text.replace(old, new))
    return ToolOutput(f"{path} is written", written=path)


def _search_files(workspace: Path, text: str, path: str) -> ToolOutput:
    # A text and no pattern: one that a model made up can take for ever to match.
    found: list[str] = []
    size = 0
    for name in _files(workspace, path):
        try:
            lines = _read(workspace, name).split("\n")
        except (ToolError, UnicodeDecodeError, OSError):
            continue
        for number, line in enumerate(lines, 1):
            if text in line:
                found.append(f"{name}:{number}:{line[:400]}")
                size += len(found[-1])
        if size > MAX_OUTPUT_CHARS:
            break
    return ToolOutput(_bounded("\n".join(found) or "there is no such line"))


_FILE_TOOLS: dict[str, Callable[..., ToolOutput]] = {
    "list_files": _list_files,
    "read_file": _read_file,
    "write_file": _write_file,
    "edit_file": _edit_file,
    "search_files": _search_files,
}


def _files(workspace: Path, path: str) -> Iterator[str]:
    """The files below a folder of the workspace, in the order of their names."""
    folder = workspace if path in {".", "./", ""} else _target(workspace, path.rstrip("/"))
    if folder.is_file():
        yield path
        return
    if not folder.is_dir():
        raise ToolError(f"{path}: there is no such folder")
    below = "" if folder == workspace else f"{path.rstrip('/')}/"
    yield from sorted(name for name in list_tree(workspace) if name.startswith(below))


def _target(workspace: Path, path: str) -> Path:
    if any(part.lower() in PRIVATE_FOLDERS for part in Path(path).parts):
        raise ToolError(f"{path} lies in a folder that is not the agent's")
    return inside(workspace, path)


def _read(workspace: Path, path: str) -> str:
    target = _target(workspace, path)
    if not target.is_file():
        raise ToolError(f"{path}: there is no such file")
    if target.stat().st_size > _MAX_FILE_BYTES:
        raise ToolError(f"{path} is larger than {_MAX_FILE_BYTES} bytes")
    return target.read_bytes().decode("utf-8")


def _write(workspace: Path, path: str, content: str) -> None:
    target = _target(workspace, path)
    if target.exists() and not (target.is_file() or target.is_dir()):
        raise ToolError(f"{path} is no file")  # to write into a pipe waits for its reader
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(utf8(content))


def _bounded(text: str) -> str:
    """The text as far as a model is told of it."""
    if len(text) <= MAX_OUTPUT_CHARS:
        return text
    return text[:MAX_OUTPUT_CHARS] + "\n[the rest is left out]"
