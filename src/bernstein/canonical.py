r"""One byte spelling for each JSON value (RFC 8785), and digests over it.

Rule 1: a value either has one spelling or is refused with the path to the part that has none.
Rule 2: nothing becomes a string silently.

RFC 8785 is extended for lone surrogates as JavaScript's well-formed ``JSON.stringify`` spells
them (lower-case ``\udXXX``); a high surrogate followed by a low one is the character they mean.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any, TypeAlias, TypeVar

import msgspec

from bernstein.errors import CanonicalError

JsonValue: TypeAlias = Any
JsonObject: TypeAlias = dict[str, Any]

MAX_DEPTH = 128
MAX_INT = 2**53 - 1

_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_decode_any = msgspec.json.Decoder().decode
_HEX = re.compile(r"[0-9a-f]{64}")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


class DigestRef(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A body by its digest: sha256 in lower-case hex, and its length in bytes."""

    digest: str
    byte_length: int
    enc_ref: str | None = None

    def to_json(self) -> JsonObject:
        """This reference as the object that stands in a payload."""
        ref: JsonObject = {"digest": self.digest, "byteLength": self.byte_length}
        if self.enc_ref is not None:
            ref["encRef"] = self.enc_ref
        return ref

    @property
    def name(self) -> str:
        """The name of the file that holds the body, where one does."""
        return self.enc_ref or self.digest


def as_ref(value: JsonValue) -> DigestRef | None:
    """The DigestRef that ``value`` spells, if it is one and nothing else."""
    if not isinstance(value, dict) or value.keys() - {"encRef"} != {"digest", "byteLength"}:
        return None
    try:
        ref = convert(value, DigestRef)
    except CanonicalError:
        return None
    is_ref = _HEX.fullmatch(ref.name) and _HEX.fullmatch(ref.digest) and ref.byte_length >= 0
    return ref if is_ref and ref.to_json() == value else None


T = TypeVar("T")


def convert(value: JsonValue, kind: type[T]) -> T:
    """``value``, decoded from JSON, as a ``kind``.

    Raises:
        CanonicalError: It is none.
    """
    try:
        return msgspec.convert(value, kind, strict=True)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        # A lone surrogate, as a name or where one word of a few is wanted, is not encodable.
        raise CanonicalError("$", str(error)) from error


def sha256_hex(data: bytes) -> str:
    """The SHA-256 of ``data`` in lower-case hex."""
    return hashlib.sha256(data).hexdigest()


def from_hex(text: str) -> bytes:
    """The bytes that lower-case hex spells.

    Raises:
        ValueError: Any other spelling.
    """
    if text.strip("0123456789abcdef"):
        raise ValueError(f"{text[:80]!a} is not lower-case hex")
    return bytes.fromhex(text)


def utf8(text: str) -> bytes:
    """``text`` in UTF-8; a lone surrogate keeps its own three bytes, so that no two texts meet."""
    return text.encode("utf-8", "surrogatepass")


def digest_of_bytes(data: bytes) -> DigestRef:
    """The DigestRef of a body given as bytes."""
    return DigestRef(sha256_hex(data), len(data))


def digest_of(value: JsonValue) -> DigestRef:
    """The DigestRef of a JSON value's canonical bytes."""
    return digest_of_bytes(canonical_bytes(value))


def canonical_bytes(value: JsonValue) -> bytes:
    """The RFC 8785 spelling of ``value``.

    Args:
        value: None, bool, int, float, str, list, tuple or dict with string keys, nested to at
            most 128 levels. Other types, subclasses too, are refused.
    Raises:
        CanonicalError: NaN, an infinity, an integer beyond 2^53-1 (or a whole float beyond it and
            below 1e21, which reads back as one), a key that is not a string, two keys that are
            one after surrogates are joined, another type, or more depth. It names the path.
    Source: docs/spec.md, "Canonical JSON".
    """
    if _is_plain(value, 0):
        try:
            return _encode_sorted(value)
        except UnicodeEncodeError:
            pass  # a lone surrogate: spelled below
    parts: list[str] = []
    _write(value, "$", 0, parts)
    return "".join(parts).encode("utf-8")


def _is_plain(value: JsonValue, depth: int) -> bool:
    """Whether msgspec's sorted spelling is the canonical one; False sends it the slow way."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        return bool(-MAX_INT <= value <= MAX_INT)
    if depth >= MAX_DEPTH:
        return False
    if kind is dict:
        for key, item in value.items():
            # Beyond the basic plane, UTF-16 order and code point order part.
            if type(key) is not str or not (key.isascii() or max(key) < "\ud800"):
                return False
            if type(item) is not str and not _is_plain(item, depth + 1):
                return False
        return True
    if kind is list or kind is tuple:
        return all(_is_plain(item, depth + 1) for item in value)
    if kind is float:
        # msgspec writes 1.0 where RFC 8785 has 1, and has other bounds for an exponent.
        return bool(not value.is_integer() and 1e-5 < abs(value) < 1e15)
    return False


def _write(value: JsonValue, path: str, depth: int, out: list[str]) -> None:
    kind = type(value)
    if value is None:
        out.append("null")
    elif kind is bool:
        out.append("true" if value else "false")
    elif kind is str:
        out.append(_string(join_surrogates(value)))
    elif kind is int:
        if not -MAX_INT <= value <= MAX_INT:
            raise CanonicalError(path, f"integer {value} is beyond 2^53-1; give it as a string")
        out.append(str(value))
    elif kind is float:
        out.append(_number(value, path))
    elif depth >= MAX_DEPTH:
        raise CanonicalError(path, f"nested deeper than {MAX_DEPTH} levels")
    elif kind is list or kind is tuple:
        out.append("[")
        for index, item in enumerate(value):
            if index:
                out.append(",")
            _write(item, f"{path}[{index}]", depth + 1, out)
        out.append("]")
    elif kind is dict:
        _write_object(value, path, depth, out)
    else:
        raise CanonicalError(
            path, f"a {kind.__name__} is not JSON; convert it to a plain JSON value first"
        )


def _write_object(value: JsonObject, path: str, depth: int, out: list[str]) -> None:
    joined: dict[str, JsonValue] = {}
    for key, item in value.items():
        if type(key) is not str:
            raise CanonicalError(path, f"key {key!r} is a {type(key).__name__}, not a string")
        name = join_surrogates(key)
        if name in joined:
            raise CanonicalError(path, f"two keys are one once surrogates are joined: {name!a}")
        joined[name] = item
    out.append("{")
    # RFC 8785 sorts by UTF-16 code units; big-endian bytes compare the same way.
    ordered = sorted(joined, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    for index, name in enumerate(ordered):
        if index:
            out.append(",")
        out.append(_string(name))
        out.append(":")
        _write(
            joined[name],
            f"{path}.{name}" if name.isidentifier() else f"{path}[{name!a}]",
            depth + 1,
            out,
        )
    out.append("}")


def join_surrogates(text: str) -> str:
    """``text`` with each high surrogate that a low one follows joined to their character."""
    if text.isascii() or not _PAIR.search(text):
        return text
    return _PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)


def _string(text: str) -> str:
    if text.isascii():
        return _encode_sorted(text).decode("ascii")
    pieces = re.split("([\ud800-\udfff])", text)
    return (
        '"'
        + "".join(
            f"\\u{ord(piece):04x}"
            if len(piece) == 1 and "\ud800" <= piece <= "\udfff"
            else _encode_sorted(piece).decode("utf-8")[1:-1]
            for piece in pieces
        )
        + '"'
    )


def _number(value: float, path: str) -> str:
    """ECMAScript's Number::toString: the shortest digits that read back as ``value``."""
    if not math.isfinite(value):
        raise CanonicalError(path, f"{value} is not a JSON number")
    if value == 0:
        return "0"
    if MAX_INT < abs(value) < 1e21:
        raise CanonicalError(path, f"{value!r} would read back as an integer beyond 2^53-1")
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = f"{abs(value)!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    # The value is 0.DIGITS times ten to the power of `point`.
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    count = len(digits)
    if count <= point <= 21:
        return sign + digits + "0" * (point - count)
    if 0 < point <= 21:
        return sign + digits[:point] + "." + digits[point:]
    if -6 < point <= 0:
        return sign + "0." + "0" * -point + digits
    power = f"e{'+' if point > 0 else '-'}{abs(point - 1)}"
    return sign + digits[0] + ("." + digits[1:] if count > 1 else "") + power


def decode_canonical(data: bytes) -> JsonValue:
    """The value of ``data``, which must be a value's canonical spelling.

    Raises:
        CanonicalError: Not JSON, or JSON in any spelling but the canonical one.
    """
    value = decode_known(data)
    if canonical_bytes(value) != data:
        raise CanonicalError("$", "not in canonical spelling (RFC 8785)")
    return value


def spelled_json(value: JsonValue) -> str:
    """JSON as most libraries spell it without white space; what UTF-8 does not hold is escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return text


def decode_known(data: bytes) -> JsonValue:
    """The value of JSON whose spelling was checked before."""
    try:
        return _decode_any(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return decode_strict(data)


def decode_strict(data: bytes) -> JsonValue:
    """The value of any JSON text, read strictly.

    Raises:
        CanonicalError: Invalid UTF-8, invalid JSON, a duplicate key, NaN or an infinity, or
            nesting deeper than 128 levels.
    """
    return _decode(data, _DECODER)


def decode_tolerant(data: bytes) -> JsonValue:
    """The same of what others wrote: NaN and infinities, which some write, are read as texts.

    Raises:
        CanonicalError: As ``decode_strict``, but for those.
    """
    return _decode(data, _TOLERANT if b"NaN" in data or b"Infinity" in data else _DECODER)


def _decode(data: bytes, decoder: json.JSONDecoder) -> JsonValue:
    try:
        # Not json.loads(bytes): that would guess at UTF-16 and UTF-32.
        text = data.decode("utf-8")
        value: JsonValue = decoder.decode(text)
    except CanonicalError:
        raise
    except UnicodeDecodeError as error:
        raise CanonicalError("$", f"invalid UTF-8 at byte {error.start}") from error
    except RecursionError as error:
        raise CanonicalError("$", f"nested deeper than {MAX_DEPTH} levels") from error
    except ValueError as error:
        raise CanonicalError("$", f"not JSON: {error}") from error
    if text.count("[") + text.count("{") > MAX_DEPTH:
        _refuse_depth(value)
    return value


def _no_duplicates(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise CanonicalError("$", f"duplicate key {twice!a}")
    return value


def _no_constant(name: str) -> JsonValue:
    raise CanonicalError("$", f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
_TOLERANT = json.JSONDecoder(object_pairs_hook=_no_duplicates, parse_constant=str)


def _refuse_depth(value: JsonValue) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
    if any(isinstance(item, dict | list) for item in level):
        raise CanonicalError("$", f"nested deeper than {MAX_DEPTH} levels")
