"""What the README and the specification say is what happens."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from bernstein.cli import COMMANDS
from tests.helpers import ONE_TASK, bernstein

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def _blocks() -> list[str]:
    """The indented blocks of the README, dedented."""
    found = re.findall(r"(?:^    .*\n|^\n(?=    ))+", README, re.MULTILINE)
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE).strip("\n") for block in found]


def _block(start: str) -> str:
    return next(block for block in _blocks() if start in block)


def test_record_and_replay_as_the_readme_has_it() -> None:
    Path("answers.json").write_text(
        json.dumps(
            {"answers": [{"match": "Split one step", "text": ONE_TASK}, {"text": "some text"}]}
        )
    )
    commands = _block("cat > plan.yaml").replace(
        "=42 bernstein run plan.yaml", "=42 bernstein run plan.yaml --model scripted:answers.json"
    )
    # Make the command that the shell finds the one under test.
    shim = Path("bin/bernstein")
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m bernstein "$@"\n')
    shim.chmod(0o755)
    path = f"{shim.parent.absolute()}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-eu", "-c", commands],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": path},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    coverage, comparison = _block("replay-coverage").split("\n")
    for part in coverage.replace("=5", "=4").split():
        assert part in done.stderr
    assert comparison.split("=")[0] in done.stderr
    (run,) = [p for p in Path(".sdd/runs").iterdir() if (p / "llm_calls.jsonl").exists()]
    for line in _block(".sdd/runs/<run_id>").split("\n"):
        assert Path(line.split()[0].replace("<run_id>", run.name)).exists(), line


def test_a_miss_looks_as_the_readme_says() -> None:
    plan = _block("cat > plan.yaml").split("'END'\n")[1].split("END")[0]
    Path("plan.yaml").write_text(plan)
    Path("answers.json").write_text(
        json.dumps(
            {"answers": [{"match": "Split one step", "text": ONE_TASK}, {"text": "some text"}]}
        )
    )
    bernstein("run", "plan.yaml", "--model", "scripted:answers.json")
    changed = plan.replace("{title: Describe snow,", "{title: Describe snow, description: New.,")
    Path("plan.yaml").write_text(changed)
    done = bernstein("run", "plan.yaml", env={"BERNSTEIN_REPLAY_RUN_ID": "latest"})
    assert done.returncode == 3
    said = _block("replay miss:")
    for words in (
        "replay miss: no recorded answer for this call (model ",
        "nearest recording (call ",
        "lane 'notes/describe-snow') differs in: prompt",
    ):
        assert words in said
        assert words in done.stderr
    for line in said.split("\n")[-2:]:
        assert line.split("=42")[0] in done.stderr


def test_every_command_that_is_mentioned_exists() -> None:
    pages = [p for p in (ROOT / "docs").rglob("*.md") if p.name != "names.md"]
    texts = [README, *(path.read_text() for path in pages)]
    named = {
        name
        for text in texts
        for name in re.findall(r"(?:^|[`'\s])bernstein ([a-z]+)(?=[\s`])", text)
    } - {"import"}  # the line of a program
    assert named <= set(COMMANDS)


def test_every_name_that_is_said_to_be_here_is_here() -> None:
    """The table of names: what it places must be importable, or stand in the file it names."""
    import bernstein as package

    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (ROOT / "docs" / "names.md").read_text().split("\n")
        if line.startswith("| `")
    ]
    assert len(rows) > 25
    for name, place in rows:
        if "not there yet" in place or "nothing emits" in place:
            continue
        for public in re.findall(r"`bernstein\.(\w+)`", place):
            assert hasattr(package, public), (name, public)
        for file in re.findall(r"`(\w+(?:/\w+)*\.py)`", place):
            assert (ROOT / "src" / "bernstein" / file).exists(), (name, file)
        for variable in re.findall(r"BERNSTEIN_\w+", name):
            assert variable in (ROOT / "src/bernstein/settings.py").read_text()


def test_every_link_leads_somewhere() -> None:
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), (path, target)


def test_the_golden_vectors_of_the_specification_are_those_of_the_tests() -> None:
    spec = (ROOT / "docs" / "spec.md").read_text()
    for name in ("test_journal.py", "test_key.py"):
        for digest in re.findall(r'"([0-9a-f]{64})"', (ROOT / "tests" / name).read_text()):
            assert digest in spec
