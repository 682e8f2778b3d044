from __future__ import annotations

import subprocess

import pytest

from bernstein import LlmCall, replay_key
from bernstein.errors import UsageError

# sha256 by hand: printf 'gpt-5\0Say hi\0openai\0000.7\000100' | sha256sum   (\0000.7 is NUL, 0.7)
PAGE_V1 = [
    (("gpt-5", "Say hi", "openai", 0.7, 100), "gpt-5\0Say hi\0openai\x000.7\x00100"),
    (("gpt-5", "Say hi", "openai", None, None), "gpt-5\0Say hi\0openai\0None\0None"),
    (("m", "ü\n\u2028😀", "local", 0.0, 1), "m\0ü\n\u2028😀\0local\x000.0\x001"),
    (("m", "", "local", 1e-07, 0), "m\0\0local\x001e-07\x000"),
]


def sha256sum(text: str) -> str:
    done = subprocess.run(
        ["sha256sum"], input=text.encode("utf-8", "surrogatepass"), capture_output=True, check=True
    )
    return done.stdout.split()[0].decode()


@pytest.mark.parametrize(("inputs", "preimage"), PAGE_V1)
def test_the_page_key_is_the_hash_of_its_five_inputs(
    inputs: tuple[str, str, str, float | None, int | None], preimage: str
) -> None:
    model, prompt, provider, temperature, max_tokens = inputs
    call = LlmCall(model, prompt, provider, temperature, max_tokens)
    assert call.key == replay_key(*inputs) == sha256sum(preimage)
    assert call.key_scheme == "page.v1"


def test_golden_vectors_of_both_schemes() -> None:
    page = LlmCall("gpt-5", "Say hi", "openai", 0.7, 100)
    assert page.key == "2593973acc45a27e3aa157548d19bec8645b64af4a989a626c265d1af8a99fad"
    request = LlmCall("gpt-5", "Say hi", "openai", 0.7, 100, {"stream": True, "top_p": 0.5})
    assert request.key_scheme == "request.v1"
    assert request.key_prompt == (
        'bernstein.request.v1\n{"prompt":"Say hi","stream":true,"top_p":0.5}'
    )
    assert request.key == "e66d52e37cdfc091c412a558eb928847df32823cfcd48690b88cff6486afc7c6"
    assert request.key == sha256sum(f"gpt-5\0{request.key_prompt}\0openai\x000.7\x00100")


def test_an_int_temperature_is_the_float_it_means() -> None:
    assert replay_key("m", "p", "x", 0, None) == replay_key("m", "p", "x", 0.0, None)
    assert replay_key("m", "p", "x", -0.0, None) == replay_key("m", "p", "x", 0.0, None)
    assert replay_key("m", "p", "x", 1, None) != replay_key("m", "p", "x", 0, None)


def test_two_lone_surrogates_do_not_collide() -> None:
    assert replay_key("m", "\ud800", "x", None, None) != replay_key("m", "\ud801", "x", None, None)
    assert replay_key("m", "\ud800", "x", None, None) == sha256sum("m\0\ud800\0x\0None\0None")


BASE: dict[str, object] = {
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"name": "a"}],
    "tool_choice": "auto",
    "response_format": {"type": "text"},
    "stop": ["x"],
    "seed": 1,
    "top_p": 0.5,
    "reasoning": {"effort": "low"},
    "system": "be brief",
    "stream": True,
    "headers": {"anthropic-beta": "a"},
    "grammar": "root ::= x",
}
CHANGED: dict[str, object] = {
    "messages": [{"role": "user", "content": "ho"}],
    "tools": [{"name": "b"}],
    "tool_choice": "required",
    "response_format": {"type": "json_object"},
    "stop": ["y"],
    "seed": 2,
    "top_p": 0.6,
    "reasoning": {"effort": "high"},
    "system": "be brief.",
    "stream": False,
    "headers": {"anthropic-beta": "b"},
    "grammar": "root ::= y",
}


@pytest.mark.parametrize("name", BASE)
def test_each_parameter_that_reaches_the_provider_is_in_the_key(name: str) -> None:
    def key(more: dict[str, object]) -> str:
        return LlmCall("m", None if "messages" in more else "p", "x", 0.1, 5, more).key

    without = {k: v for k, v in BASE.items() if k != name}
    assert len({key(BASE), key({**BASE, name: CHANGED[name]}), key(without)}) == 3


@pytest.mark.parametrize(
    "inputs",
    [
        ("m2", "p", "x", 0.1, 5),
        ("m", "p2", "x", 0.1, 5),
        ("m", "p", "y", 0.1, 5),
        ("m", "p", "x", 0.2, 5),
        ("m", "p", "x", None, 5),
        ("m", "p", "x", 0.1, 6),
        ("m", "p", "x", 0.1, None),
    ],
)
def test_each_of_the_five_inputs_is_in_the_key(
    inputs: tuple[str, str, str, float | None, int | None],
) -> None:
    assert replay_key(*inputs) != replay_key("m", "p", "x", 0.1, 5)


def test_the_order_of_keys_in_a_request_does_not_matter() -> None:
    one = LlmCall("m", "p", "x", more={"a": 1, "b": {"c": 1, "d": 2}})
    other = LlmCall("m", "p", "x", more={"b": {"d": 2, "c": 1}, "a": 1})
    assert one.key == other.key


@pytest.mark.parametrize(
    ("model", "provider", "temperature"),
    [("a\0b", "x", None), ("a", "x\0y", None), ("a", "x", float("nan")), ("a", "x", float("inf"))],
)
def test_what_would_blur_a_key_is_refused(
    model: str, provider: str, temperature: float | None
) -> None:
    with pytest.raises(UsageError):
        LlmCall(model, "p", provider, temperature)


def test_a_call_needs_something_to_answer() -> None:
    with pytest.raises(UsageError, match="prompt or messages"):
        LlmCall("m", None, "x")
