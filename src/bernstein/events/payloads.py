"""The eleven kinds of a trajectory's events, as types: a value that exists keeps their rules.

Integers only, and no member that is not named here. Bodies stand by their digests alone.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from bernstein.canonical import MAX_INT, JsonObject
from bernstein.errors import UsageError
from bernstein.events.trajectory import (
    BillingStatus,
    DenialReason,
    ErrorCode,
    RunStatus,
    StepStatus,
)

# Of the schema: a change of the kinds or their members makes another one, and both are read.
VERSION: Final = 1
BANDS: tuple[BillingStatus, ...] = get_args(BillingStatus)

Count: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_INT)]
# The length too: in Python `$` matches before a last line feed.
Digest: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-f]{64}$", max_length=64)]

_AT = " - at `$."


class FoldError(UsageError):
    """Events that are none, or that contradict each other: no run can have made them."""


class BodyRef(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename="camel",
    gc=False,
):
    """A ``DigestRef``, read strictly: SHA-256 in lower-case hex, length in bytes, file if another.

    ``enc_ref`` names the file of a body that is encrypted, or that was put away under another name.
    """

    digest: Digest
    byte_length: Count
    enc_ref: Digest | UnsetType = UNSET


class Payload(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename="camel",
    gc=False,
):
    """What an event says; the class is its kind."""


class RunStarted(Payload, frozen=True):
    """A run begins; ``labels`` are the plan's."""

    agent_id: str
    input: BodyRef | UnsetType = UNSET
    labels: dict[str, str] | UnsetType = UNSET


class RunFinished(Payload, frozen=True):
    """A run has ended."""

    status: RunStatus
    output: BodyRef | UnsetType = UNSET
    reason: ErrorCode | UnsetType = UNSET


class StepStarted(Payload, frozen=True):
    """A step begins, ``depth`` levels below the run; ``label`` is the plan's."""

    step_id: str
    depth: Count
    parent_step_id: str | UnsetType = UNSET
    label: str | UnsetType = UNSET


class StepFinished(Payload, frozen=True):
    """A step has ended."""

    step_id: str
    status: StepStatus
    error_code: ErrorCode | UnsetType = UNSET


class ModelCall(Payload, frozen=True):
    """A model is asked."""

    provider: str
    model: str
    prompt: BodyRef
    step_id: str | UnsetType = UNSET


class ModelUsage(Payload, frozen=True):
    """What a call used: tokens, those from a cache apart, and ``credits`` in micro-dollars.

    Raises:
        ValueError: A price where the band claims none.
    """

    provider: str
    model: str
    input_tokens: Count
    output_tokens: Count
    credits: Count
    billing_status: BillingStatus
    cached_input_tokens: Count | UnsetType = UNSET  # absent: 0
    step_id: str | UnsetType = UNSET
    price_book_version: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        band = self.billing_status
        if band != "priced" and self.price_book_version is not UNSET:
            raise ValueError(f"{band} with a price book: only with priced{_AT}priceBookVersion`")
        if self.credits and band not in {"priced", "metered"}:
            raise ValueError(f"{band} with credits: only with metered or priced{_AT}credits`")


class ToolProposed(Payload, frozen=True):
    """A model asks for a tool."""

    step_id: str
    tool_call_id: str
    name: str
    args: BodyRef


class ToolApproved(Payload, frozen=True):
    """A tool may run."""

    tool_call_id: str
    actor: str


class ToolDenied(Payload, frozen=True):
    """A tool may not run."""

    tool_call_id: str
    actor: str
    reason: DenialReason | UnsetType = UNSET


class ToolResult(Payload, frozen=True):
    """What a tool gave."""

    tool_call_id: str
    ok: bool
    result: BodyRef
    exit_code: Annotated[int, Meta(ge=-MAX_INT, le=MAX_INT)] | UnsetType = UNSET


class Checkpoint(Payload, frozen=True):
    """A point that a run reached; ``label`` is the plan's."""

    checkpoint_id: str
    label: str | UnsetType = UNSET
    state: BodyRef | UnsetType = UNSET


KINDS: dict[str, type[Payload]] = {
    "run.started": RunStarted,
    "run.finished": RunFinished,
    "step.started": StepStarted,
    "step.finished": StepFinished,
    "model.call": ModelCall,
    "model.usage": ModelUsage,
    "tool.proposed": ToolProposed,
    "tool.approved": ToolApproved,
    "tool.denied": ToolDenied,
    "tool.result": ToolResult,
    "checkpoint": Checkpoint,
}
KIND_OF: dict[type, str] = {payload: kind for kind, payload in KINDS.items()}


def payload_from(kind: str, value: JsonObject) -> Payload:
    """The payload of a ``kind`` that ``value`` is.

    Raises:
        FoldError: It is none; the message has the path to what is wrong.
    """
    try:
        return msgspec.convert(value, KINDS[kind], strict=True)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise FoldError(f"not a {kind}: {at_payload(str(error))}") from error


def at_payload(message: str) -> str:
    """A message of msgspec's, whose paths begin at the payload, with the path in the event."""
    said, _, path = message.partition(_AT.rstrip("."))
    return f"{said} - at `$.payload{path.split('`')[0]}`"
