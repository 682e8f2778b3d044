"""The real SDKs of the providers against a loopback server: recorded, and replayed without it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bernstein import acall_llm, call_llm, stream_llm
from bernstein.capture.models import registry
from bernstein.capture.program import CallScope, close_program_run
from bernstein.capture.run import OpenRun
from bernstein.capture.scope import use_scope
from bernstein.errors import ModelUnavailableError, ProviderError
from bernstein.recording.answer import Chunk, LlmAnswer, ToolCall
from bernstein.rundir import SddDir
from tests.helpers import ONE_TASK, open_run, rows, run_plan
from tests.pairs import is_faithful
from tests.wire import DROP, Wire, serve

pytest.importorskip("pydantic_ai", reason="the providers' packages are not installed")
pytestmark = [
    pytest.mark.loopback,
]

MODELS = {"openai": "openai:gpt-4.1-mini", "anthropic": "anthropic:claude-haiku-4-5"}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    return MODELS[request.param]


def point_at(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.close_providers()
    monkeypatch.setattr("bernstein.capture.drive.asyncio.sleep", _no_sleep)
    monkeypatch.setattr("bernstein.capture.drive.time.sleep", lambda _: None)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
    monkeypatch.setenv("OPENAI_BASE_URL", f"{wire.base_url}/v1")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", wire.base_url)


async def _no_sleep(seconds: float) -> None:
    del seconds


def run(opened: OpenRun, program: Any) -> Any:
    try:
        with use_scope(CallScope(opened)):
            return program()
    finally:
        close_program_run(opened, "completed")


def record_and_replay(
    sdd: SddDir, monkeypatch: pytest.MonkeyPatch, program: Any, *turns: Any
) -> tuple[Any, Wire, OpenRun]:
    """Run a program against a server, then again without it; both must give the same."""
    with serve(*turns) as wire:
        point_at(wire, monkeypatch)
        recorded = open_run(sdd)
        result = run(recorded, program)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name)
    registry.close_providers()
    replayed = open_run(sdd, replay=recorded.dir.run_id)
    assert run(replayed, program) == result
    comparison, coverage = replayed.comparison(), replayed.coverage()
    assert comparison is not None
    assert coverage is not None
    assert comparison.relation == "identical"
    assert coverage.is_complete
    return result, wire, recorded


def test_a_plain_call(sdd: SddDir, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    answer, wire, _ = record_and_replay(
        sdd,
        monkeypatch,
        lambda: call_llm(
            "hi",
            model=model,
            temperature=0.5,
            max_tokens=50,
            system="be brief",
            stop=["END"],
            seed=3,
        ),
        "hello",
    )
    assert isinstance(answer, LlmAnswer)
    assert answer.text == "hello"
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.cached_input_tokens) == (7, 4)
    assert answer.usage.output_tokens == 3
    assert answer.usage.billing_status == "priced"
    assert answer.usage.credits > 0
    assert (answer.usage.price_book_version or "").startswith("genai-prices ")
    (sent,) = wire.seen
    assert sent["model"] == model.split(":")[1]
    assert "be brief" in str(sent)
    assert "END" in str(sent)


def test_an_async_call(sdd: SddDir, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    def program() -> list[str]:
        async def both() -> list[str]:
            answers = await asyncio.gather(acall_llm("a", model=model), acall_llm("b", model=model))
            return [answer.text for answer in answers]

        return asyncio.run(both())

    result, wire, _ = record_and_replay(sdd, monkeypatch, program, "one", "two")
    assert sorted(result) == ["one", "two"]
    assert len(wire.seen) == 2


def test_a_stream_keeps_its_pieces(
    sdd: SddDir, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    items, _, _ = record_and_replay(
        sdd, monkeypatch, lambda: list(stream_llm("hi", model=model)), "he|ll|o ü|\u2028😀"
    )
    *chunks, answer = items
    assert [c.text for c in chunks if isinstance(c, Chunk)] == ["he", "ll", "o ü", "\u2028😀"]
    assert answer.text == "hello ü\u2028😀"
    assert answer.usage is not None
    assert answer.usage.output_tokens == 3


def test_tool_calls_come_back_as_the_model_spelled_them(
    sdd: SddDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = [{"name": "look", "description": "Look.", "parameters": {"type": "object"}}]
    model = MODELS["openai"]
    answer, wire, _ = record_and_replay(
        sdd, monkeypatch, lambda: call_llm("hi", model=model, tools=tools), ""
    )
    assert answer.tool_calls == (ToolCall("look", '{"at": "it"}'),)
    assert wire.seen[0]["tools"][0]["function"]["name"] == "look"
    items, _, _ = record_and_replay(
        sdd, monkeypatch, lambda: list(stream_llm("hi", model=model, tools=tools)), "a|b"
    )
    assert [c.kind for c in items[:-1]] == ["text", "text", "tool/0"]
    assert items[-1].tool_calls == answer.tool_calls


@pytest.mark.parametrize("failure", [429, 500, 529, DROP])
def test_a_failure_is_a_row_of_its_own_and_the_retry_the_next(
    sdd: SddDir, monkeypatch: pytest.MonkeyPatch, model: str, failure: Any
) -> None:
    answer, wire, recorded = record_and_replay(
        sdd, monkeypatch, lambda: call_llm("hi", model=model, max_retries=2), failure, "fine"
    )
    assert answer.text == "fine"
    # The SDKs' own retries are off: two requests, two rows.
    assert len(wire.seen) == 2
    first, second = (row["outcome"] for row in rows(recorded.dir.llm_calls))
    assert first["error"]["status"] == (None if failure == DROP else failure)
    assert second["ok"]["text"] == "fine"


@pytest.mark.parametrize("failure", [400, 401])
def test_a_failure_that_stays_is_raised_as_it_was(
    sdd: SddDir, monkeypatch: pytest.MonkeyPatch, model: str, failure: int
) -> None:
    def program() -> tuple[str, int | None, str]:
        with pytest.raises(ProviderError) as error:
            call_llm("hi", model=model, max_retries=2)
        return error.value.error_class, error.value.status, error.value.text

    (name, status, text), wire, _ = record_and_replay(sdd, monkeypatch, program, failure)
    assert status == failure
    assert f"status {failure}" in text
    assert name in {"BadRequestError", "AuthenticationError"}
    assert len(wire.seen) == 1


def test_an_error_inside_a_200_stream_comes_at_its_place(
    sdd: SddDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program() -> tuple[list[str], str]:
        seen: list[str] = []
        stream = stream_llm("hi", model=MODELS["anthropic"])
        with pytest.raises(ProviderError) as error:
            seen.extend(item.text for item in stream)
        return seen, error.value.text

    (seen, text), _, _ = record_and_replay(sdd, monkeypatch, program, "on|e|ERROR")
    assert seen == ["on", "e"]
    assert "Overloaded" in text


def test_no_key_reaches_the_disk(sdd: SddDir, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    record_and_replay(sdd, monkeypatch, lambda: call_llm("hi", model=model).text, "x")
    for path in sdd.path.rglob("*"):
        if path.is_file():
            assert b"sk-test" not in path.read_bytes(), path


def test_a_missing_key_says_so_before_anything_runs(sdd: SddDir, model: str) -> None:
    with pytest.raises(ModelUnavailableError, match=r"(?i)api.key"):
        run_plan("goal: x", sdd, model=model)
    assert sdd.list_runs() == []


def test_a_plan_on_a_provider_replays_without_it(
    sdd: SddDir, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    plan = "stages: [{name: a, steps: [{title: X, files: [x.txt]}]}]"
    with serve(ONE_TASK, 429, "the text") as wire:
        point_at(wire, monkeypatch)
        recorded = run_plan(plan, sdd, model=model, seed=7)
    assert recorded.status == "completed"
    assert recorded.credits > 0
    assert (wire.seen[0].get("seed") == 7) == model.startswith("openai")
    registry.close_providers()
    assert is_faithful(recorded, run_plan(plan, sdd, replay=recorded.run_id))
