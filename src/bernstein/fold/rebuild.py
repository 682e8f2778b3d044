"""The state of a run after its first N events, rebuilt from the journal alone."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING

from bernstein.canonical import JsonObject
from bernstein.chain.read import payload_of
from bernstein.chain.verify import checked_rows
from bernstein.errors import UsageError
from bernstein.events import trajectory as event
from bernstein.fold.order import typed
from bernstein.fold.run import RunFold
from bernstein.fold.source import TrajectoryEvent

if TYPE_CHECKING:
    from pathlib import Path


def rebuild_state(journal: Path, from_step: int, run_id: str = "") -> bytes:
    """The state of a run over its events [0, ``from_step``), in canonical order of members.

    The chain is checked while it is read; memory is that of the result.

    Args:
        journal: A ``journal.jsonl``.
        from_step: How many events count, from 0 to the number of rows.
        run_id: What stands as ``runId``; it is in no row.
    Returns:
        One line of JSON: run status, step tree, usage, open tool calls, mutations of the model's
        context, checkpoints, and the head after those events. Equal inputs give equal bytes.
    Raises:
        UsageError: There are not that many rows.
        RecordingError: The chain does not hold before row ``from_step``.
        FoldError: A row has not the members of its kind.
    Source: docs/spec.md, "Journal" and "Seal and spine".
    """
    if from_step < 0:
        raise UsageError(f"--from-step {from_step}: a run has no events before 0")
    fold = RunFold()
    fold.take(run_id, ())
    open_calls: dict[str, JsonObject] = {}
    mutations: list[JsonObject] = []
    head, count = "0" * 64, 0
    for row in islice(checked_rows(journal), from_step):
        payload = payload_of(row)
        fold.take(run_id, [typed(TrajectoryEvent(row.index, run_id, row.event, payload))])
        if row.event in {event.TOOL_PROPOSED, event.TOOL_RESULT}:
            call_id = payload["toolCallId"]
            open_calls.pop(call_id, None)
            if row.event == event.TOOL_PROPOSED:
                open_calls[call_id] = {**payload, "seq": row.index}
        elif row.event == event.PROVIDER_STATE_MUTATION:
            mutations.append({**payload, "seq": row.index})
        head = row.event_hash
        count += 1
    if count < from_step:
        raise UsageError(
            f"--from-step {from_step}: the run has {count} events\n  give a number up to {count}"
        )
    state = {
        "events": count,
        "head": head,
        **fold.finish().to_json(),
        "openToolCalls": list(open_calls.values()),
        "providerState": mutations,
    }
    text = json.dumps(state, ensure_ascii=True, separators=(",", ":"))
    return text.encode("ascii") + b"\n"
