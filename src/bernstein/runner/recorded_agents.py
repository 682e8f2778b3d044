"""What a recording has of its agents, so that one that was ended is ended again in a replay."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bernstein.chain.read import load_replay_events, payload_of
from bernstein.events import trajectory as event

if TYPE_CHECKING:
    from pathlib import Path

    from bernstein.events.trajectory import AgentOutcome

_REQUESTS = frozenset({event.MODEL_CALL, event.HTTP_REQUEST})
_SEEN = frozenset(
    {event.TOOL_PROPOSED, event.TOOL_DENIED, event.TOOL_RESULT, event.PROVIDER_STATE_MUTATION}
)


@dataclass(slots=True)
class RecordedAgent:
    """What a recording has of one attempt of an agent.

    Attributes:
        requests: How many requests it made.
        seen: How many tools, ends of tools and changes its output showed.
        outcome: How it ended; None where the run ended before.
        exit_code: With what.
    """

    requests: int = 0
    seen: int = 0
    outcome: AgentOutcome | None = None
    exit_code: int | None = None

    @property
    def end_signal(self) -> int | None:
        """The signal that ends it again in a replay; None where it ends by itself."""
        if self.outcome == "killed" and self.exit_code is not None:
            return self.exit_code - 128
        if self.outcome == "cancelled":
            return signal.SIGKILL  # as then: a client that may end well tells more than it did
        if self.outcome == "failed" and self.exit_code in {130, 143}:
            # It was asked to end, by somebody, and said so by its exit code.
            return self.exit_code - 128
        return signal.SIGTERM if self.outcome == "timeout" else None


def read_recorded_agents(journal: Path) -> dict[tuple[str, int], RecordedAgent]:
    """What a journal says of its agents, by lane and attempt."""
    found: dict[tuple[str, int], RecordedAgent] = {}
    running: dict[str, RecordedAgent] = {}
    for row in load_replay_events(journal):
        if row.event == event.AGENT_STARTED:
            running[row.lane] = found[row.lane, payload_of(row)["attempt"]] = RecordedAgent()
        elif row.event == event.AGENT_FINISHED and row.lane in running:
            payload, ended = payload_of(row), running.pop(row.lane)
            ended.outcome, ended.exit_code = payload["outcome"], payload.get("exitCode")
        elif row.event in _REQUESTS and (agent := running.get(row.lane.rpartition("/")[0])):
            agent.requests += 1
        elif row.event in _SEEN and (agent := running.get(row.lane)):
            agent.seen += 1
    return found
