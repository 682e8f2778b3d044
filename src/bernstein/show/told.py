"""What a list of runs says of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.errors import RecordingError

if TYPE_CHECKING:
    from bernstein.canonical import JsonObject
    from bernstein.rundir import RunDir

_TOLD = ("kind", "source_run", "seed", "started", "finished", "strict")


def told_run(run: RunDir) -> JsonObject:
    """A run's id, status, name (that of its plan, or its command) and what began it."""
    try:
        info, status = run.read_info(), run.status()
    except RecordingError:
        info, status = {}, "unreadable"
    return {
        "run_id": run.run_id,
        "status": status,
        "name": (info.get("plan") or {}).get("name") or " ".join(info.get("argv", [])) or None,
        **{name: info.get(name) for name in _TOLD},
    }
