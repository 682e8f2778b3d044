"""A run's own copy of the folder, and how its changes are brought over.

In a git repository the copy is a detached worktree of HEAD with the uncommitted changes laid over
it; elsewhere it is a copy of the folder. What it began with is kept as a manifest, so that
``apply`` brings over what the run changed and refuses to overwrite what changed since.
"""

from __future__ import annotations

import difflib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from bernstein.canonical import JsonObject, canonical_bytes, digest_of
from bernstein.errors import UnsafePathError, WorkspaceError
from bernstein.files import inside, remove_tree, write_file
from bernstein.settings import child_environment
from bernstein.tree import copy_tree, file_digest, ignored_in, manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bernstein.rundir import RunDir


@dataclass(frozen=True, slots=True)
class Workspace:
    """Where a run works.

    Attributes:
        path: The folder that steps see as theirs.
        tree_digest: sha256 over the paths and digests of the files it began with.
    """

    path: Path
    tree_digest: str


@dataclass(frozen=True, slots=True)
class Change:
    """A file that a run added, changed or removed."""

    path: str
    kind: Literal["added", "changed", "removed"]


def make_workspace(run: RunDir, folder: Path) -> Workspace:
    """Make the run's workspace from ``folder``.

    Raises:
        WorkspaceError: The folder is too large, or holds what cannot be copied.
    """
    path = _copy(folder, run.workspace)
    ignored = ignored_in(path)
    base = manifest(path, ignored)
    info: JsonObject = {"folder": str(folder.resolve()), "path": str(path), "files": base}
    info["ignored"] = list(ignored)  # a step can write other patterns
    write_file(run.workspace_base, canonical_bytes(info) + b"\n")
    return Workspace(path, digest_of(base).digest)


def restore_workspace(run: RunDir) -> Workspace:
    """Make the run's workspace what it was when the run began.

    Raises:
        WorkspaceError: The run worked in place, or a file that it began with is nowhere any more.
    """
    info = _read_base(run)
    path, folder, base = Path(info["path"]), Path(info["folder"]), info["files"]
    if not path.resolve().is_relative_to(run.workspace.resolve()):
        # Of a project that was copied: to go on there would undo what lies here.
        raise WorkspaceError(
            f"the workspace of run {run.run_id} is not its own: {path}\n"
            "  let it go on in the project that it began in, or run the plan again"
        )
    now = manifest(path, _ignored_then(info))
    for change in _changes(base, now):
        target = path / change.path
        if change.kind == "added":
            target.unlink()
            continue
        places = (run.originals / change.path, folder / change.path)
        found = next((p for p in places if file_digest(p) == base[change.path]), None)
        if found is None:
            raise WorkspaceError(
                f"{change.path} is not as it was when run {run.run_id} began, so it cannot go on\n"
                "  put it back in the folder, or run the plan again"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        shutil.copy2(found, target, follow_symlinks=False)
    return Workspace(path, digest_of(base).digest)


def _copy(folder: Path, target: Path) -> Path:
    """Make ``target`` a copy of a folder, or of the repository that it is in; where it is there."""
    repository = _git_top(folder)
    if repository is None:
        copy_tree(folder, target)
        return target
    _add_worktree(repository, target)
    _lay_over(repository, target)
    path = target / folder.resolve().relative_to(repository)
    path.mkdir(parents=True, exist_ok=True)
    return path


@dataclass(frozen=True, slots=True)
class AgentCopy:
    """A copy of a run's workspace that one agent works in.

    Attributes:
        path: The folder that the agent sees as its own.
        root: What was made for it.
        main: The run's workspace.
        base: Paths and digests of the files that it began with.
        ignored: Patterns of what is no part of it.
        repository: The repository that the run's workspace is in, if it is in one.
    """

    path: Path
    root: Path
    main: Path
    base: dict[str, str]
    ignored: tuple[str, ...]
    repository: Path | None

    def changes(self) -> list[Change]:
        """What the agent changed, by path, without what git ignores.

        Raises:
            WorkspaceError: The agent took its folder away, or git fails.
        """
        return self.since(self.base)

    def now(self) -> dict[str, str]:
        """Paths and digests of the files that are there.

        Nothing of the copy decides on that, and no git is run in it: it is the agent's to write.

        Raises:
            WorkspaceError: The agent took its folder away.
        """
        try:
            if self.path.resolve() != self.path.parent.resolve() / self.path.name:
                raise WorkspaceError("the agent put a link in the place of its folder")
            return manifest(self.path, self.ignored)
        except (OSError, RecursionError) as error:
            # Without its path, which is another one in each run: a retry tells it to the agent.
            why = error.strerror if isinstance(error, OSError) else "it is too deep"
            raise WorkspaceError(f"the agent's folder cannot be read: {why}") from error

    def since(self, before: dict[str, str]) -> list[Change]:
        """What was changed since the files were like this, without what git ignores."""
        return self._told(_changes(before, self.now()))

    def _told(self, changes: list[Change]) -> list[Change]:
        """Those of the changes that are brought over: without what git ignores."""
        if not changes or self.repository is None:
            return changes
        paths = "\0".join(change.path for change in changes)
        # By the patterns of the run's workspace, whatever the agent made of its own.
        names = _git(self.main, "check-ignore", "-z", "--stdin", stdin=paths, check=False) or ""
        ignored = set(names.split("\0"))
        return [c for c in changes if c.path not in ignored or c.path in self.base]

    @property
    def history(self) -> Path | None:
        """Where the repository's objects and settings lie, which the copy reads; None without."""
        if self.repository is None:
            return None
        named = _git(self.repository, "rev-parse", "--git-common-dir") or ""
        return (self.repository / named.rstrip("\n")).resolve()

    def merge(self, changes: list[Change]) -> None:
        """Bring changes over into the run's workspace.

        Raises:
            UnsafePathError: Another step has changed one of these files since.
        """
        targets = {change.path: _place(self.main, change.path) for change in changes}
        for change in changes:
            now, new = file_digest(targets[change.path]), file_digest(self.path / change.path)
            if now not in {self.base.get(change.path), new} or _in_the_way(targets[change.path]):
                raise UnsafePathError(
                    f"{change.path} was changed by another step at the same time\n"
                    "  let one of the two depend on the other, with `depends_on:` in the plan"
                )
        try:
            for change in changes:
                _bring_over(change, self.path / change.path, targets[change.path])
        except OSError as error:
            raise WorkspaceError(
                f"{change.path} cannot be brought over: {error.strerror}"
            ) from error

    def remove(self) -> None:
        """Take the copy away."""
        remove_tree(self.root)


def make_agent_copy(
    run: RunDir, workspace: Path, lane: str, left_out: Path | None = None
) -> AgentCopy:
    """Copy a run's workspace for one agent; what an earlier attempt left there goes.

    Args:
        run: The run.
        workspace: Its workspace.
        lane: The task that the agent does.
        left_out: A path in it that the agent is not to see.

    Raises:
        WorkspaceError: It is too large, or holds what cannot be copied.
    """
    target = folder_of_agent(run, lane) / "workspace"
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if target.is_symlink():
        target.unlink()
    remove_tree(target)
    repository = _git_top(workspace)
    is_in_run = workspace.is_relative_to(run.workspace)
    if repository is not None and is_in_run and repository != run.workspace.resolve():
        repository = None  # one that the runs lie in by chance
    ignored = ignored_in(workspace)
    if repository is None:
        copy_tree(workspace, target)
        path = target
    else:
        _clone(repository, target)
        path = target / workspace.resolve().relative_to(repository)
        path.mkdir(parents=True, exist_ok=True)
    if left_out is not None:
        remove_tree(path / left_out)
    return AgentCopy(path, target, workspace, manifest(path, ignored), ignored, repository)


def folder_of_agent(run: RunDir, lane: str) -> Path:
    """Where what an agent needs lies while it works."""
    return run.agents / lane.replace("/", ".")


def folder_in_place(folder: Path) -> Workspace:
    """The folder itself as the workspace."""
    return Workspace(folder, digest_of(manifest(folder)).digest)


def find_changes(run: RunDir) -> list[Change]:
    """What the run changed in its workspace, by path.

    Raises:
        WorkspaceError: The run has no workspace (any more).
    """
    info = _read_base(run)
    return _changes(info["files"], manifest(Path(info["path"]), _ignored_then(info)))


def _ignored_then(info: JsonObject) -> tuple[str, ...] | None:
    """The patterns of what was no part of the folder when the run began, where they are kept."""
    ignored = info.get("ignored")
    return None if ignored is None else tuple(ignored)


def _changes(base: dict[str, str], now: dict[str, str]) -> list[Change]:
    changes = [Change(path, "added") for path in now.keys() - base.keys()]
    changes += [Change(path, "removed") for path in base.keys() - now.keys()]
    changes += [Change(p, "changed") for p in base.keys() & now.keys() if base[p] != now[p]]
    return sorted(changes, key=lambda change: change.path)


def diff_lines(run: RunDir, changes: list[Change]) -> Iterator[str]:
    """A unified diff of the changes, against the folder as it is now."""
    info = _read_base(run)
    folder, workspace = Path(info["folder"]), Path(info["path"])
    for change in changes:
        old, new = _text(folder / change.path), _text(workspace / change.path)
        if old is None or new is None:
            yield f"{change.kind} {change.path} (not text)"
            continue
        yield from difflib.unified_diff(
            old.splitlines(),
            new.splitlines(),
            f"a/{change.path}" if change.kind != "added" else "/dev/null",
            f"b/{change.path}" if change.kind != "removed" else "/dev/null",
            lineterm="",
        )


def pending_changes(run: RunDir) -> list[Change]:
    """Those changes of a run that are not in the folder yet.

    Raises:
        WorkspaceError: A file changed in the folder since, so they cannot be brought over.
    """
    changes = find_changes(run)
    _refuse_moved(run, changes)
    info = _read_base(run)
    folder, workspace = Path(info["folder"]), Path(info["path"])
    return [
        change
        for change in changes
        if file_digest(folder / change.path) != file_digest(workspace / change.path)
    ]


def _refuse_moved(run: RunDir, changes: list[Change]) -> None:
    info = _read_base(run)
    base: dict[str, str] = info["files"]
    folder, workspace = Path(info["folder"]), Path(info["path"])
    targets = {change.path: _place(folder, change.path) for change in changes}
    moved = [
        change.path
        for change in changes
        if _in_the_way(targets[change.path])
        or file_digest(targets[change.path])
        not in (base.get(change.path), file_digest(workspace / change.path))
    ]
    if moved:
        raise WorkspaceError(
            f"changed in {folder} since the run began: {', '.join(moved[:5])}\n"
            "  nothing was brought over: commit or move those files, then apply again"
        )


def apply_changes(run: RunDir, changes: list[Change]) -> None:
    """Bring the changes over into the folder that the run began with.

    Raises:
        WorkspaceError: A file changed in the folder since; nothing is brought over.
    """
    _refuse_moved(run, changes)
    info = _read_base(run)
    folder, workspace = Path(info["folder"]), Path(info["path"])
    targets = {change.path: _place(folder, change.path) for change in changes}
    for change in changes:
        _bring_over(change, workspace / change.path, targets[change.path])


def _place(root: Path, relative: str) -> Path:
    """Where a path is below ``root``; it may be a link itself, and leads through none.

    Raises:
        UnsafePathError: It leaves the folder.
    """
    above, _, name = relative.rpartition("/")
    if name in {"", ".", ".."}:
        raise UnsafePathError(f"{relative!r} is not a path inside the folder")
    return (inside(root, above) if above else root) / name


def _bring_over(change: Change, source: Path, target: Path) -> None:
    if change.kind == "removed":
        target.unlink(missing_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_symlink() or source.is_symlink():
        target.unlink(missing_ok=True)  # what it leads to is not the file
    if source.is_symlink():
        target.symlink_to(source.readlink())
    else:
        shutil.copy2(source, target)


def _in_the_way(target: Path) -> bool:
    """Whether what stands at ``target`` is neither a file nor a link, so cannot be replaced."""
    return target.exists() and not target.is_symlink() and not target.is_file()


def _read_base(run: RunDir) -> JsonObject:
    try:
        info: JsonObject = msgspec.json.decode(run.workspace_base.read_bytes(), type=dict)
    except FileNotFoundError as error:
        raise WorkspaceError(
            f"run {run.run_id} has no workspace of its own (it ran in place, or ended early)"
        ) from error
    if not Path(info["path"]).is_dir():
        raise WorkspaceError(f"the workspace of run {run.run_id} is gone: {info['path']}")
    return info


# --- git


_NO_PROGRAMS = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")


def _git(folder: Path, *arguments: str, check: bool = True, stdin: str | None = None) -> str | None:
    """What git prints, or None where it fails and that is an answer."""
    try:
        done = subprocess.run(  # noqa: S603 - arguments are ours
            # Neither hooks nor a monitor: an agent can have written them.
            ["git", *_NO_PROGRAMS, "-C", str(folder), *arguments],  # noqa: S607 - the user's git
            capture_output=True,
            check=False,
            input=stdin,
            env=child_environment("GIT_"),
            encoding="utf-8",
            errors="surrogateescape",
        )
    except FileNotFoundError:
        return None
    if done.returncode == 0:
        return done.stdout
    if check:
        raise WorkspaceError(
            f"git {arguments[0]} failed in {folder}: {done.stderr.strip()}\n"
            "  mend the repository, or run in the folder itself with --in-place"
        )
    return None


def _git_top(folder: Path) -> Path | None:
    """The root of the repository that ``folder`` is in, if it has a commit."""
    top = _git(folder, "rev-parse", "--show-toplevel", check=False)
    if top is None or _git(folder, "rev-parse", "--verify", "-q", "HEAD", check=False) is None:
        return None
    return Path(top.rstrip("\n")).resolve()


def _add_worktree(repository: Path, target: Path) -> None:
    conflicts = _git(repository, "diff", "--name-only", "--diff-filter=U") or ""
    if conflicts.strip():
        raise WorkspaceError(
            f"unmerged files in {repository}: {', '.join(conflicts.split()[:5])}\n"
            "  finish the merge first, or run in the folder itself with --in-place"
        )
    _git(repository, "worktree", "add", "--detach", "--quiet", str(target), "HEAD")
    target.chmod(0o700)


def _clone(repository: Path, target: Path) -> None:
    """A repository of its own with the same objects, at the same commit, and no remote.

    Not another worktree: clients tell the model where the repository of a worktree lies, which is
    another place in each project, and cannot be found by an agent that is isolated.
    """
    head = (_git(repository, "rev-parse", "HEAD") or "").strip()
    _git(repository, "clone", "--shared", "--quiet", "--no-checkout", str(repository), str(target))
    target.chmod(0o700)
    _git(target, "remote", "remove", "origin")
    _git(target, "update-ref", "--no-deref", "HEAD", head)
    _keep_local_settings(repository, target)
    _git(target, "reset", "--quiet", "--mixed")
    # The very bytes of the workspace: what git would check out can be others.
    for path in (_git(repository, "ls-files", "-z") or "").split("\0"):
        source, copy = repository / path, target / path
        if path and (source.is_symlink() or source.is_file()):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy, follow_symlinks=False)
    _lay_over(repository, target)


# Settings of a repository that decide on bytes, on what is ignored, and on who commits.
_LOCAL = r"^(core\.(autocrlf|eol|safecrlf|ignorecase|filemode|symlinks)|filter\..*|user\..*)$"


def _keep_local_settings(repository: Path, target: Path) -> None:
    found = _git(repository, "config", "--local", "-z", "--get-regexp", _LOCAL, check=False) or ""
    for setting in filter(None, found.split("\0")):
        name, _, value = setting.partition("\n")
        _git(target, "config", "--local", name, value)
    named = _git(repository, "rev-parse", "--git-path", "info/exclude", check=False)
    exclude = repository / (named or "").rstrip("\n")
    if exclude.is_file():
        (target / ".git" / "info").mkdir(exist_ok=True)
        shutil.copy2(exclude, target / ".git" / "info" / "exclude")


def _lay_over(repository: Path, target: Path) -> None:
    """Bring over what is not committed: changes, and files that git does not know."""
    changed = (_git(repository, "diff", "--name-only", "-z", "HEAD") or "").split("\0")
    untracked = (_git(repository, "ls-files", "--others", "--exclude-standard", "-z") or "").split(
        "\0"
    )
    for path in filter(None, changed + untracked):
        if path.split("/", 1)[0] == ".sdd" or "/.sdd/" in path:
            continue
        source, copy = repository / path, target / path
        if not source.is_symlink() and not source.exists():
            copy.unlink(missing_ok=True)
        elif source.is_dir() and not source.is_symlink():
            raise WorkspaceError(
                f"{path} is a repository of its own with uncommitted changes\n"
                "  commit them, or run in the folder itself with --in-place"
            )
        else:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.unlink(missing_ok=True)
            shutil.copy2(source, copy, follow_symlinks=False)


def _text(path: Path) -> str | None:
    try:
        if path.is_symlink():
            return f"a link to {path.readlink()}\n"  # not what it leads to
        return path.read_text("utf-8")
    except FileNotFoundError:
        return ""
    except (UnicodeDecodeError, OSError):
        return None
