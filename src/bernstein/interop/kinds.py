"""The kinds of files that others write of a run, and how each is told and read."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from bernstein.errors import UsageError
from bernstein.interop.claude_transcript import is_claude_code, read_claude_code
from bernstein.interop.codex import is_codex, read_codex
from bernstein.interop.envelopes import is_envelope, read_envelopes
from bernstein.interop.gemini_cli import is_gemini_cli, read_gemini_cli
from bernstein.interop.inspect_log import is_inspect, read_inspect
from bernstein.interop.openai_agents import is_openai_agents, read_openai_agents
from bernstein.interop.openhands import is_openhands, read_openhands
from bernstein.interop.otel import is_otel, read_otel
from bernstein.interop.records import Records
from bernstein.interop.swe_agent import is_swe_agent, read_swe_agent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bernstein.canonical import JsonObject
    from bernstein.interop.transcript import Transcript

_LOOKED_AT = 50  # records, until a file is of no kind that is known


class Kind(NamedTuple):
    """How files of a kind are told from others, and read."""

    is_one: Callable[[Records], bool]
    read: Callable[[Records], Iterator[Transcript]]


def _some(is_one: Callable[[JsonObject], bool]) -> Callable[[Records], bool]:
    """Whether one of the first records is of a kind."""
    return lambda records: any(map(is_one, islice(records.values, _LOOKED_AT)))


# In the order in which they are tried.
KINDS: dict[str, Kind] = {
    "jsonl": Kind(_some(is_envelope), read_envelopes),
    "inspect": Kind(is_inspect, read_inspect),
    "openai-agents": Kind(_some(is_openai_agents), read_openai_agents),
    "otel": Kind(_some(is_otel), read_otel),
    "codex": Kind(_some(is_codex), read_codex),
    "claude-code": Kind(_some(is_claude_code), read_claude_code),
    "gemini-cli": Kind(is_gemini_cli, read_gemini_cli),
    "openhands": Kind(_some(is_openhands), read_openhands),
    "swe-agent": Kind(is_swe_agent, read_swe_agent),
}


def kind_of(records: Records) -> str:
    """The kind of a file, by what it says.

    Raises:
        UsageError: It is of none that is known.
    """
    for name, kind in KINDS.items():
        if kind.is_one(records):
            return name
    raise UsageError(
        f"this is of no kind that is known ({', '.join(sorted(KINDS))})\n"
        "  name its kind with --as, or take what it says of a context: bernstein import events FILE"
    )
