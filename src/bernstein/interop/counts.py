"""Counts of tokens, whatever the habit of who reported them: cached ones are apart.

Rule: what is no count (negative, a text, a fraction, beyond 2^53-1) makes its whole report count
for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.canonical import MAX_INT
from bernstein.recording.answer import Usage

if TYPE_CHECKING:
    from bernstein.canonical import JsonObject, JsonValue


def counts_of(said: JsonObject, *names: str) -> list[int] | None:
    """The counts of these names, 0 where one is absent; None where one is no count."""
    counts = [said.get(name) for name in names]
    if not all(_is_count(count) for count in counts):
        return None
    return [count or 0 for count in counts]


def first_of(said: JsonObject, *names: str) -> JsonValue:
    """The first of some members that is there."""
    return next((said[name] for name in names if said.get(name) is not None), None)


def usage_of_counts(tokens_in: int, cached: int, tokens_out: int) -> Usage | None:
    """Real counts without a price, of input without cached tokens; None beyond what a call can."""
    if not all(0 <= count <= MAX_INT for count in (tokens_in, cached, tokens_out)):
        return None
    return Usage(
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        cached_input_tokens=cached,
        billing_status="estimated",
    )


def usage_inclusive(total_in: int, cached: int, tokens_out: int) -> Usage | None:
    """The same of a report whose input holds the cached tokens too, as OpenAI's and Google's."""
    return usage_of_counts(total_in - cached, cached, tokens_out)


def openai_usage(said: JsonObject) -> Usage | None:
    """The counts of OpenAI's Chat Completions or Responses; None where they are none."""
    names = {
        "in": first_of(said, "input_tokens", "prompt_tokens"),
        "out": first_of(said, "output_tokens", "completion_tokens"),
        "cached": said.get("cached_input_tokens"),
    }
    if names["cached"] is None:
        details = first_of(said, "input_tokens_details", "prompt_tokens_details")
        if isinstance(details, list):  # one for each request that was added up
            details = details[0] if details else None
        names["cached"] = details.get("cached_tokens") if isinstance(details, dict) else None
    counts = counts_of(names, "in", "cached", "out")
    return None if counts is None else usage_inclusive(*counts)


def _is_count(value: JsonValue) -> bool:
    return value is None or (type(value) is int and 0 <= value <= MAX_INT)
