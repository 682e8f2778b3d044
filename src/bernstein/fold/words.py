"""Words of a run as a terminal can show them."""

from __future__ import annotations


def plain(text: str) -> str:
    """A text that others chose, without what a terminal would act on or cannot show."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
