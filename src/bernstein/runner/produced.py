"""The files that the tasks of a run wrote: put into its workspace, chained, and read by others."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Literal

from bernstein.agents.builtin import read_earlier, write_artifact
from bernstein.canonical import digest_of_bytes
from bernstein.events import trajectory as event
from bernstein.runner.decompose import single_task

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from bernstein.agents.builtin import Artifact
    from bernstein.capture.run import OpenRun
    from bernstein.runner.decompose import Task
    from bernstein.runner.plan import Plan, Step
    from bernstein.runner.workspace import AgentCopy


class Produced:
    """What was produced so far; called in the turn of the task, so in the order of the rows."""

    def __init__(self, run: OpenRun, plan: Plan, workspace: Path) -> None:
        """Begin with nothing."""
        self.digests: dict[str, str] = {}
        self._run = run
        self._steps = {step.step_id: step for step in plan.steps}
        self._workspace = workspace
        self._of_task: dict[str, tuple[str, ...]] = {}
        self._changed: set[str] = set()

    def expect(self, tasks: Iterable[Task]) -> None:
        """Note which files tasks are to write."""
        self._of_task |= {task.task_id: task.files for task in tasks}

    def write(self, lane: str, artifacts: Iterable[Artifact]) -> None:
        """Put a task's files into the workspace.

        Raises:
            UnsafePathError: One would leave it, or cannot be written.
        """
        for artifact in artifacts:
            self._keep_original(artifact.path)
            write_artifact(artifact, self._workspace)
            self._chain(lane, artifact.path, artifact.content)

    def bring_over(self, lane: str, copy: AgentCopy) -> None:
        """Bring over what an agent changed in its copy of the workspace.

        Raises:
            UnsafePathError, WorkspaceError: It cannot be.
        """
        changes = copy.changes()
        for change in changes:
            self._keep_original(change.path)
        copy.merge(changes)
        written = []
        for change in changes:
            path = self._workspace / change.path
            if change.kind == "removed":
                self.digests.pop(change.path, None)
                removed = event.artifact_removed(lane, change.path)
                self._run.append(event.ARTIFACT_REMOVED, removed, lane)
                continue
            if path.is_symlink():
                self._chain(lane, change.path, os.fsencode(path.readlink()), "link")
            else:
                kind: Literal["exec"] | None = "exec" if os.access(path, os.X_OK) else None
                self._chain(lane, change.path, path.read_bytes(), kind)
            written.append(change.path)
        self._of_task[lane] = tuple(written)

    def earlier(self, step: Step, task: Task) -> tuple[tuple[str, str], ...]:
        """Path and text of the files of the steps and tasks that a task waits for."""
        paths = [p for step_id in step.depends_on for p in self._of_step(self._steps[step_id])]
        paths += [p for task_id in task.depends_on for p in self._of_task[task_id]]
        written = [p for p in dict.fromkeys(paths) if p in self.digests]
        return read_earlier(written, self._workspace)

    def _of_step(self, step: Step) -> tuple[str, ...]:
        """The declared files of a step, and those that an agent wrote for it."""
        by_agent = self._of_task.get(single_task(step).task_id, ()) if step.is_one_task else ()
        return (*step.files, *by_agent)

    def _keep_original(self, path: str) -> None:
        """Keep a file as the run began with it, so that the run can go on from its beginning."""
        kept, now = self._run.dir.originals / path, self._workspace / path
        in_place = not self._workspace.is_relative_to(self._run.dir.path)
        if in_place or path in self._changed or not (now.is_symlink() or now.is_file()):
            self._changed.add(path)
            return
        self._changed.add(path)
        if not (kept.is_symlink() or kept.exists()):
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(now, kept, follow_symlinks=False)

    def _chain(
        self, lane: str, path: str, content: bytes, kind: Literal["link", "exec"] | None = None
    ) -> None:
        ref = digest_of_bytes(content)
        self.digests[path] = ref.digest
        written = event.artifact_written(lane, path, ref, kind)
        self._run.append(event.ARTIFACT_WRITTEN, written, lane)
