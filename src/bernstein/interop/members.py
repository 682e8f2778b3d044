"""Members of what others wrote, whatever they are: none of these raises, and none takes a text of
somebody's for a name or an id of ours.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from bernstein.canonical import canonical_bytes, decode_strict, utf8
from bernstein.errors import CanonicalError
from bernstein.wire.reported import spellable

if TYPE_CHECKING:
    from bernstein.canonical import JsonObject, JsonValue

_MAX_NAME_CHARS = 128
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]{0,127}")
_NO_NAME = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def inline(value: JsonValue) -> str:
    """A name as it may stand in a payload: one line of at most 128 characters."""
    return _NO_NAME.sub("\ufffd", value[:_MAX_NAME_CHARS]) if isinstance(value, str) else ""


def is_own_id(value: JsonValue) -> bool:
    """Whether a value can be an id or a name of ours: no text that somebody wrote."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def key_of(value: JsonValue) -> str | None:
    """An id of the file's as a key; None where it is none."""
    return value if isinstance(value, str) and value else None


def parsed(args: JsonValue) -> JsonValue:
    """The arguments of a tool: those that are JSON in a text are that JSON."""
    if isinstance(args, str) and args.lstrip()[:1] in {"{", "["}:
        try:
            return decode_strict(utf8(args))
        except CanonicalError:
            return args
    return args


def body_bytes(value: JsonValue) -> bytes:
    """The bytes of a body: its canonical JSON, or where it has none what comes closest."""
    try:
        return canonical_bytes(spellable(value))
    except CanonicalError:  # deeper than that allows, or an infinity
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def part_of(value: JsonValue, name: str) -> JsonObject:
    """A member that is an object; an empty one where it is none."""
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def objects_of(value: JsonValue) -> list[JsonObject]:
    """The objects of a list; none where it is no list."""
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def kind_of(record: JsonObject) -> str:
    """What type a record says that it is; empty where it says none."""
    found = record.get("type")
    return found if isinstance(found, str) else ""
