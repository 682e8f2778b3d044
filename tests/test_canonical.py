from __future__ import annotations

import json
import math
import struct

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from bernstein.canonical import (
    MAX_INT,
    canonical_bytes,
    decode_canonical,
    decode_strict,
    digest_of,
)
from bernstein.errors import CanonicalError

# RFC 8785, appendix B: the bits of a double and its spelling. Whole numbers beyond 2^53-1 and below
# 1e21 are left out: they read back as integers, which are refused.
APPENDIX_B = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
}


@pytest.mark.parametrize(("bits", "spelling"), APPENDIX_B.items())
def test_a_double_is_spelled_as_in_appendix_b(bits: str, spelling: str) -> None:
    value = struct.unpack(">d", bytes.fromhex(bits))[0]
    assert canonical_bytes(value) == spelling.encode()
    assert canonical_bytes({"a": [value]}) == b'{"a":[' + spelling.encode() + b"]}"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e16, -9007199254740992.0, 9e20])
def test_a_number_without_one_meaning_is_refused(value: float) -> None:
    with pytest.raises(CanonicalError):
        canonical_bytes(value)


def test_ten_and_ten_point_zero_are_one_number() -> None:
    assert canonical_bytes([10, 10.0, -0.0, 1e-7, 1e21]) == b"[10,10,0,1e-7,1e+21]"


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-MAX_INT, MAX_INT)
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: not MAX_INT < abs(x) < 1e21)
    | st.text(st.characters(exclude_categories=("Cs",)))
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=("Cs",))), inner)
    ),
    max_leaves=25,
)


@given(values)
@example({"\ue000": 1, "\U0001f600": 2, "a": 1.5e300, "\x7f\x1f": "\u2028"})
def test_it_agrees_with_another_implementation(value: object) -> None:
    assert canonical_bytes(value) == rfc8785.dumps(value)  # type: ignore[arg-type]


@given(values)
def test_what_is_decoded_spells_the_same_again(value: object) -> None:
    data = canonical_bytes(value)
    assert canonical_bytes(decode_canonical(data)) == data
    assert canonical_bytes(decode_strict(data)) == data


@given(st.text(st.characters(min_codepoint=0xD7F0, max_codepoint=0xE010)))
def test_surrogates_are_spelled_as_well_formed_stringify_does(text: str) -> None:
    data = canonical_bytes({text: text})
    value = decode_canonical(data)
    # Pairs are joined; what is lone stays, and no two different texts meet.
    joined = json.loads(json.dumps(text))
    assert value == {joined: joined}


def test_a_lone_surrogate_is_a_lower_case_escape() -> None:
    assert canonical_bytes("\udc00a\ud83d\ude00") == '"\\udc00a😀"'.encode()
    assert digest_of("\udc00") != digest_of("\udc01")


def test_two_keys_that_are_one_after_joining_are_refused() -> None:
    with pytest.raises(CanonicalError, match="two keys"):
        canonical_bytes({"\ud83d\ude00": 1, "😀": 2})


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, {2}]}, "$.a[1]"),
        ({"a": {1: 2}}, "$.a"),
        ({"a": [2**53]}, "$.a[0]"),
        ({"a b": b"x"}, "$['a b']"),
        ([{"x": object()}], "$[0].x"),
        ([float("nan")], "$[0]"),
    ],
)
def test_what_is_not_json_is_refused_with_its_path(value: object, path: str) -> None:
    with pytest.raises(CanonicalError) as refusal:
        canonical_bytes(value)
    assert refusal.value.path == path


def _nested(depth: int) -> object:
    value: object = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_128_levels_are_the_most() -> None:
    data = canonical_bytes(_nested(128))
    assert decode_strict(data) == _nested(128)
    with pytest.raises(CanonicalError, match="deeper"):
        canonical_bytes(_nested(129))
    with pytest.raises(CanonicalError, match="deeper"):
        decode_strict(b"[" * 129 + b"]" * 129)
    with pytest.raises(CanonicalError):
        decode_strict(b"[" * 1_000_000)


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":1,"a":1}',
        b"NaN",
        b"[Infinity]",
        b"\xff",
        b'"\xed\xa0\x80"',
        b"",
        b"1 2",
        b"\xef\xbb\xbf1",
        "1".encode("utf-16"),
    ],
)
def test_the_strict_reader_refuses(data: bytes) -> None:
    with pytest.raises(CanonicalError):
        decode_strict(data)


@pytest.mark.parametrize("data", [b'{"b":1,"a":1}', b"[1, 2]", b"1.0", b'"\\u0061"', b'"\\uDC00"'])
def test_only_the_canonical_spelling_is_taken_as_such(data: bytes) -> None:
    decode_strict(data)
    with pytest.raises(CanonicalError, match="canonical"):
        decode_canonical(data)
