"""The built-in agent: asks the model for each declared file of a task.

Rule: it writes the declared files inside the workspace and nowhere else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bernstein.canonical import utf8
from bernstein.capture.llm import aask
from bernstein.errors import UnsafePathError
from bernstein.files import inside
from bernstein.recording.key import LlmCall

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from bernstein.capture.program import CallScope

# Answer bounds in tokens, by a step's scope; the embedded model writes short texts only.
_MAX_TOKENS = {"small": 4096, "medium": 8192, "large": 16384}
_MAX_TOKENS_LOCAL = {"small": 48, "medium": 96, "large": 192}
_MAX_CONTEXT_CHARS = 24_000
_MAX_CONTEXT_CHARS_LOCAL = 1200
_FENCED = re.compile(r"\s*```[^\n]*\n(.*?)\n?```\s*", re.DOTALL)
_MAY_BE_EMPTY = ("__init__.py", ".gitkeep", "py.typed")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class TaskBrief:
    """All that the model is told of a task, and how it is asked.

    Attributes:
        plan: The plan's name.
        constraints: The plan's constraints.
        role: The step's role.
        step: The step's title.
        description: The step's description.
        task: The task's title, by the model that decomposed the step.
        files: The declared files of this task; one that ends in ``/`` is a folder to put one in.
        earlier: Path and text of files that the steps and tasks before this one wrote.
        feedback: What a failed attempt left to mend, or "".
        scope: small, medium or large.
        provider, model, temperature, max_tokens: How it is asked.
        max_retries: How often a call that failed is made again.
    """

    plan: str
    constraints: tuple[str, ...]
    role: str
    step: str
    description: str
    task: str
    files: tuple[str, ...]
    earlier: tuple[tuple[str, str], ...]
    feedback: str
    scope: str
    provider: str
    model: str
    temperature: float | None
    max_tokens: int | None
    max_retries: int


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that a task made: its path in the workspace, with ``/``, and its content."""

    path: str
    content: bytes


class BadAnswerError(Exception):
    """An answer that no file can be made of."""


async def do_task(brief: TaskBrief, workspace: Path, scope: CallScope) -> list[Artifact]:
    """Ask for each file of a task in turn; a task without files is asked once.

    Raises:
        BadAnswerError: The model gave nothing to write.
        UnsafePathError: A declared file would leave the workspace.
        ProviderError, ReplayMissError, BudgetError: See ``call_llm``.
    """
    for path in brief.files:
        inside(workspace, path)
    if not brief.files:
        await _ask(brief, _prompt(brief, None), scope)
    artifacts = []
    for path in brief.files:
        text = await _ask(brief, _prompt(brief, path), scope)
        artifacts.append(_artifact(path, text))
    return artifacts


def write_artifact(artifact: Artifact, workspace: Path) -> None:
    """Put a file into the workspace.

    Raises:
        UnsafePathError: It would leave the workspace, or cannot be written.
    """
    target = inside(workspace, artifact.path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(artifact.content)
    except OSError as error:
        raise UnsafePathError(f"{artifact.path} cannot be written: {error.strerror}") from error


def read_earlier(paths: Iterable[str], workspace: Path) -> tuple[tuple[str, str], ...]:
    """Path and text of those files that are there and are text."""
    found = []
    for path in paths:
        try:
            found.append((path, inside(workspace, path).read_text("utf-8")))
        except (OSError, UnicodeDecodeError, UnsafePathError):
            continue
    return tuple(found)


async def _ask(brief: TaskBrief, prompt: str, scope: CallScope) -> str:
    bounds = _MAX_TOKENS_LOCAL if brief.provider == "local" else _MAX_TOKENS
    call = LlmCall(
        model=brief.model,
        prompt=prompt,
        provider=brief.provider,
        temperature=brief.temperature,
        max_tokens=brief.max_tokens or bounds[brief.scope],
    )
    answer = await aask(call, scope, brief.max_retries)
    return answer.text


def _prompt(brief: TaskBrief, path: str | None) -> str:
    lines = [f"You are the {brief.role} engineer." if brief.role else "You are an engineer."]
    lines.append(f"Plan: {brief.plan}")
    lines.append(f"Step: {brief.step}")
    if brief.description:
        lines.append(brief.description)
    lines.append(f"Task: {brief.task}")
    if brief.constraints:
        lines.append("Constraints: " + "; ".join(brief.constraints))
    lines.extend(_earlier(brief))
    if brief.feedback:
        lines.append(f"The last attempt was not accepted: {brief.feedback}")
    if path is None:
        lines.append("Do the task and answer with its result in plain text.")
    elif path.endswith("/"):
        lines.append(
            f"Write one file for the folder {path}. The first line of your answer is the file's "
            "name alone; after it comes the whole content, and nothing else."
        )
    else:
        lines.append(
            f"Write the whole content of the file {path}. "
            "Answer with the content alone, without explanation."
        )
    return "\n".join(lines)


def _earlier(brief: TaskBrief) -> list[str]:
    """The earlier files as far as they fit, the one that does not cut with a mark."""
    left = _MAX_CONTEXT_CHARS_LOCAL if brief.provider == "local" else _MAX_CONTEXT_CHARS
    lines: list[str] = []
    for path, text in brief.earlier:
        cut = text if len(text) <= left else text[:left] + "\n[cut]"
        left -= min(len(text), left)
        lines.append(f"--- {path}\n{cut.rstrip()}\n---")
        if left == 0:
            break
    return lines


def _artifact(path: str, answer: str) -> Artifact:
    fenced = _FENCED.fullmatch(answer)
    text = fenced[1] if fenced else answer
    if path.endswith("/"):
        name, _, text = text.lstrip().partition("\n")
        name = name.strip().strip("`*\"'").removeprefix(path)
        if not _NAME.fullmatch(name):
            raise BadAnswerError(f"the answer names no file for {path}")
        path += name
    content = text.strip("\n")
    if not content.strip() and not path.endswith(_MAY_BE_EMPTY):
        raise BadAnswerError(f"the answer for {path} is empty")
    return Artifact(path, utf8(content + "\n" if content else ""))
