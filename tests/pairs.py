"""One record and replay of a plan in which everything that can vary does; used by tests and prove.

Eight steps at once, prompts that repeat across steps, random delays, failures that are retried.
Every live answer differs from every other, so an answer that reaches the wrong step is seen.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from tests.helpers import TWO_TASKS, no_model, run_plan, script

if TYPE_CHECKING:
    from bernstein.rundir import SddDir
    from bernstein.runner.report import RunReport


def pair_plan(draw: random.Random) -> str:
    """A plan of three stages, the first with eight steps, two of which have the same words."""
    lines = ["name: Pair", "max_agents: 8", "retries: 2", "stages:", "  - name: wide", "    steps:"]
    for n in range(8):
        title = "Twin" if n in (2, 5) else f"Step {n}"
        lines.append(f"      - title: {title}")
        if n not in (2, 5):
            lines.append(f"        files: [f{n}.txt, g{n}.txt]")
        if draw.random() < 0.3:
            lines.append(f"        priority: {draw.randrange(4)}")
        if draw.random() < 0.3 and n not in (2, 5):
            lines.append("        completion_signals:")
            lines.append(f"          - {{type: path_exists, path: f{n}.txt}}")
            lines.append(f"          - {{type: test_passes, command: 'grep -q answer f{n}.txt'}}")
    lines += [
        "  - name: twins",
        "    depends_on: wide",
        "    steps:",
        "      - title: Twin",
        "      - title: Twin",
        "  - name: join",
        "    depends_on: [wide, twins]",
        "    steps:",
        "      - {title: Join, files: [joined.txt], depends_on: []}",
    ]
    return "\n".join(lines) + "\n"


def pair_script(draw: random.Random) -> list[dict[str, Any]]:
    """Rules that delay, fail now and then, and never answer twice alike."""
    delay = [0, draw.choice([0, 0.002, 0.01])]
    return [
        {"match": "Step: Step 1", "fail": {"class": "RateLimitError", "status": 429}, "times": 1},
        {
            "match": "Step: Step 3",
            "fail": {"class": "Unauthorized", "status": 401},
            "times": 1,
            "delay_s": delay,
        },
        {"match": "content of the file g4", "text": "   ", "times": 1},
        {"match": "Split one step.*Step: Step 6", "text": "no tasks", "times": 1},
        {"match": "Split one step", "text": TWO_TASKS, "delay_s": delay},
        {
            "match": "Step: Step 7",
            "fail": {"class": "Broken", "status": 400},
            "times": draw.choice([1, 2, 9]),
        },
        {
            "match": "(?s).*",
            "text": "answer {n}",
            "delay_s": delay,
            "usage": {"input": draw.randrange(99), "output": 3},
        },
    ]


def run_pair(sdd: SddDir, number: int) -> tuple[RunReport, RunReport]:
    """Record run ``number`` of the series and replay it without a model."""
    draw = random.Random(number)
    plan = pair_plan(draw)
    script(*pair_script(draw))
    recorded = run_plan(plan, sdd, seed=number)
    no_model()
    return recorded, run_plan(plan, sdd, replay=recorded.run_id)


def is_faithful(recorded: RunReport, replayed: RunReport) -> bool:
    """Whether a replay is the recording over again, in every respect that is reported."""
    assert replayed.coverage is not None
    assert replayed.comparison is not None
    return (
        replayed.comparison.relation == "identical"
        and replayed.coverage.is_complete
        and (replayed.head, replayed.rows, replayed.artifacts, replayed.steps, replayed.status)
        == (recorded.head, recorded.rows, recorded.artifacts, recorded.steps, recorded.status)
        and (replayed.calls, replayed.input_tokens) == (recorded.calls, recorded.input_tokens)
    )
