"""What Codex did in a session: its rollouts, and the output of ``codex exec --json``.

A rollout counts the tokens of each request and their sum: a sum that stands there again is the same
request, told twice. The other counts, with each turn, the sum since the thread began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.canonical import JsonObject, JsonValue, decode_strict, utf8
from bernstein.errors import CanonicalError
from bernstein.events.provider_state import MutationKind, Seen
from bernstein.interop.codex_items import ITEM_ARGS, item_outcome
from bernstein.interop.counts import counts_of, openai_usage
from bernstein.interop.members import inline, key_of, kind_of, part_of
from bernstein.interop.telling import Telling
from bernstein.interop.transcript import Transcript
from bernstein.wire.reported import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bernstein.interop.records import Records

SIGHT_OF_ROLLOUTS: dict[MutationKind, Seen] = {"compaction": Seen("observed", "transcript")}
_ROLLOUT = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})
_EXEC = frozenset(
    {
        *("thread.started", "turn.started", "turn.completed", "turn.failed"),
        *("item.started", "item.updated", "item.completed", "error"),
    }
)
_COUNTS = ("input_tokens", "cached_input_tokens", "output_tokens")


def reports_of(record: JsonObject) -> Iterator[Report]:
    """What a row of a rollout says of the context: its history was replaced."""
    if record.get("type") == "compacted":
        yield Report("compaction", record)


def is_codex(record: JsonObject) -> bool:
    """Whether a record is one of Codex's."""
    kind = kind_of(record)
    if kind in _ROLLOUT:
        return isinstance(record.get("payload"), dict)
    if kind.startswith("item."):
        return kind in _EXEC and isinstance(record.get("item"), dict)
    return kind in _EXEC and kind != "error"


def read_codex(records: Records) -> Iterator[Transcript]:
    """The one run that a rollout or an output tells."""
    telling = Telling()
    taking = _Taking(telling)
    for record in records.values:
        taking.take(record)
    telling.records = len(records.values)
    is_exec = any(kind_of(record) in _EXEC for record in records.values)
    telling.is_whole = taking.is_over or not is_exec
    sight = {} if is_exec else SIGHT_OF_ROLLOUTS
    yield telling.finish("codex", records.data, bad_lines=records.bad_lines, sight=sight)


class _Taking:
    """Takes the records of one file in their order."""

    def __init__(self, telling: Telling) -> None:
        self._telling = telling
        self._provider, self._model = "openai", ""
        self._total: JsonObject = {}  # of tokens, as it was told last
        self._is_answering = False
        self.is_over = False
        self._items: dict[str, Callable[[JsonObject], None]] = {
            "message": self._message,
            "reasoning": lambda _: self._answers(),
            "function_call": self._call,
            "custom_tool_call": self._call,
            "local_shell_call": self._call,
            "web_search_call": self._call,
            "tool_search_call": self._call,
            "image_generation_call": self._call,
            "function_call_output": self._output,
            "custom_tool_call_output": self._output,
            "mcp_tool_call_output": self._output,
            "tool_search_output": self._output,
            "ghost_snapshot": lambda _: None,
            "compaction": lambda _: self._answers(),
            "compaction_summary": lambda _: self._answers(),
        }

    def take(self, record: JsonObject) -> None:
        """Take one record."""
        kind, payload = kind_of(record), part_of(record, "payload")
        match kind:
            case "session_meta":
                self._provider = inline(payload.get("model_provider")) or self._provider
            case "turn_context":
                self._telling.status = "completed"  # whatever became of the turn before
                self._model = inline(payload.get("model")) or self._model
            case "response_item":
                self._item(payload)
            case "event_msg":
                self._event(payload)
            case "compacted":
                self._telling.report(list(reports_of(record)))
            case _ if kind in _EXEC:
                self._exec(record)
            case _:
                self._telling.pass_over()

    # --- rollouts

    def _item(self, item: JsonObject) -> None:
        kind = kind_of(item) or ("message" if "role" in item else "")
        taker = self._items.get(kind)
        if taker is None:
            self._telling.pass_over()
        else:
            taker(item)

    def _message(self, item: JsonObject) -> None:
        if item.get("role") == "assistant":
            self._answers()
        else:
            self._says(item.get("content"))

    def _says(self, value: JsonValue) -> None:
        self._is_answering = False
        self._telling.say(value)

    def _answers(self) -> None:
        """An answer begins with what is the first of the model's behind what was said to it."""
        if not self._is_answering:
            self._is_answering = True
            self._telling.answer(self._provider, self._model)

    def _call(self, item: JsonObject) -> None:
        self._answers()
        name = item.get("name") or kind_of(item).removesuffix("_call")
        names = ("arguments", "input", "action", "query")
        args = next((item[name] for name in names if name in item), None)
        key = key_of(item.get("call_id")) or key_of(item.get("id"))
        self._telling.propose(key, name, args)

    def _output(self, item: JsonObject) -> None:
        said = item.get("output", item.get("tools"))
        code, is_ok = _exit_code(said), True
        if isinstance(said, dict) and said.get("success") is False:
            is_ok = False
        self._says(said)
        self._telling.result(
            key_of(item.get("call_id")), said, ok=is_ok and not code, exit_code=code
        )

    def _event(self, payload: JsonObject) -> None:
        match payload.get("type"):
            case "token_count":
                self._count(part_of(payload, "info"))
            case "task_complete" | "turn_complete":
                self._telling.status = "completed"
                self._telling.output = payload.get("last_agent_message")
            case "turn_aborted":
                self._telling.status, self._telling.reason = "cancelled", "cancelled"

    def _count(self, info: JsonObject) -> None:
        total, last = part_of(info, "total_token_usage"), part_of(info, "last_token_usage")
        if not (total or last) or (total and total == self._total):
            return
        before, self._total = self._total, total or self._total
        model = info.get("model") or self._model
        used = openai_usage(last or _since(before, total))
        self._telling.use(self._provider, model, used)

    # --- codex exec --json

    def _exec(self, record: JsonObject) -> None:
        telling = self._telling
        match record["type"]:
            case "item.started" | "item.updated" | "item.completed":
                item = part_of(record, "item")
                self._exec_item(item, is_over=record["type"] == "item.completed")
            case "thread.started":
                self._total = {}
            case "turn.completed":
                self.is_over = True
                telling.status = "completed"
                self._count({"total_token_usage": part_of(record, "usage")})
            case "turn.failed" | "error":
                self.is_over = True
                telling.status, telling.reason = "failed", "agent_failed"

    def _exec_item(self, item: JsonObject, *, is_over: bool) -> None:
        kind = kind_of(item)
        if kind == "agent_message" and is_over:
            self._telling.output = item.get("text")
        args = ITEM_ARGS.get(kind)
        key = key_of(item.get("id"))
        if args is None or key is None:
            return
        self._telling.propose(key, kind, {name: item[name] for name in args if name in item})
        if not is_over:
            return
        came = item_outcome(item)
        if came.is_denied:
            self._telling.deny(key, "client", "refused")
        self._telling.result(key, came.result, ok=came.is_ok, exit_code=came.exit_code)


def _since(before: JsonObject, total: JsonObject) -> JsonObject:
    """What was added to a sum of tokens; the sum itself where it began anew."""
    now, then = counts_of(total, *_COUNTS), counts_of(before, *_COUNTS)
    if now is None or then is None or any(a < b for a, b in zip(now, then, strict=True)):
        return total
    added = [a - b for a, b in zip(now, then, strict=True)]
    return dict(zip(_COUNTS, added, strict=True))


def _exit_code(said: JsonValue) -> int | None:
    """The exit code in the output of a command, where that is JSON that tells it."""
    if isinstance(said, str) and said.startswith("{"):
        try:
            said = decode_strict(utf8(said))
        except CanonicalError:
            return None
    code = part_of(said, "metadata").get("exit_code")
    return code if type(code) is int else None
