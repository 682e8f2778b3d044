"""Runs as events in envelopes, a line each: what ``bernstein export --as jsonl`` writes.

These are events of ours already: their payloads are strict, and their ids stay. The bodies that
they refer to are not in such a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from bernstein.canonical import MAX_DEPTH, MAX_INT
from bernstein.errors import RecordingError
from bernstein.events import trajectory as event
from bernstein.events.payloads import (
    KINDS,
    FoldError,
    ModelUsage,
    Payload,
    RunFinished,
    RunStarted,
    StepStarted,
    ToolProposed,
    payload_from,
)
from bernstein.interop.transcript import Told, Transcript

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bernstein.canonical import JsonObject
    from bernstein.interop.records import Records

_NAMES = frozenset({"eventId", "runId", "seq", "kind", "payload"})


def is_envelope(record: JsonObject) -> bool:
    """Whether a record is an event in its envelope."""
    return record.keys() >= _NAMES


def read_envelopes(records: Records) -> Iterator[Transcript]:
    """The one run that envelopes tell, in the order of their ``seq``.

    Raises:
        RecordingError: They are of several runs.
    """
    taking = _Taking()
    for record in records.values:
        taking.take(record)
    if len(taking.runs) > 1:
        raise RecordingError(f"these are events of {len(taking.runs)} runs: give a file for each")
    yield taking.finish(records)


class _Taking:
    """Takes events in any order; those that contradict others are passed over."""

    def __init__(self) -> None:
        self.runs: set[str] = set()
        self._found: dict[int, tuple[str, Payload]] = {}
        self._unknown = 0

    def take(self, record: JsonObject) -> None:
        """Take one event; an equal one counts once."""
        seq, kind, payload = record.get("seq"), record.get("kind"), record.get("payload")
        if type(seq) is not int or not isinstance(kind, str) or kind not in KINDS:
            self._unknown += 1
            return
        try:
            value = payload_from(kind, payload if isinstance(payload, dict) else {})
        except FoldError:
            self._unknown += 1
            return
        self.runs.add(str(record.get("runId")))
        if self._found.setdefault(seq, (kind, value)) != (kind, value):
            self._unknown += 1

    def finish(self, records: Records) -> Transcript:
        """The run, in the order of ``seq``."""
        end = RunFinished("completed")
        told: list[Told] = []
        sound = _Sound()
        for seq in sorted(self._found):
            kind, value = self._found[seq]
            if isinstance(value, RunFinished):
                end = value
            elif isinstance(value, RunStarted):
                continue  # this run is one of a file, whoever's the first was
            elif sound.takes(value):
                told.append(Told(kind, msgspec.to_builtins(value)))
            else:
                self._unknown += 1
        reason: event.ErrorCode | None = None if end.reason is UNSET else end.reason
        return Transcript(
            "jsonl",
            tuple(told),
            len(records.values),
            records.data,
            status=end.status,
            reason=reason,
            unknown=self._unknown,
            bad_lines=records.bad_lines,
        )


class _Sound:
    """Keeps what no run can have made out of one: every fold must be able to read it."""

    def __init__(self) -> None:
        self._levels: dict[str, int] = {}
        self._calls: set[str] = set()
        self._totals = [0, 0, 0, 0]

    def takes(self, value: Payload) -> bool:
        """Whether an event can follow those before it."""
        match value:
            case StepStarted():
                parent = value.parent_step_id
                above = 0 if parent is UNSET else self._levels.get(parent, 0)
                if value.step_id in self._levels or above >= MAX_DEPTH:
                    return False
                self._levels[value.step_id] = above + 1
            case ToolProposed():
                if value.tool_call_id in self._calls:
                    return False
                self._calls.add(value.tool_call_id)
            case ModelUsage():
                cached = value.cached_input_tokens
                counts = (
                    value.input_tokens,
                    value.output_tokens,
                    0 if cached is UNSET else cached,
                    value.credits,
                )
                sums = [total + count for total, count in zip(self._totals, counts, strict=True)]
                if max(sums) > MAX_INT:
                    return False
                self._totals = sums
        return True
