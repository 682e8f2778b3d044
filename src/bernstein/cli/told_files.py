"""Files that others wrote of runs: each becomes runs of ours, and is told in a line."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from bernstein.capture.gateway.taped import import_transcript
from bernstein.errors import BernsteinError, RecordingError, UsageError
from bernstein.events import trajectory as event
from bernstein.interop.kinds import KINDS, kind_of
from bernstein.interop.records import check_size, read_records
from bernstein.wire.reported import Report

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bernstein.cli.app import Context
    from bernstein.interop.transcript import Transcript

_SHOWN_LINES = 5
# Whose rules say which ids and times of a report are taken out.
_PROFILES = {"claude-code": "claude-code", "codex": "codex", "gemini-cli": "gemini-cli"}


def import_files(
    context: Context, paths: Sequence[Path], kind: str | None, profile: str | None
) -> int:
    """Make runs of files, and say of each what it held.

    Returns:
        2 where a file is of no kind that is known, 1 where one could not be read, else 0.
    Raises:
        UsageError: There is no such kind.
    """
    if kind is not None and kind not in KINDS:
        raise UsageError(f"there is no kind {kind!r}; expected {', '.join(sorted(KINDS))}")
    code = 0
    for path in paths:
        try:
            _import_file(context, path, kind, profile)
        except (BernsteinError, OSError) as error:
            code = max(code, error.exit_code if isinstance(error, BernsteinError) else 1)
            click.echo(f"{path}: {error}", err=True)
    return code


def _import_file(context: Context, path: Path, kind: str | None, profile: str | None) -> None:
    settings = replace(context.settings, replay_run_id=None, seed=None)
    check_size(path.stat().st_size)
    records = read_records(path.read_bytes())
    for line in records.bad_lines[:_SHOWN_LINES]:
        click.echo(f"{path}:{line}: no JSON object; the lines behind it are read", err=True)
    chosen = kind or kind_of(records)
    if not records.values and not KINDS[chosen].is_one(records):
        raise RecordingError("this holds nothing that can be read")
    for told in KINDS[chosen].read(records):
        rules = profile or _PROFILES.get(told.kind, "generic")
        run = import_transcript(told, path.name, context.sdd, settings, rules)
        part = f" ({told.part})" if told.part else ""
        click.echo(f"{path}{part}: run {run.run_id}, {_said(told)}")


def _said(told: Transcript) -> str:
    """What a file held, in a line."""
    events = [item for item in told.events if not isinstance(item, Report)]
    kinds = Counter(item.kind for item in events)
    parts = [
        _counted(told.records, "record"),
        _counted(kinds[event.MODEL_CALL], "model call"),
        _counted(kinds[event.TOOL_PROPOSED], "tool call"),
    ]
    steps = kinds[event.STEP_STARTED] - 1
    parts += [_counted(steps, "step")] if steps > 0 else []
    for count, name in (
        (told.unknown, "unknown record"),
        (len(told.bad_lines), "bad line"),
        (told.bad_counts, "bad count"),
        (told.strays, "result without its call"),
    ):
        parts += [_counted(count, name)] if count else []
    changes = Counter(item.kind for item in told.events if isinstance(item, Report))
    said = ", ".join(f"{count} {name}" for name, count in sorted(changes.items())) or "none"
    return f"{', '.join(parts)}, changes: {said}"


def _counted(count: int, name: str) -> str:
    if count == 1:
        return f"1 {name}"
    return f"{count} {name}s" if not name.startswith("result") else f"{count} results without calls"
