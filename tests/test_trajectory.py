"""``bernstein trajectory``: a run, a file or a stream of events, in bytes that stay the same."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from bernstein.events.payloads import KINDS
from bernstein.fold.schema import event_schema
from bernstein.fold.source import TrajectoryEvent
from tests.helpers import ONE_TASK, bernstein, run_plan, script
from tests.logs import envelope, payload

if TYPE_CHECKING:
    from bernstein.rundir import RunDir, SddDir

SECRETIVE = "zyzzyva"  # in every prompt and answer, and in no name
PLAN = f"""
name: P
stages:
  - name: a
    steps:
      - {{title: X, description: {SECRETIVE} first, files: [x.txt]}}
      - {{title: Y, description: {SECRETIVE} second, files: [y.txt]}}
"""


@pytest.fixture
def run(sdd: SddDir) -> RunDir:
    script({"match": "Split one step", "text": ONE_TASK}, {"text": f"{SECRETIVE} answered"})
    return sdd.run(run_plan(PLAN, sdd).run_id)


def trajectory(sdd: SddDir, *arguments: str, given: bytes = b"") -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the command."""
    done = subprocess.run(
        [sys.executable, "-m", "bernstein", "--sdd", str(sdd.path), "trajectory", *arguments],
        input=given,
        capture_output=True,
        check=False,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize("fold", [(), ("--tool-calls",)])
def test_a_run_its_rows_in_any_order_and_a_stream_of_them_give_the_same_bytes(
    sdd: SddDir, run: RunDir, tmp_path: Path, fold: tuple[str, ...]
) -> None:
    code, known, _ = trajectory(sdd, run.run_id, *fold)
    assert code == 0
    assert known.endswith("\n")
    lines = run.journal.read_bytes().splitlines(keepends=True)
    random.Random(4).shuffle(lines)
    (tmp_path / "rows.jsonl").write_bytes(b"".join(lines + lines[:3]))
    told = ("--run-id", run.run_id, *fold)
    assert trajectory(sdd, str(tmp_path / "rows.jsonl"), *told) == (0, known, "")
    assert trajectory(sdd, "-", *told, given=b"".join(lines)) == (0, known, "")
    _, shown, _ = trajectory(sdd, run.run_id, "--json", *fold)
    assert json.loads(shown) == json.loads(known)


def test_rows_of_a_file_are_of_a_run_without_a_name(sdd: SddDir, run: RunDir) -> None:
    code, out, _ = trajectory(sdd, str(run.journal))
    assert (code, json.loads(out)["runId"], json.loads(out)["status"]) == (0, "", "completed")
    assert trajectory(sdd, "-")[1].startswith('{"runId":"","status":"pending","steps":[]')


def test_a_run_whose_chain_does_not_hold_is_not_folded(sdd: SddDir, run: RunDir) -> None:
    run.journal.write_bytes(run.journal.read_bytes().replace(b'"depth":1', b'"depth":2', 1))
    code, out, err = trajectory(sdd, run.run_id)
    assert (code, out) == (1, "")
    assert "does not hold at row" in err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("nowhere",), "nowhere"),
        ((), "name a run, a file or -"),
        (("latest", "--run-id", "x"), "--run-id is for rows of a FILE"),
    ],
)
def test_what_cannot_be_folded_is_said(
    sdd: SddDir, run: RunDir, arguments: tuple[str, ...], why: str
) -> None:
    code, out, err = trajectory(sdd, *arguments)
    assert (code, out) == (2, "")
    assert why in err
    assert run.journal.exists()


def test_a_line_that_is_no_event_is_named(sdd: SddDir) -> None:
    code, out, err = trajectory(sdd, "-", given=b'\n{"seq":0}\n')
    assert (code, out) == (2, "")
    assert err == "bernstein: line 2: neither a row of a journal nor an envelope of an event\n"


def test_no_text_that_was_sent_or_came_back_stands_in_what_is_chained(
    sdd: SddDir, run: RunDir
) -> None:
    recorded = (run.llm_calls.read_text(), run.run_json.read_text())
    assert all(SECRETIVE in text for text in recorded)
    chained = [run.journal, run.wal, run.seal, sdd.spine]
    assert all(path.stat().st_size for path in chained)
    assert not [path for path in chained if SECRETIVE.encode() in path.read_bytes()]


def test_a_run_without_its_bodies_is_folded_all_the_same(sdd: SddDir, run: RunDir) -> None:
    known = trajectory(sdd, run.run_id)
    bernstein("--sdd", str(sdd.path), "forget", run.run_id, "--bodies")
    assert trajectory(sdd, run.run_id) == known


def schema_takes(value: dict[str, Any]) -> bool:
    return jsonschema.Draft202012Validator(event_schema()).is_valid(value)


def test_the_schema_takes_what_is_read_and_refuses_what_is_not() -> None:
    jsonschema.Draft202012Validator.check_schema(event_schema())
    draw = random.Random(7)
    for kind in [*KINDS] * 20:
        said = payload(draw, kind)
        value = json.loads(envelope(TrajectoryEvent(1, "r", kind, said)))
        assert schema_takes(value), value
        assert not schema_takes({**value, "version": 2})
        assert not schema_takes({**value, "payload": {**said, "more": 1}})
        assert not schema_takes({**value, "more": 1})
        if kind == "model.usage":
            unpriced = {**said, "billingStatus": "estimated", "credits": 1}
            assert not schema_takes({**value, "payload": unpriced})
            booked = {**said, "billingStatus": "metered", "priceBookVersion": "b"}
            assert not schema_takes({**value, "payload": booked})


def test_the_schema_is_printed(sdd: SddDir) -> None:
    code, out, _ = trajectory(sdd, "--schema")
    assert (code, json.loads(out)) == (0, event_schema())


def test_a_lone_surrogate_is_printed_as_an_escape(sdd: SddDir) -> None:
    item = TrajectoryEvent(0, "r", "checkpoint", {"checkpointId": "\ud800"})
    code, out, err = trajectory(sdd, "-", "--json", given=envelope(item))
    assert (code, err) == (0, "")
    assert json.loads(out)["checkpoints"][0]["checkpointId"] == "\ud800"
