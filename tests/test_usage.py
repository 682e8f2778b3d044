"""``bernstein usage``: what is counted, in which band, on which day, and what is never claimed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bernstein import EventJournal
from bernstein.canonical import canonical_bytes, decode_strict
from bernstein.capture.pricing import price_book, stated
from bernstein.errors import UsageError
from bernstein.events.payloads import FoldError, ModelUsage, payload_from
from bernstein.fold.source import TrajectoryEvent
from bernstein.fold.usage import Tally, UsageRow, project_usage, tally
from bernstein.fold.zone import zone_named
from bernstein.recording.answer import LlmAnswer
from bernstein.wire.answers import outcome_of
from tests.helpers import ONE_TASK, bernstein, run_plan, script
from tests.upstream import Reply, serving
from tests.upstream import messages as streamed

if TYPE_CHECKING:
    from pathlib import Path

    from bernstein.rundir import RunDir, SddDir

PLAN = """
name: P
stages:
  - name: a
    steps: [{title: X, files: [x.txt]}]
"""


def usage(**changed: Any) -> dict[str, Any]:
    counts = {"inputTokens": 10, "outputTokens": 2, "cachedInputTokens": 3, "credits": 0}
    named = {"provider": "openai", "model": "gpt-4o-mini", "billingStatus": "estimated"}
    return {**named, **counts, **changed}


def row(at: str = "2026-03-01T12:00:00.000000Z", run_id: str = "r", **changed: Any) -> UsageRow:
    payload = payload_from("model.usage", usage(**changed))
    assert isinstance(payload, ModelUsage)
    return UsageRow(run_id, datetime.fromisoformat(at), payload)


def make_run(
    sdd: SddDir, run_id: str, *payloads: dict[str, Any], source: str | None = None, **info: Any
) -> RunDir:
    """A run whose journal holds these rows of usage."""
    run = sdd.new_run(run_id)
    with EventJournal(run_id, sdd.path) as journal:
        for payload in payloads:
            journal.append("model.usage", payload)
    run.write_info({"run_id": run_id, "source_run": source, **info})
    return run


def write_at(run: RunDir, *times: str) -> None:
    """Let rows be written at these times: the chain does not cover them."""
    lines = run.journal.read_text().splitlines(keepends=True)
    changed = [
        re.sub(r'"ts":"[^"]+"', f'"ts":"{time}"', line)
        for line, time in zip(lines, times, strict=True)
    ]
    run.journal.write_text("".join(changed))


def told(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the command."""
    done = bernstein("usage", *arguments, env=env)
    return done.returncode, done.stdout, done.stderr


def told_json(*arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    code, out, err = told(*arguments, "--json", env=env)
    assert (code, err) == (0, "")
    value: dict[str, Any] = json.loads(out)
    return value


# --- the fold


EVENTS = [
    TrajectoryEvent(0, "r", "run.started", {"agentId": "a"}),
    TrajectoryEvent(1, "r", "model.usage", usage(stepId="s")),
    TrajectoryEvent(2, "r", "model.answer", {"key": "k"}),
    TrajectoryEvent(3, "r", "model.usage", usage(stepId="s", inputTokens=5)),
    TrajectoryEvent(4, "r", "model.usage", usage(billingStatus="metered", credits=7, model="m")),
    TrajectoryEvent(
        5,
        "r",
        "model.usage",
        usage(billingStatus="priced", credits=9, priceBookVersion="b", stepId="t"),
    ),
    TrajectoryEvent(6, "r", "model.usage", usage(billingStatus="unsupported")),
]


def test_the_bytes_of_a_runs_usage() -> None:
    def counts(rows: int, tokens: int, cost: int = 0) -> str:
        cached, out = 3 * rows, 2 * rows
        return (
            f'"rows":{rows},"inputTokens":{tokens},"outputTokens":{out},'
            f'"cachedInputTokens":{cached},"credits":{cost}'
        )

    priced = f'"priced":{{{counts(1, 10, 9)},"priceBookVersions":["b"]}}'
    estimated = f'"estimated":{{{counts(2, 15)}}}'
    metered, unsupported = f'"metered":{{{counts(1, 10, 7)}}}', f'"unsupported":{{{counts(1, 10)}}}'
    assert project_usage(EVENTS).to_bytes().decode() == (
        f'{{"runId":"r","totals":{{{metered},{priced},{estimated},{unsupported}}},'
        f'"models":[{{"provider":"openai","model":"gpt-4o-mini",'
        f'"bands":{{{priced},{estimated},{unsupported}}}}},'
        f'{{"provider":"openai","model":"m","bands":{{{metered}}}}}],'
        f'"steps":[{{"bands":{{{metered},{unsupported}}}}},'
        f'{{"stepId":"s","bands":{{{estimated}}}}},{{"stepId":"t","bands":{{{priced}}}}}]}}'
    )


@given(st.permutations(EVENTS + EVENTS[::2]))
def test_any_order_duplicates_and_other_events_give_the_same_bytes(
    shuffled: list[TrajectoryEvent],
) -> None:
    more = TrajectoryEvent(99, "r", "artifact.written", {"path": "x"})
    assert project_usage([*shuffled, more]).to_bytes() == project_usage(EVENTS).to_bytes()


def test_no_events_used_nothing() -> None:
    value = json.loads(project_usage([]).to_bytes())
    assert (value["runId"], value["models"], value["steps"]) == ("", [], [])
    assert {band: counts["rows"] for band, counts in value["totals"].items()} == {
        "metered": 0,
        "priced": 0,
        "estimated": 0,
        "unsupported": 0,
    }


def shown(found: Tally) -> str:
    return json.dumps([found.groups_json(), found.totals.to_json()])


ROWS = [
    row(run_id=run_id, model=model, inputTokens=n, at=f"2026-03-0{1 + n % 3}T23:59:00Z")
    for n, (run_id, model) in enumerate([("a", "m"), ("b", "m"), ("a", "n"), ("c", "m")] * 2)
]


@given(st.permutations(ROWS), st.sampled_from(["model", "day", "step", "run"]))
def test_rows_of_many_runs_sum_to_the_same_in_any_order(shuffled: list[UsageRow], by: Any) -> None:
    assert shown(tally(shuffled, by)) == shown(tally(ROWS, by))
    groups = tally(shuffled, by).groups_json()
    assert sum(group["bands"]["estimated"]["inputTokens"] for group in groups) == 28


@pytest.mark.parametrize("name", ["inputTokens", "outputTokens", "cachedInputTokens", "credits"])
def test_a_total_that_no_calls_can_have_used_is_refused(name: str) -> None:
    most = {"billingStatus": "metered", name: 2**53 - 1}
    assert tally([row(**most)], "model").totals.to_json()["metered"][name] == 2**53 - 1
    with pytest.raises(FoldError, match=r"beyond 2\^53-1"):
        tally([row(**most), row(run_id="other", model="other", **{**most, name: 1})], "model")


# --- days


@pytest.mark.parametrize(
    ("zone", "days"),
    [
        ("UTC", ["2026-03-28", "2026-03-29", "2026-03-29", "2026-03-30"]),
        # There the clock goes from 2 to 3 on the 29th: that day has 23 hours.
        ("Europe/Berlin", ["2026-03-29", "2026-03-29", "2026-03-29", "2026-03-30"]),
        ("America/New_York", ["2026-03-28", "2026-03-28", "2026-03-29", "2026-03-29"]),
        ("Pacific/Kiritimati", ["2026-03-29", "2026-03-29", "2026-03-30", "2026-03-30"]),
    ],
)
def test_a_day_is_cut_in_the_stated_zone(zone: str, days: list[str]) -> None:
    times = (
        "2026-03-28T23:30:00.000000Z",
        "2026-03-29T00:59:59.999999Z",
        "2026-03-29T21:59:59.999999Z",
        "2026-03-30T00:00:00.000000Z",
    )
    for time, day in zip(times, days, strict=True):
        (group,) = tally([row(time)], "day", zone_named(zone)).groups_json()
        assert group["day"] == day, time


@pytest.mark.parametrize(
    ("at", "day"),
    [
        ("2026-10-24T22:00:00Z", "2026-10-25"),
        ("2026-10-25T00:30:00Z", "2026-10-25"),  # 2:30, for the first time
        ("2026-10-25T01:30:00Z", "2026-10-25"),  # and for the second
        ("2026-10-25T22:59:59Z", "2026-10-25"),  # the 25th hour
        ("2026-10-25T23:00:00Z", "2026-10-26"),
    ],
)
def test_the_hour_that_comes_twice_is_of_one_day(at: str, day: str) -> None:
    assert tally([row(at)], "day", zone_named("Europe/Berlin")).groups_json()[0]["day"] == day


@given(st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1)))  # noqa: DTZ001 - made UTC
def test_days_are_those_of_the_zones_own_clock(at: datetime) -> None:
    zone = ZoneInfo("Europe/Berlin")
    found = tally([row(f"{at.isoformat()}Z")], "day", zone_named("Europe/Berlin"))
    assert found.groups_json()[0]["day"] == f"{at.replace(tzinfo=UTC).astimezone(zone):%Y-%m-%d}"


def test_the_machines_own_zone_changes_no_byte(sdd: SddDir) -> None:
    run = make_run(sdd, "a", usage(), usage(outputTokens=3))
    write_at(run, "2026-03-28T22:59:59.999999Z", "2026-03-28T23:00:00.000000Z")
    for arguments in (("--by", "day"), ("--by", "day", "--zone", "Europe/Berlin")):
        known = {
            told(*arguments, env={"TZ": zone})
            for zone in ("UTC", "Asia/Tokyo", "America/New_York", "nonsense")
        }
        assert len(known) == 1
    code, out, err = told("--by", "day", "--zone", "Europe/Berlin")
    assert (code, err) == (0, "")
    assert out == (
        "1 run by day in Europe/Berlin\n"
        "2026-03-28\n"
        "  estimated   1 call, 10 tokens in, 3 cached, 2 out\n"
        "2026-03-29\n"
        "  estimated   1 call, 10 tokens in, 3 cached, 3 out\n"
        "all\n"
        "  estimated   2 calls, 20 tokens in, 6 cached, 5 out\n"
    )


@pytest.mark.parametrize("zone", ["berlin", "", "../etc", "localtime", "/etc/passwd", "Europe"])
def test_an_unknown_zone_is_refused_with_advice(zone: str) -> None:
    code, out, err = told("--zone", zone)
    assert (code, out) == (2, "")
    assert err.startswith(f"bernstein: there is no time zone {zone!r}\n  ")
    assert len(err.splitlines()) == 2


def test_times_that_step_back_change_no_sum(sdd: SddDir) -> None:
    run = make_run(sdd, "a", *[usage()] * 4)
    write_at(run, *(f"2026-03-01T00:0{m}:00.000000Z" for m in (0, 1, 0, 1)))
    assert told_json("--by", "day")["totals"]["estimated"]["rows"] == 4


@pytest.mark.parametrize("at", ["2026-02-30T00:00:00.000000Z", "0001-01-01T00:00:00.000000Z"])
def test_a_run_whose_times_are_none_is_not_counted(sdd: SddDir, at: str) -> None:
    write_at(make_run(sdd, "a", usage()), at)
    code, _, err = told("--by", "day", "--zone", "America/New_York")
    assert (code, err) == (
        1,
        f"bernstein: a is not counted: row 0 was written at no time: {at}\n",
    )


# --- which runs


def test_a_replay_spent_nothing_and_is_left_out_and_said(sdd: SddDir) -> None:
    rule = {"text": "x", "usage": {"input": 5, "output": 7}}
    script({"match": "Split one step", "text": ONE_TASK}, rule)
    recorded = run_plan(PLAN, sdd).run_id
    replayed = run_plan(PLAN, sdd, replay=recorded).run_id
    value = told_json()
    assert (value["runs"], value["leftOut"]["replays"]) == ([recorded], [replayed])
    assert value["totals"] == told_json(recorded)["totals"]
    twice = told_json("--include-replays")
    assert (twice["runs"], twice["leftOut"]["replays"]) == ([recorded, replayed], [])
    for name, count in twice["totals"]["estimated"].items():
        assert count == 2 * value["totals"]["estimated"][name]
    out = told(replayed)[1]
    assert out == (
        "0 runs by model\nno usage is reported\n"
        "left out: 1 replay, which spent nothing (--include-replays counts them)\n"
    )


def test_a_replay_that_could_ask_live_is_named(sdd: SddDir) -> None:
    make_run(sdd, "a", usage())
    make_run(sdd, "b", usage(), source="a", records=True)
    assert told_json()["leftOut"]["replaysPartlyLive"] == ["b"]
    assert "left out: b: replays that could ask live" in told()[1]


def test_runs_with_equal_heads_count_once_and_it_is_said(sdd: SddDir) -> None:
    for run_id in ("a", "b", "c"):
        make_run(sdd, run_id, usage())
    make_run(sdd, "d", usage(inputTokens=11))
    value = told_json()
    assert value["runs"] == ["a", "d"]
    assert value["leftOut"]["equal"] == [
        {"runId": "b", "equals": "a"},
        {"runId": "c", "equals": "a"},
    ]
    assert "counted once, with equal heads: b as a, c as a\n" in told()[1]
    assert told_json("b", "b")["runs"] == ["b"]
    assert told_json("c", "a") == told_json("a", "c")


def test_the_same_file_imported_twice_counts_once(sdd: SddDir, tmp_path: Path) -> None:
    counts = {"input_tokens": 10, "output_tokens": 2}
    message = {"id": "m1", "model": "claude-x", "usage": counts, "content": []}
    line = json.dumps({"type": "assistant", "sessionId": "s", "message": message})
    (tmp_path / "events.jsonl").write_text(f"{line}\n")
    for _ in range(2):
        done = bernstein("import", "events", str(tmp_path / "events.jsonl"))
        assert done.returncode == 0, done.stderr
    value = told_json()
    assert (len(value["runs"]), len(value["leftOut"]["equal"])) == (1, 1)
    assert value["totals"]["estimated"]["inputTokens"] == 10


def test_a_run_that_does_not_hold_is_not_counted_and_is_named(sdd: SddDir) -> None:
    good = make_run(sdd, "a", usage())
    bad = make_run(sdd, "b", usage(), usage())
    bad.journal.write_bytes(
        bad.journal.read_bytes().replace(b'"inputTokens":10', b'"inputTokens":11', 1)
    )
    torn = make_run(sdd, "c", usage())
    torn.journal.write_bytes(torn.journal.read_bytes()[:-1])
    make_run(sdd, "d").journal.unlink(missing_ok=True)
    make_run(sdd, "e", usage(inputTokens=-1))
    make_run(sdd, "f", usage()).run_json.write_text("{")
    code, out, err = told()
    assert code == 1
    assert out.startswith("1 run by model\nopenai:gpt-4o-mini\n  estimated   1 call, 10 tokens in")
    said = [line.removeprefix("bernstein: ") for line in err.splitlines()]
    assert [line.split(" is not counted: ")[0] for line in said] == ["b", "c", "d", "e", "f"]
    for part, line in zip(
        ("row 0: payload", "row 0: torn", "it has no journal", "$.payload.inputTokens", "damaged"),
        said,
        strict=True,
    ):
        assert part in line
    assert told("b")[0] == 1
    assert good.journal.exists()


def test_an_unknown_run_cannot_be_counted(sdd: SddDir) -> None:
    code, out, err = told("nowhere")
    assert (code, out) == (2, "")
    assert "there is no run 'nowhere'" in err
    assert told()[1] == "0 runs by model\nno usage is reported\n"


def test_totals_of_runs_beyond_what_a_number_holds_are_refused(sdd: SddDir) -> None:
    for run_id in ("a", "b"):
        make_run(sdd, run_id, usage(inputTokens=2**53 - 1, stepId=run_id))
    code, out, err = told("--by", "run")
    assert (code, out) == (2, "")
    assert "the total of inputTokens is beyond 2^53-1" in err
    assert told("a")[0] == 0


def test_what_others_named_cannot_act_on_a_terminal(sdd: SddDir) -> None:
    make_run(sdd, "a", usage(model="m\x1b[2J\u202e", provider="p"))
    code, out, _ = told()
    assert code == 0
    assert "p:m\\x1b[2J\\u202e\n" in out
    assert told_json()["groups"][0]["model"] == "m\x1b[2J\u202e"


# --- prices


def test_a_price_is_stated_for_estimated_rows_and_written_nowhere(sdd: SddDir) -> None:
    run = make_run(
        sdd,
        "a",
        usage(inputTokens=1000, cachedInputTokens=0, outputTokens=100),
        usage(model="a-model-of-nobody"),
        usage(billingStatus="metered", credits=5),
        usage(billingStatus="unsupported"),
    )
    before = {path: path.read_bytes() for path in sdd.path.rglob("*") if path.is_file()}
    value = told_json("--price")
    # 1000 tokens in at $0.15 and 100 out at $0.60 a million
    assert value["totals"]["priced"] == {
        "rows": 1,
        "inputTokens": 1000,
        "outputTokens": 100,
        "cachedInputTokens": 0,
        "credits": 210,
        "priceBookVersions": [price_book()],
    }
    assert value["priceBook"] == price_book()
    assert value["unpriced"] == [{"provider": "openai", "model": "a-model-of-nobody"}]
    rows_of = {band: counts["rows"] for band, counts in value["totals"].items()}
    assert rows_of == {"metered": 1, "priced": 1, "estimated": 1, "unsupported": 1}
    assert value["totals"]["metered"]["credits"] == 5
    out = told("--price")[1]
    assert f"$0.000210 ({price_book()})\n" in out
    assert f"prices are statements by {price_book()}, not charges; each call is rounded up\n" in out
    assert "no price is known of openai:a-model-of-nobody\n" in out
    assert {path: path.read_bytes() for path in before} == before
    assert "priced" not in told_json()["totals"]
    assert run.journal.exists()


def test_each_row_is_rounded_up_and_not_the_sum() -> None:
    def price(one: UsageRow) -> ModelUsage:
        return stated(one.payload, one.written_at)

    small = row(inputTokens=1, cachedInputTokens=0, outputTokens=0)  # 0.15 micro-dollars
    found = tally([small] * 3, "model", price=price).totals.to_json()
    assert found["priced"]["credits"] == 3


def test_cached_tokens_have_their_own_price() -> None:
    plain = row(inputTokens=1_000_000, cachedInputTokens=0, outputTokens=0)
    cached = row(inputTokens=0, cachedInputTokens=1_000_000, outputTokens=0)
    prices = [stated(one.payload, one.written_at).credits for one in (plain, cached)]
    assert prices == [150_000, 75_000]


def test_a_price_is_that_of_the_day_of_the_call() -> None:
    # Of a model whose price went down: the book knows since when.
    one = row(model="o3", inputTokens=1_000_000, cachedInputTokens=0, outputTokens=0)
    early, late = (
        stated(one.payload, datetime(year, 1, 1, tzinfo=UTC)).credits for year in (2025, 2026)
    )
    assert (early, late) == (10_000_000, 2_000_000)


def test_a_price_that_no_call_can_have_is_refused() -> None:
    with pytest.raises(UsageError, match="leave out --price"):
        one = row(model="o1-pro", inputTokens=2**53 - 1)
        stated(one.payload, one.written_at)


def test_where_there_is_no_book_it_is_said_how_to_get_it(sdd: SddDir) -> None:
    make_run(sdd, "a", usage())
    code = (
        "import importlib.metadata as m, sys\n"
        "def gone(name): raise m.PackageNotFoundError(name)\n"
        "m.version = gone\n"
        "from bernstein.cli import main\n"
        "sys.exit(main(['usage', '--price']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "bernstein: stating prices needs a package that is not here\n"
        "  install it: pip install 'bernstein-replay[providers]'\n"
    )


def test_without_price_the_book_is_not_loaded(sdd: SddDir) -> None:
    code = (
        "import sys; from bernstein.cli import main; main(['usage'])\n"
        "sys.exit(any(name.startswith('genai_prices') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_trajectorys_usage_is_one_line(sdd: SddDir) -> None:
    run = make_run(sdd, "a", usage(stepId="s"))
    done = bernstein("trajectory", "a", "--usage")
    assert (done.returncode, done.stderr) == (0, "")
    payload = {"agentId": "x"}
    assert json.loads(done.stdout)["models"][0]["bands"]["estimated"]["rows"] == 1
    assert (
        done.stdout.encode()
        == project_usage(
            [
                TrajectoryEvent(0, "a", "model.usage", usage(stepId="s")),
                TrajectoryEvent(1, "a", "run.started", payload),
            ]
        ).to_bytes()
        + b"\n"
    )
    both = bernstein("trajectory", "a", "--usage", "--tool-calls")
    assert (both.returncode, both.stdout) == (2, "")
    assert run.journal.exists()


# --- one meaning, whatever the provider's habit


def read(kind: Any, *values: dict[str, Any]) -> dict[str, Any] | None:
    """The usage that an answer of a provider holds; None where it makes none."""
    outcome = outcome_of(kind, list(values), is_whole=True)
    usage = outcome.usage if isinstance(outcome, LlmAnswer) else None
    return None if usage is None else usage.to_json()


# One call each, as the providers report it: 90 tokens in, 30 of them from a cache, 9 out.
def messages(**counts: Any) -> dict[str, Any]:
    said = {"input_tokens": 60, "cache_read_input_tokens": 30, "output_tokens": 9, **counts}
    return {"type": "message", "content": [], "stop_reason": "end_turn", "usage": said}


def chat(**counts: Any) -> dict[str, Any]:
    details = {"prompt_tokens_details": {"cached_tokens": 30}}
    said = {"prompt_tokens": 90, "completion_tokens": 9, "total_tokens": 99, **details, **counts}
    return {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}], "usage": said}


def responses(**counts: Any) -> dict[str, Any]:
    details = {"input_tokens_details": {"cached_tokens": 30}}
    said = {"input_tokens": 90, "output_tokens": 9, "total_tokens": 99, **details, **counts}
    return {"object": "response", "output": [], "status": "completed", "usage": said}


def generate(**counts: Any) -> dict[str, Any]:
    said = {"promptTokenCount": 90, "cachedContentTokenCount": 30, "totalTokenCount": 99}
    out = {"candidatesTokenCount": 4, "thoughtsTokenCount": 5}
    content = {"parts": [{"text": "x"}]}
    return {
        "candidates": [{"content": content, "finishReason": "STOP"}],
        "usageMetadata": {**said, **out, **counts},
    }


ANSWERS = [
    pytest.param("messages", messages, "input_tokens", "output_tokens", id="anthropic"),
    pytest.param("chat", chat, "prompt_tokens", "completion_tokens", id="openai-chat"),
    pytest.param("responses", responses, "input_tokens", "output_tokens", id="openai-responses"),
    pytest.param("generate", generate, "promptTokenCount", "candidatesTokenCount", id="google"),
]
Body = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(("kind", "body", "tokens_in", "tokens_out"), ANSWERS)
def test_tokens_in_are_those_that_came_from_no_cache(
    kind: str, body: Body, tokens_in: str, tokens_out: str
) -> None:
    del tokens_in, tokens_out
    assert read(kind, body()) == {
        "inputTokens": 60,
        "outputTokens": 9,
        "cachedInputTokens": 30,
        "credits": 0,
        "billingStatus": "estimated",
    }


def test_tokens_that_were_written_to_a_cache_came_from_none() -> None:
    found = read("messages", messages(input_tokens=20, cache_creation_input_tokens=40))
    assert found == read("messages", messages())


@pytest.mark.parametrize(("kind", "body", "tokens_in", "tokens_out"), ANSWERS)
def test_a_count_that_is_missing_is_none_and_the_others_stay(
    kind: str, body: Body, tokens_in: str, tokens_out: str
) -> None:
    found = read(kind, body(**{tokens_in: None}))
    assert found is not None
    assert found["inputTokens"] == 0
    assert found["cachedInputTokens"] == 30
    value = body()
    del value["usage" if "usage" in value else "usageMetadata"]
    assert read(kind, value) is None
    assert isinstance(outcome_of(kind, [value], is_whole=True), LlmAnswer)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [-1, "9", 9.5, 2**53, [9], {"n": 9}, 1e300])
@pytest.mark.parametrize(("kind", "body", "tokens_in", "tokens_out"), ANSWERS)
def test_a_count_that_can_be_none_makes_no_usage_and_poisons_no_total(
    kind: str, body: Body, tokens_in: str, tokens_out: str, count: Any
) -> None:
    del tokens_in
    assert read(kind, body(**{tokens_out: count, "thoughtsTokenCount": None})) is None


@pytest.mark.parametrize(("kind", "body", "tokens_in", "tokens_out"), ANSWERS)
@given(counts=st.tuples(*[st.none() | st.integers() | st.floats() | st.booleans() | st.text()] * 2))
def test_whatever_is_counted_is_a_row_that_folds_or_none(
    kind: str, body: Body, tokens_in: str, tokens_out: str, counts: tuple[Any, Any]
) -> None:
    found = read(kind, body(**dict(zip((tokens_in, tokens_out), counts, strict=True))))
    if found is not None:
        decoded = decode_strict(canonical_bytes(found))
        assert payload_from("model.usage", {"provider": "p", "model": "m", **decoded})


def test_a_whole_number_with_a_point_is_that_number() -> None:
    assert read("chat", chat(prompt_tokens=90.0, completion_tokens=9.0)) == read("chat", chat())


SDKS = [
    pytest.param("messages", messages, "anthropic", "claude-sonnet-4-5", id="anthropic"),
    pytest.param("chat", chat, "openai", "gpt-4o-mini", id="openai"),
    pytest.param("generate", generate, "google", "gemini-2.5-flash", id="google"),
]


@pytest.mark.loopback
@pytest.mark.parametrize(("kind", "body", "provider", "model"), SDKS)
def test_a_call_of_ours_and_an_exchange_of_a_client_mean_the_same(
    sdd: SddDir, kind: str, body: Body, provider: str, model: str
) -> None:
    value = body()
    if kind == "chat":
        value |= {"id": "x", "model": model, "created": 1, "object": "chat.completion"}
        value["choices"][0] |= {"index": 0, "message": {"role": "assistant", "content": "x"}}
    known = read(kind, value)
    reply = Reply([json.dumps(value).encode()])
    if kind == "messages":  # which is asked for as a stream
        counts = {**value["usage"], "cache_creation_input_tokens": 0}
        pieces = [
            piece.replace(b'{"input_tokens": 7, "output_tokens": 3}', json.dumps(counts).encode())
            for piece in streamed({"text": "x"})
        ]
        pieces = [piece.replace(b'"output_tokens": 3}', b'"output_tokens": 9}') for piece in pieces]
        reply = Reply(pieces, kind="text/event-stream")
    program = f"import bernstein; bernstein.call_llm('hi', model='{provider}:{model}')"
    with serving(lambda *_: reply) as upstream:
        urls = {
            "OPENAI_BASE_URL": f"{upstream.base_url}/v1",
            "ANTHROPIC_BASE_URL": upstream.base_url,
            "GOOGLE_GEMINI_BASE_URL": upstream.base_url,
        }
        keys = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY"), "k")
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **urls, **keys},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    (found,) = told_json()["groups"]
    assert (found["provider"], found["model"]) == (provider, model)
    assert known is not None
    (priced,) = found["bands"].values()
    for name in ("inputTokens", "outputTokens", "cachedInputTokens"):
        assert priced[name] == known[name]
    assert priced["priceBookVersions"] == [price_book()]
    # Stating the price later comes to the same.
    exchanged = stated(row(provider=provider, model=model, **known).payload, datetime.now(UTC))
    assert exchanged.credits == priced["credits"]
