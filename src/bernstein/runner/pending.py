"""The tool calls of a run that an operator has to decide on, with what the model asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bernstein.agents.tool_loop import asked_in_words
from bernstein.agents.tools import parse_arguments
from bernstein.canonical import DigestRef, digest_of
from bernstein.chain.read import load_replay_events, payload_of
from bernstein.events import trajectory as event
from bernstein.recording.answer import LlmAnswer
from bernstein.recording.queue import load_recording
from bernstein.runner.resume import plan_of
from bernstein.seal.approvals import RowRef

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bernstein.recording.blobs import BlobStore
    from bernstein.rundir import RunDir


class PendingCall(NamedTuple):
    """A call that waits.

    Attributes:
        call_id: Its id.
        name: The tool.
        args: The digest of its arguments.
        row: The row that proposes it.
        asked: The arguments as the model wrote them, or "" where they cannot be read.
    """

    call_id: str
    name: str
    args: DigestRef
    row: RowRef
    asked: str


def pending_calls(run: RunDir, blobs: BlobStore) -> list[PendingCall]:
    """The calls that nobody has decided on in the journal, of tools that the plan asks about.

    Raises:
        RecordingError, UsageError: The run cannot be read, or is none of a plan.
    """
    asks = {step.step_id: step.approve for step in plan_of(run).steps}
    found: dict[str, tuple[str, DigestRef, RowRef]] = {}
    for row in load_replay_events(run.journal):
        if row.event == event.TOOL_PROPOSED:
            said = payload_of(row)
            step_id = said["stepId"].rpartition("/")[0]
            if said["name"] in asks.get(step_id, ()):
                ref = DigestRef(said["args"]["digest"], said["args"]["byteLength"])
                place = RowRef(run.run_id, row.index, row.event_hash)
                found[said["toolCallId"]] = (said["name"], ref, place)
        elif row.event in {event.TOOL_APPROVED, event.TOOL_DENIED}:
            found.pop(payload_of(row)["toolCallId"], None)
    asked = dict(asked_texts(run, blobs)) if found else {}
    return [
        PendingCall(call_id, name, ref, place, asked.get(ref.digest, ""))
        for call_id, (name, ref, place) in found.items()
    ]


def asked_texts(run: RunDir, blobs: BlobStore) -> Iterator[tuple[str, str]]:
    """The digest and the text of the arguments of every recorded call of a tool."""
    for row in load_recording(run.llm_calls).rows:
        outcome = row.read_outcome(blobs)
        if not isinstance(outcome, LlmAnswer):
            continue
        for call in (*outcome.tool_calls, *asked_in_words(outcome.text)):
            given = parse_arguments(call.args)
            yield digest_of(call.args if given is None else given).digest, call.args
