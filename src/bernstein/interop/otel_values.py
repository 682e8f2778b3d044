"""Attributes of spans: as OTLP's JSON spells them, as plain values, and the counts in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.interop.counts import counts_of, first_of, usage_of_counts
from bernstein.interop.members import objects_of

if TYPE_CHECKING:
    from bernstein.canonical import JsonObject, JsonValue
    from bernstein.recording.answer import Usage


# What the conventions call a provider that has another name here.
PROVIDERS = {"google": "gcp.gemini"}


def attributes_of(value: JsonValue) -> JsonObject:
    """The attributes of a span or event, by their names."""
    if isinstance(value, dict):
        return value
    found: JsonObject = {}
    for item in objects_of(value):
        if isinstance(name := item.get("key"), str):
            found[name] = _plain(item.get("value"))
    return found


def _plain(value: JsonValue) -> JsonValue:
    if not isinstance(value, dict):
        return value
    for kind, said in value.items():
        match kind:
            case "stringValue" | "boolValue" | "doubleValue" | "bytesValue":
                return said
            case "intValue":  # a text, as 64 bits are spelled in JSON
                return _integer(said)
            case "arrayValue":
                items = said.get("values") if isinstance(said, dict) else None
                return [_plain(item) for item in items] if isinstance(items, list) else []
            case "kvlistValue":
                return attributes_of(said.get("values") if isinstance(said, dict) else None)
    return None


def _integer(said: JsonValue) -> JsonValue:
    digits = said.removeprefix("-") if isinstance(said, str) else ""
    is_integer = digits.isascii() and digits.isdigit() and len(digits) < 20
    return int(said) if is_integer else said


def usage_of(found: JsonObject) -> Usage | None:
    """The counts of a call. Input holds the cached tokens; where it cannot, it does not."""
    usage = "gen_ai.usage"
    said = {
        "in": first_of(
            found, f"{usage}.input_tokens", f"{usage}.prompt_tokens", "llm.usage.prompt_tokens"
        ),
        "out": first_of(
            found,
            *(f"{usage}.output_tokens", f"{usage}.completion_tokens"),
            "llm.usage.completion_tokens",
        ),
        "read": first_of(
            found,
            *(f"{usage}.cache_read.input_tokens", f"{usage}.cache_read_input_tokens"),
            *(f"{usage}.cached_input_tokens", f"{usage}.cached_tokens"),
            f"{usage}.input_tokens.cached",
        ),
        "written": first_of(
            found,
            *(f"{usage}.cache_creation.input_tokens", f"{usage}.cache_creation_input_tokens"),
        ),
    }
    counts = counts_of(said, "in", "out", "read", "written")
    if counts is None:
        return None
    total_in, out, cached, written = counts
    if cached + written > total_in:
        return usage_of_counts(total_in + written, cached, out)
    return usage_of_counts(total_in - cached, cached, out)


def spelled(value: JsonValue) -> JsonObject:
    """A text, a count or a fact as OTLP's JSON spells it."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"stringValue": str(value)}


def spelled_attributes(values: JsonObject) -> list[JsonValue]:
    """Attributes as OTLP's JSON spells them; None stands for one that is absent."""
    return [
        {"key": name, "value": spelled(value)}
        for name, value in values.items()
        if value is not None
    ]
