from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from bernstein.errors import UnsafePathError, WorkspaceError
from bernstein.files import inside
from bernstein.rundir import SddDir, find_sdd, make_sdd, new_run_id, open_sdd
from bernstein.runner.workspace import (
    apply_changes,
    diff_lines,
    find_changes,
    folder_in_place,
    make_workspace,
)


def git(*arguments: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t.invalid", *arguments],
        check=True,
        capture_output=True,
    )


@pytest.fixture
def folder(sdd: SddDir) -> Path:
    make_sdd(sdd)
    Path("kept.txt").write_text("kept\n")
    Path("changed.txt").write_text("old\n")
    Path("gone.txt").write_text("gone\n")
    Path("deep").mkdir()
    Path("deep/tool.sh").write_text("#!/bin/sh\n")
    Path("deep/tool.sh").chmod(0o755)
    Path("link").symlink_to("kept.txt")
    return Path.cwd()


def change(path: Path) -> None:
    (path / "changed.txt").write_text("new\n")
    (path / "gone.txt").unlink()
    (path / "made").mkdir()
    (path / "made/new.txt").write_text("made\n")


@pytest.mark.parametrize("in_git", [False, True])
def test_what_a_run_changed_is_brought_over(sdd: SddDir, folder: Path, in_git: bool) -> None:
    if in_git:
        git("init", "-q")
        git("add", "-A")
        git("commit", "-q", "-m", "x")
    run = sdd.new_run()
    made = make_workspace(run, folder)
    assert (made.path / "deep/tool.sh").stat().st_mode & 0o100
    assert (made.path / "link").readlink() == Path("kept.txt")
    assert not (made.path / ".sdd").exists()
    assert find_changes(run) == []
    change(made.path)
    changes = find_changes(run)
    assert [(c.path, c.kind) for c in changes] == [
        ("changed.txt", "changed"),
        ("gone.txt", "removed"),
        ("made/new.txt", "added"),
    ]
    diff = list(diff_lines(run, changes))
    assert {"-old", "+new", "-gone", "+made"} <= set(diff)
    apply_changes(run, changes)
    assert Path("changed.txt").read_text() == "new\n"
    assert Path("made/new.txt").read_text() == "made\n"
    assert not Path("gone.txt").exists()
    apply_changes(run, changes)  # a second time changes nothing


def test_what_changed_in_the_folder_since_is_not_overwritten(sdd: SddDir, folder: Path) -> None:
    run = sdd.new_run()
    made = make_workspace(run, folder)
    change(made.path)
    Path("changed.txt").write_text("mine\n")
    with pytest.raises(WorkspaceError, match=r"changed\.txt"):
        apply_changes(run, find_changes(run))
    assert Path("changed.txt").read_text() == "mine\n"
    assert Path("gone.txt").exists()
    assert not Path("made").exists()


def test_uncommitted_changes_are_in_the_worktree(sdd: SddDir, folder: Path) -> None:
    git("init", "-q")
    Path(".gitignore").write_text("ignored.txt\n")
    git("add", "-A")
    git("commit", "-q", "-m", "x")
    Path("changed.txt").write_text("uncommitted\n")
    Path("staged.txt").write_text("staged\n")
    git("add", "staged.txt")
    Path("untracked ü.txt").write_text("untracked\n")
    Path("ignored.txt").write_text("ignored\n")
    Path("gone.txt").unlink()
    Path("deep/sub").mkdir()
    os.chdir("deep/sub")
    made = make_workspace(sdd.new_run(), Path.cwd())
    os.chdir(folder)
    top = made.path.parents[1]
    assert (top / "changed.txt").read_text() == "uncommitted\n"
    assert (top / "staged.txt").read_text() == "staged\n"
    assert (top / "untracked ü.txt").read_text() == "untracked\n"
    assert not (top / "ignored.txt").exists()
    assert not (top / "gone.txt").exists()


def test_a_repository_without_a_commit_is_copied(sdd: SddDir, folder: Path) -> None:
    git("init", "-q")
    made = make_workspace(sdd.new_run(), folder)
    assert (made.path / "kept.txt").exists()
    assert not (made.path / ".git").exists()


def test_the_ignore_file_is_kept_to_and_the_limit_says_what_to_do(
    sdd: SddDir, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("big").mkdir()
    Path("big/data.bin").write_bytes(b"x" * 5000)
    monkeypatch.setattr("bernstein.tree.MAX_COPY_BYTES", 4000)
    with pytest.raises(
        WorkspaceError, match=r"big/data\.bin(.|\n)*\.bernsteinignore(.|\n)*--in-place"
    ):
        make_workspace(sdd.new_run(), folder)
    Path(".bernsteinignore").write_text("# large\nbig/\n*.tmp\n")
    Path("x.tmp").write_text("x")
    made = make_workspace(sdd.new_run(), folder)
    assert sorted(p.name for p in made.path.iterdir()) == [
        ".bernsteinignore",
        "changed.txt",
        "deep",
        "gone.txt",
        "kept.txt",
        "link",
    ]


def test_a_fifo_is_refused_by_name(sdd: SddDir, folder: Path) -> None:
    os.mkfifo("pipe")
    with pytest.raises(WorkspaceError, match="pipe"):
        make_workspace(sdd.new_run(), folder)


def test_equal_trees_have_equal_digests(sdd: SddDir, folder: Path) -> None:
    digest = folder_in_place(folder).tree_digest
    assert make_workspace(sdd.new_run(), folder).tree_digest == digest
    Path("deep/tool.sh").chmod(0o644)
    assert folder_in_place(folder).tree_digest != digest


# --- where things lie


def test_the_project_is_found_upwards_but_not_beyond_the_git_root(tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    inner = outer / "repo" / "a" / "b"
    inner.mkdir(parents=True)
    (outer / ".sdd").mkdir()
    assert find_sdd(inner, tmp_path) == outer / ".sdd"
    (outer / "repo" / ".git").mkdir()
    assert find_sdd(inner, tmp_path) is None
    (outer / "repo" / ".sdd").mkdir()
    assert find_sdd(inner, tmp_path) == outer / "repo" / ".sdd"


def test_the_project_is_not_looked_for_above_home(tmp_path: Path) -> None:
    (tmp_path / ".sdd").mkdir()
    home = tmp_path / "home"
    (home / "work").mkdir(parents=True)
    assert find_sdd(home / "work", home) is None


def test_a_new_project_is_private_and_keeps_out_of_commits(tmp_path: Path) -> None:
    sdd = open_sdd(tmp_path / "new" / ".sdd")
    make_sdd(sdd)
    assert (sdd.path / ".gitignore").read_text() == "*\n"
    assert sdd.path.stat().st_mode & 0o777 == 0o700


def test_run_ids_sort_by_time_and_do_not_collide() -> None:
    ids = [new_run_id() for _ in range(500)]
    assert len(set(ids)) == 500
    assert [i.rsplit("-", 1)[0] for i in ids] == sorted(i.rsplit("-", 1)[0] for i in ids)


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a\0b", "link/x", "link"])
def test_a_path_that_leaves_its_folder_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(UnsafePathError):
        inside(tmp_path, path)


def test_a_symlinked_run_is_passed_over(sdd: SddDir, tmp_path: Path) -> None:
    make_sdd(sdd)
    real = sdd.new_run()
    (sdd.runs / "linked").symlink_to(real.path)
    assert [run.run_id for run in sdd.list_runs()] == [real.run_id]
