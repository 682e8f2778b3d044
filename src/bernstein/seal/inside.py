"""Whether this process was started by a run: what an agent starts must not decide for its operator.

The signing key is not where an agent's home leads; this is a second door. An agent's processes
have a mark in their environment, and descend from the process that holds the run's lock.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from bernstein.errors import UsageError
from bernstein.settings import INSIDE_RUN, is_inside_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bernstein.rundir import SddDir


def refuse_inside_run(sdd: SddDir) -> None:
    """Refuse to go on in a process that a run has started.

    Raises:
        UsageError: It is one.
    """
    holders = {pid for run in sdd.list_runs() if run.is_running() for pid in _holders(run.lock)}
    is_below = any(pid in holders or _is_marked(pid) for pid in _ancestors())
    if is_inside_run() or is_below:
        raise UsageError(
            "this process was started by a run, whose tools it must not let run\n"
            "  decide in a terminal of your own"
        )


def _ancestors() -> Iterator[int]:
    """The processes that this one descends from, as far as the system shows them."""
    pid = os.getppid()
    while pid > 1:
        yield pid
        try:
            # pid (name) state ppid …: the name can hold anything, a bracket too.
            stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
            pid = int(stat.rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return


def _is_marked(pid: int) -> bool:
    try:
        return f"{INSIDE_RUN}=".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _holders(lock: Path) -> set[int]:
    """The processes that hold a lock on a file, where the system says so."""
    try:
        inode = lock.stat().st_ino
        lines = Path("/proc/locks").read_text("ascii", "replace").splitlines()
    except OSError:
        return set()
    # "1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF"
    held = (line.split() for line in lines)
    return {
        int(parts[4])
        for parts in held
        if len(parts) > 5 and parts[1] == "FLOCK" and parts[5].endswith(f":{inode}")
    }
