"""Says of a miss what the nearest recorded call is and in what it differs."""

from __future__ import annotations

import difflib
from contextlib import suppress
from typing import TYPE_CHECKING

from bernstein.canonical import JsonObject, decode_strict
from bernstein.errors import CanonicalError, RecordingError, ReplayMissError
from bernstein.recording.rows import CallRow, read_prompts
from bernstein.recording.texts import shared_ends

if TYPE_CHECKING:
    from bernstein.recording.blobs import BlobStore
    from bernstein.recording.key import LlmCall

_MAX_TEXT = 200
_REQUEST_PREFIX = "bernstein.request.v1\n"

RERUN = "env -u BERNSTEIN_REPLAY_RUN_ID BERNSTEIN_DETERMINISTIC_SEED=42 bernstein run plan.yaml"


def explain_miss(
    call: LlmCall,
    lane: str,
    *,
    recorded: int,
    requested: int,
    rows: list[CallRow],
    blobs: BlobStore,
    source: str,
    was_cut: bool,
    rerun: str,
    reason: str,
) -> ReplayMissError:
    """The error for a call without a recorded answer, with the nearest recorded call.

    Args:
        call: What was asked for.
        lane: In which lane.
        recorded: How many answers the key has there.
        requested: How often it was asked for, this time counted.
        rows: The recording, in file order.
        blobs: Where its large bodies lie.
        source: The id of the recording.
        rerun: The command that records again.
        was_cut: Whether the recorded run did not come to its end.
        reason: never_recorded, exhausted, stale_key_scheme or no_recording.
    """
    nearest = None if reason == "exhausted" else find_nearest(call, lane, rows, blobs)
    where = f"model {call.model!r}" + (f", lane {lane!r}" if lane else "")
    lines = {
        "exhausted": f"replay miss: asked for the {_nth(requested)} time, recorded "
        f"{_times(recorded)} ({where})",
        "never_recorded": f"replay miss: no recorded answer for this call ({where})",
        "stale_key_scheme": f"replay miss: the recording {source} has an older key scheme, whose "
        f"answers cannot be matched ({where})",
        "no_recording": f"replay miss: run {source} has no recorded calls ({where})",
    }[reason].split("\n")
    if nearest is not None:
        lines.append(
            f"  nearest recording (call {nearest['seq']}, lane {nearest['lane']!r}) differs in: "
            + "; ".join(nearest["differs"])
        )
        lines.extend("    " + line for line in nearest["diff"])
    if was_cut:
        lines.append(
            f"  the recorded run did not come to its end: its recording stops after "
            f"{len(rows)} answers"
        )
    lines.append(f"  re-record: {rerun}")
    lines.append("  or let misses go to the live model: BERNSTEIN_REPLAY_ALLOW_LIVE_MISS=1")
    return ReplayMissError(
        "\n".join(lines),
        key=call.key,
        model=call.model,
        recorded=recorded,
        requested=requested,
        nearest=nearest,
        reason=reason,
    )


def find_nearest(
    call: LlmCall, lane: str, rows: list[CallRow], blobs: BlobStore
) -> JsonObject | None:
    """The recorded call that is most like ``call``: fewest differing fields, own lane first."""
    wanted = call.key_prompt
    best: tuple[tuple[int, float, int], CallRow, str] | None = None
    try:
        for row, prompt in read_prompts(rows, blobs):
            differing = sum(
                (
                    row.model != call.model,
                    row.provider != call.provider,
                    row.lane != lane,
                    row.temperature != call.temperature,
                    row.max_tokens != call.max_tokens,
                )
            )
            likeness = _likeness(wanted, prompt)
            rank = (differing + (likeness < 1) * 2, -likeness, row.seq)
            if best is None or rank < best[0]:
                best = (rank, row, prompt)
    except RecordingError:
        pass  # the miss itself is what must be told; a damaged body only costs the comparison
    if best is None:
        return None
    _, row, prompt = best
    differs = [
        f"{name} (recorded {old!r}, asked {new!r})"
        for name, old, new in (
            ("model", row.model, call.model),
            ("provider", row.provider, call.provider),
            ("temperature", row.temperature, call.temperature),
            ("max_tokens", row.max_tokens, call.max_tokens),
            ("lane", row.lane, lane),
        )
        if old != new
    ]
    diff: list[str] = []
    if prompt != wanted:
        fields = _differing_fields(prompt, wanted)
        inner = [name for name in fields if name != "prompt"]
        differs.append("prompt" + (f" ({', '.join(inner)})" if inner else ""))
        diff = _diff(shown_prompt(prompt), shown_prompt(wanted))
    return {
        "lane": row.lane,
        "seq": row.seq,
        "differs": differs or ["the order of the answers of this lane"],
        "diff": diff,
    }


def _likeness(left: str, right: str) -> float:
    """1.0 for equal texts, else the share of a common start and end: linear, not quadratic."""
    if left == right:
        return 1.0
    return min(sum(shared_ends(left, right)) / max(len(left), len(right)), 0.999)


def _differing_fields(old: str, new: str) -> list[str]:
    """The paths inside two ``request.v1`` prompts whose values differ, the first ten."""
    if not (old.startswith(_REQUEST_PREFIX) and new.startswith(_REQUEST_PREFIX)):
        return []
    try:
        left, right = (decode_strict(text[len(_REQUEST_PREFIX) :].encode()) for text in (old, new))
    except (CanonicalError, UnicodeEncodeError):
        return []
    found: list[str] = []
    _walk(left, right, "", found)
    return found[:10]


def _walk(left: object, right: object, path: str, found: list[str]) -> None:
    if isinstance(left, dict) and isinstance(right, dict):
        for name in sorted(left.keys() | right.keys()):
            inner = f"{path}.{name}".lstrip(".")
            if name not in left or name not in right:
                found.append(f"{inner} {'added' if name in right else 'gone'}")
            else:
                _walk(left[name], right[name], inner, found)
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for index, (one, other) in enumerate(zip(left, right, strict=True)):
            _walk(one, other, f"{path}[{index}]", found)
    elif left != right:
        found.append(path or "$")


def shown_prompt(prompt: str) -> str:
    """The text that a person wrote, of a request that holds little else."""
    if prompt.startswith(_REQUEST_PREFIX):
        with suppress(CanonicalError, UnicodeEncodeError):
            value = decode_strict(prompt[len(_REQUEST_PREFIX) :].encode())
            if isinstance(value, dict) and isinstance(value.get("prompt"), str):
                text: str = value["prompt"]
                return text
    return prompt


def _diff(old: str, new: str) -> list[str]:
    """A short diff: the first lines that differ, each cut around its first differing place."""
    changed = []
    for line in difflib.unified_diff(
        old.split("\n")[:400], new.split("\n")[:400], "recorded", "asked", n=0, lineterm=""
    ):
        if line.startswith(("---", "+++", "@@")):
            continue
        changed.append(line)
        if len(changed) == 6:
            break
    if len(changed) == 2 and max(map(len, changed)) > _MAX_TEXT:
        start = max(shared_ends(changed[0][1:], changed[1][1:])[0] - 60, 0)
        return [f"{line[0]}…{line[1:][start : start + _MAX_TEXT]}" for line in changed]
    return [line[:_MAX_TEXT] + ("…" if len(line) > _MAX_TEXT else "") for line in changed]


def _nth(number: int) -> str:
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 not in (11, 12, 13) else 0)
    return f"{number}{suffix or 'th'}"


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")
