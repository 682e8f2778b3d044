"""What OpenHands did: its trajectories, an action or observation each.

An action carries the model's whole answer; actions of one answer carry it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.canonical import JsonObject
from bernstein.interop.counts import openai_usage
from bernstein.interop.members import key_of, objects_of, part_of
from bernstein.interop.telling import Telling
from bernstein.interop.transcript import Transcript

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bernstein.canonical import JsonValue
    from bernstein.interop.records import Records

# Actions that are no tools: what is said, and what the program tells itself.
_PLAIN = frozenset(
    {"message", "system", "null", "change_agent_state", "recall", "start", "pause", "resume"}
)


def is_openhands(record: JsonObject) -> bool:
    """Whether a record is one of OpenHands'."""
    is_event = isinstance(record.get("action"), str) or isinstance(record.get("observation"), str)
    return is_event and record.get("source") in ("user", "agent", "environment")


def read_openhands(records: Records) -> Iterator[Transcript]:
    """The one run that a trajectory tells."""
    telling = Telling()
    for number, record in enumerate(records.values):
        if isinstance(record.get("action"), str):
            _take_action(record, number, telling)
        elif isinstance(record.get("observation"), str):
            _take_observation(record, telling)
        else:
            telling.pass_over()
    telling.records = len(records.values)
    yield telling.finish("openhands", records.data, bad_lines=records.bad_lines)


def _key(value: JsonValue) -> tuple[str, int] | None:
    """The key of an event that another one names as its cause."""
    return ("event", value) if type(value) is int else None


def _take_action(record: JsonObject, number: int, telling: Telling) -> None:
    action, args = record["action"], record.get("args")
    if record.get("source") == "user":
        telling.say(args)
        return
    if record.get("source") != "agent":
        return
    answer = part_of(part_of(record, "tool_call_metadata"), "model_response")
    _take_answer(answer, number, telling)
    if action == "finish" and isinstance(args, dict):
        telling.output = args.get("outputs") or args.get("final_thought")
    if action in _PLAIN:
        return
    key = _key(record.get("id"))
    name = part_of(record, "tool_call_metadata").get("function_name") or action
    telling.propose(key, name, _asked(record, answer, args))
    match part_of(record, "args").get("confirmation_state"):
        case "rejected":
            telling.deny(key, "user", "refused")


def _asked(record: JsonObject, answer: JsonObject, args: JsonValue) -> JsonValue:
    """What the model asked for, where its answer is there; else what was made of that."""
    wanted = key_of(part_of(record, "tool_call_metadata").get("tool_call_id"))
    for choice in objects_of(answer.get("choices")):
        for call in objects_of(part_of(choice, "message").get("tool_calls")):
            if wanted is not None and call.get("id") == wanted:
                return part_of(call, "function").get("arguments")
    return args


def _take_answer(answer: JsonObject, number: int, telling: Telling) -> None:
    if not answer:
        return
    key = key_of(answer.get("id")) or number
    provider, model = "", answer.get("model")
    telling.answer(provider, model, None, key)
    if isinstance(said := answer.get("usage"), dict):
        telling.use(provider, model, openai_usage(said), None, key)


def _take_observation(record: JsonObject, telling: Telling) -> None:
    kind, extras = record["observation"], part_of(record, "extras")
    key = _key(record.get("cause"))
    if kind == "agent_state_changed":
        if extras.get("agent_state") == "error":
            telling.status, telling.reason = "failed", "agent_failed"
        elif extras.get("agent_state") in ("running", "finished"):
            telling.status = "completed"  # it went on
        return
    if kind == "null" or not telling.knows(key):
        return
    if kind == "user_rejected":
        telling.deny(key, "user", "refused")
    code = part_of(extras, "metadata").get("exit_code", extras.get("exit_code"))
    is_ok = kind not in {"error", "user_rejected"} and record.get("success") is not False
    telling.say(record.get("content"))
    telling.result(key, record.get("content"), ok=is_ok, exit_code=code)
