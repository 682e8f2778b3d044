"""What is seen of an agent in what it prints: tools that it used, and changes of its context.

Rule: the order of what two branches of an agent printed is a matter of speed. Tools are told by
conversation, each in its own order, so that a replay at another speed tells the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from bernstein.canonical import decode_strict
from bernstein.errors import CanonicalError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bernstein.canonical import JsonObject, JsonValue
    from bernstein.events.provider_state import MutationKind, Seen
    from bernstein.wire.reported import Report

MAX_LINE_BYTES = 64 * 2**20


@dataclass(slots=True)
class ToolUse:
    """A tool that an agent asked for.

    Attributes:
        call_id: Its id in what was printed.
        name: The tool's name.
        args: Its arguments.
        parent: The call whose sub-agent asked for it; None for the agent itself.
        ok: Whether it succeeded; None as long as there is no result.
        result: What it gave.
        exit_code: Of a command, where it is told.
        is_denied: Whether it was not allowed to run.
    """

    call_id: str
    name: str
    args: JsonValue
    parent: str | None = None
    ok: bool | None = None
    result: JsonValue = None
    exit_code: int | None = None
    is_denied: bool = False


@dataclass(slots=True)
class Observed:
    """What an agent's output shows.

    Attributes:
        tools: By id, in the order in which they were printed.
        reports: What changed its context, with the event that said so, in the order of observation.
        session_id: The session's id, as the client prints it.
        is_whole: Whether the output came to its last event.
        is_error: Whether that event says that the agent failed.
        text: What it says at its end.
        bad_lines: Lines that are no JSON object, where each should be one.
    """

    tools: dict[str, ToolUse] = field(default_factory=dict)
    reports: list[tuple[Report, JsonObject]] = field(default_factory=list)
    session_id: str | None = None
    is_whole: bool = False
    is_error: bool = False
    text: str = ""
    bad_lines: int = 0

    def propose(self, use: ToolUse) -> None:
        """A tool was asked for; one that is told twice counts once."""
        self.tools.setdefault(use.call_id, use)

    def ordered_tools(self) -> Iterator[ToolUse]:
        """The tools by conversation: those of a sub-agent behind the call that started it."""
        below: dict[str | None, list[ToolUse]] = {}
        for use in self.tools.values():
            parent = use.parent if use.parent in self.tools else None
            below.setdefault(parent, []).append(use)
        waiting = list(reversed(below.get(None, [])))
        seen: set[str] = set()
        while waiting:
            use = waiting.pop()
            if use.call_id not in seen:
                seen.add(use.call_id)
                yield use
                waiting += reversed(below.get(use.call_id, []))


class Reader(Protocol):
    """Takes an agent's output as it comes."""

    def __call__(self, event: JsonObject, seen: Observed) -> None:
        """Take one event of its output."""


class LineReader:
    """Feeds the lines of a growing output to a reader; a line that is none is counted."""

    def __init__(self, read: Reader | None, seen: Observed) -> None:
        self._read = read
        self._seen = seen
        self._rest: list[bytes] = []  # of a line that has not ended
        self._rest_bytes = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        if self._read is None:
            return
        first, *others = data.split(b"\n")
        self._grow(first)
        for line in others:
            self.end()
            self._grow(line)

    def _grow(self, part: bytes) -> None:
        self._rest_bytes += len(part)
        if self._rest_bytes <= MAX_LINE_BYTES:
            self._rest.append(part)
        else:
            self._rest.clear()  # too long for an event: it is counted when it ends

    def end(self) -> None:
        """Take what stands behind the last LF: an agent that was killed ends without one."""
        line, size = b"".join(self._rest), self._rest_bytes
        self._rest, self._rest_bytes = [], 0
        if size > MAX_LINE_BYTES:
            self._seen.bad_lines += 1
        else:
            self._take(line)

    def _take(self, line: bytes) -> None:
        if self._read is None or not line.strip():
            return
        try:
            event = decode_strict(line)
        except CanonicalError:
            event = None
        if not isinstance(event, dict):
            self._seen.bad_lines += 1
            return
        try:
            self._read(event, self._seen)
        except (AttributeError, KeyError, TypeError):
            self._seen.bad_lines += 1


@dataclass(frozen=True, slots=True)
class AgentBrief:
    """All that an agent is told of a step.

    Attributes:
        prompt: What it is to do, in words.
        description, title, role, step_id: Of the step.
        files: The declared files of the step.
        model: The model that the plan names for it, or None.
        workspace, home, tmp: Its folders, as it finds them.
    """

    prompt: str
    description: str
    title: str
    role: str
    step_id: str
    files: tuple[str, ...]
    model: str | None
    workspace: str
    home: str
    tmp: str


class Adapter(Protocol):
    """How a client is started, and what of it can be seen."""

    @property
    def name(self) -> str:
        """As the plan names it."""

    @property
    def profile(self) -> str:
        """The profile that its requests are matched by."""

    @property
    def provider(self) -> str | None:
        """Whose models it asks; None where that is not known."""

    @property
    def read(self) -> Reader | None:
        """What reads its output, where that is events."""

    @property
    def sight(self) -> Mapping[MutationKind, Seen]:
        """What of its context its output shows; what is not named it does not show."""

    def argv(self, brief: AgentBrief) -> list[str]:
        """The command that does a step."""

    def as_request(self, result: str) -> Any:
        """A request body that holds a tool's result, as the client would send it."""
