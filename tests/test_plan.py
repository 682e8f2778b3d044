from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bernstein.errors import PlanError
from bernstein.events.entry import LANE
from bernstein.recording.key import LlmCall
from bernstein.runner.decompose import Task, decompose_grammar, decompose_prompt, parse_tasks
from bernstein.runner.plan import Plan, Step
from bernstein.runner.plan_file import load_plan, parse_plan
from bernstein.runner.schedule import Decided, Schedule, Unit


def plan(text: str) -> Plan:
    return parse_plan(text.encode(), "p.yaml")


def test_all_plans_of_others_load_as_they_are(data: Path) -> None:
    paths = sorted((data / "plans").glob("*.yaml"))
    assert len(paths) == 29
    for path in paths:
        loaded = load_plan(path)
        value = yaml.safe_load(path.read_text())
        assert len(loaded.steps) == sum(len(stage["steps"]) for stage in value["stages"])
        assert len({step.step_id for step in loaded.steps}) == len(loaded.steps)
        assert all(LANE.fullmatch(step.step_id) for step in loaded.steps)


def test_defaults_and_what_a_plan_hands_to_its_steps() -> None:
    loaded = plan(
        "model: openai:gpt-5\ntemperature: 0\nbudget: 1.5\nretries: 1\n"
        "stages: [{name: A b!, steps: [{title: X}, {title: X, retries: 0, model: 'local:m'}]}]"
    )
    one, other = loaded.steps
    assert (one.step_id, other.step_id) == ("a-b/x", "a-b/x-2")
    assert (one.model, one.temperature, one.retries, one.cli) == ("openai:gpt-5", 0.0, 1, "builtin")
    assert (other.model, other.retries) == ("local:m", 0)
    assert (loaded.budget_credits, loaded.max_agents) == (1_500_000, 4)


@pytest.mark.parametrize(
    ("budget", "credits"),
    [('"$15"', 15_000_000), ("0.000001", 1), ("0", 0), ('"$ 2.50"', 2_500_000)],
)
def test_a_budget_is_exact_in_micro_dollars(budget: str, credits: int) -> None:
    assert plan(f"goal: x\nbudget: {budget}").budget_credits == credits


def test_a_title_in_any_script_makes_a_lane() -> None:
    loaded = plan("stages: [{name: Übung, steps: [{title: 写诗}, {title: 'Ω'}]}]")
    assert [step.step_id for step in loaded.steps] == ["bung/step-1", "bung/step-2"]


def test_steps_wait_for_steps_and_for_stages() -> None:
    loaded = plan(
        "stages:\n"
        "- {name: a, steps: [{title: one}, {title: two, depends_on: one}]}\n"
        "- {name: b, depends_on: [a], steps: [{title: one}, {title: three, depends_on: [one]}]}\n"
    )
    assert [step.depends_on for step in loaded.steps] == [
        (),
        ("a/one",),
        ("a/one", "a/two"),
        ("a/one", "a/two", "b/one"),
    ]


def test_the_same_plan_in_another_spelling_has_the_same_value() -> None:
    one = plan("goal: write # a comment\nmax_agents: 2")
    other = plan('{"max_agents": 2, "goal": "write"}')
    assert one.to_json() == other.to_json()


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        ("nam: x\nstages: []", "1:1", "did you mean 'name'?"),
        ("stages:\n- name: a\n  steps:\n  - titel: x", "4:5", "did you mean 'title'?"),
        ("stages:\n- name: a\n  steps:\n  - role: x", "4:5", "needs a 'title'"),
        ("stages:\n- name: a\n  steps: []", "3:10", "at least one step"),
        ("goal: 3", "1:7", "put it in quotes"),
        ("goal: yes", "1:7", "put it in quotes"),
        ("goal: ' '", "1:7", "empty"),
        ("goal: x\nstages: []", "1:7", "not both"),
        ("name: x", "1:1", "stages, or a goal"),
        ("goal: x\nmax_agents: 0", "2:13", "from 1 to 64"),
        ("goal: x\nmax_agents: true", "2:13", "from 1 to 64"),
        ("goal: x\ntemperature: hot", "2:14", "from 0 to 2"),
        ("goal: x\ntemperature: .nan", "2:14", "from 0 to 2"),
        ("goal: x\nbudget: lots", "2:9", "dollars"),
        ("goal: x\ngoal: y", "2:1", "second time"),
        ("goal: x\nfiles: [../a]", "2:9", "inside the workspace"),
        ("goal: x\nfiles: [/etc/passwd]", "2:9", "inside the workspace"),
        ("goal: x\nfiles: ['a/./b']", "2:9", "inside the workspace"),
        ("goal: x\ncli: claud", "2:6", "did you mean 'claude'?"),
        ("goal: [x", "2:1", "not YAML"),
        ("- x", "1:1", "expected a mapping"),
        ("", "1:1", "empty"),
        ("stages:\n- {name: a, depends_on: b, steps: [{title: x}]}", "2:25", "no stage 'b'"),
        ("stages:\n- {name: a, depends_on: a, steps: [{title: x}]}", "2:25", "on itself"),
        ("stages:\n- {name: a, steps: [{title: x, depends_on: z}]}", "2:44", "no step 'z'"),
        (
            "stages:\n- {name: a, steps: [{title: x}, {title: x}, {title: y, depends_on: x}]}",
            "2:68",
            "several steps",
        ),
        (
            "stages:\n- {name: a, steps: [{title: x, depends_on: y}, {title: y, depends_on: x}]}",
            "2:21",
            "wait for each other: a/x, a/y",
        ),
        (
            "stages:\n- {name: a, depends_on: b, steps: [{title: x}]}\n"
            "- {name: b, depends_on: a, steps: [{title: y}]}",
            "2:3",
            "wait for each other: a, b",
        ),
        (
            "stages:\n- name: a\n  steps:\n  - title: x\n    completion_signals:\n    - type: exists",
            "6:13",
            "path_exists",
        ),
        (
            "stages:\n- name: a\n  steps:\n  - title: x\n    completion_signals:\n"
            "    - {type: file_contains, path: a}",
            "6:7",
            "needs a 'contains'",
        ),
        (
            "stages:\n- name: a\n  steps:\n  - title: x\n    completion_signals:\n"
            "    - {type: path_exists, path: a, contains: b}",
            "6:46",
            "has no 'contains'",
        ),
    ],
)
def test_an_error_names_the_place_and_what_was_expected(text: str, where: str, said: str) -> None:
    with pytest.raises(PlanError) as error:
        plan(text)
    assert str(error.value).startswith(f"p.yaml:{where}: ")
    assert said in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        b"\xff",
        b"goal: \x00",
        b"[" * 5000,
        b"a: &a [*a]",
        b"goal: !!python/object:os.system x",
        b"goal: x\nconstraints: &a [x]\nfiles: {}",
        b"? [a]\n: b",
        b"goal: *nope",
        b"--- a\n--- b",
        b"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b]\n"
        b"d: &d [*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d]\ngoal: x",
    ],
)
def test_a_hostile_plan_is_an_error_of_ours(text: bytes) -> None:
    with pytest.raises(PlanError):
        parse_plan(text, "p.yaml")


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_plan_makes_the_reader_raise_anything_else(data: bytes) -> None:
    with suppress(PlanError):
        assert parse_plan(data, "p.yaml").stages


def test_a_plan_that_is_not_there_says_how_to_name_one() -> None:
    with pytest.raises(PlanError, match=r"bernstein run plan\.yaml"):
        load_plan(Path("absent.yaml"))


# --- decomposition


STEP = Step("s/x", "Do", files=("a.txt", "b/", "c.txt"))


def test_each_declared_file_is_in_exactly_one_task() -> None:
    text = (
        'Sure! {"tasks":[{"id":"t1","title":"A","files":[2,2,9],"depends_on":[]},'
        '{"id":"t2","title":"B","files":[2],"depends_on":["t1","t1"]}]} Done.'
    )
    tasks = parse_tasks(text, STEP, 3)
    assert tasks == [
        Task("s/x/t1", "A", ("b/",), ()),
        Task("s/x/t2", "B", ("a.txt", "c.txt"), ("s/x/t1",)),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no",
        "{}",
        '{"tasks":[]}',
        '{"tasks":{}}',
        '{"tasks":[1]}',
        '{"tasks":[{"id":"t2"}]}',
        '{"tasks":[{"id":"t1","title":""}]}',
        '{"tasks":[{"id":"t1","title":1}]}',
        '{"tasks":[{"id":"t1","title":"a","depends_on":["t1"]}]}',
        '{"tasks":[{"id":"t1","title":"a","depends_on":5}]}',
        '{"tasks":[{"id":"t1","title":"a","files":[[]]}]}',
        '{"tasks":[{"id":"t1","title":"a"},{"id":"t2","title":"a"},{"id":"t3","title":"a"},'
        '{"id":"t4","title":"a"}]}',
        '{"tasks":' + "[" * 500,
    ],
)
def test_what_is_no_dag_of_tasks_is_none(text: str) -> None:
    assert parse_tasks(text, STEP, 3) is None


def test_the_grammar_is_part_of_the_key() -> None:
    whole = Plan("p", stages=())
    prompt = decompose_prompt(whole, STEP, 3)
    keys = {
        LlmCall("m", prompt, "local", more={"grammar": decompose_grammar(STEP, bound)}).key
        for bound in (1, 2, 3)
    }
    assert len(keys) == 3


# --- the schedule


@st.composite
def dags(draw: st.DrawFn) -> str:
    count = draw(st.integers(1, 8))
    lines = [
        f"max_agents: {draw(st.integers(1, 4))}",
        f"retries: {draw(st.integers(0, 2))}",
        "stages:",
        "- name: s",
        "  steps:",
    ]
    for n in range(count):
        needs = draw(st.lists(st.integers(0, n - 1), unique=True, max_size=3)) if n else []
        names = ", ".join(f"n{need}" for need in needs)
        lines.append(
            f"  - {{title: n{n}, priority: {draw(st.integers(0, 2))}, depends_on: [{names}]}}"
        )
    return "\n".join(lines)


def _play(text: str, seed: int) -> tuple[list[str], dict[str, tuple[str, object]], int]:
    """Run a schedule with outcomes drawn by ``seed``; what it decided, and its most at once."""
    loaded, draw = plan(text), random.Random(seed)
    schedule = Schedule(loaded)
    running: list[Unit] = []
    decided: list[str] = []
    most = 0

    def take(transitions: list[object]) -> None:
        for item in transitions:
            if isinstance(item, Decided):
                decided.append(f"{item.decision} {item.subject} {item.attempt} {item.closes}")
                if item.starts is not None:
                    running.append(item.starts)

    take(list(schedule.start()))
    while running:
        most = max(most, len(running))
        assert list(schedule.running.values()) == running
        unit = running.pop(draw.randrange(len(running)))
        before = len(decided)
        if draw.random() < 0.2:
            take(list(schedule.failed(unit, "provider_error", "why")))
        elif unit.kind == "decompose":
            first = Task(f"{unit.unit_id}/t1", "a", (), ())
            second = Task(f"{unit.unit_id}/t2", "b", (), (first.task_id,))
            third = Task(f"{unit.unit_id}/t3", "c", (), ())
            take(list(schedule.decomposed(unit, [first, second, third])))
            continue
        else:
            take(list(schedule.done(unit)))
        # In a replay a unit waits for the turn of its own lane, so its first row must be there.
        assert decided[before].split()[1] == unit.unit_id
    return decided, schedule.statuses(), most


@given(dags(), st.integers(0, 2**16))
def test_every_schedule_ends_with_every_step_decided(text: str, seed: int) -> None:
    decided, statuses, most = _play(text, seed)
    loaded = plan(text)
    assert most <= loaded.max_agents
    for step in loaded.steps:
        status, code = statuses[step.step_id]
        needed = [statuses[need][0] for need in step.depends_on]
        assert status in {"ok", "error"}
        if "error" in needed:
            assert (status, code) == ("error", "dependency_failed")
        closed = [line for line in decided if line.startswith(f"finish {step.step_id} ")]
        assert len(closed) == 1


@given(dags(), st.integers(0, 2**16))
def test_equal_outcomes_in_equal_order_give_equal_decisions(text: str, seed: int) -> None:
    assert _play(text, seed) == _play(text, seed)
