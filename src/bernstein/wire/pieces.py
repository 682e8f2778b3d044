"""Replaces what a pattern finds in a text that comes in pieces, as the deltas of a stream do."""

from __future__ import annotations

import re
from collections.abc import Callable


def replace_in_pieces(
    pieces: list[str], pattern: re.Pattern[str], replacement: Callable[[re.Match[str]], str]
) -> list[str]:
    """The pieces with each match replaced, in the piece where it begins."""
    joined = "".join(pieces)
    found = list(pattern.finditer(joined))
    if not found:
        return pieces
    replaced: list[str] = []
    start, matches = 0, iter(found)
    match = next(matches, None)
    for piece in pieces:
        end = start + len(piece)
        out, at = [], start
        while match is not None and match.start() < end:
            if match.start() >= at:
                out.append(joined[at : match.start()])
                out.append(replacement(match))
            at = max(at, min(match.end(), end))
            if match.end() > end:
                break
            at = match.end()
            match = next(matches, None)
        if at < end:
            out.append(joined[at:end])
        replaced.append("".join(out))
        start = end
    return replaced
