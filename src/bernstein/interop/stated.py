"""What our own exports say beside a format's own members, so that they can be read again.

Bodies are left out of an export unless they are asked for; their digests stand in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, get_args

from bernstein.canonical import as_ref, digest_of_bytes
from bernstein.events.trajectory import DenialReason
from bernstein.interop.members import body_bytes, is_own_id, parsed, part_of

if TYPE_CHECKING:
    from bernstein.canonical import JsonObject, JsonValue

STATED = "bernstein"  # the member of metadata, and the prefix of attributes


class StatedApproval(NamedTuple):
    """Who let a tool run, or did not."""

    outcome: str
    actor: str
    reason: DenialReason | None


def stated(value: JsonObject) -> JsonObject:
    """What an export of ours says of an event."""
    return part_of(part_of(value, "metadata"), STATED)


def body_or_ref(value: JsonObject, name: str, content: JsonValue) -> JsonValue:
    """A body, where it is there and what an export of ours says of it; else the reference to it.

    Where nothing is said of it the content stands for itself.
    """
    ref = as_ref(stated(value).get(name))
    if ref is None:
        return content
    for body in (content, parsed(content)):
        if body is not None and digest_of_bytes(body_bytes(body)).digest == ref.digest:
            return body
    return ref


def stated_code(value: JsonObject) -> int | None:
    """The exit code of a tool, where an export of ours says it."""
    code = stated(value).get("exitCode")
    return code if type(code) is int else None


def stated_approval(value: JsonObject) -> StatedApproval | None:
    """The approval that an export of ours says."""
    said = part_of(stated(value), "approval")
    if said.get("outcome") not in ("approved", "denied"):
        return None
    reason = said.get("reason")
    known = reason if reason in get_args(DenialReason) else None
    actor = said["actor"] if is_own_id(said.get("actor")) else "approver"
    return StatedApproval(said["outcome"], actor, known)
