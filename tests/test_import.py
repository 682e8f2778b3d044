"""Files of others become runs: what they tell, what they do not, and what is said of that."""

from __future__ import annotations

import io
import json
import struct
import sys
import zipfile
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bernstein.canonical import digest_of
from bernstein.capture.gateway.taped import import_events, import_transcript
from bernstein.chain.verify import check_chain
from bernstein.errors import BernsteinError, RecordingError, UsageError
from bernstein.events.payloads import KINDS as EVENTS
from bernstein.events.payloads import payload_from
from bernstein.fold.run import project
from bernstein.fold.source import EventFile
from bernstein.fold.tool_calls import project_tool_calls, tool_calls_bytes
from bernstein.interop import archive
from bernstein.interop.kinds import KINDS, kind_of
from bernstein.interop.records import read_records
from bernstein.interop.spans import walk
from bernstein.interop.transcript import Told, Transcript
from bernstein.seal.bundle import is_bundle
from bernstein.seal.evidence import verify_deep
from bernstein.seal.signing import default_keys
from bernstein.settings import read_settings
from bernstein.wire.reported import Report
from tests.helpers import bernstein, events, verify
from tests.logs import folded_by_node
from tests.told import (
    AGENTS_STATE,
    CLAUDE,
    CLAUDE_STREAM,
    CODEX,
    CODEX_EXEC,
    FILES,
    GEMINI,
    INSPECT,
    INSPECT_EVENTS,
    OTEL,
    USAGE,
    asked,
    gave,
    inspect_zip,
    lines,
    said,
    span,
    tool,
)

if TYPE_CHECKING:
    from bernstein.rundir import RunDir, SddDir


def told(data: bytes, kind: str | None = None) -> list[Transcript]:
    """What a file tells, by what it says that it is."""
    records = read_records(data)
    return list(KINDS[kind or kind_of(records)].read(records))


def imported(sdd: SddDir, data: bytes, kind: str | None = None) -> RunDir:
    """The one run that a file becomes."""
    (transcript,) = told(data, kind)
    return import_transcript(transcript, "file", sdd, read_settings(), "generic")


def payloads(transcript: Transcript, kind: str) -> list[dict[str, Any]]:
    return [t.payload for t in transcript.events if isinstance(t, Told) and t.kind == kind]


def bodies(transcript: Transcript, kind: str, name: str) -> list[Any]:
    return [t.bodies[name] for t in transcript.events if isinstance(t, Told) and t.kind == kind]


def tokens(transcript: Transcript) -> tuple[int, int, int]:
    used = payloads(transcript, "model.usage")
    names = ("inputTokens", "cachedInputTokens", "outputTokens")
    a, b, c = (sum(payload.get(name, 0) for payload in used) for name in names)
    return a, b, c


def folded(run: RunDir) -> tuple[Any, Any]:
    """Both folds of a run."""
    source = EventFile(run.journal, run.run_id)
    return project(source), project_tool_calls(source)


# --- every kind


@pytest.mark.parametrize("name", FILES)
def test_a_file_says_its_kind_and_tells_its_calls_tools_and_tokens(name: str) -> None:
    kind, data, (calls, tools, *counts) = FILES[name]
    assert kind_of(read_records(data)) == kind
    (transcript,) = told(data)
    assert transcript.kind == kind
    assert len(payloads(transcript, "model.call")) == calls
    assert len(payloads(transcript, "tool.proposed")) == tools
    assert tokens(transcript) == tuple(counts)
    assert (transcript.bad_lines, transcript.bad_counts, transcript.strays) == ((), 0, 0)


@pytest.mark.parametrize("name", FILES)
def test_each_becomes_a_sealed_run_that_verifies_and_that_both_folds_read(
    sdd: SddDir, name: str
) -> None:
    run = imported(sdd, FILES[name][1])
    verdict = verify_deep(run, sdd, default_keys(sdd))
    assert (verdict.verdict, verdict.note) == ("verified", "")
    projection, calls = folded(run)
    assert projection.status == "completed"
    assert len(calls) == FILES[name][2][1]
    rows = events(run)
    assert (rows[0]["event"], rows[-1]["event"]) == ("run.started", "run.finished")
    for row in rows:
        if row["event"] in EVENTS:
            payload_from(row["event"], row["payload"])


@pytest.mark.parametrize("name", FILES)
def test_the_same_file_twice_gives_the_same_head(sdd: SddDir, name: str) -> None:
    heads = {check_chain(imported(sdd, FILES[name][1]).journal).head for _ in range(2)}
    assert len(heads) == 1


@pytest.mark.parametrize("name", [name for name in FILES if name != "jsonl"])
def test_no_id_of_the_file_and_no_word_of_its_contents_is_in_a_payload(name: str) -> None:
    words = {"t_9", "c1", "call_1", "r-1", "c-1", "make a file", "Done.", "a.txt", "fix", "hi"}
    for transcript in told(FILES[name][1]):
        for item in transcript.events:
            if isinstance(item, Told):
                assert not words & set(map(str, item.payload.values())), item
        for payload in payloads(transcript, "tool.proposed"):
            step, call = payload["stepId"], payload["toolCallId"]
            assert call.startswith(f"{step}/tool-")


def test_a_log_becomes_a_run_for_each_sample() -> None:
    first, second = told(INSPECT)
    assert (first.part, second.part) == ("sample one, epoch 1", "sample 2, epoch 1")
    assert (first.records, second.records) == (8, 0)


def test_a_file_of_no_kind_is_refused_with_the_kinds(tmp_path: Path, sdd: SddDir) -> None:
    with pytest.raises(UsageError, match="claude-code, codex, gemini-cli, inspect, jsonl"):
        kind_of(read_records(lines({"role": "user", "content": "hi"})))
    file = tmp_path / "chat.jsonl"
    file.write_bytes(lines({"role": "user", "content": "hi"}))
    done = bernstein("import", str(file))
    assert done.returncode == 2
    assert "no kind that is known (claude-code, " in done.stderr
    done = bernstein("import", "--as", "cobol", str(file))
    assert (done.returncode, "expected claude-code" in done.stderr) == (2, True)
    assert sdd.list_runs() == []


# --- messages and tokens


def usages(*rows: Any) -> list[int]:
    (transcript,) = told(lines(*rows))
    return [payload["outputTokens"] for payload in payloads(transcript, "model.usage")]


def test_a_message_that_is_logged_several_times_counts_once_with_its_last_values() -> None:
    rising = [
        said("msg_1", usage={**USAGE, "output_tokens": n}, requestId="r") for n in (1, 40, 90)
    ]
    assert usages(*rising, said("msg_2")) == [90, 4]
    # With a request's id and without, as gateways log it, it is one message all the same.
    assert usages(rising[-1], {**rising[-1], "requestId": None}) == [90]
    # Without an id each row is a message.
    assert usages(said(None), said(None)) == [4, 4]
    (transcript,) = told(lines(asked("hi"), *rising))
    assert len(payloads(transcript, "model.call")) == 1


@pytest.mark.parametrize("count", [-1, "12", 4.5, 2**53, 2**70, [1], True, {"a": 1}])
def test_a_count_that_is_none_is_left_out_of_the_totals_and_counted(
    sdd: SddDir, count: Any
) -> None:
    bad = said("msg_1", usage={**USAGE, "output_tokens": count})
    (transcript,) = told(lines(bad, said("msg_2")))
    assert transcript.bad_counts == 1
    assert tokens(transcript) == (10, 5, 4)
    run = import_transcript(transcript, "file", sdd, read_settings(), "generic")
    kept = run.read_info()["attempts"][0]["output"]["digest"]
    assert json.dumps(count).encode() in (sdd.blobs / kept[:2] / kept).read_bytes()


def test_counts_whose_sum_is_none_poison_no_total(sdd: SddDir) -> None:
    huge = {**USAGE, "input_tokens": 2**53 - 1, "cache_creation_input_tokens": 0}
    rows = [said("msg_1", usage=huge), said("msg_2", usage=huge), said("msg_3")]
    (transcript,) = told(lines(*rows))
    assert transcript.bad_counts == 2
    projection, _ = folded(imported(sdd, lines(*rows)))
    assert projection.usage_totals["estimated"]["inputTokens"] == 2**53 - 1
    # One that is beyond what can be counted by itself.
    beyond = {**huge, "cache_creation_input_tokens": 5}
    data = lines(said("msg_1", usage=beyond), said("msg_2"))
    assert told(data)[0].bad_counts == 1
    assert import_events(data, "file", sdd, read_settings(), "generic")[1].bad_counts == 1


def test_more_cached_tokens_than_input_is_no_count_where_input_holds_them() -> None:
    payload = json.loads(AGENTS_STATE)
    payload["model_responses"][0]["usage"]["input_tokens_details"] = {"cached_tokens": 21}
    (transcript,) = told(json.dumps(payload).encode())
    assert (transcript.bad_counts, tokens(transcript)) == (1, (0, 0, 0))


def test_a_sum_of_tokens_that_is_told_again_is_the_same_request() -> None:
    *before, count, output, _, _ = CODEX.splitlines(keepends=True)
    (transcript,) = told(b"".join([*before, count, count, output, count]))
    assert tokens(transcript) == (60, 40, 7)
    # Without the counts of each request they are what was added to the sum.
    total = {"input_tokens": 150, "cached_input_tokens": 60, "output_tokens": 9}
    info = {"info": {"total_token_usage": total}}
    more = lines({"type": "event_msg", "payload": {"type": "token_count", **info}})
    (transcript,) = told(b"".join([*before, count, more]))
    assert tokens(transcript) == (60 + 30, 40 + 20, 7 + 2)


def test_with_each_turn_of_a_thread_what_was_added_to_its_sum_counts() -> None:
    *before, last = CODEX_EXEC.splitlines(keepends=True)
    usage = {"input_tokens": 80, "cached_input_tokens": 45, "output_tokens": 10}
    more = lines({"type": "turn.completed", "usage": usage})
    (transcript,) = told(b"".join([*before, last, more]))
    assert tokens(transcript) == (35, 45, 10)
    # In another thread it is another sum.
    (transcript,) = told(b"".join([*before, last, before[0], more]))
    assert tokens(transcript) == (20 + 35, 30 + 45, 9 + 10)


def test_a_message_of_gemini_that_is_written_again_counts_once() -> None:
    first = {"sessionId": "g", "projectHash": "h", "startTime": "t"}
    asked_ = {"id": "1", "type": "user", "content": "hi"}
    answers = [
        {"id": "2", "type": "gemini", "content": "a", "tokens": {"input": 9, "output": n}}
        for n in (1, 5)
    ]
    rest = [{"$set": {"lastUpdated": "t"}}, {"$rewindTo": "1"}]
    (transcript,) = told(lines(first, asked_, *answers, *rest))
    assert (tokens(transcript), transcript.unknown) == ((9, 0, 5), 0)
    assert len(payloads(transcript, "model.call")) == 1


def test_what_the_client_says_in_the_models_place_is_no_call() -> None:
    synthetic = said("msg_1", model="<synthetic>")
    (transcript,) = told(lines(asked("hi"), synthetic))
    assert payloads(transcript, "model.call") == payloads(transcript, "model.usage") == []


def test_of_calls_within_calls_the_innermost_counts_and_old_names_are_read() -> None:
    (transcript,) = told(OTEL)
    (call,) = payloads(transcript, "model.call")
    assert call == {"stepId": "session/1", "provider": "openai", "model": "gpt-x"}
    assert tokens(transcript) == (30, 0, 4)


def test_inspect_counts_cached_tokens_apart_unless_its_total_says_otherwise() -> None:
    events_ = json.loads(INSPECT_EVENTS)
    assert tokens(told(json.dumps(events_).encode())[0]) == (7, 5, 3)
    events_[1]["output"]["usage"]["total_tokens"] = 10
    assert tokens(told(json.dumps(events_).encode())[0]) == (2, 5, 3)


# --- steps and tools


def test_a_sub_agent_is_a_step_below_and_ends_with_its_result(sdd: SddDir) -> None:
    projection, calls = folded(imported(sdd, CLAUDE_STREAM))
    (session,) = projection.steps
    (child,) = session["children"]
    assert (child["stepId"], child["parentStepId"], child["depth"]) == (
        "session/1",
        "session",
        1,
    )
    assert [(call.tool_call_id, call.name) for call in calls] == [
        ("session/tool-1", "Agent"),
        ("session/1/tool-1", "Bash"),
        ("session/tool-2", "Write"),
    ]
    assert calls[2].approval is not None
    assert (calls[2].approval.outcome, calls[2].approval.actor) == ("denied", "client")
    assert calls[2].result is None


def test_a_call_without_a_result_is_in_flight_and_a_result_without_a_call_is_told() -> None:
    (transcript,) = told(lines(said("m", tool("t", "Bash")), asked([gave("other", "x")])))
    assert len(payloads(transcript, "tool.proposed")) == 1
    assert payloads(transcript, "tool.result") == []
    assert transcript.strays == 1


def test_a_failed_tool_has_its_exit_code() -> None:
    for name, code in (("codex", 1), ("codex exec", 42), ("openhands", 3)):
        (result,) = payloads(told(FILES[name][1])[0], "tool.result")
        assert (result["ok"], result["exitCode"]) == (False, code), name


def test_arguments_in_a_text_are_the_json_that_they_are() -> None:
    assert bodies(told(CODEX)[0], "tool.proposed", "args") == [{"cmd": "false"}]
    call = {"type": "function_call", "name": "f", "arguments": "{cut", "call_id": "c"}
    data = lines({"type": "response_item", "payload": call})
    assert bodies(told(data)[0], "tool.proposed", "args") == ["{cut"]


def test_who_let_a_tool_run_is_one_of_our_words() -> None:
    (transcript,) = told(AGENTS_STATE)
    assert payloads(transcript, "tool.approved") == [
        {"toolCallId": "session/tool-1", "actor": "user"}
    ]
    assert payloads(transcript, "tool.denied") == [
        {"toolCallId": "session/tool-2", "actor": "user", "reason": "refused"}
    ]
    (transcript,) = told(INSPECT_EVENTS)
    assert [p["actor"] for p in payloads(transcript, "tool.approved")] == ["human"]
    assert [p["actor"] for p in payloads(transcript, "tool.denied")] == ["approver"]


def test_what_a_model_was_asked_is_what_was_said_since_it_answered_last() -> None:
    assert bodies(told(CLAUDE)[0], "model.call", "prompt") == [
        ["make a file"],
        [[gave("t_9", "a.txt")]],
    ]


def test_what_stands_in_a_log_once_is_put_back() -> None:
    (prompt, *_) = bodies(told(INSPECT)[0], "model.call", "prompt")
    assert prompt == [{"role": "user", "content": "a long prompt"}]
    pooled = {
        "event": "model",
        "model": "m",
        "input": [],
        "input_refs": [[0, 1], [-5, 99], "x", [1]],
        "output": {},
    }
    sample = {"id": 1, "events": [pooled], "message_pool": [{"role": "user"}, 2]}
    (prompt,) = bodies(told(inspect_zip(sample))[0], "model.call", "prompt")
    assert prompt == [{"role": "user"}, {"role": "user"}, 2]
    # What is put back more often than any log does stays a reference.
    bomb = {**pooled, "input_refs": [[0, 2]] * (2**21 + 1)}
    (prompt,) = bodies(told(inspect_zip({**sample, "events": [bomb]}))[0], "model.call", "prompt")
    assert list(prompt) == ["input_refs"]


def test_spans_are_read_in_any_order_and_rings_end() -> None:
    links = [("c", "a"), ("b", "c"), ("a", None), ("x", "y"), ("y", "x"), ("z", "z"), (None, "a")]
    visits = [(place, above) for place, above, is_begin in walk(links) if is_begin]
    assert visits == [(2, None), (0, 2), (1, 0), (6, 2), (5, None), (3, None), (4, 3)]
    assert Counter(place for place, _, _ in walk(links)) == dict.fromkeys(range(7), 2)


def test_steps_that_are_nested_too_deep_for_a_fold_are_taken_up(sdd: SddDir) -> None:
    spans = [
        span(str(n), str(n - 1) if n else None, gen_ai__operation__name="invoke_agent")
        for n in range(300)
    ]
    data = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()
    projection, _ = folded(imported(sdd, data))
    assert projection.steps[0]["status"] == "ok"


def test_what_a_step_is_stands_there_where_it_is_one_of_our_words() -> None:
    events_ = [
        {"event": "span_begin", "id": "A", "type": "solver", "name": "secret plan"},
        {"event": "span_begin", "id": "B", "type": "secret type"},
    ]
    _, *steps = payloads(told(json.dumps(events_).encode())[0], "step.started")
    assert [step.get("label") for step in steps] == ["solver", None]


def test_a_sample_without_events_has_the_totals_of_its_models() -> None:
    sample = {
        "id": 1,
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
        "model_usage": {"openai/x": {"input_tokens": 5, "output_tokens": 2}, "y": 3},
    }
    (transcript,) = told(inspect_zip(sample))
    assert (tokens(transcript), len(payloads(transcript, "model.call"))) == ((5, 0, 2), 1)


def test_how_it_ended_is_what_was_told_last(sdd: SddDir) -> None:
    aborted = {"type": "event_msg", "payload": {"type": "turn_aborted"}}
    turn = {"type": "turn_context", "payload": {"model": "m"}}
    assert folded(imported(sdd, lines(turn, aborted)))[0].status == "cancelled"
    assert folded(imported(sdd, lines(turn, aborted, turn)))[0].status == "completed"
    result = {"type": "result", "session_id": "s", "is_error": True, "result": "no"}
    (row,) = events(imported(sdd, lines(result)), "run.finished")
    output = row["payload"].pop("output")
    assert row["payload"] == {"status": "failed", "reason": "agent_failed"}
    assert output == digest_of("no").to_json()


def test_a_step_that_begins_below_one_that_has_ended_ends_too(sdd: SddDir) -> None:
    events_ = [
        {"event": "span_begin", "id": "A"},
        {"event": "span_end", "id": "A"},
        {"event": "span_begin", "id": "B", "parent_id": "A"},
    ]
    projection, _ = folded(imported(sdd, json.dumps(events_).encode()))
    ((first,),) = [step["children"] for step in projection.steps]
    assert [first["status"], first["children"][0]["status"]] == ["ok", "ok"]


# --- the context


def test_the_change_of_a_context_stands_where_it_was_told(sdd: SddDir) -> None:
    rows = events(imported(sdd, CLAUDE))
    names = [row["event"] for row in rows]
    at = names.index("provider_state_mutation")
    assert names[at - 1] == "tool.result"
    assert names[at + 1] == "model.call"
    assert rows[at]["payload"]["step_index"] == at
    # As the last line of a file too.
    *_, boundary, _ = CLAUDE.splitlines(keepends=True)
    (transcript,) = told(asked_line() + boundary.rstrip(b"\n"))
    assert [item.kind for item in transcript.events if isinstance(item, Report)] == ["compaction"]


def asked_line() -> bytes:
    return lines(asked("hi"))


@pytest.mark.parametrize("data", [CLAUDE, CODEX, CLAUDE_STREAM])
def test_both_imports_agree_on_what_changed_and_what_was_used(sdd: SddDir, data: bytes) -> None:
    found = []
    for run in (
        import_events(data, "file", sdd, read_settings(), "generic")[0],
        imported(sdd, data),
    ):
        mutations = [
            {k: v for k, v in row["payload"].items() if k not in {"address", "step_index"}}
            for row in events(run, "provider_state_mutation")
        ]
        used = [
            {k: v for k, v in row["payload"].items() if k != "stepId"}
            for row in events(run, "model.usage")
            if row["payload"]["provider"] == "anthropic"
        ]
        found.append((mutations, used))
    assert found[0] == found[1]


def test_members_of_a_report_that_are_not_known_are_in_its_digest(sdd: SddDir) -> None:
    digests = set()
    for metadata in ({}, {"of_the_future": {"n": [1, 2.5, 1e300, 2**80]}}):
        row = {
            "type": "system",
            "subtype": "compact_boundary",
            "sessionId": "s",
            "compactMetadata": metadata,
        }
        (mutation,) = events(imported(sdd, lines(row)), "provider_state_mutation")
        digests.add(mutation["payload"]["after_digest"])
    assert len(digests) == 2


def test_numbers_that_no_canonical_json_has_are_no_reason_to_fail(sdd: SddDir) -> None:
    row = b'{"type":"system","subtype":"compact_boundary","sessionId":"s","n":[1e400,1e17,NaN]}\n'
    assert len(events(imported(sdd, row), "provider_state_mutation")) == 1
    run, _ = import_events(row, "file", sdd, read_settings(), "generic")
    assert len(events(run, "provider_state_mutation")) == 1


def test_reports_and_bodies_as_deep_as_json_may_be_are_taken(sdd: SddDir) -> None:
    deep: Any = 1
    for _ in range(125):
        deep = [deep]
    row = {"type": "system", "subtype": "compact_boundary", "sessionId": "s", "n": deep}
    rows = [asked(deep[0][0]), said("m", {**tool("t", "Bash"), "input": deep[0][0][0][0][0]}), row]
    run = imported(sdd, lines(*rows))
    assert len(events(run, "provider_state_mutation")) == len(events(run, "tool.proposed")) == 1
    assert verify_deep(run, sdd, default_keys(sdd)).verdict == "verified"


def test_times_are_in_no_hash(sdd: SddDir) -> None:
    heads = set()
    for times in ((), (0, 60, 0, 60, 30), ("2026-03-08T23:30:00-05:00", None, -1, {}, "x")):
        rows = [json.loads(line) for line in CLAUDE.splitlines()]
        for row, ts in zip(rows, times, strict=False):
            row["timestamp"] = ts
        heads.add(check_chain(imported(sdd, lines(*rows[:3], rows[4])).journal).head)
    assert len(heads) == 1


# --- what is kept


def test_secrets_are_in_no_body_and_in_no_name(sdd: SddDir) -> None:
    secret = "sk-canary-0123456789abcdef"
    rows = [
        asked(f"use {secret}"),
        said("m", tool("t", f"Bash {secret}", key=secret, password="hunter2hunter2")),
        asked([gave("t", [{"type": "text", "text": secret}])]),
    ]
    run = imported(sdd, lines(*rows))
    kept = [path.read_bytes() for path in sdd.path.rglob("*") if path.is_file()]
    assert len(kept) > 8
    for data in kept:
        assert secret.encode() not in data
        assert b"hunter2" not in data
    assert verify(sdd, run).verdict == "verified"


def test_bodies_of_an_encrypted_run_are_encrypted_and_its_head_is_the_same(sdd: SddDir) -> None:
    (transcript,) = told(CLAUDE)
    hidden = replace(read_settings(), encrypt=True)
    run = import_transcript(transcript, "file", sdd, hidden, "generic")
    assert not any(b"make a file" in p.read_bytes() for p in sdd.path.rglob("*") if p.is_file())
    verdict = verify_deep(run, sdd, default_keys(sdd))
    assert (verdict.verdict, verdict.note) == ("verified", "")
    assert check_chain(run.journal).head == check_chain(imported(sdd, CLAUDE).journal).head


def test_bodies_go_along_in_a_bundle_and_are_forgotten_with_the_run(
    sdd: SddDir, tmp_path: Path
) -> None:
    run = imported(sdd, CLAUDE)
    digest = digest_of({"command": "ls"}).digest
    blob = sdd.blobs / digest[:2] / digest
    assert blob.read_bytes() == b'{"command":"ls"}'
    bundle = tmp_path / "run.zip"
    assert bernstein("export", run.run_id, "-o", str(bundle)).returncode == 0
    with zipfile.ZipFile(bundle) as archive:
        assert f"{run.run_id}/blobs/{digest}" in archive.namelist()
    assert bernstein("forget", run.run_id, "--bodies").returncode == 0
    assert not blob.exists()
    assert verify(sdd, run).verdict == "verified"


# --- files that are not as they should be


def test_lines_that_cannot_be_read_are_named_and_those_behind_them_are_read(
    tmp_path: Path,
) -> None:
    file = tmp_path / "session.jsonl"
    file.write_bytes(b"{cut\n" + CLAUDE + b'\n\xff\xfe\n"a text"\n[1]\n{"a":1,"a":2}\n' * 2)
    done = bernstein("import", str(file))
    assert done.returncode == 0
    assert done.stdout.startswith(f"{file}: run ")
    assert ", 5 records, 2 model calls, 1 tool call, 9 bad lines, changes: 1 comp" in done.stdout
    assert [line.split(": ")[0] for line in done.stderr.splitlines()] == [
        f"{file}:{number}" for number in (1, 8, 9, 10, 11)
    ]


def test_what_is_told_in_a_line_counts_unknown_records_and_bad_counts(tmp_path: Path) -> None:
    file = tmp_path / "rollout.jsonl"
    file.write_bytes(CODEX)
    done = bernstein("import", "--as", "codex", str(file))
    assert done.stdout.rstrip().endswith(
        "8 records, 1 model call, 1 tool call, 1 unknown record, changes: 1 compaction"
    )
    file.write_bytes(lines(said("m", usage={"output_tokens": -1})))
    assert ", 1 bad count, " in bernstein("import", str(file)).stdout


def test_one_bad_file_does_not_keep_others_from_being_imported(tmp_path: Path, sdd: SddDir) -> None:
    good, bad, log = tmp_path / "a.jsonl", tmp_path / "b.txt", tmp_path / "c.eval"
    good.write_bytes(CLAUDE)
    bad.write_bytes(b"no json\n")
    log.write_bytes(inspect_zip())
    done = bernstein("import", str(bad), str(good), str(log))
    assert done.returncode == 2
    assert len(done.stdout.splitlines()) == len(sdd.list_runs()) == 2
    assert bernstein("import", "--as", "codex", str(bad)).returncode == 1
    assert bernstein("import", str(tmp_path / "none.jsonl")).returncode == 2


def test_a_zip_file_is_a_bundle_unless_it_is_a_log(tmp_path: Path) -> None:
    file = tmp_path / "x.zip"
    for data, wanted in (
        (inspect_zip(), False),
        (b"PK\x03\x04 cut", True),
        (CLAUDE, False),
        (b"", False),
    ):
        file.write_bytes(data)
        assert is_bundle(file) is wanted, data[:10]


def test_a_log_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_MEMBER_BYTES", 10_000)
    data = inspect_zip(packed=b'{"id":1,"a":"' + b"0" * 20_000 + b'"}')
    with pytest.raises(RecordingError, match="unpacks to more than 10000 bytes"):
        told(data)
    monkeypatch.setattr(archive, "MAX_ARCHIVE_BYTES", 100)
    with pytest.raises(RecordingError, match="unpacks to more than"):
        told(inspect_zip())


def with_zstandard(data: bytes, pack: Any) -> bytes:
    """A zip file whose members are packed as those of newer logs are."""
    made, directory = b"", b""
    with zipfile.ZipFile(io.BytesIO(data)) as whole:
        for info in whole.infolist():
            packed, name = pack(whole.read(info)), info.filename.encode()
            sizes = struct.pack("<III", info.CRC, len(packed), info.file_size)
            common = struct.pack("<HHHHH", 63, 0, 93, 0, 0x21) + sizes
            lengths = struct.pack("<HH", len(name), 0)
            rest = struct.pack("<HHHII", 0, 0, 0, 0, len(made))
            directory += b"PK\x01\x02?\x00" + common + lengths + rest + name
            made += b"PK\x03\x04" + common + lengths + name + packed
        count = len(whole.infolist())
    end = struct.pack("<HHHHIIH", 0, 0, count, count, len(directory), len(made), 0)
    return made + directory + b"PK\x05\x06" + end


def test_a_log_that_is_packed_with_zstandard_is_read_where_that_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = with_zstandard(inspect_zip(), lambda member: member)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "zstandard", None)
        with pytest.raises(RecordingError, match=r"packed with Zstandard.*\n.*pip install"):
            told(data)
    zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed")
    packed = with_zstandard(inspect_zip(), zstandard.compress)
    assert told(packed)[0].events == told(inspect_zip())[0].events
    with pytest.raises(RecordingError, match="cannot be unpacked"):
        told(data)
    monkeypatch.setattr(archive, "MAX_MEMBER_BYTES", 10_000)
    bomb = inspect_zip(packed=b'{"id":1,"a":"' + b"0" * 20_000 + b'"}')
    with pytest.raises(RecordingError, match="unpacks to more than 10000 bytes"):
        told(with_zstandard(bomb, zstandard.compress))


def test_a_log_with_a_broken_member_is_refused_or_says_so() -> None:
    (good, bad) = told(inspect_zip(packed=b"{cut"))
    assert (good.bad_lines, bad.bad_lines) == ((), (1,))
    whole = inspect_zip()
    for cut in range(0, len(whole), 97):
        data = whole[:cut]
        try:
            told(data, "inspect")
        except BernsteinError:
            continue
    with pytest.raises(RecordingError, match="no samples"):
        told(json.dumps({"version": 2, "eval": {}, "samples": []}).encode(), "inspect")
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("header.json", "[]")
    with pytest.raises(RecordingError, match="no samples"):
        told(file.getvalue(), "inspect")


def test_a_state_that_holds_no_run_is_refused() -> None:
    for value in ({"$schemaVersion": "999"}, {"$schemaVersion": {}, "model_responses": "x"}):
        with pytest.raises(RecordingError, match="no state of a run"):
            told(json.dumps(value).encode())


def test_events_that_contradict_others_are_passed_over(sdd: SddDir) -> None:
    rows = [json.loads(line) for line in FILES["jsonl"][1].splitlines()]
    again = [{**row, "seq": row["seq"] + 10} for row in rows]
    strange = [{**rows[1], "seq": 30, "payload": {"depth": -1}}, {**rows[1], "kind": "x"}]
    data = lines(*rows, rows[1], *again, *strange, {**rows[1], "payload": rows[0]["payload"]})
    (transcript,) = told(data)
    assert transcript.unknown == 5
    projection, calls = folded(imported(sdd, data))
    assert len(calls) == len(projection.steps) == 1
    with pytest.raises(RecordingError, match="2 runs"):
        told(lines(rows[0], {**rows[1], "runId": "other"}))


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["__proto__", "tool_use", "\ud800", "session", "t_9", "model", "assistant"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=3) | st.sampled_from(["__proto__", "id", "type", "usage", "content"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every member of a value."""
    found = [path]
    if isinstance(value, dict):
        for name, item in value.items():
            found += places(item, (*path, name))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            found += places(item, (*path, number))
    return found


def with_member(value: Any, path: tuple[Any, ...], member: Any) -> Any:
    if not path:
        return member
    changed = dict(value) if isinstance(value, dict) else list(value)
    changed[path[0]] = with_member(value[path[0]], path[1:], member)
    return changed


def parsed(name: str) -> list[Any]:
    """The records of a small file; of a zip file those of its sample."""
    data = FILES[name][1]
    if data.startswith(b"PK"):
        return [json.loads(INSPECT)]
    try:
        return [json.loads(data)]
    except ValueError:
        return [json.loads(line) for line in data.splitlines()]


@pytest.mark.parametrize("name", FILES)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_json_in_the_place_of_any_member_is_read(name: str, data: st.DataObject) -> None:
    values = parsed(name)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.sampled_from(places(values)[1:]))
        values = with_member(values, at, data.draw(anything))
        if len(places(values)) == 1:
            break
    raw = lines(*values)
    try:
        transcripts = told(raw, FILES[name][0])
    except BernsteinError:
        return
    for transcript in transcripts:
        for item in transcript.events:
            if isinstance(item, Told):
                refs = {n: {"digest": "0" * 64, "byteLength": 0} for n in item.bodies}
                payload_from(item.kind, {**item.payload, **refs})


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_is_read_becomes_a_run_that_verifies(sdd: SddDir, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(FILES)))
    values = parsed(name)
    at = data.draw(st.sampled_from(places(values)[1:]))
    raw = lines(*with_member(values, at, data.draw(anything)))
    try:
        transcripts = told(raw, FILES[name][0])
    except BernsteinError:
        return
    for transcript in transcripts:
        run = import_transcript(transcript, "f", sdd, read_settings(), "generic")
        assert verify(sdd, run).verdict == "verified"
        folded(run)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n\n",
        b"null",
        b"[]",
        b"{}",
        b"[[[[",
        b"[" * 100_000,
        b'{"a":' * 200 + b"1" + b"}" * 200,
        b'{"__proto__":{"type":"assistant"}}\n',
        b"data: {}\n\ndata: [DONE]\n\n",
        b"PK\x03\x04",
        b"\xef\xbb\xbf{}",
        b'{"type":["assistant"],"message":{"role":{}}}\n{"event":{},"object":[]}\n',
    ],
)
def test_odd_files_crash_no_reader(kind: str, data: bytes) -> None:
    records = read_records(data)
    KINDS[kind].is_one(records)
    with suppress(BernsteinError):
        list(KINDS[kind].read(records))


def test_a_line_that_is_too_long_is_a_bad_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bernstein.interop.records.MAX_LINE_BYTES", 1000)
    (transcript,) = told(CLAUDE + lines(asked("x" * 2000)))
    assert transcript.bad_lines == (6,)
    monkeypatch.setattr("bernstein.interop.records.MAX_FILE_BYTES", 1000)
    with pytest.raises(RecordingError, match="at most 1000"):
        read_records(b"x" * 1001)


def test_a_bom_and_other_line_endings_hide_nothing() -> None:
    data = b"\xef\xbb\xbf" + CLAUDE.replace(b"\n", b"\r\n")
    assert len(payloads(told(data)[0], "model.call")) == 2
    assert told(GEMINI.replace(b"\n", b"\r\n"))[0].records == 2


def test_names_are_one_short_line() -> None:
    rows = [said("m", tool("t", "a\x00\n\ud800" + "b" * 500), model="x" * 500)]
    (transcript,) = told(json.dumps(rows[0]).encode())
    (proposed,) = payloads(transcript, "tool.proposed")
    assert proposed["name"].startswith("a\ufffd\ufffd\ufffdb")
    assert len(proposed["name"]) == 128
    assert len(payloads(transcript, "model.usage")[0]["model"]) == 128


# --- files that others recorded

_FAMILIES = (
    *("transcripts/", "cli-streams/", "logs-inspect-ai/", "traj-", "state-openai-agents/"),
    *("jsonl-gemini-cli/", "assembled-wire-shapes/"),
)
# What is of no kind: agents that are not known, and what is no session at all.
_NO_KIND = (
    *("/dsh/", "/antigravity-cli", "/open-design/", "/pi/", "/gptme/", "/grok-build/"),
    *("/omnigent/", "/qwenpaw/", "/vibe/", "/muse-codes/", "/opencode-codes/"),
    *("/failed_deserializations/", "tool_msg_9.json", "/sources.json"),
)
_NO_RUN = ("/future_version.json", "/malformed_current_agent.json")


def recorded(data: Path) -> list[tuple[str, Path, dict[str, Any]]]:
    """Name, path and facts of each file that is tried."""
    rows = map(json.loads, (data / "recorded" / "MANIFEST.jsonl").read_text().splitlines())
    return [
        (row["file"], data / "recorded" / row["file"], row["facts"])
        for row in rows
        if row["file"].startswith(_FAMILIES)
    ]


def test_every_file_is_imported_or_refused_with_the_records_that_it_has(data: Path) -> None:
    kinds: Counter[str] = Counter()
    for name, path, facts in recorded(data):
        records = read_records(path.read_bytes())
        if facts["kind"] == "jsonl":
            counted = (len(records.values), len(records.bad_lines))
            # Their reader counts the records that it could read.
            assert counted == (facts["records"], facts["bad_lines"]), name
        try:
            kind = kind_of(records)
        except UsageError:
            assert any(part in f"/{name}" for part in _NO_KIND), name
            kinds["none"] += 1
            continue
        assert not any(part in f"/{name}" for part in _NO_KIND), name
        try:
            transcripts = list(KINDS[kind].read(records))
        except RecordingError:
            assert name.endswith(_NO_RUN), name
            kinds["no run"] += 1
            continue
        kinds[kind] += 1
        for transcript in transcripts:
            assert transcript.bad_lines == records.bad_lines
            assert transcript.bad_counts == 0, name
            if facts["kind"] == "jsonl":
                assert transcript.records == facts["records"], name
    assert kinds == {
        "claude-code": 17,
        "codex": 12,
        "gemini-cli": 42,
        "inspect": 27,
        "openai-agents": 20,
        "openhands": 4,
        "swe-agent": 5,
        "no run": 2,
        "none": 43,
    }


def test_every_run_of_them_verifies_and_is_read_by_both_folds(data: Path, sdd: SddDir) -> None:
    runs = tools = 0
    logs: list[list[dict[str, Any]]] = []
    ours: list[str] = []
    for name, path, _ in recorded(data):
        records = read_records(path.read_bytes())
        try:
            transcripts = list(KINDS[kind_of(records)].read(records))
        except (UsageError, RecordingError):
            continue
        for transcript in transcripts:
            run = import_transcript(transcript, path.name, sdd, read_settings(), "generic")
            assert verify(sdd, run).verdict == "verified", name
            projection, calls = folded(run)
            assert projection.steps[0]["status"] == "ok"
            assert len(calls) == len(payloads(transcript, "tool.proposed"))
            runs, tools = runs + 1, tools + len(calls)
            logs.append(
                [
                    {"seq": e["index"], "runId": run.run_id, "kind": e["event"], **e}
                    for e in events(run)
                    if e["event"] in EVENTS
                ]
            )
            ours += [projection.to_bytes().decode(), tool_calls_bytes(calls).decode()]
    assert (runs, tools) == (145, 151)
    assert ours == folded_by_node(logs)
