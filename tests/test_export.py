"""Runs as others read them: traces, logs, events; and read again they are the same."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bernstein.canonical import digest_of_bytes
from bernstein.capture.gateway.taped import import_transcript
from bernstein.chain.read import load_replay_events
from bernstein.errors import RecordingError, UsageError
from bernstein.fold.run import project
from bernstein.fold.source import EventFile
from bernstein.fold.tool_calls import project_tool_calls
from bernstein.interop.export_inspect import to_inspect
from bernstein.interop.export_jsonl import to_envelopes
from bernstein.interop.export_otel import to_otel
from bernstein.interop.kinds import KINDS, kind_of
from bernstein.interop.members import body_bytes
from bernstein.interop.records import read_records
from bernstein.interop.story import Bodies, story_of
from bernstein.interop.transcript import Told
from bernstein.seal.body_key import bodies_of
from bernstein.seal.signing import default_keys
from bernstein.settings import read_settings
from tests.helpers import ONE_TASK, bernstein, events, run_plan, script, verify
from tests.readers import chained
from tests.test_tools import call as tool_call
from tests.test_tools import plan_with, turns
from tests.told import CLAUDE, CLAUDE_STREAM, CODEX_EXEC, FILES, lines, said, tool

if TYPE_CHECKING:
    from bernstein.rundir import RunDir, SddDir

READERS = Path(__file__).parents[1] / ".clients" / "formats" / "bin" / "python"
PLAN = """\
name: One
stages:
  - name: s
    steps:
      - {title: one, files: [a.txt]}
"""


def imported(sdd: SddDir, data: bytes) -> RunDir:
    records = read_records(data)
    (transcript,) = KINDS[kind_of(records)].read(records)
    return import_transcript(transcript, "file", sdd, read_settings(), "generic")


def exported(run: RunDir, kind: str, *flags: str) -> bytes:
    """What the command writes of a run."""
    file = Path(f"out.{kind}.json")
    done = bernstein("export", run.run_id, "--as", kind, *flags, "-o", str(file))
    assert done.returncode == 0, done.stderr
    assert f"as {kind}" in done.stdout
    return file.read_bytes()


def written(run: RunDir, kind: str, bodies: Bodies | None = None) -> bytes:
    """The same without the command."""
    rows = load_replay_events(run.journal)
    if kind == "jsonl":
        return b"".join(to_envelopes(rows, run.run_id))
    write = to_otel if kind == "otel" else to_inspect
    return write(story_of(rows, run.run_id), bodies)


def bodies_in(sdd: SddDir, run: RunDir) -> Bodies:
    blobs = bodies_of(run, sdd, default_keys(sdd))
    kept = {ref["digest"] for ref in run.read_info()["attempts"][0].get("bodies", ())}
    return lambda ref: json.loads(blobs.read_file(ref["digest"])) if ref["digest"] in kept else None


def facts(run: RunDir) -> tuple[list[Any], dict[str, Any]]:
    """The tool calls of a run but for their places, and its totals."""
    source = EventFile(run.journal, run.run_id)
    calls = [call.to_json() for call in project_tool_calls(source)]
    for call in calls:
        del call["proposedSeq"]
        for name in call.keys() & {"approval", "result"}:
            del call[name]["seq"]
    return calls, project(source).usage_totals  # type: ignore[return-value]


def told_facts(data: bytes) -> tuple[list[Any], dict[str, int]]:
    """The tool calls of a file, and its tokens."""
    records = read_records(data)
    (transcript,) = KINDS[kind_of(records)].read(records)
    assert (transcript.unknown, transcript.strays, transcript.bad_counts) == (0, 0, 0)
    calls: dict[str, list[Any]] = {}
    totals = {"inputTokens": 0, "outputTokens": 0, "cachedInputTokens": 0}
    for item in transcript.events:
        if not isinstance(item, Told):
            continue
        refs = {name: digest_of_bytes(body_bytes(b)).to_json() for name, b in item.bodies.items()}
        if item.kind.startswith("tool."):
            payload = {**item.payload, **refs}
            calls.setdefault(payload["toolCallId"], []).append((item.kind, payload))
        elif item.kind == "model.usage":
            for name in totals:
                totals[name] += item.payload.get(name, 0)
    return list(calls.values()), totals


def spans_of(data: bytes) -> list[dict[str, Any]]:
    (resource,) = json.loads(data)["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    spans: list[dict[str, Any]] = scope["spans"]
    for found in spans:
        values = {a["key"]: next(iter(a["value"].values())) for a in found["attributes"]}
        found["attributes"] = values
    return spans


# --- read again


@pytest.mark.parametrize("kind", ["jsonl", "otel", "inspect"])
@pytest.mark.parametrize("name", FILES)
def test_a_run_that_is_exported_and_imported_has_the_same_calls_and_totals(
    sdd: SddDir, name: str, kind: str
) -> None:
    run = imported(sdd, FILES[name][1])
    for bodies in (None, bodies_in(sdd, run)):
        again = imported(sdd, written(run, kind, bodies))
        assert facts(again) == facts(run)


@pytest.mark.parametrize("kind", ["jsonl", "otel", "inspect"])
def test_so_has_the_run_of_a_plan(sdd: SddDir, kind: str) -> None:
    usage = {"input": 12, "output": 2}
    script({"match": "Split one", "text": ONE_TASK}, {"text": "words", "usage": usage})
    run = sdd.run(run_plan(PLAN, sdd).run_id)
    again = imported(sdd, exported(run, kind))
    calls, totals = facts(run)
    calls_again, totals_again = facts(again)
    assert calls_again == calls == []
    for name in ("inputTokens", "outputTokens", "cachedInputTokens"):
        assert sum(t[name] for t in totals_again.values()) == sum(t[name] for t in totals.values())
    assert sum(t["outputTokens"] for t in totals.values()) > 0


@pytest.mark.parametrize("kind", ["jsonl", "otel", "inspect"])
def test_so_has_the_run_of_a_plan_whose_model_used_tools(sdd: SddDir, kind: str) -> None:
    turns(
        [tool_call("write_file", path="a.txt", content="x"), tool_call("read_file", path="a.txt")]
    )
    run = sdd.run(run_plan(plan_with(), sdd).run_id)
    flags = () if kind == "jsonl" else ("--bodies",)
    again = imported(sdd, exported(run, kind, *flags))
    calls, _ = facts(run)
    assert facts(again)[0] == calls
    assert [c["approval"]["actor"] for c in calls] == ["policy", "policy"]
    assert verify(sdd, again).verdict == "verified"


def test_bodies_that_are_exported_are_bodies_again(sdd: SddDir) -> None:
    run = imported(sdd, CLAUDE)
    for kind in ("otel", "inspect"):
        again = imported(sdd, written(run, kind, bodies_in(sdd, run)))
        kept = {ref["digest"] for ref in again.read_info()["attempts"][0]["bodies"]}
        (call,) = project_tool_calls(EventFile(again.journal, ""))
        assert call.args.digest in kept
        assert "bodies" not in imported(sdd, written(run, kind)).read_info()["attempts"][0]


def test_every_recorded_run_reads_back_as_it_was(data: Path, sdd: SddDir) -> None:
    rows = map(json.loads, (data / "recorded" / "MANIFEST.jsonl").read_text().splitlines())
    families = ("transcripts/", "cli-streams/", "logs-inspect-ai/", "traj-", "state-openai")
    count = 0
    for name in [row["file"] for row in rows if row["file"].startswith(families)]:
        records = read_records((data / "recorded" / name).read_bytes())
        try:
            transcripts = list(KINDS[kind_of(records)].read(records))
        except (UsageError, RecordingError):
            continue
        for transcript in transcripts:
            run = import_transcript(transcript, name, sdd, read_settings(), "generic")
            wanted = told_facts(written(run, "jsonl"))
            for bodies in (None, bodies_in(sdd, run)):
                for kind in ("otel", "inspect"):
                    assert told_facts(written(run, kind, bodies)) == wanted, (name, kind)
            count += 1
    assert count > 100


# --- jsonl


@pytest.mark.parametrize("flags", [(), ("--tool-calls",)])
def test_events_fold_to_the_bytes_of_their_run(sdd: SddDir, flags: tuple[str, ...]) -> None:
    run = imported(sdd, CLAUDE_STREAM)
    Path("events.jsonl").write_bytes(exported(run, "jsonl"))
    of_run = bernstein("trajectory", run.run_id, *flags)
    of_file = bernstein("trajectory", "events.jsonl", *flags)
    assert of_run.returncode == of_file.returncode == 0
    assert of_run.stdout == of_file.stdout != ""


def test_each_line_is_the_envelope_of_a_row(sdd: SddDir) -> None:
    run = imported(sdd, CLAUDE)
    rows = {row["index"]: row for row in events(run)}
    envelopes = [json.loads(line) for line in written(run, "jsonl").splitlines()]
    assert len(envelopes) == len(rows) - 2  # a mutation, and what could have been seen
    for envelope in envelopes:
        row = rows[envelope["seq"]]
        assert envelope == {
            "eventId": row["event_hash"],
            "runId": run.run_id,
            "seq": row["index"],
            "version": 1,
            "occurredAt": row["ts"],
            "kind": row["event"],
            "payload": row["payload"],
        }


# --- traces


def test_a_trace_has_a_span_for_each_agent_call_and_tool(sdd: SddDir) -> None:
    run = imported(sdd, CLAUDE_STREAM)
    spans = spans_of(exported(run, "otel"))
    names = [found["name"] for found in spans]
    assert names == [
        "invoke_agent client/claude-code",
        "invoke_agent session",
        "chat claude-x",
        "execute_tool Agent",
        "invoke_agent session/1",
        "chat claude-x",
        "execute_tool Bash",
        "chat claude-x",
        "execute_tool Write",
    ]
    ids = {found["spanId"]: found for found in spans}
    assert len(ids) == len(spans)
    assert "parentSpanId" not in spans[0]
    assert spans[1]["parentSpanId"] == spans[0]["spanId"]
    assert spans[4]["parentSpanId"] == spans[1]["spanId"]
    assert spans[6]["parentSpanId"] == spans[4]["spanId"]
    assert {len(found["traceId"]) for found in spans} == {32}
    assert {len(found["spanId"]) for found in spans} == {16}
    for found in spans:
        assert int(found["startTimeUnixNano"]) <= int(found["endTimeUnixNano"])
    call = spans[2]["attributes"]
    assert call["gen_ai.provider.name"] == "anthropic"
    # Input holds the cached tokens there.
    assert (call["gen_ai.usage.input_tokens"], call["gen_ai.usage.cache_read.input_tokens"]) == (
        "15",
        "5",
    )
    assert spans[8]["attributes"]["bernstein.approval.outcome"] == "denied"
    assert spans[8]["attributes"]["bernstein.noResult"] is True


def test_a_failed_tool_is_an_error(sdd: SddDir) -> None:
    *_, found = [
        s for s in spans_of(written(imported(sdd, CODEX_EXEC), "otel")) if "tool" in s["name"]
    ]
    assert (found["status"], found["attributes"]["error.type"]) == ({"code": 2}, "_OTHER")
    assert found["attributes"]["bernstein.exitCode"] == "42"


@pytest.mark.parametrize("kind", ["otel", "inspect"])
def test_contents_go_along_only_where_they_are_asked_for(sdd: SddDir, kind: str) -> None:
    run = imported(sdd, CLAUDE)
    plain, whole = exported(run, kind), exported(run, kind, "--bodies")
    for word in (b"make a file", b"a.txt", b"command"):
        assert word not in plain
        assert word in whole
    digest = events(run, "tool.proposed")[0]["payload"]["args"]["digest"]
    assert digest.encode() in plain


def test_prompts_of_a_plan_go_along_too(sdd: SddDir) -> None:
    script({"match": "Split one", "text": ONE_TASK}, {"text": "words"})
    run = sdd.run(run_plan(PLAN, sdd).run_id)
    prompts = [
        json.loads(found["attributes"]["gen_ai.input.messages"])[0]["parts"][0]["content"]
        for found in spans_of(exported(run, "otel", "--bodies"))
        if found["name"].startswith("chat")
    ]
    assert len(prompts) == 2
    assert "Split one step" in prompts[0]


@pytest.mark.parametrize("kind", ["jsonl", "otel", "inspect"])
def test_a_run_gives_the_same_bytes_each_time(sdd: SddDir, kind: str) -> None:
    run = imported(sdd, CLAUDE_STREAM)
    assert exported(run, kind) == exported(run, kind)


def test_counts_beyond_what_json_can_say_are_exported_all_the_same(sdd: SddDir) -> None:
    most = {"input_tokens": 2**53 - 1, "output_tokens": 1, "cache_read_input_tokens": 2**53 - 1}
    run = imported(sdd, lines(said("m", usage=most)))
    assert str(2**54 - 2).encode() in written(run, "otel")
    assert str(2**54 - 1).encode() in written(run, "inspect")


# --- what is asked wrongly


def test_what_is_no_export_is_refused(sdd: SddDir) -> None:
    run = imported(sdd, CLAUDE)
    for flags in (
        ("--bodies",),
        ("--as", "jsonl", "--bodies"),
        ("--as", "otel", "--without-bodies"),
        ("--as", "csv"),
    ):
        done = bernstein("export", run.run_id, *flags, "-o", "x")
        assert done.returncode == 2, flags
    assert bernstein("export", "none", "--as", "otel", "-o", "x").returncode == 2
    assert not Path("x").exists()


def test_a_journal_that_does_not_hold_is_not_exported(sdd: SddDir) -> None:
    run = imported(sdd, CLAUDE)
    run.journal.write_bytes(run.journal.read_bytes().replace(b'"depth":0', b'"depth":1'))
    done = bernstein("export", run.run_id, "--as", "jsonl", "-o", "x")
    assert (done.returncode, "does not hold at row 1" in done.stderr) == (1, True)
    assert not Path("x").exists()


def test_rows_without_the_members_of_their_kind_are_refused(sdd: SddDir) -> None:
    run = sdd.new_run("odd")
    run.journal.write_bytes(chained(b"  {}"))
    for kind in ("otel", "inspect"):
        done = bernstein("export", "odd", "--as", kind, "-o", "x")
        assert (done.returncode, "missing required field" in done.stderr) == (2, True), done
    assert not Path("x").exists()


def test_a_bundle_is_still_what_is_exported_without_a_form(sdd: SddDir) -> None:
    run = imported(sdd, CLAUDE)
    assert bernstein("export", run.run_id, "-o", "run.zip").returncode == 0
    assert zipfile.is_zipfile("run.zip")


# --- what others read

_READ_LOG = """\
import sys
from inspect_ai.log import read_eval_log
log = read_eval_log(sys.argv[1])
(sample,) = log.samples
kinds = [event.event for event in sample.events]
usage = next(iter(log.stats.model_usage.values()))
print(log.version, log.status, kinds.count("tool"), kinds.count("model"), usage.total_tokens)
"""
_READ_TRACE = """\
import base64, json, sys
from google.protobuf import json_format
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
value = json.load(open(sys.argv[1]))
# In OTLP ids are hex, where JSON of protocol buffers has base64 else.
for span in value["resourceSpans"][0]["scopeSpans"][0]["spans"]:
    for name in ("traceId", "spanId", "parentSpanId"):
        if name in span:
            span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
data = json_format.ParseDict(value, TracesData())
spans = data.resource_spans[0].scope_spans[0].spans
print(len(spans), {len(s.trace_id) for s in spans}, {len(s.span_id) for s in spans})
"""


def read_by_others(program: str, file: str) -> str:
    """What a program of another venv says of a file; the test is skipped without that."""
    if not READERS.exists():
        pytest.skip("the readers of others are not installed: make formats")
    done = subprocess.run(
        [str(READERS), "-c", program, file],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(Path.cwd())},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("flags", [(), ("--bodies",)])
@pytest.mark.parametrize("name", ["claude stream", "codex exec", "inspect zip", "agents state"])
def test_inspect_reads_its_log(sdd: SddDir, name: str, flags: tuple[str, ...]) -> None:
    run = imported(sdd, FILES[name][1])
    exported(run, "inspect", *flags)
    calls, tools, *counts = FILES[name][2]
    models = max(calls, 3 if name == "claude stream" else 1)
    said_ = read_by_others(_READ_LOG, "out.inspect.json")
    assert said_ == f"2 success {tools} {models} {sum(counts)}\n"


def test_inspect_reads_a_run_that_failed_and_odd_arguments(sdd: SddDir) -> None:
    rows = [
        said("m", tool("t", "Bash"), {**tool("u", ""), "input": [1, None]}),
        {"type": "result", "session_id": "s", "subtype": "error_max_turns", "is_error": True},
    ]
    exported(imported(sdd, lines(*rows)), "inspect", "--bodies")
    assert read_by_others(_READ_LOG, "out.inspect.json").startswith("2 error 2 1 ")


@pytest.mark.parametrize("flags", [(), ("--bodies",)])
def test_opentelemetry_reads_its_trace(sdd: SddDir, flags: tuple[str, ...]) -> None:
    exported(imported(sdd, CLAUDE_STREAM), "otel", *flags)
    assert read_by_others(_READ_TRACE, "out.otel.json") == "9 {16} {8}\n"


_WRITE_LOGS = """\
import sys
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool

@tool
def add():
    async def execute(x: int, y: int):
        '''Add two.

        Args:
            x: One.
            y: Two.
        '''
        return x + y
    return execute

for form in ("eval", "json"):
    asks = ModelOutput.for_tool_call("mockllm/model", "add", {"x": 1, "y": 2})
    asks.usage = ModelUsage(
        input_tokens=10, output_tokens=5, total_tokens=18, input_tokens_cache_read=3
    )
    says = ModelOutput.from_content("mockllm/model", "it is 3")
    task = Task(dataset=[Sample(input="add 1 and 2")], solver=[use_tools(add()), generate()])
    model = get_model("mockllm/model", custom_outputs=[asks, says])
    eval(task, model=model, log_dir=sys.argv[1], log_format=form, display="none")
"""


def test_what_inspect_writes_is_read_in_both_of_its_forms(sdd: SddDir) -> None:
    pytest.importorskip("zstandard", reason="zstandard is not installed")
    read_by_others(_WRITE_LOGS, "logs")
    logs = sorted(Path("logs").iterdir())
    assert {path.suffix for path in logs} == {".eval", ".json"}
    for path in logs:
        run = imported(sdd, path.read_bytes())
        calls, totals = facts(run)
        assert [(call["name"], call["result"]["ok"]) for call in calls] == [("add", True)]
        used = totals["estimated"]
        assert (used["inputTokens"], used["cachedInputTokens"]) == (10, 3)
        assert len(events(run, "model.call")) == 2
