from __future__ import annotations

import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bernstein.events.payloads import KINDS, FoldError
from bernstein.fold.run import project
from bernstein.fold.source import EventFile, TrajectoryEvent
from bernstein.fold.tool_calls import project_tool_calls, tool_calls_bytes
from bernstein.rundir import SddDir
from tests.helpers import no_model, run_plan, script
from tests.logs import envelope, folded_by_node, payload
from tests.pairs import pair_plan, pair_script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

REF = {"digest": "ab" * 32, "byteLength": 1}


def event(seq: int, kind: str, run_id: str = "r", **payload: Any) -> TrajectoryEvent:
    return TrajectoryEvent(seq, run_id, kind, payload)


def usage(**changed: Any) -> dict[str, Any]:
    counts = {"inputTokens": 0, "outputTokens": 0, "credits": 0}
    return {"provider": "p", "model": "m", "billingStatus": "priced", **counts, **changed}


EVENTS = [
    event(0, "run.started", agentId="a"),
    event(1, "step.started", stepId="s", depth=0, label="S"),
    event(2, "step.started", stepId="s/t1", parentStepId="s", depth=1),
    event(3, "model.usage", **usage(inputTokens=5, outputTokens=2, credits=7)),
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
        event(10, "model.usage", **usage(inputTokens=2**53 - 5)),
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
    found = list(EventFile(sdd.run(report.run_id).journal, report.run_id))
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


def drawn_log(draw: random.Random) -> list[TrajectoryEvent]:
    """Events of one run, shuffled: with gaps, and some of them twice."""
    seqs = draw.sample(range(100), draw.randrange(25))
    kinds = draw.choices(tuple(KINDS), k=len(seqs))
    log = [TrajectoryEvent(s, "r", k, payload(draw, k)) for s, k in zip(seqs, kinds, strict=True)]
    log += draw.choices(log, k=draw.randrange(5)) if log else []
    draw.shuffle(log)
    return log


def both_folds(events: Callable[[], Iterable[TrajectoryEvent]]) -> list[str]:
    """What the two folds write of events, or "refused"."""
    found = []
    for fold in (
        lambda: project(events()).to_bytes(),
        lambda: tool_calls_bytes(project_tool_calls(events())),
    ):
        try:
            found.append(fold().decode())
        except FoldError:
            found.append("refused")
    return found


def as_json(item: TrajectoryEvent) -> dict[str, Any]:
    return {"seq": item.seq, "runId": item.run_id, "kind": item.kind, "payload": item.payload}


def test_an_independent_fold_gives_the_same_bytes_for_a_thousand_logs() -> None:
    draw = random.Random(6)
    logs = [drawn_log(draw) for _ in range(1000)]
    theirs = folded_by_node([as_json(item) for item in log] for log in logs)
    ours = [line for log in logs for line in both_folds(lambda log=log: log)]
    assert ours == theirs
    assert 100 < ours.count("refused") < 1900  # what can be and what cannot, both often


@given(st.randoms(use_true_random=False))
def test_every_way_to_hand_over_a_log_gives_the_same_bytes(draw: random.Random) -> None:
    log = drawn_log(draw)
    known = both_folds(lambda: log)
    assert both_folds(lambda: sorted(log, key=lambda item: item.seq)) == known
    assert both_folds(lambda: [*log, *log]) == known
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr("bernstein.fold.order._AT_ONCE", 3)
        assert both_folds(lambda: log) == known, "sorted in a file"
        assert both_folds(lambda: iter(log)) == known, "gone through once"
        path = Path(folder) / "events.jsonl"
        path.write_bytes(b"".join(map(envelope, log)))
        assert both_folds(lambda: EventFile(path)) == known


RESULT = {"toolCallId": "c", "ok": True, "result": REF}


@pytest.mark.parametrize(
    ("kind", "said", "at"),
    [
        ("model.usage", usage(billingStatus="estimated", credits=1), "$.payload.credits"),
        ("model.usage", usage(billingStatus="unsupported", credits=1), "$.payload.credits"),
        ("model.usage", usage(billingStatus="metered", priceBookVersion="1"), "priceBookVersion"),
        ("model.usage", usage(inputTokens=-1), "$.payload.inputTokens"),
        ("model.usage", usage(inputTokens=1.0), "$.payload.inputTokens"),
        ("model.usage", usage(inputTokens=True), "$.payload.inputTokens"),
        ("model.usage", usage(inputTokens="1"), "$.payload.inputTokens"),
        ("model.usage", usage(inputTokens=2**53), "$.payload.inputTokens"),
        ("model.usage", usage(billingStatus="free"), "$.payload.billingStatus"),
        ("model.usage", usage(stepId=None), "$.payload.stepId"),
        ("model.usage", usage(more=1), "`more`"),
        ("tool.result", {**RESULT, "result": "text"}, "$.payload.result"),
        ("tool.result", {**RESULT, "result": {**REF, "text": "t"}}, "$.payload.result"),
        ("tool.result", {**RESULT, "result": {**REF, "digest": "AB" * 32}}, "result.digest"),
        ("tool.result", {**RESULT, "result": {**REF, "digest": "ab" * 32 + "\n"}}, "result.digest"),
        ("tool.result", {**RESULT, "result": {**REF, "encRef": None}}, "result.encRef"),
        ("tool.denied", {"toolCallId": "c", "actor": "a", "reason": "I see"}, "payload.reason"),
        ("run.finished", {"status": "running"}, "$.payload.status"),
        ("step.started", {"stepId": "s"}, "depth"),
    ],
)
def test_a_payload_that_breaks_a_rule_is_refused_with_its_path(
    tmp_path: Path, kind: str, said: dict[str, Any], at: str
) -> None:
    with pytest.raises(FoldError) as error:
        project([event(4, kind, **said)])
    assert at in str(error.value)
    (tmp_path / "events.jsonl").write_bytes(envelope(event(4, kind, **said)))
    with pytest.raises(FoldError) as error:
        project_tool_calls(EventFile(tmp_path / "events.jsonl"))
    assert "line 1: " in str(error.value)
    assert at in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (b'"ok":true', b'"ok":true,"ok":false', "duplicate key 'ok'"),
        (b'"version":1', b'"version":2', "of version 2; this program reads 1"),
        (b'"seq":4', b'"seq":4.0', "$.seq"),
        (b'"seq":4', b'"seq":-4', "$.seq"),
        (b'"occurredAt":"2', b'"occurredAt":"', "$.occurredAt"),
        (b'"eventId"', b'"more":1,"eventId"', "`more`"),
        (b'"eventId":"e",', b"", "eventId"),
        (b"tool.result", b"tool.resalt", "no kind of event"),
        (b'"tool.result"', b'["tool.result"]', "no kind of event"),
        (b"}\n", b"", "not JSON"),
        (b'"c"', b'"\xff"', "invalid UTF-8"),
    ],
)
def test_an_envelope_that_is_none_is_refused(
    tmp_path: Path, old: bytes, new: bytes, why: str
) -> None:
    line = envelope(event(4, "tool.result", **RESULT))
    assert old in line
    (tmp_path / "events.jsonl").write_bytes(line.replace(old, new))
    with pytest.raises(FoldError) as error:
        project(EventFile(tmp_path / "events.jsonl"))
    assert why in str(error.value)


@pytest.mark.parametrize("where", ["alone", "first", "last", "without an end"])
def test_a_line_that_is_too_long_is_refused_before_it_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr("bernstein.fold.source.MAX_LINE_BYTES", 2**18)
    short, long = envelope(event(0, "checkpoint", checkpointId="c")), b"x" * 2**22
    lines = {
        "alone": long,
        "first": long + b"\n" + short,
        "last": short + long + b"\n",
        "without an end": short + long,
    }
    (tmp_path / "events.jsonl").write_bytes(lines[where])
    with pytest.raises(FoldError, match="is longer than"):
        project(EventFile(tmp_path / "events.jsonl"))


def test_long_lines_that_may_be_are_read(tmp_path: Path) -> None:
    labels = ["x" * (2**17 - 60), "y" * 2**19, "z", "u" * 2**18]
    log = [event(n, "checkpoint", checkpointId=f"c{n}", label=la) for n, la in enumerate(labels)]
    (tmp_path / "events.jsonl").write_bytes(b"".join(map(envelope, log))[:-1])
    assert [
        mark["label"] for mark in project(EventFile(tmp_path / "events.jsonl")).checkpoints
    ] == labels


def test_any_spelling_of_an_envelope_is_read(tmp_path: Path) -> None:
    line = envelope(event(0, "checkpoint", checkpointId="\u00e9"))
    spelled = json.dumps(dict(reversed(json.loads(line).items())), indent=None) + "\r\n"
    (tmp_path / "events.jsonl").write_text(spelled)
    assert [
        c["checkpointId"] for c in project(EventFile(tmp_path / "events.jsonl")).checkpoints
    ] == ["\u00e9"]


def test_approvals_and_results_of_calls() -> None:
    proposed = {"stepId": "s", "name": "read", "args": REF}
    log = [
        event(0, "tool.result", toolCallId="a", ok=True, result=REF),
        event(1, "tool.proposed", toolCallId="a", **proposed),
        event(2, "tool.denied", toolCallId="a", actor="me", reason="refused"),
        event(3, "tool.approved", toolCallId="a", actor="you"),
        event(4, "tool.proposed", toolCallId="b", **proposed),
        event(5, "tool.result", toolCallId="b", ok=False, result=REF, exitCode=3),
        event(6, "tool.result", toolCallId="b", ok=True, result=REF),
        event(7, "tool.approved", toolCallId="nobody's", actor="me"),
    ]
    args = json.dumps(REF, separators=(",", ":"))
    assert tool_calls_bytes(project_tool_calls(reversed(log))).decode() == (
        f'[{{"toolCallId":"a","stepId":"s","name":"read","args":{args},"proposedSeq":1,'
        '"approval":{"outcome":"denied","actor":"me","seq":2,"reason":"refused"}},'
        f'{{"toolCallId":"b","stepId":"s","name":"read","args":{args},"proposedSeq":4,'
        '"result":{"ok":false,"seq":5,"exitCode":3}}]'
    )
    with pytest.raises(FoldError):
        project_tool_calls([*log, event(8, "tool.proposed", toolCallId="a", **proposed)])
    assert project([*log, event(8, "tool.proposed", toolCallId="a", **proposed)]).steps == []


def test_the_folds_share_no_state_and_change_nothing_of_each_other() -> None:
    log = [event(i, k, **payload(random.Random(i), k)) for i, k in enumerate(KINDS)]
    alone = project(log).to_bytes(), tool_calls_bytes(project_tool_calls(log))
    items = iter(log)
    assert project(log).to_bytes() == alone[0]
    assert tool_calls_bytes(project_tool_calls(items)) == alone[1]


def test_a_bad_line_far_into_a_file_is_told_by_its_number(tmp_path: Path) -> None:
    log = [event(n, "checkpoint", checkpointId=f"c{n}", label="x" * 90) for n in range(3000)]
    spelled_otherwise = envelope(log[500]).replace(b'":', b'": ', 1)
    lines = [*map(envelope, log), b"{}\n"]
    lines[500] = spelled_otherwise
    (tmp_path / "events.jsonl").write_bytes(b"".join(lines))
    with pytest.raises(FoldError, match=r"^line 3001: "):
        project(EventFile(tmp_path / "events.jsonl"))
