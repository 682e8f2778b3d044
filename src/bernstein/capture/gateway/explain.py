"""Why a request was not in the recording: the nearest one, and where the two differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.canonical import JsonObject, JsonValue
from bernstein.errors import ReplayMissError
from bernstein.recording.exchanges import read_requests
from bernstein.recording.texts import shared_ends
from bernstein.wire.protocol import model_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bernstein.capture.gateway.wire_run import Exchange
    from bernstein.recording.blobs import BlobStore
    from bernstein.recording.exchanges import ExchangeRow
    from bernstein.wire.chained import Terms

_MAX_TEXT = 120
_MAX_PATHS = 10
_MAX_COMPARED = 1000


def explain_exchange_miss(
    exchange: Exchange,
    rows: Sequence[ExchangeRow],
    *,
    used: set[int],
    terms: Terms,
    blobs: BlobStore,
    source: str,
    was_cut: bool,
    rerun: str,
    changed_files: str = "",
) -> ReplayMissError:
    """The miss of a request, with the nearest recorded one."""
    match, request = exchange.match, exchange.kept
    same = [row for row in rows if (row.lane, row.key) == (exchange.lane, match.key)]
    reason = "exhausted" if same else ("never_recorded" if rows else "no_recording")
    where = f"{request.method} {request.path}"
    if model := model_of(request.path, match.body):
        where += f", model {model!r}"
    first = {
        "exhausted": f"replay miss: asked once more than recorded ({len(same)} times): {where}",
        "never_recorded": f"replay miss: no recorded answer for this request: {where}",
        "no_recording": f"replay miss: run {source} has no recorded exchanges: {where}",
    }[reason]
    lines = [first]
    if changed_files:
        lines.append(f"  the folder is not as it was when this was recorded: {changed_files}")
    nearest = None if same else _nearest(exchange, rows, used, terms, blobs)
    if nearest is not None:
        row, paths = nearest
        lines.append(f"  nearest: exchange {row.seq} in lane {shown_lane(row.lane)}; differs in:")
        lines += [f"    {path}: recorded {old}, asked {new}" for path, old, new in paths]
        if any("/runs/" in text and "sdd" in text for _, *texts in paths for text in texts):
            lines.append(
                "  the command has looked at our recordings, and they grow\n"
                "  keep them elsewhere (bernstein --sdd DIR …), or hide them: --isolate"
            )
    if was_cut:
        lines.append(
            f"  the recorded run came to no end: its recording stops after {len(rows)} exchanges"
        )
    if rerun:
        lines.append(f"  record again: {rerun}")
    return ReplayMissError(
        "\n".join(lines),
        key=match.key,
        model=model,
        recorded=len(same),
        requested=len(same) + 1,
        nearest=None
        if nearest is None
        else {
            "seq": nearest[0].seq,
            "lane": nearest[0].lane,
            "differs": [list(path) for path in nearest[1]],
        },
        reason=reason,
    )


def shown_lane(lane: str) -> str:
    """A lane for people: one that is a key is cut."""
    return lane if "/" in lane or len(lane) < 64 else lane[:16]


def changed_entries(recorded: JsonObject, now: JsonObject) -> str:
    """Which entries of the working directory differ from those that a recording began with."""
    if not (recorded and now):
        return ""
    words = []
    for name in sorted(recorded.keys() | now.keys()):
        if recorded.get(name) != now.get(name):
            kind = "changed" if name in recorded and name in now else "new"
            words.append(f"{name} ({'gone' if name not in now else kind})")
    more = len(words) - _MAX_PATHS
    return ", ".join(words[:_MAX_PATHS]) + (f" and {more} more" if more > 0 else "")


def _nearest(
    exchange: Exchange,
    rows: Sequence[ExchangeRow],
    used: set[int],
    terms: Terms,
    blobs: BlobStore,
) -> tuple[ExchangeRow, list[tuple[str, str, str]]] | None:
    """The next unused row of the same lane, else the row with the largest share of equal text."""
    text = exchange.kept.body.decode("utf-8", "surrogateescape")
    best: tuple[tuple[bool, bool, float], ExchangeRow, str] | None = None
    for compared, (row, recorded) in enumerate(read_requests(list(rows), blobs)):
        if recorded is None or compared >= _MAX_COMPARED:
            continue
        if (row.method, row.provider) != (exchange.request.method, exchange.request.provider):
            continue
        is_next = row.lane == exchange.lane and row.seq not in used
        share = sum(shared_ends(text, recorded)) / max(len(text), len(recorded), 1)
        rank = (is_next, row.seq not in used, share)
        if best is None or (rank > best[0] and not (is_next and best[0][0])):
            best = (rank, row, recorded)
    if best is None:
        return None
    _, row, recorded = best
    found: list[tuple[str, str, str]] = []
    _walk(terms.match_row(row, recorded).request, exchange.match.request, "", found)
    return row, found[:_MAX_PATHS]


def _walk(old: JsonValue, new: JsonValue, path: str, found: list[tuple[str, str, str]]) -> None:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            inner = f"{path}.{name}".lstrip(".")
            if name not in old or name not in new:
                found.append((inner, _shown(old.get(name)), _shown(new.get(name))))
            else:
                _walk(old[name], new[name], inner, found)
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            inner = f"{path}[{index}]"
            if index >= len(old) or index >= len(new):
                sides = [side[index] if index < len(side) else None for side in (old, new)]
                found.append((inner, _shown(sides[0]), _shown(sides[1])))
            else:
                _walk(old[index], new[index], inner, found)
    elif old != new or type(old) is not type(new):
        if isinstance(old, str) and isinstance(new, str):
            start = max(shared_ends(old, new)[0] - 20, 0)
            old, new = old[start:], new[start:]
        found.append((path or "$", _shown(old), _shown(new)))


def _shown(value: JsonValue) -> str:
    text = "nothing" if value is None else ascii(value)
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "…"
