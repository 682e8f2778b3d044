"""What stands in a sample of Inspect's once and is referred to: attachments, pooled messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.interop.members import part_of

if TYPE_CHECKING:
    from bernstein.canonical import JsonObject, JsonValue

_ATTACHMENT = "attachment://"
# Of attachments, in all bodies of a sample: a reference is short, and what it stands for is not.
_MAX_PUT_BACK_CHARS = 2**28
_MAX_PUT_BACK_MESSAGES = 2**22


class Pool:
    """Puts back what the events of one sample refer to."""

    def __init__(self, sample: JsonObject, older: JsonObject) -> None:
        """Find it in a sample, or in the transcript of an older one."""
        self._attachments = part_of(sample, "attachments") or part_of(older, "content")
        self._left_chars = _MAX_PUT_BACK_CHARS
        self._left_messages = _MAX_PUT_BACK_MESSAGES
        pool = sample.get("message_pool") or part_of(sample, "events_data").get("messages")
        self._messages: list[JsonValue] = pool if isinstance(pool, list) else []

    def put_back(self, value: JsonValue) -> JsonValue:
        """A value with its attachments in their places, as far as they are there."""
        if isinstance(value, str) and value.startswith(_ATTACHMENT):
            found = self._attachments.get(value.removeprefix(_ATTACHMENT))
            if isinstance(found, str) and len(found) <= self._left_chars:
                self._left_chars -= len(found)
                return found
        if isinstance(value, list):
            return [self.put_back(item) for item in value]
        if isinstance(value, dict):
            return {name: self.put_back(item) for name, item in value.items()}
        return value

    def input_of(self, event: JsonObject) -> JsonValue:
        """What a model was asked, with its messages."""
        found, refs = event.get("input"), event.get("input_refs")
        if not found and isinstance(refs, list):
            spans = [
                range(*slice(max(ref[0], 0), max(ref[1], 0)).indices(len(self._messages)))
                for ref in refs
                if isinstance(ref, list) and len(ref) == 2 and all(type(n) is int for n in ref)
            ]
            count = sum(map(len, spans))
            if count > self._left_messages:
                return {"input_refs": refs}
            self._left_messages -= count
            found = [self._messages[place] for span in spans for place in span]
        return self.put_back(found)
