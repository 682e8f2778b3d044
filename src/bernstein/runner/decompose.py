"""Makes tasks of a step, by the model: the prompt, the grammar, and what is taken as an answer.

Rule: tasks are a DAG by construction; task tK may wait for t1 … t(K-1) only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from bernstein.canonical import JsonObject, decode_strict
from bernstein.errors import CanonicalError
from bernstein.recording.key import LlmCall

if TYPE_CHECKING:
    from bernstein.capture.models.base import ModelName
    from bernstein.runner.plan import Plan, Step

_MAX_TASKS = {"low": 2, "medium": 3, "high": 5}
_MAX_TASKS_LOCAL = {"low": 1, "medium": 2, "high": 3}
_MAX_TOKENS, _MAX_TOKENS_LOCAL = 2048, 120
_JSON = re.compile(r"\{.*\}", re.DOTALL)


class Task(msgspec.Struct, frozen=True):
    """A task of a step.

    Attributes:
        task_id: ``<step_id>/t<K>``, its lane too.
        title: The model's words.
        files: The declared files of the step that this task writes.
        depends_on: Ids of earlier tasks of the step.
    """

    task_id: str
    title: str
    files: tuple[str, ...]
    depends_on: tuple[str, ...]


def max_tasks(step: Step, provider: str) -> int:
    """How many tasks a step may become, by its complexity."""
    return (_MAX_TASKS_LOCAL if provider == "local" else _MAX_TASKS)[step.complexity]


def decompose_call(plan: Plan, step: Step, name: ModelName) -> LlmCall:
    """The call that asks a model for a step's tasks."""
    bound = max_tasks(step, name.provider)
    is_local = name.provider == "local"
    return LlmCall(
        model=name.model,
        prompt=decompose_prompt(plan, step, bound),
        provider=name.provider,
        temperature=step.temperature,
        max_tokens=_MAX_TOKENS_LOCAL if is_local else _MAX_TOKENS,
        more={"grammar": decompose_grammar(step, bound)} if is_local else {},
    )


def decompose_prompt(plan: Plan, step: Step, bound: int) -> str:
    """The request for a step's tasks."""
    lines = [
        f"Split one step of the plan {plan.name!r} into at most {bound} small tasks."
        if bound > 1
        else f"Name the one task of this step of the plan {plan.name!r}.",
        f"Step: {step.title}",
    ]
    if step.description:
        lines.append(step.description)
    if step.files:
        lines.append("Files:")
        lines.extend(f"{number}. {path}" for number, path in enumerate(step.files, 1))
    lines.append(
        'Answer with JSON only: {"tasks":[{"id":"t1","title":"…","files":[1],"depends_on":[]}]}. '
        "Ids are t1, t2 and so on; files are numbers from the list above, each in one task; "
        "depends_on names earlier tasks."
    )
    return "\n".join(lines)


def decompose_grammar(step: Step, bound: int) -> str:
    """A GBNF grammar without white space that only valid DAGs of tasks fit."""
    rules = []
    tail = ""
    for number in range(bound, 0, -1):
        tail = f"task{number}" + (f' ("," {tail})?' if tail else "")
        earlier = " | ".join(f'"\\"t{n}\\""' for n in range(1, number))
        deps = f"dep{number}? " if earlier else ""
        rules.append(
            f'task{number} ::= "{{\\"id\\":\\"t{number}\\",\\"title\\":\\"" title '
            f'"\\",\\"files\\":[" files "],\\"depends_on\\":[" {deps}"]}}"'
        )
        if earlier:
            rules.append(f"dep{number} ::= {earlier}")
    count = len(step.files)
    one = " | ".join(f'"{n}"' for n in range(1, count + 1))
    files = f'one ("," one){{0,{count - 1}}}' if count > 1 else ("one" if count else '""')
    head = [f'root ::= "{{\\"tasks\\":[" {tail} "]}}"', "title ::= [A-Z] [a-z ]{3,24}"]
    rules.append(f"files ::= {files}")
    if count:
        rules.append(f"one ::= {one}")
    return "\n".join([*head, *rules]) + "\n"


def parse_tasks(text: str, step: Step, bound: int) -> list[Task] | None:
    """The tasks that an answer names, or None where it names none.

    Each declared file ends up in exactly one task: the first that names it, else the last task.
    """
    found = _JSON.search(text)
    if found is None:
        return None
    try:
        value = decode_strict(found[0].encode("utf-8", "surrogatepass"))
        entries = value["tasks"]
        if not 1 <= len(entries) <= bound:
            return None
        return _tasks(entries, step)
    except (CanonicalError, KeyError, TypeError, ValueError, AttributeError):
        return None


def single_task(step: Step) -> Task:
    """The task of a step that is not decomposed."""
    return Task(f"{step.step_id}/t1", step.title, step.files, ())


def _tasks(entries: list[JsonObject], step: Step) -> list[Task] | None:
    free = dict(enumerate(step.files, 1))
    tasks: list[Task] = []
    for number, entry in enumerate(entries, 1):
        title, wanted = entry["title"], entry.get("depends_on", [])
        if entry["id"] != f"t{number}" or not isinstance(title, str) or not title.strip():
            return None
        earlier = {f"t{n}": f"{step.step_id}/t{n}" for n in range(1, number)}
        if not all(name in earlier for name in wanted):
            return None
        files = [free.pop(n) for n in dict.fromkeys(entry.get("files", [])) if n in free]
        if number == len(entries):
            files += free.values()
        tasks.append(
            Task(
                f"{step.step_id}/t{number}",
                title.strip(),
                tuple(path for path in step.files if path in files),
                tuple(earlier[name] for name in dict.fromkeys(wanted)),
            )
        )
    return tasks
