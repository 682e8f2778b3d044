"""Small tools of the tests: scripts, plans, runs in process and on the command line."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bernstein.canonical import canonical_bytes
from bernstein.capture.models.registry import close_providers, register_provider
from bernstein.capture.models.scripted import Script, ScriptedProvider
from bernstein.capture.run import OpenRun
from bernstein.cli.progress import make_observer
from bernstein.events.entry import GENESIS, JournalEntry, event_hash, payload_hash, to_line
from bernstein.runner.plan_file import parse_plan
from bernstein.runner.report import RunOptions, RunReport, ToolsMode
from bernstein.runner.resume import recorded_plan
from bernstein.runner.session import PlanRun
from bernstein.seal.evidence import Verdict, verify_run
from bernstein.seal.signing import default_keys
from bernstein.settings import Settings, read_settings

if TYPE_CHECKING:
    from bernstein.rundir import RunDir, SddDir
    from bernstein.runner.plan import Plan

MODEL = "scripted:test"
ONE_TASK = '{"tasks":[{"id":"t1","title":"only","files":[1],"depends_on":[]}]}'
TWO_TASKS = (
    '{"tasks":[{"id":"t1","title":"one","files":[1],"depends_on":[]},'
    '{"id":"t2","title":"two","files":[2],"depends_on":["t1"]}]}'
)


def script(*answers: dict[str, Any]) -> ScriptedProvider:
    """Make ``scripted:test`` answer by these rules."""
    provider = ScriptedProvider(msgspec.convert({"answers": list(answers)}, Script))
    register_provider("scripted", "test", provider)
    return provider


def no_model() -> None:
    """Let nobody answer ``scripted:test``: asking it would look for a file that is not there."""
    close_providers()


def run_plan(
    plan: str,
    sdd: SddDir,
    *,
    replay: str | None = None,
    allow_live_miss: bool = False,
    seed: int | None = None,
    model: str | None = MODEL,
    in_place: bool = False,
    exact: bool = False,
    tools: ToolsMode = "recorded",
) -> RunReport:
    """Run a plan in this process."""
    parsed = parse_plan(plan.encode(), "plan.yaml")
    settings = replace(
        read_settings(), seed=seed, replay_run_id=replay, allow_live_miss=allow_live_miss
    )
    options = RunOptions(
        model=None if replay else model, in_place=in_place, exact=exact, tools=tools
    )
    return _execute(parsed, sdd, settings, options)


def resume(sdd: SddDir, run: RunDir) -> RunReport:
    """Let a run go on, in this process."""
    return _execute(recorded_plan(run), sdd, read_settings(), RunOptions(goes_on=run))


def _execute(plan: Plan, sdd: SddDir, settings: Settings, options: RunOptions) -> RunReport:
    async def execute() -> RunReport:
        with make_observer(plan, quiet=True) as observer:
            return await PlanRun(plan, sdd, settings, options, observer).execute()

    return asyncio.run(execute())


def verify(sdd: SddDir, run: RunDir) -> Verdict:
    """The verdict on a run, by the keys of this test."""
    return verify_run(run, sdd, default_keys(sdd))


def unseal(sdd: SddDir, run: RunDir) -> None:
    """Let a run be as it is before it is sealed."""
    run.seal.unlink()
    sdd.spine.unlink()


def open_run(sdd: SddDir, *, replay: str | None = None, **settings: Any) -> OpenRun:
    """A run of a program, recording or replaying."""
    return OpenRun(
        sdd,
        replace(read_settings(), replay_run_id=replay, **settings),
        {"kind": "program", "argv": ["test"]},
        follows_score=False,
    )


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON Lines file."""
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]


def events(run: RunDir, name: str | None = None) -> list[dict[str, Any]]:
    """The rows of a run's journal, all or of one event."""
    return [row for row in rows(run.journal) if name in (None, row["event"])]


def bernstein(
    *arguments: str, cwd: Path | None = None, env: dict[str, str] | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "bernstein", *arguments],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def rechain(entries: list[JournalEntry]) -> bytes:
    """Rows with hashes that hold."""
    head, lines = GENESIS, []
    for index, entry in enumerate(entries):
        inner = payload_hash(entry.event, entry.lane, bytes(entry.payload))
        outer = event_hash(head, entry.event, inner, index)
        chained = msgspec.structs.replace(
            entry, index=index, payload_hash=inner, prev_hash=head, event_hash=outer
        )
        lines.append(to_line(chained) + b"\n")
        head = outer
    return b"".join(lines)


def journal_of(sdd: SddDir, run_id: str, made: list[tuple[str, str, Any]]) -> RunDir:
    """A run of these rows (event, lane, payload), ten milliseconds apart."""
    began = datetime(2026, 12, 1, tzinfo=UTC)
    entries = [
        JournalEntry(
            index,
            event,
            lane,
            msgspec.Raw(canonical_bytes(payload)),
            "",
            "",
            "",
            (began + timedelta(milliseconds=10 * index)).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            index / 100,
        )
        for index, (event, lane, payload) in enumerate(made)
    ]
    run = sdd.run(run_id)
    run.path.mkdir(parents=True)
    run.journal.write_bytes(rechain(entries))
    run.write_info({"run_id": run_id, "status": "completed", "records": True})
    return run
