"""Scores: what a run did held against a policy, by its folds alone; and each of them can fail."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent
from typing import TYPE_CHECKING, Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bernstein import EventJournal, ScorePolicy, project, project_tool_calls, score
from bernstein.canonical import sha256_hex
from bernstein.errors import PolicyError
from bernstein.events.payloads import FoldError
from bernstein.fold.policy import parse_policy
from bernstein.fold.scores import Reason, ScoreName
from bernstein.fold.source import EventFile, TrajectoryEvent
from bernstein.fold.tool_calls import tool_calls_bytes
from bernstein.rundir import SddDir
from bernstein.seal.audit import audit_keys, check_audit
from bernstein.seal.seals import highest_sealed_audit, seal_journal_into_spine
from bernstein.seal.signing import default_keys
from bernstein.settings import read_settings
from tests.helpers import bernstein, rows
from tests.logs import envelope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bernstein import ScoreReport
    from bernstein.rundir import RunDir

ONE, TWO = ({"digest": letter * 64, "byteLength": 1} for letter in "ab")


class Log:
    """Events of a run, made call by call."""

    def __init__(self) -> None:
        self.events: list[TrajectoryEvent] = []
        self.add("run.started", agentId="a")

    def add(self, kind: str, **payload: Any) -> Log:
        self.events.append(TrajectoryEvent(len(self.events), "r", kind, payload))
        return self

    def call(
        self,
        name: str,
        args: dict[str, Any] = ONE,
        *,
        by: str | None = "alice",
        denied: bool = False,
        ok: bool | None = True,
    ) -> Log:
        """A tool that is asked for; ``ok`` None: it did not run."""
        call_id = f"c{sum(e.kind == 'tool.proposed' for e in self.events)}"
        self.add("tool.proposed", stepId="s", toolCallId=call_id, name=name, args=args)
        if by is not None:
            self.add("tool.denied" if denied else "tool.approved", toolCallId=call_id, actor=by)
        if ok is not None:
            self.add("tool.result", toolCallId=call_id, ok=ok, result=TWO)
        return self

    def used(self, band: str = "metered", **counts: int) -> Log:
        zero = {"inputTokens": 0, "outputTokens": 0, "credits": 0}
        named = {"provider": "p", "model": "m", "billingStatus": band}
        return self.add("model.usage", **{**named, **zero, **counts})


def scored(log: Log | Sequence[TrajectoryEvent], **policy: Any) -> ScoreReport:
    events = log.events if isinstance(log, Log) else log
    return score(project(events), project_tool_calls(events), ScorePolicy.of(policy))


def reasons(report: ScoreReport) -> list[tuple[str | None, str]]:
    """The calls that something speaks against, and what."""
    (only,) = report.scores
    assert only.holds is report.holds
    return [(found.tool_call_id, found.reason) for found in only.findings]


# --- each score holds, and fails


@pytest.mark.parametrize(
    ("allowed", "found"),
    [
        (["Read", "Bash", "mcp__docs__find"], []),
        (["Read", "Bash", "mcp__*"], []),
        ("*", []),
        (["Read", "Bash"], ["c2"]),
        (["read", "Bash", "mcp__docs__find"], ["c0"]),
        (["Rea", "mcp__docs__*"], ["c0", "c1"]),
        ([], ["c0", "c1", "c2"]),
    ],
)
def test_a_call_of_a_tool_that_is_not_allowed_is_found(allowed: Any, found: list[str]) -> None:
    log = Log().call("Read").call("Bash", denied=True, ok=None).call("mcp__docs__find", ok=None)
    report = scored(log, allowed_tools=allowed)
    assert reasons(report) == [(call, "tool_not_allowed") for call in found]
    assert (report.scores[0].count, report.holds) == (len(found), not found)


def test_asking_again_for_what_was_given_is_a_repeat() -> None:
    log = Log().call("Read").call("Read", TWO).call("Bash").call("Read").call("Read", ok=False)
    again = [("c3", "repeated_after_success"), ("c4", "repeated_after_success")]
    assert reasons(scored(log, repeats={})) == again
    assert scored(log, repeats={"allowed": 2}).holds
    assert not scored(log, repeats={"allowed": 1}).holds
    assert scored(log, repeats={"except": ["Read"]}).scores[0].count == 0
    assert scored(log, repeats={"except": "Re*"}).holds
    assert not scored(log, repeats={"except": ["Bash"]}).holds


def test_asking_again_after_a_failure_or_before_the_answer_is_none() -> None:
    assert scored(Log().call("Read", ok=False).call("Read"), repeats={}).holds
    assert scored(Log().call("Read", ok=None).call("Read"), repeats={}).holds
    both = Log()
    for call_id in ("c0", "c1"):
        both.add("tool.proposed", stepId="s", toolCallId=call_id, name="Read", args=ONE)
    for call_id in ("c0", "c1"):
        both.add("tool.result", toolCallId=call_id, ok=True, result=TWO)
    assert scored(both, repeats={}).holds
    third = both.add("tool.proposed", stepId="s", toolCallId="c2", name="Read", args=ONE)
    assert reasons(scored(third, repeats={})) == [("c2", "repeated_after_success")]


def test_the_length_and_place_of_arguments_make_no_other_arguments() -> None:
    other = {**ONE, "encRef": "c" * 64}
    assert not scored(Log().call("Read").call("Read", other), repeats={}).holds


GATED = {"needed_for": ["Bash"], "approvers": ["alice", "bob"]}


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (Log().call("Bash"), None),
        (Log().call("Bash", by="bob", ok=False), None),
        (Log().call("Bash", by=None, ok=None), None),
        (Log().call("Bash", denied=True, ok=None), None),
        (Log().call("Read", by=None), None),
        (Log().call("Read", by="mallory"), None),
        (Log().call("Bash", by=None), "ran_unasked"),
        (Log().call("Bash", by=None, ok=False), "ran_unasked"),
        (Log().call("Bash", by="mallory"), "approver_not_authorised"),
        (Log().call("Bash", by="mallory", ok=None), "approver_not_authorised"),
        (Log().call("Bash", by="Alice"), "approver_not_authorised"),
        (Log().call("Bash", denied=True), "ran_after_denial"),
        (Log().call("Read", denied=True), "ran_after_denial"),
        (Log().call("Read", denied=True, ok=False), "ran_after_denial"),
        (
            Log().call("Bash", by=None).add("tool.approved", toolCallId="c0", actor="alice"),
            "ran_before_approval",
        ),
        (
            Log().call("Bash", by=None).add("tool.denied", toolCallId="c0", actor="alice"),
            "ran_unasked",
        ),
        (Log().call("Read", by=None).add("tool.denied", toolCallId="c0", actor="alice"), None),
    ],
)
def test_approvals_that_were_not_kept_to_are_found(log: Log, reason: str | None) -> None:
    assert reasons(scored(log, approvals=GATED)) == ([] if reason is None else [("c0", reason)])


def test_without_approvers_anybody_approves_and_without_tools_a_denial_still_holds() -> None:
    assert scored(Log().call("Bash", by="mallory"), approvals={"needed_for": "*"}).holds
    assert not scored(Log().call("Bash", by=None), approvals={"needed_for": "*"}).holds
    assert scored(Log().call("Bash", by=None), approvals={}).holds
    assert not scored(Log().call("Bash", denied=True), approvals={}).holds


def used() -> Log:
    return (
        Log()
        .add("step.started", stepId="s", depth=0)
        .add("step.started", stepId="s/t", parentStepId="s", depth=1)
        .used(credits=700_000, inputTokens=10, cachedInputTokens=5)
        .used("priced", credits=800_000, outputTokens=7)
        .call("Read")
        .call("Bash", denied=True, ok=None)
    )


USED = used()


@pytest.mark.parametrize(
    ("name", "count"), [("credits", 1_500_000), ("tokens", 22), ("tool_calls", 2), ("steps", 2)]
)
def test_a_budget_holds_to_its_limit_and_not_beyond(name: str, count: int) -> None:
    def limited(limit: int) -> ScoreReport:
        spelled = f"{limit // 10**6}.{limit % 10**6:06d}" if name == "credits" else limit
        return scored(USED, budget={name: spelled})

    for limit in (count, count + 1):
        report = limited(limit)
        (only,) = report.scores
        assert (report.holds, only.score) == (True, f"budget_{name}")
        assert (only.count, only.limit, only.findings) == (count, limit, ())
    for limit in (0, count - 1):
        report = limited(limit)
        (only,) = report.scores
        assert (report.holds, only.count, only.limit) == (False, count, limit)
        assert [found.reason for found in only.findings] == ["over_budget"]


def test_the_first_call_too_many_is_named() -> None:
    assert reasons(scored(USED, budget={"tool_calls": 1})) == [("c1", "over_budget")]
    assert reasons(scored(USED, budget={"tool_calls": 0})) == [("c0", "over_budget")]


@pytest.mark.parametrize("band", ["estimated", "unsupported"])
def test_what_has_no_price_keeps_to_no_budget_of_money(band: str) -> None:
    log = Log().used(credits=5).used(band, outputTokens=1)
    report = scored(log, budget={"credits": "$1"})
    assert reasons(report) == [(None, "usage_without_price")]
    assert scored(log, budget={"tokens": 1}).holds
    assert scored(Log().used(credits=5).used(band), budget={"credits": "$1"}).holds


def test_a_sum_beyond_what_a_number_holds_is_refused() -> None:
    log = Log().used(inputTokens=2**53 - 1, outputTokens=1)
    with pytest.raises(FoldError, match=r"beyond 2\^53-1"):
        scored(log, budget={"tokens": 5})


def test_only_what_the_policy_says_is_scored() -> None:
    whole = {"allowed_tools": "*", "repeats": {}, "approvals": {}, "budget": {"steps": 9}}
    names = [one.score for one in scored(USED, **whole).scores]
    assert names == ["allowed_tools", "needless_repeats", "approvals", "budget_steps"]
    for left_out in whole:
        rest = {key: value for key, value in whole.items() if key != left_out}
        assert len(scored(USED, **rest).scores) == 3


# --- the bytes

POLICY: dict[str, Any] = {
    "allowed_tools": ["Read"],
    "repeats": {},
    "approvals": GATED,
    "budget": {"credits": 1, "tokens": 99, "tool_calls": 2, "steps": 1},
}
EVENTS = [*used().call("Read").call("Bash", by="mallory").events]


def test_the_bytes_of_a_report() -> None:
    report = scored(EVENTS, allowed_tools=["Bash"], budget={"steps": 9})
    digests = [
        sha256_hex(project(EVENTS).to_bytes()),
        sha256_hex(tool_calls_bytes(project_tool_calls(EVENTS))),
        sha256_hex(b'{"allowed_tools":["Bash"],"budget":{"steps":9},"version":1}'),
    ]
    finding = '{{"seq":{},"toolCallId":"{}","name":"Read","reason":"tool_not_allowed"}}'
    assert report.to_bytes().decode() == (
        f'{{"version":1,"runId":"r","projectionSha256":"{digests[0]}",'
        f'"toolCallsSha256":"{digests[1]}","policySha256":"{digests[2]}","holds":false,"scores":['
        '{"score":"allowed_tools","holds":false,"count":2,"limit":0,"findings":['
        f"{finding.format(5, 'c0')},{finding.format(10, 'c2')}]}},"
        '{"score":"budget_steps","holds":true,"count":2,"limit":9,"findings":[]}]}'
    )


@given(st.permutations(EVENTS + EVENTS[::2]), st.integers(0, 99))
def test_any_order_duplicates_and_unrelated_events_give_the_same_bytes(
    shuffled: list[TrajectoryEvent], place: int
) -> None:
    more = [
        TrajectoryEvent(100 + place, "r", "artifact.written", {"path": "x"}),
        TrajectoryEvent(300, "r", "model.call", {"provider": "p", "model": "m", "prompt": ONE}),
        TrajectoryEvent(301, "r", "tool.result", {"toolCallId": "?", "ok": True, "result": ONE}),
    ]
    known = scored(EVENTS, **POLICY).to_bytes()
    assert scored([*shuffled, *more], **POLICY).to_bytes() == known


@given(st.randoms(use_true_random=False), st.integers(1, 5))
def test_any_way_to_hand_events_over_gives_the_same_bytes(draw: random.Random, times: int) -> None:
    lines = [envelope(item) for item in EVENTS] * times
    draw.shuffle(lines)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        path.write_bytes(b"".join(lines))
        events = EventFile(path)
        report = score(project(events), project_tool_calls(events), ScorePolicy.of(POLICY))
    assert report.to_bytes() == scored(EVENTS, **POLICY).to_bytes()


def drawn(draw: random.Random) -> Log:
    log = Log()
    for _ in range(draw.randrange(12)):
        log.call(
            draw.choice(["Read", "Bash", "Edit"]),
            draw.choice([ONE, TWO]),
            by=draw.choice([None, "alice", "mallory"]),
            denied=draw.random() < 0.3,
            ok=draw.choice([None, True, False]),
        )
    return log


@given(st.randoms(use_true_random=False))
def test_findings_are_calls_of_the_log_in_the_order_of_proposal(draw: random.Random) -> None:
    log = drawn(draw)
    calls = {call.tool_call_id: call for call in project_tool_calls(log.events)}
    policy = {"allowed_tools": ["Read"], "repeats": {}, "approvals": GATED}
    for one in scored(log, **policy).scores:
        assert one.count == len(one.findings)
        assert one.holds is (one.count == 0)
        places = [found.seq for found in one.findings]
        assert places == sorted(set(places), key=int)  # type: ignore[arg-type]
        for found in one.findings:
            assert found.tool_call_id is not None
            call = calls[found.tool_call_id]
            assert (call.proposed_seq, call.name) == (found.seq, found.name)


@given(st.randoms(use_true_random=False))
def test_a_repeat_is_what_looking_at_each_pair_finds(draw: random.Random) -> None:
    log = drawn(draw)
    calls = project_tool_calls(log.events)
    expected = [
        later.tool_call_id
        for later in calls
        if any(
            (one.name, one.args.digest) == (later.name, later.args.digest)
            and one.result is not None
            and one.result.ok
            and one.result.seq < later.proposed_seq
            for one in calls
        )
    ]
    assert [call for call, _ in reasons(scored(log, repeats={}))] == expected


@given(st.randoms(use_true_random=False))
def test_a_stricter_policy_never_finds_less(draw: random.Random) -> None:
    log = drawn(draw)
    names = ["Read", "Bash", "Edit"]
    allowed = draw.sample(names, 2)
    fewer = allowed[:1]
    loose = {"allowed_tools": allowed, "approvals": {"needed_for": fewer}}
    strict = {
        "allowed_tools": fewer,
        "approvals": {"needed_for": allowed, "approvers": ["alice"]},
    }
    pairs = zip(scored(log, **loose).scores, scored(log, **strict).scores, strict=True)
    assert all(one.count <= other.count for one, other in pairs)


# --- the policy


@pytest.mark.parametrize(
    ("text", "at", "why"),
    [
        ("", "1:1", "the policy says nothing"),
        ("{}", "1:1", "the policy says nothing"),
        ("version: 1", "1:1", "the policy says nothing"),
        ("[a]", "1:1", "expected a mapping"),
        ("version: 2\nrepeats: {}", "1:10", "from 1 to 1"),
        ("alowed_tools: [a]", "1:1", "did you mean 'allowed_tools'?"),
        ("repeats: {}\nrepeats: {}", "2:1", "a second time"),
        ("allowed_tools:\n  - a*b", "2:5", "a * stands only at the end"),
        ("allowed_tools: [1]", "1:17", "put it in quotes"),
        ("allowed_tools: {a: b}", "1:16", "expected a list"),
        ("repeats:\n  alowed: 3", "2:3", "did you mean 'allowed'?"),
        ("repeats: {allowed: -1}", "1:20", "expected a whole number from 0"),
        ("repeats: {allowed: 1.5}", "1:20", "expected a whole number from 0"),
        ("repeats: {}\nallowed_tools:", "2:15", "allowed_tools has no value"),
        ("repeats: {}\napprovals: {needed_for: }", "2:25", "needed_for has no value"),
        ("repeats: {}\nbudget: {tokens: ~}", "2:18", "tokens has no value"),
        ("repeats: 3", "1:10", "expected a mapping"),
        ("approvals: {approvers: [a]}", "1:24", "of which tools?"),
        ("approvals: {need_for: [a]}", "1:13", "did you mean 'needed_for'?"),
        ("budget: {}", "1:9", "it needs a limit on credits, tokens, tool_calls, steps"),
        ("budget: {tokens: many}", "1:18", "expected a whole number"),
        ("budget: {tokens: 9007199254740992}", "1:18", "expected a whole number"),
        ("budget: {credits: -1}", "1:19", "expected dollars"),
        ("budget: {token: 1}", "1:10", "did you mean 'tokens'?"),
        ("budget: [", "2:1", "not YAML"),
        ("a: &a [*a]", "1:1", "aliases unfold to more than a policy can hold"),
    ],
)
def test_what_is_no_policy_is_refused_with_its_place(text: str, at: str, why: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text.encode() + b"\n", "p.yaml")
    assert str(caught.value).startswith(f"p.yaml:{at}: ")
    assert why in str(caught.value)
    assert f"{caught.value.line}:{caught.value.column}" == at


@given(st.binary(max_size=60) | st.text(alphabet="abudget:{}[]*&-! \n'\"1", max_size=60))
def test_any_bytes_are_a_policy_or_refused(given_text: bytes | str) -> None:
    data = given_text.encode() if isinstance(given_text, str) else given_text
    try:
        parse_policy(data, "p")
    except PolicyError as error:
        assert error.line >= 1  # noqa: PT017 - most of them are refused, and not all


def test_a_policy_is_named_by_what_it_says_and_not_by_its_spelling() -> None:
    one = parse_policy(b"budget: {steps: 1, credits: $2}\nallowed_tools: [b*, a, a]  # yes\n", "p")
    other = parse_policy(
        b'version: 1\nallowed_tools: ["a", "b*"]\nbudget:\n  credits: 2.000000\n  steps: 1\n', "q"
    )
    assert one == other
    assert one.digest() == other.digest()
    said = b'{"allowed_tools":["a","b*"],"budget":{"credits":2000000,"steps":1},"version":1}'
    assert one.digest() == sha256_hex(said)


CHANGES: list[dict[str, Any]] = [
    {"allowed_tools": ["Read", "Bash"]},
    {"repeats": {"allowed": 1}},
    {"repeats": {"except": ["Read"]}},
    {"approvals": {"needed_for": ["Bash"]}},
    {"approvals": {**GATED, "approvers": ["mallory"]}},
    *({"budget": {**POLICY["budget"], name: 50}} for name in POLICY["budget"]),
]


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_of_the_policy_changes_its_digest_and_the_result(
    change: dict[str, Any],
) -> None:
    known, changed = scored(EVENTS, **POLICY), scored(EVENTS, **{**POLICY, **change})
    assert known.policy_sha256 != changed.policy_sha256
    assert known.projection_sha256 == changed.projection_sha256
    assert known.scores != changed.scores


def test_a_value_that_is_no_policy_is_refused() -> None:
    for value in ({"allowed_tools": {1}}, {"budget": {"tokens": float("nan")}}, {}, {"x": 1}):
        with pytest.raises(PolicyError):
            ScorePolicy.of(value)


# --- the command


@pytest.fixture
def policy() -> str:
    Path("policy.json").write_text(json.dumps({"allowed_tools": ["Read"], "repeats": {}}))
    return "policy.json"


def make_run(sdd: SddDir, run_id: str, log: Log, *, sealed: bool = True) -> RunDir:
    run = sdd.new_run(run_id)
    with EventJournal(run_id, sdd.path) as journal:
        for item in log.events:
            assert isinstance(item.payload, dict)
            journal.append(item.kind, item.payload)
    run.write_info({"run_id": run_id, "status": "completed"})
    if sealed:
        seal_journal_into_spine(run_id, sdd.path)
    return run


def told(*arguments: str, given: bytes = b"", **env: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the command."""
    import os

    done = subprocess.run(
        [sys.executable, "-m", "bernstein", "score", *arguments],
        input=given,
        capture_output=True,
        check=False,
        env={**os.environ, **env},
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


GOOD = Log().call("Read")
BAD = Log().call("Read").call("Read").call("Bash")


def test_a_run_that_keeps_to_the_policy(sdd: SddDir, policy: str) -> None:
    make_run(sdd, "a", GOOD)
    assert told("a", "--policy", policy) == (
        0,
        "holds allowed_tools: 0 of at most 0\n"
        "holds needless_repeats: 0 of at most 0\n"
        "the result is anchored in the audit chain, row 0\n",
        "",
    )


def test_a_run_that_does_not(sdd: SddDir, policy: str) -> None:
    make_run(sdd, "a", BAD)
    assert told("a", "--policy", policy, "--no-anchor") == (
        1,
        "fails allowed_tools: 1 of at most 0 (tool_not_allowed)\n"
        "  row 7, call c2, Bash: tool_not_allowed\n"
        "fails needless_repeats: 1 of at most 0 (repeated_after_success)\n"
        "  row 4, call c1, Read: repeated_after_success\n",
        "",
    )
    assert not sdd.audit.exists()


def test_many_runs_a_line_each_and_a_summary(sdd: SddDir, policy: str) -> None:
    make_run(sdd, "a", GOOD)
    make_run(sdd, "b", BAD)
    broken = make_run(sdd, "c", GOOD)
    broken.journal.write_bytes(broken.journal.read_bytes().replace(b'"Read"', b'"Raed"'))
    code, out, err = told("--all", "--policy", policy)
    assert code == 1
    assert out == (
        "a holds\nb fails allowed_tools, needless_repeats\nc is not scored\n"
        "3 runs: 1 hold, 1 do not, 1 not scored\n"
    )
    assert err == (
        "bernstein: c is not scored: the journal of c does not hold at row 1 (payload)\n"
    )
    assert told("a", "a", "--policy", policy)[0] == 0
    code, out, err = told("c", "--policy", policy)
    assert (code, out) == (1, "")
    assert "the journal of c does not hold at row 1 (payload)\n  see: " in err


def test_rows_cut_off_a_sealed_run_are_not_scored_as_if_they_were_all(
    sdd: SddDir, policy: str
) -> None:
    run = make_run(sdd, "a", BAD)
    lines = run.journal.read_bytes().splitlines(keepends=True)
    run.journal.write_bytes(b"".join(lines[:4]))
    code, out, err = told("a", "--policy", policy)
    assert (code, out) == (1, "")
    assert "the evidence of a does not hold (missing" in err
    assert not sdd.audit.exists()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "name runs to score, or give --all"),
        (("a", "--all"), "name runs to score, or give --all"),
        (("nowhere",), "there is no run 'nowhere'"),
        (("a", "--against", "nowhere"), "there is no run 'nowhere'"),
        (("a", "--policy", "nowhere.yaml"), "nowhere.yaml:1:1: the policy cannot be read"),
    ],
)
def test_what_cannot_be_checked_ends_with_2(
    sdd: SddDir, policy: str, arguments: tuple[str, ...], why: str
) -> None:
    make_run(sdd, "a", GOOD)
    code, out, err = told("--policy", policy, *arguments)
    assert (code, out) == (2, "")
    assert why in err
    assert not sdd.audit.exists()


def test_without_a_policy_nothing_is_scored(sdd: SddDir) -> None:
    make_run(sdd, "a", GOOD)
    code, out, err = told("a")
    assert (code, out) == (2, "")
    assert "--policy" in err


def test_a_policy_with_a_wrong_key_is_told_with_its_place(sdd: SddDir) -> None:
    make_run(sdd, "a", GOOD)
    Path("p.yaml").write_text("budget:\n  tokns: 3\n")
    code, out, err = told("a", "--policy", "p.yaml")
    assert (code, out) == (2, "")
    assert err == ("bernstein: p.yaml:2:3: budget has no key 'tokns'; did you mean 'tokens'?\n")


def test_what_counts_more_than_in_another_run_is_worse() -> None:
    sdd = SddDir(Path(".sdd").absolute())
    Path("p.yaml").write_text("repeats: {allowed: 9}\nbudget: {tool_calls: 9}\n")
    make_run(sdd, "base", Log().call("Read").call("Bash"))
    make_run(sdd, "same", Log().call("Read").call("Read", TWO))
    make_run(sdd, "worse", Log().call("Read").call("Read"))
    make_run(sdd, "more", Log().call("Read").call("Bash").call("Edit"))
    options = ("--policy", "p.yaml", "--against", "base", "--no-anchor")
    code, out, _ = told("same", *options)
    assert (code, out.splitlines()[-1]) == (0, "nothing is worse than in base")
    code, out, _ = told("worse", *options)
    assert (code, out.splitlines()[-1]) == (1, "worse than in base: needless_repeats")
    code, out, _ = told("same", "worse", "more", *options)
    assert (code, out) == (
        1,
        "same holds\nworse holds; worse: needless_repeats\nmore holds; worse: budget_tool_calls\n"
        "3 runs: 3 hold, 0 do not, 2 are worse\n",
    )
    value = json.loads(told("more", *options, "--json")[1])
    assert value["against"] == {"runId": "base", "worse": ["budget_tool_calls"]}
    # What does not hold is not made good by a run that was as bad.
    Path("p.yaml").write_text("repeats: {}\n")
    assert told("worse", "--policy", "p.yaml", "--against", "worse", "--no-anchor")[0] == 1


def test_scores_of_two_policies_are_not_compared() -> None:
    one, other = scored(GOOD, repeats={}), scored(GOOD, repeats={"allowed": 1})
    with pytest.raises(ValueError, match="two policies"):
        one.worse_than(other)


def test_a_file_or_a_stream_is_scored_to_the_same_bytes_and_never_anchored(
    sdd: SddDir, policy: str
) -> None:
    run = make_run(sdd, "a", BAD)
    code, line, err = told("a", "--policy", policy, "--line", "--no-anchor")
    assert (code, err) == (1, "")
    options = ("--policy", policy, "--line", "--run-id", "a")
    assert told(str(run.journal), *options) == (1, line, "")
    data = run.journal.read_bytes()
    shuffled = data.splitlines(keepends=True)
    random.Random(1).shuffle(shuffled)
    assert told("-", *options, given=b"".join(shuffled)) == (1, line, "")
    code, out, err = told("-", "--policy", policy, given=b'{"seq":1}\n')
    assert (code, out) == (2, "")
    assert "line 1: " in err
    assert not sdd.audit.exists()
    value = json.loads(told("a", "--policy", policy, "--json")[1])
    assert value["scoreSha256"] == sha256_hex(line.removesuffix("\n").encode())
    assert {name: value[name] for name in json.loads(line)} == json.loads(line)


def test_of_many_findings_the_first_are_told_and_all_are_in_the_line(
    sdd: SddDir, policy: str
) -> None:
    log = Log()
    for _ in range(30):
        log.call("Bash\n\x1b[2J")
    make_run(sdd, "a", log)
    out = told("a", "--policy", policy)[1].splitlines()
    assert out[0] == "fails allowed_tools: 30 of at most 0 (tool_not_allowed)"
    assert out[1] == "  row 1, call c0, Bash\\n\\x1b[2J: tool_not_allowed"
    assert out[21] == "  and 10 more"
    found = json.loads(told("a", "--policy", policy, "--line")[1])["scores"][0]["findings"]
    assert len(found) == 30


# --- the audit chain


def audited(sdd: SddDir) -> Any:
    keys = default_keys(sdd)
    kept = audit_keys(read_settings().keys_dir)
    return check_audit(sdd.audit, kept, highest_sealed_audit(sdd, keys))


def test_a_result_is_anchored_once_and_the_chain_holds(sdd: SddDir, policy: str) -> None:
    run = make_run(sdd, "a", BAD)
    line = told("a", "--policy", policy, "--line")[1].removesuffix("\n")
    (row,) = rows(sdd.audit)
    report = json.loads(line)
    assert row["type"] == "trajectory.scored"
    assert row["payload"] == {
        "run_id": "a",
        "head": rows(run.journal)[-1]["event_hash"],
        "projection_sha256": report["projectionSha256"],
        "tool_calls_sha256": report["toolCallsSha256"],
        "policy_sha256": report["policySha256"],
        "score_sha256": sha256_hex(line.encode()),
        "holds": False,
    }
    before = sdd.audit.read_bytes()
    out = told("a", "--policy", policy)[1]
    assert out.splitlines()[-1] == "the result was already anchored in the audit chain, row 0"
    assert sdd.audit.read_bytes() == before
    Path("other.yaml").write_text("repeats: {}\n")
    assert told("a", "--policy", "other.yaml")[1].endswith("row 1\n")
    assert told("a", "--policy", policy)[1].endswith("row 0\n")
    assert len(rows(sdd.audit)) == 2
    assert (audited(sdd).verdict, audited(sdd).rows) == ("prefix", 2)
    make_run(sdd, "b", GOOD)  # its seal names the rows
    assert audited(sdd).verdict == "verified"
    assert bernstein("audit", "verify").returncode == 0
    assert bernstein("verify", "a").returncode == 0


def test_a_row_that_our_key_did_not_make_is_no_anchor(sdd: SddDir, policy: str) -> None:
    make_run(sdd, "a", GOOD)
    told("a", "--policy", policy)
    data = sdd.audit.read_text()
    stated = json.loads(data)["hmac"]
    sdd.audit.write_text(data.replace(stated, "0" * 64))
    assert told("a", "--policy", policy)[1].endswith(
        "the result is anchored in the audit chain, row 1\n"
    )
    assert audited(sdd).verdict == "mismatch"


def test_two_at_once_anchor_once(sdd: SddDir, policy: str) -> None:
    make_run(sdd, "a", GOOD)
    command = [sys.executable, "-m", "bernstein", "score", "a", "--policy", policy]
    both = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [one.wait() for one in both] == [0] * 4
    assert len(rows(sdd.audit)) == 1


def test_a_run_that_is_not_sealed_here_is_scored_and_not_anchored(sdd: SddDir, policy: str) -> None:
    make_run(sdd, "a", GOOD, sealed=False)
    code, out, err = told("a", "--policy", policy)
    assert (code, out.splitlines()[-1]) == (0, "holds needless_repeats: 0 of at most 0")
    assert err.startswith("a is not anchored: there is no seal")
    assert not sdd.audit.exists()
    sealed = make_run(sdd, "b", GOOD)
    done = bernstein("save", "b", "saved")
    assert done.returncode == 0, done.stderr
    code, out, err = told("saved", "--policy", policy)
    assert (code, err, sdd.audit.exists()) == (0, "", False)
    assert sealed.journal.exists()


def test_a_run_that_was_sealed_elsewhere_is_scored_and_not_anchored(sdd: SddDir) -> None:
    run = make_run(sdd, "a", GOOD)
    run_id, policy = run.run_id, "p.yaml"
    Path(policy).write_text("repeats: {}\n")
    assert bernstein("export", run_id, "-o", "run.zip").returncode == 0
    (key,) = default_keys(sdd).own_ids()
    done = bernstein("--sdd", "other/.sdd", "import", "run.zip", "--trust-key", key)
    assert done.returncode == 0, done.stderr
    done = bernstein("--sdd", "other/.sdd", "score", run_id, "--policy", policy)
    assert (done.returncode, done.stdout) == (0, "holds needless_repeats: 0 of at most 0\n")
    assert done.stderr == "a is not anchored: it was sealed elsewhere\n"
    assert not Path("other/.sdd/audit/audit.jsonl").exists()


def test_the_policy_of_the_documentation_is_one() -> None:
    page = (Path(__file__).parents[1] / "docs" / "scores.md").read_text()
    block = page.split("## The policy\n")[1].split("Each part")[0]
    found = parse_policy(dedent(block).encode(), "scores.md")
    assert (len(found.budget), found.budget["credits"]) == (4, 1_500_000)
    assert found.repeats is not None
    assert found.allowed_tools is not None
    assert "mcp__docs__find" in found.allowed_tools
    for name in get_args(ScoreName):
        assert f"`{name}`" in page
    for name in get_args(Reason):
        assert f"`{name}`" in page


def test_where_the_audit_chain_cannot_be_written_it_is_said(sdd: SddDir, policy: str) -> None:
    make_run(sdd, "a", GOOD)
    sdd.audit.parent.mkdir()
    sdd.audit.write_text("broken\n")
    code, out, err = told("a", "--policy", policy)
    assert code == 2
    assert out.startswith("holds allowed_tools")
    assert err == (
        "bernstein: the result of a cannot be written to the audit chain: "
        f"{sdd.audit} does not end in a whole row\n  mend that, or score with --no-anchor\n"
    )
    assert sdd.audit.read_text() == "broken\n"
    assert told("a", "--policy", policy, "--no-anchor")[0] == 0


# --- in pytest


def test_the_fixture_scores_runs_files_and_events(
    sdd: SddDir, policy: str, score_run: Any, tmp_path: Path
) -> None:
    run = make_run(sdd, "a", BAD, sealed=False)
    known = score_run("a", policy)
    assert not known.holds
    assert score_run(run, {"allowed_tools": ["Read"], "repeats": {}}) == known
    assert score_run(run.path, ScorePolicy.load(policy)) == known
    events = [TrajectoryEvent(e.seq, "a", e.kind, e.payload) for e in BAD.events]
    assert score_run(events, Path(policy)) == known
    assert score_run(iter(events), policy) == known
    assert score_run(EventFile(run.journal, "a"), policy) == known
    assert score_run(run.journal, policy).scores == known.scores
    assert score_run("a", {"repeats": {"allowed": 1}}).assert_holds() is None
    with pytest.raises(AssertionError) as caught:
        known.assert_holds()
    assert str(caught.value) == (
        "run 'a' does not keep to the policy\n"
        "fails allowed_tools: 1 of at most 0 (tool_not_allowed)\n"
        "  row 7, call c2, Bash: tool_not_allowed\n"
        "fails needless_repeats: 1 of at most 0 (repeated_after_success)\n"
        "  row 4, call c1, Read: repeated_after_success"
    )
    run.journal.write_bytes(run.journal.read_bytes().replace(b'"Read"', b'"Raed"', 1))
    from bernstein import RecordingError

    with pytest.raises(RecordingError, match="does not hold: payload"):
        score_run("a", policy)
    assert not sdd.audit.exists()


@given(st.binary(max_size=200), st.integers(0, len(EVENTS) - 1))
def test_whatever_stands_among_events_is_scored_or_refused(junk: bytes, place: int) -> None:
    lines = [envelope(item) for item in EVENTS]
    lines.insert(place, junk + b"\n")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        path.write_bytes(b"".join(lines))
        events = EventFile(path)
        try:
            report = score(project(events), project_tool_calls(events), ScorePolicy.of(POLICY))
        except FoldError:
            return
    assert report.to_bytes() == scored(EVENTS, **POLICY).to_bytes()
