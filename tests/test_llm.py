from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bernstein import acall_llm, astream_llm, call_llm, scope, stream_llm
from bernstein.capture.program import CallScope, close_program_run
from bernstein.capture.run import OpenRun
from bernstein.capture.scope import current_scope, use_scope
from bernstein.errors import ModelUnavailableError, ProviderError, ReplayMissError, UsageError
from bernstein.recording.answer import Chunk, LlmAnswer
from bernstein.recording.hold import Hold
from bernstein.rundir import SddDir
from tests.helpers import MODEL, events, no_model, open_run, rows, script, verify


class Session:
    """Records a program, then replays it, in this process."""

    def __init__(self, sdd: SddDir) -> None:
        self.sdd = sdd
        self.recorded: OpenRun | None = None
        self.last: OpenRun | None = None

    def record(self, program: Any, *rules: dict[str, Any], **settings: Any) -> Any:
        script(*rules)
        self.recorded = open_run(self.sdd, **settings)
        result = self._run(self.recorded, program)
        no_model()
        return result

    def replay(self, program: Any, **settings: Any) -> Any:
        assert self.recorded is not None
        return self._run(open_run(self.sdd, replay=self.recorded.dir.run_id, **settings), program)

    def _run(self, run: OpenRun, program: Any) -> Any:
        self.last = run
        try:
            with use_scope(CallScope(run)):
                if asyncio.iscoroutinefunction(program):
                    return asyncio.run(program())
                return program()
        finally:
            close_program_run(run, "completed")

    @property
    def relation(self) -> str:
        assert self.last is not None
        comparison = self.last.comparison()
        assert comparison is not None
        return comparison.relation


@pytest.fixture
def session(sdd: SddDir) -> Session:
    return Session(sdd)


def text(prompt: str, **more: Any) -> str:
    return call_llm(prompt, model=MODEL, **more).text


async def atext(prompt: str, **more: Any) -> str:
    return (await acall_llm(prompt, model=MODEL, **more)).text


ECHO = {"match": "(?s).+", "text": "{0} #{n}", "delay_s": [0, 0.01]}


def test_sync_and_async_calls_replay_each_other(session: Session) -> None:
    def plain() -> list[str]:
        return [text("a"), text("b"), text("a")]

    async def tasks() -> list[str]:
        return [await atext("a"), await atext("b"), await atext("a")]

    assert session.record(plain, ECHO) == ["a #1", "b #2", "a #3"]
    assert session.replay(tasks) == ["a #1", "b #2", "a #3"]
    assert session.relation == "identical"


def test_an_int_temperature_finds_what_a_float_recorded(session: Session) -> None:
    session.record(lambda: text("a", temperature=0.0), ECHO)
    assert session.replay(lambda: text("a", temperature=0)) == "a #1"
    with pytest.raises(ReplayMissError):
        session.replay(lambda: text("a", temperature=0.1))


def test_threads_in_scopes_get_their_own_answers(session: Session) -> None:
    def program() -> dict[str, list[str]]:
        got: dict[str, list[str]] = {}
        outer = open_scope()

        def work(name: str) -> None:
            with use_scope(outer), scope(name):
                got[name] = [text("same prompt") for _ in range(5)]

        threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return got

    recorded = session.record(program, ECHO)
    assert len({answer for answers in recorded.values() for answer in answers}) == 40
    for _ in range(5):
        assert session.replay(program) == recorded
        assert session.relation in {"identical", "equivalent"}


def open_scope() -> CallScope:
    return current_scope()


def test_gathered_calls_finish_in_the_order_in_which_they_finished(session: Session) -> None:
    async def program() -> list[str]:
        finished: list[str] = []

        async def one(n: int) -> None:
            finished.append(await atext(f"p{n % 4}"))

        await asyncio.gather(*(one(n) for n in range(12)))
        return finished

    recorded = session.record(program, {**ECHO, "delay_s": [0, 0.05]})
    for _ in range(20):
        assert session.replay(program) == recorded
        assert session.relation == "identical"
    assert session.last is not None
    assert session.last.hold is not None
    assert not session.last.hold.has_expired


def test_the_first_to_finish_is_again_the_first(session: Session) -> None:
    async def race() -> str:
        tasks = [asyncio.create_task(atext(name)) for name in ("slow", "fast")]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        winner = next(iter(done)).result()
        await asyncio.gather(*pending)
        return winner

    rules = ({"match": "slow", "text": "slow", "delay_s": 0.1}, {"text": "fast"})
    assert session.record(race, *rules) == "fast"
    assert [session.replay(race) for _ in range(10)] == ["fast"] * 10


def test_a_hold_that_waits_for_what_never_comes_is_bounded_and_reported(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.record(lambda: [text("a"), text("b")], ECHO)
    monkeypatch.setattr(Hold.__init__, "__defaults__", (0.05,))
    assert session.replay(lambda: [text("b"), text("a")]) == ["b #2", "a #1"]
    assert session.last is not None
    assert session.last.hold is not None
    assert session.last.hold.has_expired
    assert session.relation == "diverged"


# --- streams

STREAM = {
    "stream": ["one ", "", "two ", "ü\u2028", "😀"],
    "reasoning": "let me think",
    "tool_calls": [{"name": "bash", "args": '{"cmd":"ls"}'}, {"name": "read", "args": "{}"}],
    "usage": {"input": 3, "output": 5},
}


def read(prompt: str = "p", **more: Any) -> list[Chunk | LlmAnswer]:
    return list(stream_llm(prompt, model=MODEL, **more))


async def aread() -> list[Chunk | LlmAnswer]:
    return [item async for item in astream_llm("p", model=MODEL)]


def test_a_stream_comes_back_in_its_pieces_sync_and_async(session: Session) -> None:
    recorded = session.record(read, STREAM)
    *chunks, answer = recorded
    assert [c.text for c in chunks if c.kind == "text"] == STREAM["stream"]
    assert {c.kind for c in chunks} == {"text", "reasoning", "tool/0", "tool/1"}
    assert isinstance(answer, LlmAnswer)
    assert answer.text == "one two ü\u2028😀"
    assert session.replay(read) == recorded
    assert session.replay(aread) == recorded
    assert session.relation == "identical"


def test_a_streamed_call_does_not_answer_a_plain_one(session: Session) -> None:
    session.record(read, STREAM)
    with pytest.raises(ReplayMissError, match="differs in: prompt"):
        session.replay(lambda: text("p"))


def test_an_error_inside_a_stream_comes_at_the_same_place(session: Session) -> None:
    def program() -> tuple[list[str], str]:
        seen: list[str] = []
        try:
            for item in stream_llm("p", model=MODEL):
                assert isinstance(item, Chunk)
                seen.append(item.text)
        except ProviderError as error:
            return seen, error.text
        raise AssertionError("the stream must fail")

    rule = {
        **STREAM,
        "reasoning": None,
        "fail": {"class": "Overloaded", "text": "busy", "after_chunks": 2},
    }
    recorded = session.record(program, rule)
    assert recorded == (["one ", ""], "busy")
    assert session.replay(program) == recorded
    assert session.relation == "identical"


def test_a_reader_who_leaves_a_stream_is_recorded_as_that(session: Session) -> None:
    def leave_after(count: int) -> Any:
        def program() -> list[Any]:
            stream = stream_llm("p", model=MODEL)
            seen = [next(stream) for _ in range(count)]
            stream.close()  # type: ignore[attr-defined]
            return seen

        return program

    recorded = session.record(leave_after(3), {**STREAM, "reasoning": None})
    assert session.recorded is not None
    (row,) = rows(session.recorded.dir.llm_calls)
    assert row["outcome"]["ok"]["incomplete"] is True
    assert session.replay(leave_after(3)) == recorded
    assert session.relation == "identical"
    session.replay(leave_after(2))
    assert session.relation == "diverged"
    with pytest.raises(ReplayMissError, match="reads on"):
        session.replay(read)


def test_a_reader_who_leaves_an_async_stream_is_recorded_too(session: Session) -> None:
    async def program() -> list[Any]:
        stream = astream_llm("p", model=MODEL)
        seen = [await anext(stream) for _ in range(2)]
        await stream.aclose()  # type: ignore[attr-defined]
        return seen

    recorded = session.record(program, STREAM)
    assert session.replay(program) == recorded
    assert session.relation == "identical"


# --- retries


def test_retries_replay_as_they_happened_and_do_not_sleep(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("bernstein.capture.drive.time.sleep", slept.append)
    rules = (
        {"fail": {"class": "RateLimitError", "status": 429}, "times": 1},
        {"fail": {"class": "APIConnectionError"}, "times": 1},
        {"text": "at last"},
    )
    assert session.record(lambda: text("p", max_retries=2), *rules) == "at last"
    assert len(slept) == 2
    assert session.recorded is not None
    outcomes = [next(iter(r["outcome"])) for r in rows(session.recorded.dir.llm_calls)]
    assert outcomes == ["error", "error", "ok"]
    assert session.replay(lambda: text("p", max_retries=2)) == "at last"
    assert len(slept) == 2
    assert session.relation == "identical"


def test_what_asking_again_cannot_mend_is_not_asked_again(session: Session) -> None:
    with pytest.raises(ProviderError):
        session.record(lambda: text("p", max_retries=5), {"fail": {"status": 401}})
    assert session.recorded is not None
    assert len(rows(session.recorded.dir.llm_calls)) == 1


def test_a_call_that_the_caller_cancels_is_cancelled_again(session: Session) -> None:
    async def program() -> list[str]:
        got = []
        for prompt in ("slow", "fast"):
            try:
                got.append(await asyncio.wait_for(atext(prompt), 0.05))
            except TimeoutError:
                got.append("timed out")
        return got

    rules = ({"match": "slow", "text": "late", "delay_s": 30}, {"text": "fast"})
    assert session.record(program, *rules) == ["timed out", "fast"]
    assert session.replay(program) == ["timed out", "fast"]
    assert session.relation == "identical"


def test_races_side_by_side_have_the_winners_that_they_had(session: Session) -> None:
    async def race(number: int) -> str:
        with scope(f"race{number}"):
            tasks = [asyncio.create_task(atext(f"{number} {name}")) for name in "abc"]
            done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            first = sorted(task.result() for task in done)
            return f"{first} {await atext(f'{number} after')}"

    async def program() -> list[str]:
        return list(await asyncio.gather(*(race(n) for n in range(4))))

    winners = {"match": "0 b|1 c|2 a|3 b", "text": "{0} #{n}", "delay_s": [0.01, 0.03]}
    losers = {"match": "[abc]$", "text": "{0} #{n}", "delay_s": 0.2}
    recorded = session.record(program, winners, losers, ECHO)
    for _ in range(8):
        assert session.replay(program) == recorded
        assert session.relation in {"identical", "equivalent"}


def test_a_call_that_is_cancelled_again_while_it_waits_for_its_turn_ends(session: Session) -> None:
    is_recording = True

    async def program() -> None:
        first, second = (asyncio.create_task(atext(name)) for name in "ab")
        await asyncio.sleep(0.05)
        if not is_recording:
            second.cancel()  # before its turn, so that it waits
            await asyncio.sleep(0.05)
        for task in (first, second):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)

    session.record(program, {**ECHO, "delay_s": 60})
    is_recording = False
    session.replay(program)
    assert session.relation in {"identical", "equivalent"}


def test_a_stream_that_times_out_shows_the_same_pieces_again(session: Session) -> None:
    async def program() -> list[str]:
        seen: list[str] = []

        async def read_all() -> None:
            async for item in astream_llm("p", model=MODEL):
                assert isinstance(item, Chunk)
                seen.append(item.text)
                if len(seen) == 3:
                    await asyncio.sleep(60)

        with suppress(TimeoutError):
            await asyncio.wait_for(read_all(), 0.1)
        return seen

    recorded = session.record(program, {**STREAM, "reasoning": None})
    assert len(recorded) == 3
    assert session.replay(program) == recorded
    assert session.relation == "identical"


def test_a_cancelled_call_that_nobody_cancels_is_a_miss_after_a_while(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancelled() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(atext("slow"), 0.05)

    session.record(cancelled, {"text": "late", "delay_s": 30})
    monkeypatch.setattr("bernstein.capture.policy.DEFAULT_BOUND_S", 0.05)
    with pytest.raises(ReplayMissError, match="still waits"):
        session.replay(lambda: text("slow"))


def test_a_model_that_cannot_be_asked_is_so_again_in_a_replay(session: Session) -> None:
    def program() -> str:
        try:
            return call_llm("p", model="scripted:absent.yaml").text
        except ModelUnavailableError:
            return text("fallback")

    assert session.record(program, ECHO) == "fallback #1"
    Path("absent.yaml").write_text("answers: [{text: there now}]")
    assert session.replay(program) == "fallback #1"
    assert session.relation == "identical"


def test_the_default_model_of_a_recording_is_that_of_its_replay(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bernstein.capture.models.registry import register_provider

    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    provider = script(ECHO)
    register_provider("openai", "gpt-5.4-mini", provider)
    session.recorded = open_run(session.sdd, configured_providers=("openai",))
    assert session._run(session.recorded, lambda: call_llm("a").text) == "a #1"
    monkeypatch.delenv("OPENAI_API_KEY")
    assert session.replay(lambda: call_llm("a").text) == "a #1"


def test_a_prompt_that_looks_like_a_request_is_not_taken_for_one(session: Session) -> None:
    disguised = 'bernstein.request.v1\n{"prompt":"hi","system":"S"}'

    def forward() -> list[str]:
        return [text("hi", system="S"), text(disguised)]

    recorded = session.record(forward, {"match": "S", "text": "answer {n}"})
    assert session.replay(forward) == recorded
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Hold.__init__, "__defaults__", (0.05,))
        backward = session.replay(lambda: [text(disguised), text("hi", system="S")])
    assert backward == recorded[::-1]


def test_surrogate_pairs_are_one_character_everywhere(session: Session) -> None:
    rule = {"match": "(?s).+", "text": "got {0}"}
    recorded = session.record(lambda: text("\ud83d\ude00"), rule)
    assert session.recorded is not None
    assert verify(session.sdd, session.recorded.dir).verdict == "verified"
    assert session.replay(lambda: text("😀")) == recorded == "got 😀"


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": True},
        {"max_tokens": 10.0},
        {"max_tokens": 2**60},
        {"temperature": 1e16},
        {"temperature": -1},
        {"temprature": 0.1},
        {"mdel": "x"},
        {"max_token": 3},
    ],
)
def test_what_no_provider_takes_is_refused_at_the_door(
    session: Session, wrong: dict[str, Any]
) -> None:
    def program() -> None:
        with pytest.raises(UsageError):
            text("p", **wrong)

    session.record(program, ECHO)


def test_a_stream_without_a_piece_replays_without_one(session: Session) -> None:
    recorded = session.record(read, {"text": ""})
    assert len(recorded) == 1
    assert session.replay(read) == recorded


def test_a_stream_left_at_a_tool_call_is_left_there_again(session: Session) -> None:
    def program() -> list[str]:
        kinds = []
        stream = stream_llm("p", model=MODEL)
        for item in stream:
            assert isinstance(item, Chunk)
            kinds.append(item.kind)
            if item.kind.startswith("tool"):
                break
        stream.close()  # type: ignore[attr-defined]
        return kinds

    recorded = session.record(program, STREAM)
    assert recorded[-1] == "tool/0"
    assert session.replay(program) == recorded
    assert session.relation == "identical"


def test_a_write_that_fails_costs_its_own_row_alone(session: Session) -> None:
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    long = "x" * 3000

    def program() -> None:
        run = current_scope().run
        text("a" + long)
        size = run.dir.llm_calls.stat().st_size
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, hard))
        try:
            with pytest.raises(OSError, match=r"."):
                text("b" + long + "b")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        text("b" + long + "c")

    session.record(program, ECHO)
    assert session.recorded is not None
    prompts = [row["prompt"] for row in rows(session.recorded.dir.llm_calls)]
    assert len(prompts) == 2
    assert not isinstance(prompts[1], dict) or prompts[1]["seq"] == 0


# --- strictness


def test_a_miss_does_not_go_live_and_no_retry_helps(session: Session) -> None:
    session.record(lambda: text("a"), ECHO)
    provider = script(ECHO)

    def program() -> None:
        for prompt in ("b", "a", "b"):
            with pytest.raises(ReplayMissError):
                text(prompt, max_retries=3)

    session.replay(program)
    assert all(use.count == 0 for use in provider._uses)
    assert session.last is not None
    coverage = session.last.coverage()
    assert coverage is not None
    assert (coverage.hits, coverage.misses, coverage.strict_violations) == (0, 1, 1)


@pytest.mark.loopback
def test_the_network_is_closed_in_a_strict_replay_and_open_again_after_it(
    session: Session,
) -> None:
    import socket

    def reach() -> None:
        with socket.socket() as sock:
            sock.connect(("127.0.0.1", 9))

    session.record(lambda: text("a"), ECHO)

    def program() -> None:
        caught: list[BaseException] = []

        def work() -> None:
            try:
                reach()
            except ReplayMissError as error:
                caught.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        with pytest.raises(ReplayMissError, match="reached for the network"):
            socket.getaddrinfo("localhost", 80)
        assert len(caught) == 1

    session.replay(program)
    assert session.last is not None
    coverage = session.last.coverage()
    assert coverage is not None
    assert coverage.strict_violations == 2
    with pytest.raises(ConnectionRefusedError):
        reach()


def test_tracing_or_not_is_no_part_of_the_key(session: Session) -> None:
    session.record(lambda: text("a"), ECHO)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_TRACES_EXPORTER", "console")
        patch.setenv("LANGSMITH_TRACING", "true")
        assert session.replay(lambda: text("a")) == "a #1"


def test_scopes_nest_and_refuse_what_no_lane_can_be(session: Session) -> None:
    def program() -> None:
        with scope("a"), scope("b/c"):
            text("p")
        for name in ("", "a b", "x" * 129):
            with pytest.raises(UsageError), scope(name):
                pass

    session.record(program, ECHO)
    assert session.recorded is not None
    assert [r["lane"] for r in rows(session.recorded.dir.llm_calls)] == ["a/b/c"]


def test_adding_a_random_draw_changes_nobody_elses_calls(session: Session) -> None:
    session.record(lambda: [text("a"), text("b")], ECHO, seed=3)

    def program() -> list[str]:
        random.random()
        return [text("a"), text("b")]

    assert session.replay(program) == ["a #1", "b #2"]
    assert session.relation == "identical"


def test_an_unknown_provider_is_named_with_those_there_are(session: Session) -> None:
    with pytest.raises(ModelUnavailableError, match="expected one of local, scripted"):
        session.record(lambda: call_llm("p", model="nope:x"), ECHO)


# --- crashes and whole programs

PROGRAM = """\
import sys
from bernstein import call_llm
for n in range(int(sys.argv[1])):
    print(call_llm(f"p{n}", model="scripted:answers.yaml").text, flush=True)
if sys.argv[2:] == ["die"]:
    import os; os.kill(os.getpid(), 9)
if sys.argv[2:] == ["raise"]:
    raise ValueError("mine")
"""


def program(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    Path("program.py").write_text(PROGRAM)
    Path("answers.yaml").write_text('answers: [{match: "p(.)", text: "answer {1}"}]')
    return subprocess.run(
        [sys.executable, "program.py", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        check=False,
        timeout=60,
    )


def test_a_program_without_a_run_of_its_own_is_recorded_and_replayed(sdd: SddDir) -> None:
    done = program("3", BERNSTEIN_DETERMINISTIC_SEED="42")
    assert (done.returncode, done.stdout) == (0, "answer 0\nanswer 1\nanswer 2\n")
    replayed = program("3", BERNSTEIN_REPLAY_RUN_ID="latest")
    assert (replayed.returncode, replayed.stdout) == (0, done.stdout)
    assert "hits=3 misses=0" in replayed.stderr
    assert "replay identical" in replayed.stderr


def test_a_program_that_asks_more_ends_with_3(sdd: SddDir) -> None:
    program("3")
    replayed = program("4", BERNSTEIN_REPLAY_RUN_ID="latest")
    assert replayed.returncode == 3
    assert "replay miss" in replayed.stderr
    assert "strict_violations=1" in replayed.stderr


def test_a_run_that_ends_in_an_exception_keeps_its_rows(sdd: SddDir) -> None:
    assert program("3", "raise").returncode == 1
    (run,) = sdd.list_runs()
    assert len(rows(run.llm_calls)) == 3


def test_a_program_that_asks_less_ends_with_1(sdd: SddDir) -> None:
    program("3")
    replayed = program("2", BERNSTEIN_REPLAY_RUN_ID="latest")
    assert replayed.returncode == 1
    assert "unused=1" in replayed.stderr
    assert "replay diverged" in replayed.stderr


def test_a_program_that_nobody_caught_an_exception_of_has_failed(sdd: SddDir) -> None:
    program("1", "raise")
    (run,) = sdd.list_runs()
    assert run.read_info()["status"] == "failed"
    assert events(run)[-1]["payload"]["status"] == "failed"
    replayed = program("1", "raise", BERNSTEIN_REPLAY_RUN_ID="latest")
    assert replayed.returncode == 1
    assert "replay identical" in replayed.stderr


def test_an_empty_run_id_does_not_turn_a_replay_live(sdd: SddDir) -> None:
    done = program("1", BERNSTEIN_REPLAY_RUN_ID="")
    assert done.returncode == 1
    assert "BERNSTEIN_REPLAY_RUN_ID is empty" in done.stderr
    assert sdd.list_runs() == []


FORKING = """\
import multiprocessing as mp, os
from bernstein import call_llm, scope
def ask(n):
    return call_llm(f"p{n}", model="scripted:answers.yaml").text
if __name__ == "__main__":
    print(ask(0))
    with scope("pool"), mp.get_context("fork").Pool(3) as pool:
        print(sorted(pool.map(ask, range(6))))
    print(ask(1))
"""


@pytest.mark.parametrize("kind", ["miss", "provider", "canonical"])
def test_errors_pass_between_processes(kind: str) -> None:
    import pickle

    from bernstein.errors import CanonicalError

    error = {
        "miss": ReplayMissError(
            "m", key="k", model="x", recorded=2, requested=3, reason="exhausted"
        ),
        "provider": ProviderError("Busy", 429, "slow"),
        "canonical": CanonicalError("$.a", "no"),
    }[kind]
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__


def test_a_forked_child_is_not_served_what_its_parent_was_answered(sdd: SddDir) -> None:
    program("0")
    Path("forking.py").write_text(FORKING.replace("range(6)", "range(2)"))
    command = [sys.executable, "forking.py"]
    assert subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0
    parent = next(
        run for run in sdd.list_runs() if [row["lane"] for row in rows(run.llm_calls)] == ["", ""]
    )
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "BERNSTEIN_REPLAY_RUN_ID": parent.run_id},
    )
    assert done.returncode != 0
    assert "a forked child asks" in done.stderr


def test_forked_children_record_runs_of_their_own_and_harm_nobody(sdd: SddDir) -> None:
    program("0")
    Path("forking.py").write_text(FORKING)
    done = subprocess.run(
        [sys.executable, "forking.py"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    for run in sdd.list_runs():
        assert verify(sdd, run).verdict in {"verified", "prefix"}
    parents = [
        run for run in sdd.list_runs() if [row["lane"] for row in rows(run.llm_calls)] == ["", ""]
    ]
    assert len(parents) == 1
    assert verify(sdd, parents[0]).verdict == "verified"


HELD_OPEN = """\
import atexit, threading
from bernstein import call_llm, stream_llm
def late():
    try:
        call_llm("late", model="scripted:answers.yaml")
    except Exception as error:
        print(type(error).__name__)
atexit.register(late)
stream = stream_llm("p1", model="scripted:answers.yaml")
print(next(stream))
threading.Thread(target=lambda: call_llm("slow", model="scripted:answers.yaml"), daemon=True).start()
print(call_llm("p2", model="scripted:answers.yaml").text)
"""


def test_calls_that_are_open_at_the_exit_are_open_again_in_a_replay(sdd: SddDir) -> None:
    Path("open.py").write_text(HELD_OPEN)
    Path("answers.yaml").write_text(
        'answers: [{match: slow, delay_s: 60}, {match: "p(.)", text: "answer {1}"}]'
    )

    def go(**env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "open.py"],
            capture_output=True,
            text=True,
            env={**os.environ, **env},
            check=False,
            timeout=60,
        )

    recorded = go()
    assert recorded.returncode == 0, recorded.stderr
    assert "Exception ignored" not in recorded.stderr
    assert recorded.stdout.endswith("UsageError\n")
    replayed = go(BERNSTEIN_REPLAY_RUN_ID="latest")
    assert "misses=0" in replayed.stderr
    assert recorded.stdout.startswith(replayed.stdout[:20])


def test_a_run_that_is_killed_keeps_its_rows_and_a_replay_says_where_it_ends(sdd: SddDir) -> None:
    assert program("3", "die").returncode == -9
    (run,) = sdd.list_runs()
    assert len(rows(run.llm_calls)) == 3
    assert run.read_info()["status"] == "running"
    assert verify(sdd, run).verdict == "prefix"
    assert events(run)[-1]["event"] == "model.usage"
    replayed = program("4", BERNSTEIN_REPLAY_RUN_ID="latest")
    assert replayed.returncode == 3
    assert "stops after 3 answers" in replayed.stderr
