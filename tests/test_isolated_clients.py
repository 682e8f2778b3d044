"""Real command-line agents replayed where there is no network but the gateway."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bernstein.rundir import SddDir
from tests import test_clients, test_codex, test_gemini
from tests.clients import client, record, replay
from tests.test_isolate import isolates
from tests.upstream import Reply, serving

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(300), isolates]


class Agent(NamedTuple):
    """A client, its command, and what its provider says for a folder."""

    name: str
    command: Callable[[], Sequence[str]]
    answers: Callable[[Path], Callable[[str, dict[str, Any], int], Reply]]


AGENTS = [
    Agent(
        "claude",
        lambda: test_clients.command_of("make the file"),
        lambda folder: test_clients.claude_answers(test_clients.waited_for(folder), 0.1),
    ),
    Agent(
        "codex",
        lambda: [
            *(client("codex"), "exec", "--json", "--skip-git-repo-check"),
            *("-m", "gpt-5.5", "make it"),
        ],
        lambda folder: test_codex.codex_answers(test_codex.listed_turns(folder), 0.1),
    ),
    Agent(
        "gemini",
        lambda: test_gemini.command_of("make it"),
        lambda folder: test_gemini.gemini_answers(test_gemini.turns_in(folder), 0.1),
    ),
]


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_an_agent_replays_without_a_network(sdd: SddDir, tmp_path: Path, agent: Agent) -> None:
    command = agent.command()
    there = tmp_path / "recorded here"
    there.mkdir()
    with serving(agent.answers(there)) as upstream:
        run, _ = record(sdd, command, there, upstream)
        # The provider is still there: nothing but the namespace keeps it away.
        count = len(upstream.seen)
        for name in ("one", "two"):
            replay(sdd, run, command, tmp_path / "elsewhere" / name, options=["--isolate"])
        assert len(upstream.seen) == count
    assert not (there / "made").exists()
