"""What a call costs, by the price book of ``genai-prices``."""

from __future__ import annotations

import functools
import math
from importlib.metadata import version
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from bernstein.errors import ModelUnavailableError, UsageError
from bernstein.recording.answer import Usage

if TYPE_CHECKING:
    from datetime import datetime

    from bernstein.events.payloads import ModelUsage


def priced(
    provider: str,
    model: str,
    *,
    input_tokens: int,
    output_tokens: int,
    cached_tokens: int,
    cache_write_tokens: int,
    asked_at: datetime | None = None,
) -> Usage:
    """The usage of a call with its price in micro-dollars, rounded up.

    Args:
        provider: openai, anthropic or google.
        model: The model that answered.
        input_tokens: All tokens that went in, cached ones too.
        output_tokens: All that came out.
        cached_tokens: Those read from a cache.
        cache_write_tokens: Those written to one.
        asked_at: When, since prices change; None: now.
    Returns:
        A ``priced`` usage; an ``estimated`` one where the book does not know the model.
    """
    from genai_prices import Usage as Tokens  # noqa: PLC0415 - only a live call needs it
    from genai_prices import calc_price  # noqa: PLC0415

    counts = Usage(
        input_tokens=max(input_tokens - cached_tokens, 0),
        output_tokens=output_tokens,
        cached_input_tokens=cached_tokens,
        billing_status="estimated",
    )
    tokens = Tokens(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cache_read_tokens=cached_tokens,
        cache_write_tokens=cache_write_tokens,
    )
    try:
        price = calc_price(tokens, model, provider_id=provider, genai_request_timestamp=asked_at)
    except LookupError:
        return counts
    return Usage(
        input_tokens=counts.input_tokens,
        output_tokens=output_tokens,
        cached_input_tokens=cached_tokens,
        billing_status="priced",
        credits=math.ceil(price.total_price * 1_000_000),
        price_book_version=price_book(),
    )


@functools.cache
def price_book() -> str:
    """Name and version of the price book.

    Raises:
        ModelUnavailableError: It is not installed.
    """
    try:
        return f"genai-prices {version('genai-prices')}"
    except ImportError as error:
        raise ModelUnavailableError(
            "stating prices needs a package that is not here\n"
            "  install it: pip install 'bernstein-replay[providers]'"
        ) from error


def stated(payload: ModelUsage, asked_at: datetime) -> ModelUsage:
    """A row of usage with the price that the book states for it: a statement, not a charge.

    Rounded up, as the price of a live call is. Tokens that were written to a cache are among the
    others in a row, and are priced as such.

    Args:
        payload: An estimated row.
        asked_at: When the call was made.
    Returns:
        It as ``priced``; as it is where the book does not know the model.
    Raises:
        UsageError: The price is beyond 2^53-1 micro-dollars.
    """
    cached = 0 if payload.cached_input_tokens is UNSET else payload.cached_input_tokens
    try:
        usage = priced(
            payload.provider,
            payload.model,
            input_tokens=payload.input_tokens + cached,
            output_tokens=payload.output_tokens,
            cached_tokens=cached,
            cache_write_tokens=0,
            asked_at=asked_at,
        )
    except ValueError as error:
        raise UsageError(
            f"the price of a call of {payload.model!r} is beyond 2^53-1 micro-dollars, which no "
            "call can have cost\n  leave out --price"
        ) from error
    if usage.price_book_version is None:
        return payload
    return msgspec.structs.replace(
        payload,
        billing_status="priced",
        credits=usage.credits,
        price_book_version=usage.price_book_version,
    )
