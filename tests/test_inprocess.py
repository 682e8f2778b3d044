"""Record and replay blocks of a program: transports without a socket, tools, clock, ids, random."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

import bernstein
from bernstein.canonical import decode_canonical
from bernstein.rundir import SddDir
from tests.helpers import rows, verify
from tests.upstream import Reply, Upstream, chat, own_answer, prompt_of, serving

pytestmark = pytest.mark.loopback

KEY = "sk-abcdefghij0123456789"


def recorded(sdd: SddDir, upstream: Upstream) -> Any:
    urls = {"openai": f"{upstream.base_url}/v1", "anthropic": upstream.base_url}
    return bernstein.record(sdd_dir=sdd.path, upstreams=urls)


def ask(client: httpx2.Client, prompt: str, **more: Any) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": prompt}], **more}
    answer = client.post("/chat/completions", json=body, headers={"authorization": f"Bearer {KEY}"})
    return answer.text


def client_of(gateway: bernstein.ReplayGateway) -> httpx2.Client:
    return httpx2.Client(transport=gateway.transport(), base_url="https://api.openai.com/v1")


def sdk_answers(gateway: bernstein.ReplayGateway) -> list[str]:
    """What three SDKs get, plain and streamed, in threads and tasks, equal and different prompts."""
    import anthropic
    import openai

    sync = openai.OpenAI(
        api_key=KEY, http_client=httpx2.Client(transport=gateway.transport()), max_retries=0
    )
    said = [{"role": "user", "content": "plain"}]
    out = [str(sync.chat.completions.create(model="m", messages=said).choices[0].message.content)]  # type: ignore[arg-type]

    def streamed(number: int) -> str:
        stream = sync.chat.completions.create(
            model="m", messages=[{"role": "user", "content": f"s{number % 4}"}], stream=True
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    with ThreadPoolExecutor(8) as pool:
        out += sorted(pool.map(streamed, range(8)))

    claude = anthropic.Anthropic(
        api_key=KEY, http_client=httpx2.Client(transport=gateway.transport()), max_retries=0
    )
    with claude.messages.stream(
        model="m", max_tokens=9, messages=[{"role": "user", "content": "c"}]
    ) as stream:
        out.append("".join(stream.text_stream))

    async def tasks() -> list[str]:
        transport = gateway.async_transport()
        async with openai.AsyncOpenAI(
            api_key=KEY, http_client=httpx2.AsyncClient(transport=transport), max_retries=0
        ) as client:

            async def one(number: int) -> str:
                answer = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": f"t{number}"}]
                )
                return str(answer.choices[0].message.content)

            return list(await asyncio.gather(*(one(number) for number in range(24))))

    return out + asyncio.run(tasks())


def test_sdks_over_the_transport_get_their_recorded_answers(sdd: SddDir) -> None:
    with serving(own_answer) as upstream, recorded(sdd, upstream) as gateway:
        said = sdk_answers(gateway)
        assert len(upstream.seen) == 34
    assert len(set(said)) == 34
    assert KEY not in "".join(p.read_text() for p in gateway.path.iterdir() if p.is_file())
    assert {row["end"] for row in rows(sdd.run(gateway.run_id).exchanges)} == {"complete"}
    assert verify(sdd, sdd.run(gateway.run_id)).verdict == "verified"
    for _ in range(3):
        with bernstein.replay(gateway.run_id, sdd_dir=sdd.path) as again:
            assert sdk_answers(again) == said


def test_what_a_transport_recorded_is_served_over_loopback_too(sdd: SddDir) -> None:
    with serving(own_answer) as upstream, recorded(sdd, upstream) as gateway:
        said = ask(client_of(gateway), "a", stream=True)
    with (
        bernstein.replay(gateway.run_id, sdd_dir=sdd.path) as again,
        httpx2.Client(base_url=again.base_url("openai")) as loopback,
    ):
        assert ask(loopback, "a", stream=True) == said
    with bernstein.replay(gateway.run_id, sdd_dir=sdd.path) as again:
        own = httpx2.Client(transport=again.transport(), base_url=again.base_url("openai"))
        assert ask(own, "a", stream=True) == said


def test_the_pieces_of_a_stream_keep_their_borders(sdd: SddDir) -> None:
    pieces = chat("one two three", stream=True)

    def read(gateway: bernstein.ReplayGateway) -> list[bytes]:
        with client_of(gateway).stream("POST", "/chat/completions", json={"model": "m"}) as got:
            return list(got.iter_raw())

    def answer(path: str, body: dict[str, Any], number: int) -> Reply:
        return Reply(pieces, kind="text/event-stream")

    with serving(answer) as upstream, recorded(sdd, upstream) as gateway:
        assert b"".join(read(gateway)) == b"".join(pieces)
    sent = [int(n) for n in rows(sdd.run(gateway.run_id).exchanges)[0]["chunks"]]
    with bernstein.replay(gateway.run_id, sdd_dir=sdd.path) as again:
        got = read(again)
    assert [len(piece) for piece in got] == sent
    assert got == pieces


@pytest.mark.parametrize("is_async", [False, True])
def test_a_cut_a_refusal_and_a_provider_that_is_not_there_are_replayed_as_they_were(
    sdd: SddDir, is_async: bool
) -> None:
    def answer(path: str, body: dict[str, Any], number: int) -> Reply:
        if prompt_of(body) == "cut":
            return Reply(chat("never whole", stream=True)[:2], is_cut=True)
        return Reply([b'{"error": {"message": "slow down"}}'], status=429)

    def outcomes(gateway: bernstein.ReplayGateway) -> list[object]:
        def one(url: str, prompt: str) -> object:
            body = {"messages": [{"role": "user", "content": prompt}]}
            try:
                if is_async:

                    async def go() -> httpx2.Response:
                        transport = gateway.async_transport()
                        async with httpx2.AsyncClient(transport=transport) as client:
                            return await client.post(url, json=body)

                    got = asyncio.run(go())
                else:
                    got = httpx2.Client(transport=gateway.transport()).post(url, json=body)
            except httpx2.TransportError as error:
                return type(error)
            return got.status_code, got.text

        base = "https://api.openai.com/v1/chat/completions"
        return [one(base, "cut"), one(base, "x"), one("http://127.0.0.1:9/v1/messages", "y")]

    with serving(answer) as upstream, recorded(sdd, upstream) as gateway:
        seen = outcomes(gateway)
    assert seen[0] is httpx2.RemoteProtocolError
    assert seen[1] == (429, '{"error": {"message": "slow down"}}')
    assert seen[2] is httpx2.ConnectError
    with bernstein.replay(gateway.run_id, sdd_dir=sdd.path) as again:
        assert outcomes(again) == seen


def test_a_stream_that_was_left_is_left_again(sdd: SddDir) -> None:
    def first_piece(gateway: bernstein.ReplayGateway) -> bytes:
        with client_of(gateway).stream("POST", "/chat/completions", json={"model": "m"}) as got:
            return next(got.iter_raw())

    def answer(path: str, body: dict[str, Any], number: int) -> Reply:
        return Reply(chat("a long answer" * 20, stream=True), kind="text/event-stream")

    with serving(answer) as upstream, recorded(sdd, upstream) as gateway:
        said = first_piece(gateway)
    assert [row["end"] for row in rows(sdd.run(gateway.run_id).exchanges)] == ["left"]
    with bernstein.replay(gateway.run_id, sdd_dir=sdd.path) as again:
        assert first_piece(again) == said


def test_a_miss_over_a_transport_is_a_400_and_ends_the_block_with_the_difference(
    sdd: SddDir,
) -> None:
    with serving(own_answer) as upstream, recorded(sdd, upstream) as gateway:
        ask(client_of(gateway), "recorded")
    with (
        pytest.raises(bernstein.ReplayMissError, match="recorded 'recorded', asked 'another'"),
        bernstein.replay(gateway.run_id, sdd_dir=sdd.path) as again,
    ):
        assert '"code": "replay_miss"' in ask(client_of(again), "another")


def test_a_client_of_a_block_that_has_ended_says_so(sdd: SddDir) -> None:
    with serving(own_answer) as upstream, recorded(sdd, upstream) as gateway:
        client = client_of(gateway)
        ask(client, "a")
        with pytest.raises(bernstein.UsageError, match="already"):
            recorded(sdd, upstream).__enter__()
    with pytest.raises(bernstein.UsageError, match="has ended"):
        ask(client, "a")


def test_a_client_that_goes_round_the_seam_is_refused_but_where_it_is_allowed(
    sdd: SddDir,
) -> None:
    with serving(own_answer) as upstream:
        host, _, port = upstream.base_url.removeprefix("http://").partition(":")
        with recorded(sdd, upstream) as gateway:
            ask(client_of(gateway), "a")
        with (
            pytest.raises(bernstein.ReplayMissError, match="reached for the network"),
            bernstein.replay(gateway.run_id, sdd_dir=sdd.path) as again,
        ):
            ask(client_of(again), "a")
            with pytest.raises(bernstein.ReplayMissError):
                httpx2.get(upstream.base_url)
        allow = [(host, int(port))]
        with bernstein.replay(gateway.run_id, sdd_dir=sdd.path, allow=allow) as again:
            ask(client_of(again), "a")
            body = {"messages": [{"role": "user", "content": "x"}]}
            assert httpx2.post(upstream.base_url, json=body).status_code == 200


# --- the world beside the model

calls: list[object] = []


class NoSuchCityError(Exception):
    """One of the program's own."""


@bernstein.tool(errors=[NoSuchCityError])
def weather(city: str, *, unit: str = "C") -> dict[str, Any]:
    calls.append(city)
    if city == "Atlantis":
        raise NoSuchCityError(city)
    if city == "nowhere":
        raise KeyError(city)
    return {"city": city, "unit": unit, "degrees": random.random()}


@bernstein.tool
async def slow(number: int) -> list[float]:
    calls.append(number)
    await asyncio.sleep(random.random() / 50)
    return [number, random.random()]


def draws() -> list[object]:
    """One of everything."""
    out: list[object] = [weather("Rome"), weather("Rome"), weather("Oslo", unit="F")]
    for city, kind in (("Atlantis", NoSuchCityError), ("nowhere", KeyError)):
        with pytest.raises(kind) as caught:
            weather(city)
        out.append(caught.value.args)

    async def tasks() -> list[list[float]]:
        return list(await asyncio.gather(*(slow(number % 3) for number in range(12))))

    out += asyncio.run(tasks())
    out += [bernstein.now(), bernstein.now("start"), bernstein.new_uuid(), bernstein.new_uuid("a")]
    return [*out, bernstein.rng("dice").random(), bernstein.rng("dice").random()]


def test_tools_clock_ids_and_random_numbers_are_served_without_asking_the_world(
    sdd: SddDir,
) -> None:
    with bernstein.record(sdd_dir=sdd.path) as gateway:
        said = draws()
    run = sdd.run(gateway.run_id)
    assert verify(sdd, run).verdict == "verified"
    assert {row["kind"] for row in rows(run.fixtures)} == {"tool", "clock", "uuid", "random"}
    calls.clear()
    for _ in range(2):
        with bernstein.replay(gateway.run_id, sdd_dir=sdd.path):
            assert draws() == said
    assert calls == []


def test_equal_calls_at_once_get_their_answers_in_the_order_of_asking(sdd: SddDir) -> None:
    async def tasks() -> list[list[float]]:
        return list(await asyncio.gather(*(slow(1) for _ in range(16))))

    with bernstein.record(sdd_dir=sdd.path) as gateway:
        said = asyncio.run(tasks())
    assert len({answer[1] for answer in said}) == 16
    with bernstein.replay(gateway.run_id, sdd_dir=sdd.path):
        assert asyncio.run(tasks()) == said


def test_a_tool_asked_for_what_was_not_recorded_is_a_miss_that_names_what_was(
    sdd: SddDir,
) -> None:
    with bernstein.record(sdd_dir=sdd.path) as gateway:
        weather("Rome")
    with (
        pytest.raises(bernstein.ReplayMissError, match=r"(?s)'Paris'.*asked for yet.*'Rome'"),
        bernstein.replay(gateway.run_id, sdd_dir=sdd.path),
    ):
        weather("Paris")


def test_a_tool_that_is_not_asked_again_is_a_divergence(sdd: SddDir) -> None:
    with bernstein.record(sdd_dir=sdd.path) as gateway:
        weather("Rome")
        weather("Oslo")
    with (
        pytest.raises(bernstein.DivergedError),
        bernstein.replay(gateway.run_id, sdd_dir=sdd.path),
    ):
        weather("Rome")


def test_one_more_draw_under_another_name_shifts_nothing(
    sdd: SddDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ids(names: str) -> dict[str, object]:
        with bernstein.record(sdd_dir=sdd.path):
            drawn = {name: bernstein.new_uuid(name) for name in names}
            return {name: (drawn[name], bernstein.rng(name).random()) for name in names}

    monkeypatch.setenv("BERNSTEIN_DETERMINISTIC_SEED", "42")
    first, second = ids("abc"), ids("aXbYc")
    assert [second[name] for name in "abc"] == [first[name] for name in "abc"]
    monkeypatch.delenv("BERNSTEIN_DETERMINISTIC_SEED")
    assert ids("a") != ids("a")


def test_threads_that_draw_first_at_once_draw_of_one_generator(sdd: SddDir) -> None:
    def draws() -> list[float]:
        gate = threading.Barrier(16)

        def draw(_: int) -> float:
            gate.wait()
            return bernstein.rng("dice").random()

        with ThreadPoolExecutor(16) as pool:
            return sorted(pool.map(draw, range(16)))

    for _ in range(5):
        with bernstein.record(sdd_dir=sdd.path) as gateway:
            said = draws()
        assert len(rows(sdd.run(gateway.run_id).fixtures)) == 1
        with bernstein.replay(gateway.run_id, sdd_dir=sdd.path):
            assert draws() == said


def test_answers_without_a_key_are_served_by_kind_in_the_order_of_asking(sdd: SddDir) -> None:
    values = ["b", "a", "a", "c", "a"]

    def asked(gateway: bernstein.ReplayGateway, take: Callable[[], Any]) -> list[object]:
        return [gateway.answer("custom", None, take) for _ in values]

    def never() -> Any:
        raise AssertionError("the world was asked in a replay")

    with bernstein.record(sdd_dir=sdd.path) as gateway:
        assert asked(gateway, iter(values).__next__) == values
    with bernstein.replay(gateway.run_id, sdd_dir=sdd.path) as again:
        assert asked(again, never) == values
    with (
        pytest.raises(bernstein.ReplayMissError, match="recorded 5 times without a key"),
        bernstein.replay(gateway.run_id, sdd_dir=sdd.path) as again,
    ):
        asked(again, never)
        again.answer("custom", None, never)


def test_a_keyed_kind_never_falls_back_to_another_key(sdd: SddDir) -> None:
    with bernstein.record(sdd_dir=sdd.path) as gateway:
        gateway.answer("llm", {"prompt": "a"}, lambda: "A")
        gateway.answer("llm", None, lambda: "any")
    for request in ({"prompt": "b"}, {"prompt": "a", "seed": 1}):
        with (
            pytest.raises(bernstein.ReplayMissError),
            bernstein.replay(gateway.run_id, sdd_dir=sdd.path) as again,
        ):
            again.answer("llm", request, lambda: "live")


def test_what_json_does_not_hold_is_refused_and_what_it_changes_is_changed_live_too(
    sdd: SddDir,
) -> None:
    with bernstein.record(sdd_dir=sdd.path) as gateway:
        with pytest.raises(bernstein.UsageError, match="kept as JSON"):
            gateway.answer("custom", {"x": {1, 2}}, lambda: 1)  # type: ignore[dict-item]
        with pytest.raises(bernstein.UsageError, match="kept as JSON"):
            gateway.answer("custom", {"x": 1}, object)  # type: ignore[arg-type]
        assert gateway.answer("custom", {"x": 2}, lambda: (1, 2.0)) == [1, 2]
    with pytest.raises(bernstein.UsageError, match="in pieces"):

        @bernstein.tool
        def pieces() -> Any:
            yield 1


def test_outside_of_a_block_they_are_what_they_say() -> None:
    assert bernstein.new_uuid("a") != bernstein.new_uuid("a")
    assert bernstein.now("a") <= bernstein.now("a")
    assert bernstein.rng("a").random() != bernstein.rng("a").random()
    assert weather("Rome")["city"] == "Rome"


def test_secrets_of_a_tool_stay_out_of_the_files(sdd: SddDir) -> None:
    token = "ghp_" + "a1B2" * 9
    with bernstein.record(sdd_dir=sdd.path) as gateway:
        given = gateway.answer("tool", {"token": token}, lambda: {"said": f"with {token}"})
        assert given == {"said": f"with {token}"}
    assert token not in "".join(p.read_text() for p in gateway.path.iterdir() if p.is_file())
    with bernstein.replay(gateway.run_id, sdd_dir=sdd.path) as again:
        served = again.answer("tool", {"token": token}, lambda: None)
    assert served == {"said": "with <secret>"}


def test_what_a_tool_asks_inside_is_part_of_its_answer(sdd: SddDir) -> None:
    with bernstein.record(sdd_dir=sdd.path) as gateway:
        given = gateway.answer("tool", {"n": 1}, lambda: weather("Rome")["city"])
    assert [row["kind"] for row in rows(sdd.run(gateway.run_id).fixtures)] == ["tool"]
    with bernstein.replay(gateway.run_id, sdd_dir=sdd.path) as again:
        assert again.answer("tool", {"n": 1}, lambda: None) == given


def test_a_changed_fixture_is_not_served(sdd: SddDir) -> None:
    with bernstein.record(sdd_dir=sdd.path) as gateway:
        weather("Rome")
    run = sdd.run(gateway.run_id)
    row = decode_canonical(run.fixtures.read_bytes().rstrip())
    row["response"]["value"]["degrees"] = 99
    run.fixtures.write_text(json.dumps(row, separators=(",", ":"), sort_keys=True) + "\n")
    (run.path / "seal.json").unlink()
    verdict = verify(sdd, run)
    assert (verdict.verdict, verdict.reason) == ("mismatch", "recording")
    assert verdict.step_index == 1
    with pytest.raises(bernstein.RecordingError), bernstein.replay(run.run_id, sdd_dir=sdd.path):
        pass


def test_threads_that_record_and_draw_at_once_keep_one_chain(sdd: SddDir) -> None:
    def work(number: int) -> tuple[str, str]:
        return str(weather(f"city {number % 5}")), str(bernstein.new_uuid(f"id {number}"))

    def run_all() -> tuple[list[str], list[str]]:
        # Which of equal calls of two threads came first is the threads' own affair.
        with ThreadPoolExecutor(8) as pool:
            given = list(pool.map(work, range(64)))
        return sorted(city for city, _ in given), [drawn for _, drawn in given]

    with bernstein.record(sdd_dir=sdd.path) as gateway:
        said = run_all()
    assert verify(sdd, sdd.run(gateway.run_id)).verdict == "verified"
    assert threading.active_count() < 20
    with bernstein.replay(gateway.run_id, sdd_dir=sdd.path):
        assert run_all() == said
