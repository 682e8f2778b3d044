"""What a call costs, by the price book of ``genai-prices``."""

from __future__ import annotations

import math
from importlib.metadata import version

from bernstein.recording.answer import Usage


def priced(
    provider: str,
    model: str,
    *,
    input_tokens: int,
    output_tokens: int,
    cached_tokens: int,
    cache_write_tokens: int,
) -> Usage:
    """The usage of a call with its price in micro-dollars, rounded up.

    Args:
        provider: openai, anthropic or google.
        model: The model that answered.
        input_tokens: All tokens that went in, cached ones too.
        output_tokens: All that came out.
        cached_tokens: Those read from a cache.
        cache_write_tokens: Those written to one.
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
        price = calc_price(tokens, model, provider_id=provider)
    except LookupError:
        return counts
    return Usage(
        input_tokens=counts.input_tokens,
        output_tokens=output_tokens,
        cached_input_tokens=cached_tokens,
        billing_status="priced",
        credits=math.ceil(price.total_price * 1_000_000),
        price_book_version=f"genai-prices {version('genai-prices')}",
    )
