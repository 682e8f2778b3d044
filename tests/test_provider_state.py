"""What changed the model's context: found, chained, mirrored, flagged, and held to its recording."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bernstein.capture.gateway.taped import import_events
from bernstein.chain.journal import EventJournal
from bernstein.chain.verify import check_chain
from bernstein.errors import RecordingError
from bernstein.events.provider_state import KINDS, Mutation, is_addressed, mutation_of
from bernstein.interop.events import read_event_file
from bernstein.interop.vcr import read_cassette
from bernstein.seal.audit import audit_keys, check_audit
from bernstein.settings import read_settings
from bernstein.wire.answers import read_values
from bernstein.wire.history import Histories
from bernstein.wire.profile import load_profile
from bernstein.wire.protocol import kind_of
from bernstein.wire.reported import (
    before_members,
    is_same_model,
    reported_in_request,
    reported_in_response,
)
from bernstein.wire.sight import Sights
from tests.clients import run_client
from tests.helpers import events, rows, unseal, verify
from tests.plans import plan_of, pointed_at
from tests.test_bundle import check as check_bundle
from tests.test_bundle import check_by_node
from tests.test_gateway import ask, session
from tests.upstream import Reply, event, serving

if TYPE_CHECKING:
    from collections.abc import Callable

    from bernstein.rundir import RunDir, SddDir

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(300)]

SSE = "text/event-stream"


# --- what is found in answers


def message(*blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    usage = {"input_tokens": 612, "output_tokens": 3, **more.pop("usage", {})}
    return {"type": "message", "model": "m", "content": list(blocks), "usage": usage, **more}


COMPACTED = {"type": "compaction", "content": "it was summed up", "encrypted_content": None}
ITERATIONS = [
    {"type": "compaction", "input_tokens": 60385, "output_tokens": 900},
    {"type": "message", "input_tokens": 612, "output_tokens": 3},
]
EDIT = {"type": "clear_tool_uses_20250919", "cleared_tool_uses": 4, "cleared_input_tokens": 900}
ITEM = {"type": "compaction", "id": "cmp_1", "encrypted_content": "aaa"}


def found(
    kind: str, *values: dict[str, Any], asked: Any = None
) -> list[tuple[str, dict[str, int]]]:
    reports = reported_in_response(kind, "/v1/x", asked, list(values))  # type: ignore[arg-type]
    return [(report.kind, report.tokens) for report in reports]


def test_a_compaction_block_is_found_though_no_edit_was_applied() -> None:
    empty = {"applied_edits": []}
    whole = message(COMPACTED, usage={"iterations": ITERATIONS}, context_management=empty)
    assert found("messages", whole) == [("compaction", {"before": 60385, "after": 612})]


def streamed(*deltas: str | None) -> list[dict[str, Any]]:
    start = {"type": "compaction", "content": None}
    stop = {"stop_reason": "end_turn"}
    return [
        {"type": "message_start", "message": message(usage={"input_tokens": 60385})},
        {"type": "content_block_start", "index": 0, "content_block": start},
        *(
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "compaction_delta", "content": delta},
            }
            for delta in deltas
        ),
        {"type": "message_delta", "delta": stop, "usage": {"input_tokens": 612}},
    ]


def test_a_streamed_compaction_has_the_counts_before_and_after_it() -> None:
    assert found("messages", *streamed("it was ", "summed up")) == [
        ("compaction", {"before": 60385, "after": 612})
    ]
    (report,) = reported_in_response("messages", "", None, streamed("it was ", "summed up"))
    assert report.payload["content_block"]["content"] == "it was summed up"


@pytest.mark.parametrize(
    "values",
    [
        [message({"type": "compaction", "content": None})],
        streamed(None),
        streamed(),
        [message({"type": "text", "text": "compaction"})],
        [message(context_management={"applied_edits": []})],
        [message(context_management=None)],
    ],
)
def test_what_changed_nothing_is_no_mutation(values: list[dict[str, Any]]) -> None:
    assert found("messages", *values) == []


def test_applied_edits_are_found_plain_and_at_the_end_of_a_stream() -> None:
    thinking = {"type": "clear_thinking_20251015", "cleared_thinking_turns": 2}
    edits = {"applied_edits": [EDIT, thinking]}
    wanted = [("tool_result_clearing", {"cleared": 900}), ("thinking_clearing", {})]
    assert found("messages", message(context_management=edits)) == wanted
    end = {"type": "message_delta", "delta": {}, "context_management": edits}
    assert found("messages", {"type": "message_start", "message": message()}, end) == wanted


def test_an_edit_of_a_type_that_is_not_known_is_told_all_the_same() -> None:
    edits = {"applied_edits": [{"type": "drop_images_2027", "more": [1]}]}
    (report,) = reported_in_response("messages", "", None, [message(context_management=edits)])
    assert (report.kind, report.payload["more"]) == ("truncation", [1])


def test_an_item_of_openai_counts_once_though_its_opaque_content_differs() -> None:
    done = {"type": "response.output_item.done", "output_index": 1, "item": ITEM}
    added = {**done, "type": "response.output_item.added"}
    whole = {"model": "m", "output": [{**ITEM, "encrypted_content": "other"}]}
    end = {"type": "response.completed", "response": whole}
    assert found("responses", added, done, end) == [("compaction", {})]
    assert found("responses", end) == [("compaction", {})]
    compacted = {"object": "response.compaction", "output": [{"type": "message"}, ITEM]}
    assert found("compact", compacted) == [("compaction", {})]


def test_a_fallback_is_told_by_its_block_and_by_the_answers_model() -> None:
    block = {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}}
    assert found("messages", message(block)) == [("model_fallback", {})]
    answered = {"model": "grok-4.3", "choices": []}
    assert found("chat", answered, asked={"model": "grok-3-mini"}) == [("model_fallback", {})]
    tier = {"model": "m", "choices": [], "service_tier": "default"}
    assert found("chat", tier, asked={"model": "m", "service_tier": "flex"}) == [
        ("model_fallback", {})
    ]
    assert found("chat", tier, asked={"model": "m", "service_tier": "auto"}) == []


@pytest.mark.parametrize(
    ("asked", "answered", "is_same"),
    [
        ("gpt-4o", "gpt-4o-2024-08-06", True),
        ("claude-haiku-4-5", "claude-haiku-4-5-20251001", True),
        ("claude-sonnet-4-0", "claude-sonnet-4-20250514", True),
        ("anthropic/claude-sonnet-4.6", "anthropic/claude-4.6-sonnet-20260217", True),
        ("us.anthropic.claude-3-5-haiku-20241022-v1:0", "claude-3-5-haiku-20241022", True),
        ("Qwen3-1.7B-Q4_K_M", "/models/Qwen3-1.7B-Q4_K_M.gguf", True),
        ("gpt-4", "gpt-4-0613", True),
        ("gpt-4o", "gpt-4o-mini-2024-07-18", False),
        ("gpt-4", "gpt-4.5", False),
        ("claude-sonnet-4-5", "claude-opus-4-5", False),
        ("claude-sonnet-4", "claude-sonnet-4-5", False),
        ("gpt-4.1-mini", "moonshotai/kimi-k2", False),
        ("Qwen3-1.7B-Q4_K_M", "/models/Qwen3-8B-Q4_K_M.gguf", False),
    ],
)
def test_a_dated_name_is_the_same_model_and_another_size_is_not(
    asked: str, answered: str, is_same: bool
) -> None:
    assert is_same_model(asked, answered) is is_same


@pytest.mark.parametrize(
    ("kind", "body", "count"),
    [
        ("responses", {"previous_response_id": "resp_1"}, 1),
        ("responses", {"previous_response_id": None, "conversation": ""}, 0),
        ("responses", {"conversation": {"id": "conv_1"}, "input": [ITEM]}, 2),
        ("messages", {"messages": [{"role": "assistant", "content": [COMPACTED]}]}, 1),
        ("messages", {"messages": [{"role": "user", "content": "compaction"}]}, 0),
        ("chat", {"conversation": "mine"}, 0),
        ("responses", [1], 0),
        ("messages", {"messages": {"content": None}}, 0),
    ],
)
def test_what_the_server_holds_is_referred_to_by_the_request(
    kind: Any, body: Any, count: int
) -> None:
    reports = reported_in_request(kind, "/v1/x", body)
    assert [report.kind for report in reports] == ["held_state_reference"] * count


@pytest.mark.parametrize(
    "value",
    [
        {"usage": {"input_tokens": "12", "iterations": "x"}},
        {"content": [None, 3, {"type": 5}]},
        {"context_management": {"applied_edits": {"a": 1}}},
        {"context_management": 7},
        {"usage": []},
    ],
)
def test_an_odd_answer_reports_nothing_and_raises_nothing(value: dict[str, Any]) -> None:
    assert found("messages", {"type": "message", **value}) == []
    assert found("responses", {"output": [3], **value}) == []


# --- what a client takes out of its own history


def said(role: str, *blocks: Any) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def result(words: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "t", "content": words}


ONE = said("user", text("do it"))
TWO = said("assistant", {"type": "thinking", "thinking": "hm"}, text("I do"))
THREE = said("user", result("much text"))
FOUR = said("assistant", text("more"))
FIVE = said("user", text("go on"))


def shown(*histories: list[dict[str, Any]], system: str = "s") -> list[str]:
    """What a conversation shows whose requests have these messages."""
    followed = Histories()
    reports = []
    for history in histories:
        body = {"model": "m", "system": system, "messages": history}
        reports += followed.follow("lane-1", "messages", body)
    return [report.kind for report in reports]


@pytest.mark.parametrize(
    ("histories", "kinds"),
    [
        ([[ONE], [ONE, TWO, THREE]], []),
        ([[ONE, TWO, THREE], [ONE, TWO, THREE]], []),
        ([[ONE, TWO, THREE, FOUR, FIVE], [said("user", text("a summary")), FIVE]], ["compaction"]),
        ([[ONE, TWO, THREE, FOUR, FIVE], [THREE, FOUR, FIVE, FOUR]], ["truncation"]),
        (
            [[ONE, TWO, THREE], [ONE, TWO, said("user", result("gone")), FOUR]],
            ["tool_result_clearing"],
        ),
        (
            [
                [ONE, TWO, THREE],
                [ONE, TWO, said("user", result("[Old tool result content cleared]"))],
            ],
            ["microcompaction"],
        ),
        ([[ONE, TWO, THREE], [ONE, said("assistant", text("I do")), THREE]], ["thinking_clearing"]),
        ([[ONE], [FIVE]], []),
        ([[ONE, TWO, THREE], [FIVE], [ONE, TWO, THREE, FOUR]], []),
        ([[ONE, TWO], [ONE, said("assistant", text("I do not")), THREE]], ["context_reset"]),
    ],
)
def test_a_history_that_is_no_extension_shows_what_was_done_to_it(
    histories: list[list[dict[str, Any]]], kinds: list[str]
) -> None:
    assert shown(*histories) == kinds


def test_what_the_server_holds_is_no_history_that_was_made_shorter() -> None:
    followed = Histories()
    for number, words in enumerate(("one", "two", "three")):
        body = {"model": "m", "input": [text(words)], "previous_response_id": f"r{number}"}
        assert followed.follow("lane-1", "responses", body) == []


def test_what_a_client_hangs_on_its_last_message_is_no_change() -> None:
    reminder = text("<system-reminder>now</system-reminder>")
    marked = said("user", text("do it", cache_control={"type": "ephemeral"}), reminder)
    assert shown([marked], [ONE, TWO, THREE]) == []


def test_a_text_is_the_same_message_as_a_list_with_that_text() -> None:
    system = {"role": "system", "content": [text("be brief")]}
    as_text = {"role": "system", "content": "be brief"}
    assert shown([system, ONE], [as_text, ONE, TWO]) == []


def test_two_different_compactions_have_two_digests() -> None:
    reports = []
    for words in ("they asked for this", "they asked for that"):
        followed = Histories()
        summary = f"This session is being continued from a previous conversation: {words}"
        for history in ([ONE, TWO, THREE], [said("user", text(summary))]):
            body = {"model": "m", "messages": history}
            reports += followed.follow("lane-1", "messages", body)
    assert reports[0].kind == reports[1].kind == "compaction"
    assert reports[0].payload != reports[1].payload


def test_a_new_conversation_about_summaries_is_no_compaction() -> None:
    asked = said("user", text("summarise this file: the model ran out of context"))
    assert shown([ONE, TWO, THREE], [asked]) == []


def test_a_history_shows_nothing_of_thoughts_that_the_server_drops() -> None:
    sights = Sights()
    sights.asked("anthropic", "messages", {"thinking": {"type": "enabled"}}, has_lane=True)
    (row,) = sights.capabilities()
    assert row["kinds"]["thinking_clearing"]["value"] == "declared-blind"
    assert row["kinds"]["compaction"] == {"value": "observed", "channel": "history"}


def test_a_request_with_another_system_prompt_is_beside_the_conversation() -> None:
    followed = Histories()
    for system, history in (
        ("s", [ONE, TWO, THREE]),
        ("title", [FIVE]),
        ("s", [ONE, TWO, THREE, FOUR]),
    ):
        body = {"model": "m", "system": system, "messages": history}
        assert followed.follow("lane-1", "messages", body) == []


def test_the_state_before_is_what_is_labelled_so_in_either_spelling() -> None:
    report = {"a": {"pre_tokens": 1, "other": 2, "preTokens": 3}, "before_x": [4], "prefix": 5}
    assert before_members(report) == {"a": {"pre_tokens": 1, "preTokens": 3}, "before_x": [4]}
    assert before_members({"a": 1}) is None


# --- what is chained at the wire


def compacting(path: str, body: dict[str, Any], number: int) -> Reply:
    whole = message(COMPACTED, text("done"), usage={"iterations": ITERATIONS})
    return Reply([json.dumps(whole).encode()])


def record(sdd: SddDir, answer: Callable[[str, dict[str, Any], int], Reply], *asked: Any) -> RunDir:
    with serving(answer) as upstream, session(sdd, upstream.base_url) as gateway:
        for body in asked or ({"model": "m", "messages": [ONE]},):
            ask(gateway.server.base_url("anthropic"), "/v1/messages", body)
    return sdd.find_run("latest")


def mutation_rows(run: RunDir) -> list[dict[str, Any]]:
    return events(run, "provider_state_mutation")


def counts(row: dict[str, Any]) -> dict[str, int]:
    """The counts of a mutation's row."""
    return {name: n for name, n in row["payload"]["tokens"].items() if name != "rest_digest"}


def test_a_mutation_stands_behind_its_answer_and_in_the_audit_chain(
    sdd: SddDir, tmp_path: Path
) -> None:
    run = record(sdd, compacting)
    (row,) = mutation_rows(run)
    before = [r["event"] for r in events(run)[: row["index"]]]
    assert before[-3:] == ["model.call", "model.answer", "model.usage"]
    assert is_addressed(row["payload"], row["index"])
    assert row["payload"]["kind"] == "compaction"
    assert row["payload"]["before_digest"] is None
    assert counts(row) == {"before": 60385, "after": 612}
    (mirror,) = rows(sdd.audit)
    assert mirror["type"] == "provider.state_mutation"
    assert mirror["payload"] == {
        "run_id": run.run_id,
        "index": row["index"],
        "head": row["event_hash"],
        "address": row["payload"]["address"],
        "kind": "compaction",
        "flagged": False,
    }
    keys = audit_keys(read_settings().keys_dir)
    assert check_audit(sdd.audit, keys, None).rows == 1
    assert verify(sdd, run).verdict == "verified"


def replay(sdd: SddDir, run: RunDir, *asked: Any) -> Any:
    with session(sdd, replay=run.run_id) as gateway:
        for body in asked or ({"model": "m", "messages": [ONE]},):
            ask(gateway.server.base_url("anthropic"), "/v1/messages", body)
    return gateway


def test_a_replay_chains_the_same_mutation(sdd: SddDir) -> None:
    run = record(sdd, compacting)
    again = replay(sdd, run)
    assert again.code == 0
    assert again.run.comparison().relation == "identical"
    assert len(rows(sdd.audit)) == 2


@pytest.mark.parametrize("change", ["removed", "edited", "unflagged"])
def test_a_mutation_that_is_removed_or_edited_breaks_the_chain_at_its_row(
    sdd: SddDir, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setenv("BERNSTEIN_DETERMINISTIC_SEED", "7")
    run = record(sdd, compacting)
    (row,) = mutation_rows(run)
    lines = run.journal.read_bytes().split(b"\n")
    if change == "removed":
        del lines[row["index"]]
    elif change == "edited":
        lines[row["index"]] = lines[row["index"]].replace(b"compaction", b"truncation")
    else:
        lines[row["index"]] = lines[row["index"]].replace(b'"flagged":true', b'"flagged":false')
    run.journal.write_bytes(b"\n".join(lines))
    verdict = verify(sdd, run)
    assert (verdict.verdict, verdict.step_index) == ("mismatch", row["index"])


@pytest.mark.parametrize("change", ["removed", "another kind", "added", "of a request"])
def test_a_chain_written_anew_without_what_its_recording_shows_does_not_hold(
    sdd: SddDir, change: str
) -> None:
    run = record(sdd, compacting)
    unseal(sdd, run)
    chained = [(r["event"], r["payload"], r["lane"]) for r in events(run)]
    (at,) = (n for n, (name, _, _) in enumerate(chained) if name == "provider_state_mutation")
    name, payload, lane = chained.pop(at)
    mutation = mutation_of(payload)
    if change == "another kind":
        mutation = mutation._replace(kind="truncation")
    places = {"removed": [], "another kind": [at], "added": [at, at], "of a request": [2, at]}
    for place in places[change]:
        chained.insert(place, (name, mutation, lane))  # type: ignore[arg-type]
    run.journal.unlink()
    with EventJournal(run.run_id, sdd.path) as journal:
        for index, (named, what, where) in enumerate(chained):
            row = what.payload(index, flagged=False) if isinstance(what, Mutation) else what
            journal.append(named, row, where)
    verdict = verify(sdd, run)
    assert (verdict.verdict, verdict.reason) == ("mismatch", "recording")


def test_with_a_seed_a_mutation_is_flagged_and_verify_says_which(
    sdd: SddDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERNSTEIN_DETERMINISTIC_SEED", "7")
    run = record(sdd, compacting)
    monkeypatch.delenv("BERNSTEIN_DETERMINISTIC_SEED")
    (row,) = mutation_rows(run)
    assert row["payload"]["flagged"] is True
    verdict = verify(sdd, run)
    assert (verdict.verdict, verdict.step_index) == ("flagged", row["index"])
    check = run_client(sdd, "replay", run.run_id, "--verify", cwd=tmp_path)
    assert check.returncode == 1
    assert f"row {row['index']}" in check.stdout
    assert run_client(sdd, "verify", "--all", cwd=tmp_path).returncode == 1
    # Its replay takes the mode from it, not from the environment.
    again = replay(sdd, run)
    assert again.code == 0
    (flagged,) = mutation_rows(again.run.dir)
    assert flagged["payload"] == row["payload"]
    bundle = tmp_path / "run.zip"
    assert run_client(sdd, "export", run.run_id, "-o", str(bundle), cwd=tmp_path).returncode == 0
    signer = str(verdict.signer)
    for code, said in (check_bundle(bundle, signer), check_by_node(bundle, signer)):
        assert (code, said.split(":")[0]) == (1, "flagged")


def test_a_recording_from_before_there_were_mutations_replays_as_it_is(sdd: SddDir) -> None:
    run = record(sdd, compacting)
    info = run.read_info()
    del info["watches_context"]
    run.write_info(info)
    unseal(sdd, run)
    kept = [
        (r["event"], r["payload"], r["lane"])
        for r in events(run)
        if not r["event"].startswith("provider_state")
    ]
    run.journal.unlink()
    with EventJournal(run.run_id, sdd.path) as journal:
        for name, payload, lane in kept:
            journal.append(name, payload, lane)
    again = replay(sdd, run)
    assert again.code == 0
    assert again.run.comparison().relation == "identical"


def test_a_step_is_named_with_both_kinds_where_two_runs_part_at_a_mutation(
    sdd: SddDir, tmp_path: Path
) -> None:
    edits = {"applied_edits": [EDIT]}

    def editing(path: str, body: dict[str, Any], number: int) -> Reply:
        block = text("done")
        return Reply([json.dumps(message(block, context_management=edits)).encode()])

    def plain(path: str, body: dict[str, Any], number: int) -> Reply:
        return Reply([json.dumps(message(COMPACTED, text("done"))).encode()])

    one, other = record(sdd, editing), record(sdd, plain)
    done = run_client(sdd, "replay", "diff", one.run_id, other.run_id, "--json", cwd=tmp_path)
    said = json.loads(done.stdout)
    (row,) = mutation_rows(one)
    assert done.returncode == 1
    assert (said["reason"], said["step_index"]) == ("provider_state_mutation", row["index"])
    assert said["kinds"] == ["tool_result_clearing", "compaction"]


def test_a_capability_row_says_for_each_kind_what_could_be_seen(sdd: SddDir) -> None:
    body = {
        "model": "m",
        "messages": [ONE],
        "thinking": {"type": "enabled"},
        "context_management": {"edits": [{"type": "compact_20260112"}]},
    }
    run = record(sdd, compacting, body)
    (row,) = events(run, "provider_state_capability")
    assert row["payload"]["provider"] == "anthropic"
    assert row["payload"]["capability"] == "observed"
    kinds = {kind: at["value"] for kind, at in row["payload"]["kinds"].items()}
    assert sorted(kinds) == sorted(KINDS)
    assert kinds["compaction"] == "observed"
    assert kinds["thinking_clearing"] == "declared-blind"
    assert kinds["tool_result_clearing"] == "not-requested"
    assert kinds["microcompaction"] == "declared-blind"
    assert events(run)[-2:][0]["event"] == "provider_state_capability"


def test_a_stream_that_was_cut_leaves_what_it_hid_incomplete(sdd: SddDir) -> None:
    def cut(path: str, body: dict[str, Any], number: int) -> Reply:
        start = event({"type": "message_start", "message": message()}, "message_start")
        return Reply([start], kind=SSE, is_cut=True)

    body = {
        "model": "m",
        "messages": [ONE],
        "context_management": {"edits": [{"type": "compact_1"}]},
    }
    with serving(cut) as upstream, session(sdd, upstream.base_url) as gateway:
        ask(gateway.server.base_url("anthropic"), "/v1/messages", body)
    (row,) = events(sdd.find_run("latest"), "provider_state_capability")
    assert row["payload"]["kinds"]["compaction"] == {"value": "incomplete", "channel": "wire"}


def test_truncation_that_is_left_to_the_server_is_declared_blind(sdd: SddDir) -> None:
    def answer(path: str, body: dict[str, Any], number: int) -> Reply:
        said = {"object": "response", "model": "m", "truncation": "auto", "output": []}
        return Reply([json.dumps(said).encode()])

    body = {"model": "m", "input": "hi", "truncation": "auto", "previous_response_id": "resp_9"}
    with serving(answer) as upstream, session(sdd, upstream.base_url) as gateway:
        ask(gateway.server.base_url("openai"), "/responses", body)
    run = sdd.find_run("latest")
    (row,) = events(run, "provider_state_capability")
    assert row["payload"]["kinds"]["truncation"]["value"] == "declared-blind"
    (mutation,) = mutation_rows(run)
    assert mutation["payload"]["kind"] == "held_state_reference"
    # It is shown by the request, and stands before the answer.
    assert events(run)[mutation["index"] - 1]["event"] == "model.call"


# --- a client's stream, in a plan

FAKE = """#!/usr/bin/env python3
import json, os, signal, sys, time, urllib.request
body = {"model": "m", "messages": [{"role": "user", "content": sys.argv[2][:10]}]}
url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
headers = {"content-type": "application/json"}
urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).read()
sys.stdout.write(open("stream.jsonl").read())
sys.stdout.flush()
if os.path.exists("die"):
    os.kill(os.getpid(), signal.SIGKILL)
"""
SESSION = "0f1e2d3c-0000-4000-8000-000000000001"
DONE = {"type": "result", "is_error": False, "result": "done", "session_id": SESSION}


def boundary(number: int = 1, **metadata: Any) -> dict[str, Any]:
    return {
        "type": "system",
        "subtype": "compact_boundary",
        "session_id": SESSION,
        "uuid": f"00000000-0000-4000-8000-{number:012}",
        "compact_metadata": {"trigger": "auto", "pre_tokens": 120803, **metadata},
    }


def streaming(
    sdd: SddDir, tmp_path: Path, *lines: Any, seed: str = "", dies: bool = False, end: str = "\n"
) -> RunDir:
    """The run of a plan whose Claude Code prints these lines."""
    tools, work = tmp_path / "tools", tmp_path / "work"
    tools.mkdir(exist_ok=True)
    (tools / "claude").write_text(FAKE)
    (tools / "claude").chmod(0o755)
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (work / "stream.jsonl").write_text("\n".join(texts) + end)
    (work / "die").write_text("") if dies else (work / "die").unlink(missing_ok=True)
    (work / "plan.yaml").write_text(plan_of("{title: one, cli: claude}"))

    def answer(path: str, body: dict[str, Any], number: int) -> Reply:
        return Reply([json.dumps(message(text("hello"))).encode()])

    path = f"{tools}:{os.environ['PATH']}"
    with serving(answer) as upstream:
        env = {**pointed_at(upstream), "PATH": path, "BERNSTEIN_DETERMINISTIC_SEED": seed}
        done = run_client(sdd, "run", "plan.yaml", "-q", cwd=work, env=env)
    assert done.returncode == int(dies), done.stderr
    run = sdd.find_run("latest")
    assert verify(sdd, run).verdict == ("flagged" if seed and mutation_rows(run) else "verified")
    again = run_client(
        sdd,
        *("run", "plan.yaml", "-q"),
        cwd=work,
        env={"PATH": path, "BERNSTEIN_REPLAY_RUN_ID": run.run_id},
    )
    assert again.returncode == int(dies), again.stderr
    assert "replay identical" in again.stderr
    return run


def by_stream(run: RunDir) -> list[dict[str, Any]]:
    return [row["payload"] for row in mutation_rows(run)]


def test_a_boundary_as_the_last_line_before_a_kill_is_chained(sdd: SddDir, tmp_path: Path) -> None:
    run = streaming(sdd, tmp_path, boundary(), dies=True, end="")
    assert [m["kind"] for m in by_stream(run)] == ["compaction"]
    assert events(run, "agent.finished")[0]["payload"]["outcome"] == "killed"
    (client,) = (
        row["payload"]
        for row in events(run, "provider_state_capability")
        if row["payload"]["provider"] == "client/claude"
    )
    assert client["kinds"]["compaction"]["value"] == "incomplete"


def test_boundaries_twice_in_a_row_are_two_and_in_the_order_of_observation(
    sdd: SddDir, tmp_path: Path
) -> None:
    first, second = boundary(1), boundary(2, pre_tokens=9, post_tokens=4)
    run = streaming(sdd, tmp_path, first, second, DONE)
    tokens = [counts({"payload": m}) for m in by_stream(run)]
    assert tokens == [{"before": 120803}, {"before": 9, "after": 4}]
    told = rows(sdd.provider_state / f"{SESSION}.jsonl")
    assert [row["event"] for row in told[:2]] == [first, second]
    assert len(told) == 4  # those of its replay stand behind


def test_ids_and_times_are_not_in_a_digest_and_anything_else_is(
    sdd: SddDir, tmp_path: Path
) -> None:
    def digest(line: dict[str, Any]) -> str:
        (only,) = by_stream(streaming(sdd, tmp_path, line, DONE))
        return str(only["after_digest"])

    one = digest(boundary(1, duration_ms=86, new_in_2027={"deep": [1, {"x": None}]}))
    assert digest(boundary(2, duration_ms=99, new_in_2027={"deep": [1, {"x": None}]})) == one
    assert digest(boundary(1, duration_ms=86, new_in_2027={"deep": [1, {"x": 0}]})) != one


def test_a_difference_in_a_clients_own_token_counts_alone_is_named_as_that(
    sdd: SddDir, tmp_path: Path
) -> None:
    one, other, another = (
        streaming(sdd, tmp_path, boundary(n, post_tokens=tokens, trigger=trigger), DONE)
        for n, tokens, trigger in ((1, 30139, "auto"), (2, 30141, "auto"), (3, 30139, "manual"))
    )
    for run, is_alone in ((other, True), (another, False)):
        done = run_client(sdd, "replay", "diff", one.run_id, run.run_id, cwd=tmp_path)
        assert done.returncode == 1
        assert "provider_state_mutation" in done.stdout
        assert ("differ in nothing but token counts" in done.stdout) is is_alone


@pytest.mark.parametrize(
    "line",
    [
        {"type": "system", "subtype": "compact_boundary"},
        {"type": "system", "subtype": "compact_boundary", "compact_metadata": "?"},
        {
            "type": "system",
            "subtype": "compact_boundary",
            "compact_metadata": {"pre_tokens": "many"},
        },
        boundary(pre_tokens=-4, post_tokens=4_280_000_000_000_000_000),
    ],
)
def test_a_boundary_of_another_shape_is_chained_and_its_counts_claim_nothing(
    sdd: SddDir, tmp_path: Path, line: dict[str, Any]
) -> None:
    (only,) = by_stream(streaming(sdd, tmp_path, line, DONE))
    assert only["kind"] == "compaction"
    assert "tokens" not in only


def test_what_a_session_said_goes_with_its_run(sdd: SddDir, tmp_path: Path) -> None:
    run = streaming(sdd, tmp_path, boundary(), DONE)
    again = sdd.list_runs()[-1]
    file = sdd.provider_state / f"{SESSION}.jsonl"
    assert [row["run_id"] for row in rows(file)] == [run.run_id, again.run_id]
    forgotten = run_client(sdd, "forget", again.run_id, "--bodies", cwd=tmp_path)
    assert forgotten.returncode == 0, forgotten.stderr
    assert [row["run_id"] for row in rows(file)] == [run.run_id]


def test_a_line_that_is_no_json_is_counted_and_hides_nothing(sdd: SddDir, tmp_path: Path) -> None:
    run = streaming(sdd, tmp_path, "{cut", boundary(), "\x00\x01", DONE)
    assert len(by_stream(run)) == 1
    (attempt,) = run.read_info()["agents"]["s/one/t1"]["attempts"]
    assert attempt["bad_lines"] == 2


def test_with_the_switch_set_a_boundary_that_comes_all_the_same_is_flagged(
    sdd: SddDir, tmp_path: Path
) -> None:
    run = streaming(sdd, tmp_path, boundary(), DONE, seed="7")
    assert [m["flagged"] for m in by_stream(run)] == [True]
    policy = run.read_info()["agents"]["s/one/t1"]["compaction"]
    assert policy["switches"]["DISABLE_AUTO_COMPACT"] == "1"


def test_the_other_signs_of_the_stream_have_their_kinds(sdd: SddDir, tmp_path: Path) -> None:
    fallback = {
        "type": "system",
        "subtype": "model_refusal_fallback",
        "original_model": "a",
        "fallback_model": "b",
        "retracted_message_uuids": ["u"],
    }
    lines = [
        fallback,
        {"type": "system", "subtype": "memory_recall", "memories": ["x"], "mode": "m"},
        {"type": "conversation_reset", "new_conversation_id": "c"},
        {"type": "assistant", "supersedes": "u", "message": {"content": []}},
        {"type": "system", "subtype": "status", "status": "compacting"},
        DONE,
    ]
    kinds = Counter(m["kind"] for m in by_stream(streaming(sdd, tmp_path, *lines)))
    assert kinds == {
        "model_fallback": 1,
        "retraction": 2,
        "memory_injection": 1,
        "context_reset": 1,
    }


# --- files of others


def imported(sdd: SddDir, data: bytes, profile: str = "claude-code") -> RunDir:
    return import_events(data, "file", sdd, read_settings(), profile)[0]


def lines_of(*values: Any) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def told(message_id: str | None, output: Any, ts: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    usage = {"input_tokens": 10, "output_tokens": output, "cache_read_input_tokens": 5}
    said = {"id": message_id, "model": "claude-x", "usage": usage, "content": []}
    return {"type": "assistant", "timestamp": ts, "message": said, "sessionId": "s"}


def outputs(run: RunDir) -> list[int]:
    return [row["payload"]["outputTokens"] for row in events(run, "model.usage")]


def test_a_message_that_is_logged_several_times_counts_once_with_its_last_values(
    sdd: SddDir,
) -> None:
    rising = [told("msg_1", n) for n in (1, 40, 90)]
    assert outputs(imported(sdd, lines_of(*rising, told("msg_2", 7)))) == [90, 7]
    # With a request's id and without, as gateways log it, it is one message all the same.
    twice = [{**told("msg_1", 90), "requestId": "req_1"}, told("msg_1", 90)]
    assert outputs(imported(sdd, lines_of(*twice))) == [90]


@pytest.mark.parametrize("count", [-1, "12", 4.5, 2**60, [1]])
def test_a_count_that_is_none_is_left_out_of_the_usage_and_kept_in_the_file(
    sdd: SddDir, count: Any
) -> None:
    data = lines_of(told("msg_1", count), told("msg_2", 7))
    run, found_ = import_events(data, "file", sdd, read_settings(), "claude-code")
    assert outputs(run) == [7]
    assert found_.bad_counts == 1
    digest = run.read_info()["attempts"][0]["output"]["digest"]
    assert json.dumps(count).encode() in (sdd.blobs / digest[:2] / digest).read_bytes()


def test_times_that_step_back_and_other_time_zones_change_no_hash(
    sdd: SddDir, tmp_path: Path
) -> None:
    hours = ["2026-03-08T23:30:00-05:00", "2026-03-08T22:30:00-05:00", "2026-03-09T00:30:00Z"]
    file = tmp_path / "t.jsonl"
    file.write_bytes(lines_of(*(told(f"msg_{n}", n, ts) for n, ts in enumerate(hours)), boundary()))
    heads = set()
    for zone in ("UTC", "America/New_York", "Asia/Kathmandu"):
        arguments = ("import", "events", "--profile", "claude-code", str(file))
        assert run_client(sdd, *arguments, cwd=tmp_path, env={"TZ": zone}).returncode == 0
        run = sdd.list_runs()[-1]
        heads.add(check_chain(run.journal).head)
        elapsed = [row["elapsed_s"] for row in events(run)]
        assert elapsed == sorted(elapsed)
        assert min(elapsed) >= 0
    assert len(heads) == 1


def test_an_answer_that_pauses_makes_no_rows(sdd: SddDir) -> None:
    def slow(path: str, body: dict[str, Any], number: int) -> Reply:
        return Reply([json.dumps(message(text("at last"))).encode()], delay_s=1.5)

    run = record(sdd, slow)
    assert [row["event"] for row in events(run)] == [
        *("run.started", "model.call", "model.answer", "model.usage"),
        *("provider_state_capability", "run.finished"),
    ]


# Files that hold no change of a context though they are about one: the lists of edits are empty.
_NONE = frozenset(
    {
        "sse-vercel-ai/anthropic/anthropic-clear-thinking.1.chunks.txt",
        "sse-vercel-ai/anthropic/anthropic-clear-tool-uses.1.chunks.txt",
        "sse-vercel-ai/anthropic/anthropic-clear-tool-uses.1.json",
        "sse-vercel-ai/anthropic/anthropic-combined-context-editing.1.json",
        "vcr-pydantic-ai/test_anthropic/test_anthropic_memory_tool.yaml",
    }
)
_REFERS = frozenset({"test_anthropic_compaction_round_trip.yaml"})
_BOTH = frozenset(
    {
        "test_openai_responses_compact_messages.yaml",
        "test_openai_responses_compact_stateful_mode.yaml",
        "test_openai_responses_compact_with_auto_previous_response_id.yaml",
    }
)


def kinds_in(path: Path) -> set[str]:
    data = path.read_bytes()
    if path.suffix != ".yaml":
        return {report.kind for report in read_event_file(data).reports}
    kinds: set[str] = set()
    for item in read_cassette(data):
        kind = kind_of(item.method, item.path)
        try:
            body = json.loads(item.body or b"null")
            values = list(read_values(b"".join(item.pieces)))
        except ValueError:
            continue
        kinds |= {report.kind for report in reported_in_request(kind, item.path, body)}
        kinds |= {r.kind for r in reported_in_response(kind, item.path, body, values)}
    return kinds


def listed(data: Path) -> list[str]:
    """The files that the index of the recordings lists as changing a context."""
    lines = (data / "recorded" / "INDEX.md").read_text().split("## Context mutation")[1]
    return [line[3:-1] for line in lines.split("##")[0].splitlines() if line.startswith("- `")]


def test_each_recording_of_a_changed_context_is_read_with_the_right_kind(data: Path) -> None:
    names = listed(data)
    assert len(names) == 18
    for name in names:
        wanted = {"compaction"}
        if name in _NONE:
            wanted = set()
        elif name.rsplit("/", 1)[-1] in _REFERS:
            wanted = {"held_state_reference"}
        elif name.rsplit("/", 1)[-1] in _BOTH:
            wanted = {"compaction", "held_state_reference"}
        assert kinds_in(data / "recorded" / name) == wanted, name


def test_cassettes_of_a_changed_context_are_imported_and_it_is_chained(
    sdd: SddDir, data: Path, tmp_path: Path
) -> None:
    names = [name for name in listed(data) if name.endswith(".yaml") and name not in _NONE]
    for name in names:
        path = str(data / "recorded" / name)
        assert run_client(sdd, "import", "vcr", path, cwd=tmp_path).returncode == 0
        run = sdd.list_runs()[-1]
        assert {row["payload"]["kind"] for row in mutation_rows(run)} == kinds_in(Path(path))
        assert verify(sdd, run).verdict == "verified"


# What else changes a context in the recordings, found by somebody who read them without this code.
_OTHERS = {
    "httpmock-rig/gemini/streaming_grammar/interactions_requires_action.yaml": "held_state_reference",
    "httpmock-rig/llamacpp/error_matrix/unknown_model_is_ignored.yaml": "model_fallback",
    "httpmock-rig/llamacpp/structured_output_matrix/"
    "response_format_beats_grammar_silently.yaml": "model_fallback",
    "httpmock-rig/llamacpp/truncation_matrix/"
    "streaming_tool_call_cut_mid_arguments.yaml": "model_fallback",
    "httpmock-rig/xai/extractor/extractor_smoke.yaml": "model_fallback",
    "httpmock-rig/xai/multi_extract/batch_multi_extract_chain.yaml": "model_fallback",
    "httpmock-rig/xai/raw_completion_parity_matrix/"
    "raw_completion_carries_request_id_on_the_type.yaml": "model_fallback",
    "httpmock-rig/xai/tools/tools_smoke.yaml": "model_fallback",
    "sse-anthropic-sdk/lib/streaming/fixtures/fallback_response.txt": "model_fallback",
    "sse-vercel-ai/anthropic/anthropic-fallback.chunks.txt": "model_fallback",
    "sse-vercel-ai/anthropic/anthropic-fallback.json": "model_fallback",
    "transcripts/pi/session.jsonl": "compaction",
    "vcr-misc/test_tools_streaming/test_tools_streaming_variant_a.yaml": "model_fallback",
    "vcr-misc/test_tools_streaming/test_tools_streaming_variant_c.yaml": "model_fallback",
    "vcr-pydantic-ai/test_openai_responses/"
    "test_openai_conversation_id_explicit_and_auto.yaml": "held_state_reference",
}


def test_in_all_other_recordings_nothing_is_missed_and_nothing_is_invented(data: Path) -> None:
    listed_names, count, shown_in = set(listed(data)), 0, {}
    for path in sorted((data / "recorded").rglob("*")):
        name = str(path.relative_to(data / "recorded"))
        if not path.is_file() or name in listed_names or path.suffix in {".eval", ".md"}:
            continue
        try:
            kinds = kinds_in(path)
        except RecordingError:
            continue  # no cassette: a history of Temporal, a log of a websocket
        count += 1
        if kinds:
            (shown_in[name],) = kinds
    assert shown_in == _OTHERS
    assert count > 800


def test_real_clients_show_their_compactions_in_their_requests(data: Path) -> None:
    shown_by = {}
    for path in sorted((data / "captures").glob("c*/*.requests.jsonl")):
        profile = load_profile("codex" if "codex" in str(path) else "claude-code")
        followed, kinds = Histories(), []
        for row in rows(path):
            headers = {name.lower(): value for name, value in row["headers"]}
            lane = "/".join(headers.get(name, "") for name in profile.lane_headers)
            if isinstance(row["body"], dict) and lane.strip("/"):
                body = profile.normalise(row["body"], None)
                kind = kind_of(row["method"], row["path"].split("?")[0])
                kinds += [report.kind for report in followed.follow(lane, kind, body)]
        if kinds:
            shown_by[f"{path.parent.name}/{path.name.split('.requests')[0]}"] = kinds
    assert shown_by == {
        "claude-code-2.1.197/compact-auto.run1": ["compaction"],
        "claude-code-2.1.197/compact-auto.run2": ["compaction"],
        "claude-code-2.1.332/compact-auto": ["compaction"],
        "codex-0.171.0/compaction": ["compaction"],
    }
