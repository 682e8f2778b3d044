from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from bernstein import DeterministicStore, LlmAnswer, LlmCall, ReplayMissError, ToolCall, Usage
from bernstein.errors import ProviderError, RecordingError
from bernstein.recording.answer import LlmFailure, Outcome
from bernstein.recording.queue import load_recording
from bernstein.recording.rows import read_prompts
from bernstein.recording.texts import shared_ends
from tests.helpers import rows


def call(prompt: str = "p", temperature: float | None = 0.7, **more: object) -> LlmCall:
    return LlmCall("m", prompt, "x", temperature, None, more)


class Tape:
    """A recording under construction, and the stores that replay it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "rec"
        self.folder.mkdir()
        self.path = self.folder / "llm_calls.jsonl"
        self.blobs = folder / "blobs"
        self.misses = folder / "misses.jsonl"

    def record(
        self, *calls: tuple[LlmCall, Outcome | str] | tuple[LlmCall, Outcome | str, str]
    ) -> None:
        store = DeterministicStore(record_to=self.path, blobs=self.blobs)
        for what, outcome, *lane in calls:
            answer = LlmAnswer(outcome) if isinstance(outcome, str) else outcome
            store.record(
                what,
                answer,
                seq=store.begin(),
                lane=lane[0] if lane else "",
                begun_s=time.monotonic(),
            )
        store.close()

    def replay(self, *, strict: bool = True, **more: Any) -> DeterministicStore:
        return DeterministicStore(
            replay_from=self.path, misses_to=self.misses, blobs=self.blobs, strict=strict, **more
        )


@pytest.fixture
def tape(tmp_path: Path) -> Tape:
    return Tape(tmp_path)


def ask(store: DeterministicStore, prompt: str = "p", lane: str = "") -> str | None:
    return store.get_replay("m", prompt, "x", 0.7, None, lane=lane)


def test_repeated_calls_replay_in_recorded_order(tape: Tape) -> None:
    tape.record((call(), "A"), (call("q"), "Q"), (call(), "B"))
    store = tape.replay()
    assert [ask(store), ask(store), ask(store, "q")] == ["A", "B", "Q"]


def test_a_third_call_of_a_key_recorded_twice_is_a_miss(tape: Tape) -> None:
    tape.record((call(), "A"), (call(), "B"))
    store = tape.replay()
    ask(store)
    ask(store)
    with pytest.raises(ReplayMissError, match="asked for the 3rd time, recorded twice") as miss:
        ask(store)
    assert (miss.value.reason, miss.value.recorded, miss.value.requested) == ("exhausted", 2, 3)
    assert miss.value.model == "m"
    assert miss.value.key == call().key
    assert isinstance(miss.value, RuntimeError)


def test_a_miss_says_how_to_record_again_and_names_the_escape_hatch(tape: Tape) -> None:
    tape.record((call(), "A"))
    with pytest.raises(ReplayMissError) as miss:
        ask(tape.replay(), "other")
    text = str(miss.value)
    assert "-u BERNSTEIN_REPLAY_RUN_ID BERNSTEIN_DETERMINISTIC_SEED=42" in text
    assert "BERNSTEIN_REPLAY_ALLOW_LIVE_MISS=1" in text


def test_a_miss_by_one_float_names_field_recorded_and_asked_value(tape: Tape) -> None:
    tape.record((call("far away"), "F"), (call(), "A"))
    with pytest.raises(ReplayMissError) as miss:
        tape.replay().get_replay("m", "p", "x", 0.0)
    assert "temperature (recorded 0.7, asked 0.0)" in str(miss.value)
    assert miss.value.nearest is not None
    assert miss.value.nearest["seq"] == 1


def test_a_miss_by_one_word_shows_the_lines_that_differ(tape: Tape) -> None:
    tape.record((call("You are brief.\nSay hi"), "A"), (call("zzz"), "Z"))
    with pytest.raises(ReplayMissError) as miss:
        ask(tape.replay(), "You are terse.\nSay hi")
    assert "-You are brief." in str(miss.value)
    assert "+You are terse." in str(miss.value)


def test_a_miss_inside_a_request_names_the_paths(tape: Tape) -> None:
    tape.record((call(messages=[{"role": "user", "content": "a"}], tool_choice="auto"), "A"))
    asked = call(messages=[{"role": "user", "content": "b"}], top_p=0.5)
    with pytest.raises(ReplayMissError) as miss:
        tape.replay().take(asked, "")
    for path in ("messages[0].content", "tool_choice gone", "top_p added"):
        assert path in str(miss.value)


def test_a_strict_miss_is_sticky_for_every_further_call(tape: Tape) -> None:
    tape.record((call(), "A"))
    store = tape.replay()
    with pytest.raises(ReplayMissError) as first:
        ask(store, "other")
    with pytest.raises(ReplayMissError) as second:
        ask(store)
    assert second.value is first.value
    assert len(rows(tape.misses)) == 1


def test_a_miss_that_is_allowed_warns_each_time_and_returns_none(
    tape: Tape, caplog: pytest.LogCaptureFixture
) -> None:
    tape.record((call(), "A"))
    store = tape.replay(strict=False)
    with caplog.at_level(logging.WARNING):
        assert ask(store, "other") is None
        assert ask(store, "other") is None
        assert ask(store) == "A"
        assert ask(store) is None
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 3
    assert [row["strict"] for row in rows(tape.misses)] == [False] * 3
    assert [row["reason"] for row in rows(tape.misses)] == [
        "never_recorded",
        "never_recorded",
        "exhausted",
    ]


def test_a_miss_row_holds_what_the_error_said(tape: Tape) -> None:
    tape.record((call(), "A"))
    store = tape.replay()
    with pytest.raises(ReplayMissError) as miss:
        store.take(call("other"), "a/b")
    (row,) = rows(tape.misses)
    assert row == {
        "lane": "a/b",
        "key": call("other").key,
        "reason": "never_recorded",
        "requested": 1,
        "nearest": miss.value.nearest,
        "strict": True,
    }


def test_a_lane_that_was_not_recorded_is_a_miss_and_never_another_lanes_answer(tape: Tape) -> None:
    tape.record((call(), "A", "one"), (call(), "B", "two"))
    store = tape.replay()
    assert ask(store, lane="two") == "B"
    assert ask(store, lane="one") == "A"
    for lane in ("", "three"):
        with pytest.raises(ReplayMissError) as miss:
            ask(tape.replay(), lane=lane)
        assert miss.value.reason == "never_recorded"
        assert "lane" in str(miss.value)


def test_epochs_with_one_prompt_do_not_eat_each_others_answers(tape: Tape) -> None:
    tape.record(*((call(), f"{lane}{n}", lane) for n in range(3) for lane in ("a", "b", "c")))
    store = tape.replay()
    assert [ask(store, lane="b") for _ in range(3)] == ["b0", "b1", "b2"]
    assert [ask(store, lane="a") for _ in range(3)] == ["a0", "a1", "a2"]


def test_twenty_prompts_from_threads_in_another_order_get_their_own_answers(tape: Tape) -> None:
    tape.record(*((call(f"p{n}"), f"answer {n}") for n in range(20)))
    store = tape.replay()
    got: dict[int, str | None] = {}
    order = random.Random(1).sample(range(20), 20)
    threads = [
        threading.Thread(target=lambda n=n: got.__setitem__(n, ask(store, f"p{n}"))) for n in order
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {n: f"answer {n}" for n in range(20)}


def test_the_fifo_is_the_order_of_calls_where_answers_came_in_another(tape: Tape) -> None:
    store = DeterministicStore(record_to=tape.path, blobs=tape.blobs)
    first, second = store.begin(), store.begin()
    store.record(call(), LlmAnswer("second"), seq=second, begun_s=0)
    store.record(call(), LlmAnswer("first"), seq=first, begun_s=0)
    store.close()
    assert [(r["seq"], r["done"], r["begun"]) for r in rows(tape.path)] == [(1, 0, 2), (0, 1, 2)]
    replay = tape.replay()
    assert [ask(replay), ask(replay)] == ["first", "second"]


def test_an_empty_answer_is_an_answer(tape: Tape) -> None:
    tape.record((call(), ""))
    assert ask(tape.replay()) == ""


def test_a_failure_is_raised_again_as_it_was(tape: Tape) -> None:
    tape.record((call(), LlmFailure("RateLimitError", 429, "slow down")), (call(), "A"))
    store = tape.replay()
    with pytest.raises(ProviderError) as error:
        ask(store)
    assert (error.value.error_class, error.value.status, error.value.text) == (
        "RateLimitError",
        429,
        "slow down",
    )
    assert ask(store) == "A"


def test_every_part_of_an_answer_comes_back(tape: Tape) -> None:
    answer = LlmAnswer(
        "te\udc00xt",
        tool_calls=(ToolCall("bash", '{"cmd": "ls" }'), ToolCall("read", "")),
        usage=Usage(1, 2, "priced", 3, 4, "book 1"),
        stop_reason="tool_use",
        refusal="no",
        reasoning="hm",
        chunks=(("reasoning", 2), ("text", 1), ("text", 4), ("tool/0", 14)),
        is_incomplete=True,
    )
    failure = LlmFailure("APIError", None, "cut", LlmAnswer("par", chunks=(("text", 3),)))
    tape.record((call("a"), answer), (call("b"), failure))
    store = tape.replay()
    for prompt, outcome in (("a", answer), ("b", failure)):
        row = store.take(call(prompt), "")
        assert row is not None
        assert row.read_outcome(store.blobs) == outcome


def test_a_row_is_the_canonical_spelling_of_its_value(tape: Tape) -> None:
    tape.record((call("ü\u2028", 0.0), LlmAnswer("é", stop_reason="stop")))
    line = tape.path.read_bytes()
    assert line.count(b"\n") == 1
    value = json.loads(line)
    assert line == rfc8785.dumps(value) + b"\n"
    assert value.keys() == {
        "seq",
        "begun",
        "done",
        "key",
        "key_scheme",
        "lane",
        "model",
        "provider",
        "temperature",
        "max_tokens",
        "prompt",
        "outcome",
        "ts",
        "elapsed_s",
    }


def test_a_body_over_64_kib_is_a_blob_and_comes_back(tape: Tape) -> None:
    prompt, text = "p" * 70_000, "t" * 70_000
    tape.record((call(prompt), text))
    assert tape.path.stat().st_size < 2000
    assert ask(tape.replay(), prompt) == text
    blobs = [path for path in tape.blobs.rglob("*") if path.is_file()]
    assert len(blobs) == 2
    assert {path.stat().st_mode & 0o777 for path in blobs} == {0o600}
    for path in blobs:
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(RecordingError, match="changed"):
        ask(tape.replay(), prompt)


def test_a_history_that_grows_is_stored_as_what_it_adds(tape: Tape) -> None:
    messages: list[dict[str, str]] = []
    calls = []
    for n in range(100):
        messages.append({"role": "user", "content": f"turn {n} " + "x" * 200})
        calls.append(call("unused", messages=list(messages), system="s" * 500))
    tape.record(*((c, f"a{n}") for n, c in enumerate(calls)))
    full = sum(len(c.key_prompt) for c in calls)
    assert tape.path.stat().st_size < full / 10
    store = tape.replay()
    got = [store.take(c, "") for c in calls]
    assert all(row is not None for row in got)
    read = list(read_prompts(store.recording.rows, store.blobs))
    assert [prompt for _, prompt in read] == [c.key_prompt for c in calls]
    assert all(row.key_of(prompt) == row.key for row, prompt in read)


@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=60))
def test_shared_ends_are_shared_and_do_not_overlap(head: str, middle: str, tail: str) -> None:
    old, new = head + tail, head + middle + tail
    start, end = shared_ends(old, new)
    assert old[:start] == new[:start]
    assert old[len(old) - end :] == new[len(new) - end :]
    assert start + end == min(len(old), len(new))


def test_a_recording_of_an_older_key_scheme_is_a_full_miss_that_says_so(tape: Tape) -> None:
    tape.path.write_text('{"key":"abc","model":"m","prompt":"p","response":"A"}\n')
    with pytest.raises(ReplayMissError, match="older key scheme") as miss:
        ask(tape.replay())
    assert miss.value.reason == "stale_key_scheme"
    assert "BERNSTEIN_DETERMINISTIC_SEED" in str(miss.value)


def test_an_empty_recording_has_its_own_reason(tape: Tape) -> None:
    tape.path.write_bytes(b"")
    with pytest.raises(ReplayMissError) as miss:
        ask(tape.replay())
    assert miss.value.reason == "no_recording"


def test_a_torn_last_line_costs_only_itself(tape: Tape) -> None:
    tape.record((call(), "A"), (call(), "B"))
    tape.path.write_bytes(tape.path.read_bytes()[:-9])
    store = tape.replay(was_cut=True)
    assert store.recording.has_torn_end
    assert ask(store) == "A"
    with pytest.raises(ReplayMissError, match="stops after 1 answers"):
        ask(store)


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b"\0" * 20,
        b'{"key_scheme":"page.v1"}',
        b"\xff\xfe",
        b"",
        b'{"key_scheme":"page.v1","seq":"0"}',
    ],
)
def test_a_damaged_line_names_itself_and_is_not_served_past(tape: Tape, line: bytes) -> None:
    tape.record((call(), "A"), (call(), "B"))
    first, second, _ = tape.path.read_bytes().split(b"\n")
    tape.path.write_bytes(b"\n".join((first, line, second, b"")))
    with pytest.raises(RecordingError, match="line 2 is damaged"):
        tape.replay()


@given(st.binary(max_size=200))
def test_no_recording_makes_the_reader_raise_anything_else(
    tmp_path_factory: Any, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("r") / "llm_calls.jsonl"
    path.write_bytes(data)
    with contextlib.suppress(RecordingError):
        load_recording(path)


def test_a_recording_is_private(tape: Tape) -> None:
    old = os.umask(0)
    try:
        tape.record((call(), "A"))
    finally:
        os.umask(old)
    assert tape.path.stat().st_mode & 0o777 == 0o600
