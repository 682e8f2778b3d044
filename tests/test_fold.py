from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bernstein.fold.run import FoldError, TrajectoryEvent, project, read_events
from bernstein.rundir import SddDir
from tests.helpers import no_model, run_plan, script
from tests.pairs import pair_plan, pair_script


def event(seq: int, kind: str, run_id: str = "r", **payload: Any) -> TrajectoryEvent:
    return TrajectoryEvent(seq, run_id, kind, payload)


EVENTS = [
    event(0, "run.started", agentId="a"),
    event(1, "step.started", stepId="s", depth=0, label="S"),
    event(2, "step.started", stepId="s/t1", parentStepId="s", depth=1),
    event(3, "model.usage", billingStatus="priced", inputTokens=5, outputTokens=2, credits=7),
    event(4, "model.answer", key="k"),
    event(5, "step.finished", stepId="s/t1", status="ok"),
    event(6, "step.finished", stepId="nope", status="ok"),
    event(7, "step.started", stepId="lost", parentStepId="unknown", depth=3),
    event(8, "checkpoint", checkpointId="c", label="C"),
    event(9, "run.finished", status="failed"),
]


def test_the_bytes_of_a_projection() -> None:
    zero = '{"inputTokens":0,"outputTokens":0,"cachedInputTokens":0,"credits":0}'
    assert project(EVENTS).to_bytes().decode() == (
        '{"runId":"r","status":"failed","steps":['
        '{"stepId":"s","depth":0,"label":"S","status":"running","children":['
        '{"stepId":"s/t1","parentStepId":"s","depth":1,"status":"ok","children":[]}]},'
        '{"stepId":"lost","parentStepId":"unknown","depth":3,"status":"running","children":[]}],'
        f'"usageTotals":{{"metered":{zero},'
        '"priced":{"inputTokens":5,"outputTokens":2,"cachedInputTokens":0,"credits":7},'
        f'"estimated":{zero},"unsupported":{zero}}},'
        '"checkpoints":[{"checkpointId":"c","label":"C","seq":8}]}'
    )


def test_no_events_are_a_pending_run() -> None:
    projection = project([])
    assert (projection.run_id, projection.status, projection.steps) == ("", "pending", [])


@given(st.permutations(EVENTS + EVENTS[::3]))
def test_any_order_and_equal_events_twice_give_the_same_bytes(
    shuffled: list[TrajectoryEvent],
) -> None:
    assert project(shuffled).to_bytes() == project(EVENTS).to_bytes()


@pytest.mark.parametrize(
    "extra",
    [
        event(1, "step.started", stepId="x", depth=0),
        event(10, "run.started", run_id="other", agentId="a"),
        event(10, "step.started", stepId="s", depth=0),
        event(10, "model.usage", billingStatus="priced", inputTokens=2**53 - 5),
    ],
)
def test_events_that_contradict_each_other_are_refused(extra: TrajectoryEvent) -> None:
    with pytest.raises(FoldError):
        project([*EVENTS, extra])


def test_a_real_run_folds_to_the_same_bytes_in_any_order(sdd: SddDir) -> None:
    draw = random.Random(3)
    plan = pair_plan(draw)
    script(*pair_script(draw))
    report = run_plan(plan, sdd)
    no_model()
    found = list(read_events(sdd.run(report.run_id).journal, report.run_id))
    folded = project(found)
    assert folded.status == report.status
    assert {node["stepId"] for node in folded.steps} == {row[0] for row in report.steps}
    totals = folded.usage_totals["estimated"]
    assert (totals["inputTokens"], totals["outputTokens"]) == (
        report.input_tokens,
        report.output_tokens,
    )
    for _ in range(5):
        draw.shuffle(found)
        assert project(found).to_bytes() == folded.to_bytes()
    assert json.loads(folded.to_bytes())["runId"] == report.run_id


def test_a_step_that_names_itself_as_its_parent_is_a_root() -> None:
    steps = project([event(0, "step.started", stepId="s", parentStepId="s", depth=0)]).steps
    assert [step["stepId"] for step in steps] == ["s"]


def test_steps_nested_without_end_are_refused() -> None:
    nested = [event(0, "step.started", stepId="0", depth=0)] + [
        event(n, "step.started", stepId=str(n), parentStepId=str(n - 1), depth=n)
        for n in range(1, 2000)
    ]
    assert project(nested[:100]).to_bytes()
    with pytest.raises(FoldError, match="nested more than 128 deep"):
        project(nested)
