"""What SWE-agent did: its trajectories, a step of thought, action and observation each.

Its actions are commands in one text; with function calling the history has calls with arguments,
and those are what the model asked for. It counts tokens for a whole run alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.interop.counts import counts_of, usage_of_counts
from bernstein.interop.members import key_of, objects_of, part_of
from bernstein.interop.telling import Telling
from bernstein.interop.transcript import Transcript

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bernstein.canonical import JsonObject, JsonValue
    from bernstein.interop.records import Records


def is_swe_agent(records: Records) -> bool:
    """Whether a file is a trajectory of SWE-agent's."""
    whole = records.whole
    if not isinstance(whole, dict):
        return False
    steps = objects_of(whole.get("trajectory"))
    said = objects_of(whole.get("history"))
    return any("action" in step for step in steps) or any("role" in message for message in said)


def read_swe_agent(records: Records) -> Iterator[Transcript]:
    """The one run that a trajectory tells."""
    telling = Telling()
    whole = records.values[0] if records.values else {}
    info = part_of(whole, "info")
    stats = part_of(info, "model_stats")
    steps = objects_of(whole.get("trajectory"))
    history = objects_of(whole.get("history"))
    model = _model(whole)
    # A demonstration has a history alone.
    telling.records = len(steps) or len(history)
    if steps and not any(message.get("tool_calls") for message in history):
        for message in _before_answers(history):
            telling.say(message)
        for number, step in enumerate(steps):
            _take_step(step, number, model, telling)
    else:
        _take_history(history, model, telling)
    if stats:
        counts = counts_of(stats, "tokens_sent", "tokens_received")
        used = None if counts is None else usage_of_counts(counts[0], 0, counts[1])
        telling.use("", model, used)
    telling.output = info.get("submission") or None
    yield telling.finish("swe-agent", records.data, bad_lines=records.bad_lines)


def _model(whole: JsonObject) -> JsonValue:
    """The name of the model, where the configuration is there."""
    agent = part_of(part_of(whole, "replay_config"), "agent")
    return part_of(agent, "model").get("name")


def _before_answers(history: list[JsonObject]) -> Iterator[JsonValue]:
    """What was said before the model answered first; demonstrations are said too."""
    for message in history:
        if message.get("role") == "assistant" and not message.get("is_demo"):
            return
        yield message.get("content")


def _take_step(step: JsonObject, number: int, model: JsonValue, telling: Telling) -> None:
    if isinstance(query := step.get("query"), list):
        telling.ask("", model, query)
    else:
        telling.answer("", model)
    telling.propose(number, "command", {"command": step.get("action")})
    telling.result(number, step.get("observation"), ok=True)
    if "query" not in step:
        telling.say(step.get("observation"))


def _take_history(history: list[JsonObject], model: JsonValue, telling: Telling) -> None:
    for place, message in enumerate(history):
        ids = message.get("tool_call_ids")
        if message.get("role") == "assistant":
            telling.answer("", model)
            for number, call in enumerate(objects_of(message.get("tool_calls"))):
                asked = part_of(call, "function")
                key = key_of(call.get("id")) or f"{place}/{number}"
                telling.propose((place, key), asked.get("name"), asked.get("arguments"))
            continue
        telling.say(message.get("content"))
        for call_id in ids if isinstance(ids, list) else ():
            # Demonstrations and runs can share an id.
            asked_at = (place - 1, key_of(call_id))
            telling.result(asked_at, message.get("content"), ok=True)
