"""Real command-line agents for the tests: where they are, and how they are recorded and replayed.

They are looked for in ``.clients/bin``, where ``make clients`` puts them; a test whose client is not
there is skipped and says so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers import rows, verify

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bernstein.rundir import RunDir, SddDir
    from tests.upstream import Upstream

CLIENTS = Path(__file__).parents[1] / ".clients" / "bin"
KEY = "dummy-key-0123456789"
MADE = "made\n"


def client(name: str) -> str:
    """The path of a client's program; the test is skipped where there is none."""
    path = CLIENTS / name
    if not path.exists():
        pytest.skip(f"{name} is not installed: make clients")
    return str(path)


def run_client(
    sdd: SddDir, *arguments: str, cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """``bernstein`` with these arguments, in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "bernstein", "--sdd", str(sdd.path), *arguments],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def record(
    sdd: SddDir,
    command: Sequence[str],
    there: Path,
    upstream: Upstream,
    *,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> tuple[RunDir, str]:
    """Record a command against a stand-in, and take away what it made.

    Returns:
        The run, which is verified, and what the command said.
    """
    pointed = {
        "ANTHROPIC_API_KEY": KEY,
        "ANTHROPIC_BASE_URL": upstream.base_url,
        "GEMINI_API_KEY": KEY,
        "GOOGLE_GEMINI_BASE_URL": upstream.base_url,
        "OPENAI_API_KEY": KEY,
        "OPENAI_BASE_URL": f"{upstream.base_url}/v1",
        **(env or {}),
    }
    done = run_client(sdd, "record", *options, "--", *command, cwd=there, env=pointed)
    assert done.returncode == 0, done.stderr + done.stdout[-2000:]
    run = sdd.find_run("latest")
    assert verify(sdd, run).verdict == "verified"
    assert take_made(there) == MADE
    return run, done.stdout


def take_made(folder: Path) -> str:
    """What the command wrote below a folder, where it wrote nothing else; it is gone then."""
    names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    assert [n for n in names if not n.startswith((".sdd/", ".git/"))] == ["made/out.txt"]
    text = (folder / "made" / "out.txt").read_text()
    (folder / "made" / "out.txt").unlink()
    (folder / "made").rmdir()
    return text


def replay(
    sdd: SddDir,
    run: RunDir,
    command: Sequence[str],
    folder: Path,
    *,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> str:
    """Replay a command in a folder, without a miss and without a rest, and take what it made.

    Returns:
        What the command said.
    """
    folder.mkdir(parents=True, exist_ok=True)
    count = len(rows(run.exchanges))
    done = run_client(
        sdd, "replay", run.run_id, *options, "--verbose", "--", *command, cwd=folder, env=env
    )
    assert done.returncode == 0, done.stderr[-5000:] + done.stdout[-2000:]
    assert f"hits={count} misses=0 strict_violations=0 unused=0 recorded={count}" in done.stderr
    assert "replay identical" in done.stderr or "replay equivalent" in done.stderr
    assert "not held in their order" not in done.stderr
    assert take_made(folder) == MADE
    return done.stdout


def said(stdout: str) -> list[dict[str, Any]]:
    """The events that a client printed, a JSON object a line."""
    return [json.loads(line) for line in stdout.splitlines() if line.startswith("{")]
