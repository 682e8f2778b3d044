"""Plans whose steps programs of others do: recorded behind the gateway, replayed, ended early."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bernstein.errors import PlanError
from bernstein.runner.plan_file import parse_plan
from tests.clients import run_client
from tests.helpers import events, verify
from tests.plans import ASK, command_step, plan_of, pointed_at
from tests.test_isolate import isolates
from tests.upstream import Reply, chat, own_answer, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bernstein.rundir import RunDir, SddDir

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(300)]


def run(
    sdd: SddDir, plan: str, folder: Path, env: Mapping[str, str], *options: str
) -> subprocess.CompletedProcess[str]:
    """``bernstein run`` of a plan in a folder, in a process of its own."""
    (folder / "plan.yaml").write_text(plan)
    (folder / "ask.py").write_text(ASK)
    return run_client(sdd, "run", "plan.yaml", "-q", *options, cwd=folder, env=env)


def start(sdd: SddDir, plan: str, folder: Path, env: Mapping[str, str]) -> subprocess.Popen[str]:
    """The same, under way."""
    (folder / "plan.yaml").write_text(plan)
    (folder / "ask.py").write_text(ASK)
    return subprocess.Popen(
        [sys.executable, "-m", "bernstein", "--sdd", str(sdd.path), "run", "plan.yaml", "-q"],
        cwd=folder,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def replay(
    sdd: SddDir, source: RunDir, plan: str, folder: Path, *options: str
) -> subprocess.CompletedProcess[str]:
    """The replay of a run, without a provider to reach."""
    env = {"BERNSTEIN_REPLAY_RUN_ID": source.run_id}
    return run(sdd, plan, folder, env, *options)


def written(run_dir: RunDir) -> dict[str, bytes]:
    """What stands in a run's workspace, but for what the test put there."""
    root = run_dir.workspace
    files = (p for p in root.rglob("*") if p.is_file() and ".git" not in p.parts)
    kept = (p for p in files if p.name not in {"plan.yaml", "ask.py"})
    return {str(p.relative_to(root)): p.read_bytes() for p in kept}


def wait_until(is_so: Callable[[], bool], bound_s: float = 60) -> None:
    end_s = time.monotonic() + bound_s
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def asked(title: str, file: str, more: str = "") -> str:
    return command_step(title, "python3", "ask.py", "{title} of {step_id}", file, more=more)


PARALLEL = plan_of(
    asked("one", "one.txt"), asked("two", "two.txt"), asked("three", "three.txt"), max_agents=3
)


def test_agents_side_by_side_replay_identical_row_by_row(sdd: SddDir, tmp_path: Path) -> None:
    work = tmp_path / "work"
    with serving(own_answer) as upstream:
        done = run(sdd, PARALLEL, work, pointed_at(upstream))
    assert done.returncode == 0, done.stderr
    source = sdd.find_run("latest")
    assert verify(sdd, source).verdict == "verified"
    files = written(source)
    assert sorted(files) == ["one.txt", "three.txt", "two.txt"]
    for _ in range(5):
        again = replay(sdd, source, PARALLEL, work)
        assert again.returncode == 0, again.stderr
        assert "hits=6 misses=0 strict_violations=0 unused=0 recorded=6" in again.stderr
        assert "replay identical" in again.stderr
        assert written(sdd.list_runs()[-1]) == files


def test_each_agent_asks_in_lanes_below_its_own(sdd: SddDir, tmp_path: Path) -> None:
    with serving(own_answer) as upstream:
        run(sdd, PARALLEL, tmp_path / "work", pointed_at(upstream))
    source = sdd.find_run("latest")
    lanes = {row["lane"].rpartition("/")[0] for row in events(source, "model.call")}
    assert lanes == {"s/one/t1", "s/two/t1", "s/three/t1"}
    started = events(source, "agent.started")
    assert [row["payload"]["agent"] for row in started] == ["command"] * 3
    assert all(row["payload"]["outcome"] == "ok" for row in events(source, "agent.finished"))


def test_a_changed_prompt_is_a_miss_that_ends_the_agent_and_the_run(
    sdd: SddDir, tmp_path: Path
) -> None:
    plan = plan_of(asked("one", "one.txt"))
    with serving(own_answer) as upstream:
        run(sdd, plan, tmp_path / "work", pointed_at(upstream))
        seen = len(upstream.seen)
        again = replay(
            sdd, sdd.find_run("latest"), plan.replace("title: one", "title: One"), tmp_path / "work"
        )
        assert len(upstream.seen) == seen
    assert again.returncode == 3, again.stderr
    assert "replay miss" in again.stderr
    assert "strict_violations=1" in again.stderr


def test_two_steps_that_change_one_file_are_refused(sdd: SddDir, tmp_path: Path) -> None:
    steps = [
        command_step(title, "sh", "-c", f"echo {title} > same.txt; sleep 0.{place}")
        for place, title in enumerate(("one", "two"), 2)
    ]
    plan = plan_of(*steps, max_agents=2)
    done = run(sdd, plan, tmp_path / "work", {})
    assert done.returncode == 1
    assert "same.txt was changed by another step at the same time" in done.stderr
    codes = [
        row["payload"].get("errorCode") for row in events(sdd.find_run("latest"), "step.finished")
    ]
    assert codes.count("file_refused") == 2  # the task, and its step
    assert replay(sdd, sdd.find_run("latest"), plan, tmp_path / "work").returncode == 1


def test_what_an_agent_removes_is_chained_and_gone(sdd: SddDir, tmp_path: Path) -> None:
    (tmp_path / "work" / "old.txt").write_text("old")
    plan = plan_of(command_step("one", "rm", "old.txt"))
    assert run(sdd, plan, tmp_path / "work", {}).returncode == 0
    source = sdd.find_run("latest")
    assert [row["payload"]["path"] for row in events(source, "artifact.removed")] == ["old.txt"]
    assert written(source) == {}
    again = replay(sdd, source, plan, tmp_path / "work", "--trust")
    assert again.returncode in {0, 3}


def slow_answer(path: str, body: dict[str, Any], number: int) -> Reply:
    """The second answer takes for ever."""
    delay_s = 60.0 if number == 2 else 0.0
    return Reply(chat(f"answer {number}"), delay_s=delay_s)


def agents_of(marker: str) -> list[int]:
    """The processes whose arguments hold a text."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_agent_killed_in_mid_step_is_told_and_the_replay_fails_alike(
    sdd: SddDir, tmp_path: Path, number: int
) -> None:
    work = tmp_path / "work"
    plan = plan_of(asked("one", "one.txt"), "{title: two, cli: command, command: [touch, b.txt]}")
    with serving(slow_answer) as upstream:
        process = start(sdd, plan, work, pointed_at(upstream))
        wait_until(lambda: len(upstream.seen) == 2)
        for pid in agents_of("one of s/one"):
            os.kill(pid, number)
        assert process.wait(60) == 1
    source = sdd.find_run("latest")
    assert verify(sdd, source).verdict == "verified"
    (ended, _) = sorted(
        (row["payload"] for row in events(source, "agent.finished")),
        key=lambda p: p["outcome"] == "ok",
    )
    assert (ended["outcome"], ended["exitCode"]) == ("killed", 128 + number)
    begun = time.monotonic()
    again = replay(sdd, source, plan, work)
    assert again.returncode == 1, again.stderr
    assert "replay identical" in again.stderr or "replay equivalent" in again.stderr
    assert time.monotonic() - begun < 30


def test_an_agent_that_takes_too_long_is_ended_with_all_that_it_started(
    sdd: SddDir, tmp_path: Path
) -> None:
    marker = f"9{os.getpid()}77"
    script = f"setsid sleep {marker} & sleep {marker}"
    plan = plan_of(command_step("one", "sh", "-c", script, more=", timeout: 1"))
    done = run(sdd, plan, tmp_path / "work", {})
    assert done.returncode == 1
    assert "took longer than 1 s" in done.stderr
    assert agents_of(f"sleep\0{marker}") == []
    source = sdd.find_run("latest")
    assert events(source, "agent.finished")[0]["payload"]["outcome"] == "timeout"
    codes = [row["payload"].get("errorCode") for row in events(source, "step.finished")]
    assert set(codes) == {"timeout"}


def test_a_run_that_is_interrupted_tells_of_its_agent_and_is_interrupted_again(
    sdd: SddDir, tmp_path: Path
) -> None:
    work, plan = tmp_path / "work", plan_of(asked("one", "one.txt"))
    with serving(slow_answer) as upstream:
        process = start(sdd, plan, work, pointed_at(upstream))
        wait_until(lambda: len(upstream.seen) == 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert agents_of("one of s/one") == []
    source = sdd.find_run("latest")
    assert verify(sdd, source).verdict == "verified"
    assert events(source, "agent.finished")[0]["payload"]["outcome"] == "cancelled"
    again = replay(sdd, source, plan, work)
    assert again.returncode == 130, again.stderr
    assert "replay identical" in again.stderr or "replay equivalent" in again.stderr


def test_a_run_killed_with_9_ends_its_agent_and_says_where_its_recording_ended(
    sdd: SddDir, tmp_path: Path
) -> None:
    work, plan = tmp_path / "work", plan_of(asked("one", "one.txt"))
    with serving(slow_answer) as upstream:
        process = start(sdd, plan, work, pointed_at(upstream))
        wait_until(lambda: len(upstream.seen) == 2)
        process.kill()
        process.wait()
        wait_until(lambda: agents_of("one of s/one") == [], 10)
    source = sdd.find_run("latest")
    assert verify(sdd, source).verdict == "prefix"
    assert [row["event"] for row in events(source)][-1] == "model.call"
    untrusted = replay(sdd, source, plan, work)
    assert untrusted.returncode == 2, untrusted.stderr
    assert "--trust" in untrusted.stderr
    sealed = run_client(sdd, "lineage", "seal", source.run_id, cwd=work)
    assert sealed.returncode == 0, sealed.stderr
    again = replay(sdd, source, plan, work)
    assert again.returncode == 3, again.stderr
    assert "came to no end" in again.stderr


def test_what_an_agent_had_started_ends_with_a_run_that_is_killed_with_9(
    sdd: SddDir, tmp_path: Path
) -> None:
    marker = f"8{os.getpid()}77"
    script = f"setsid sleep {marker} & (sleep {marker} &) ; echo $TMPDIR > {tmp_path}/where; sleep {marker}"
    plan = plan_of(command_step("one", "sh", "-c", script))
    process = start(sdd, plan, tmp_path / "work", {})
    wait_until(lambda: len(agents_of(f"sleep\0{marker}")) == 3)
    process.kill()
    process.wait()
    wait_until(lambda: agents_of(f"sleep\0{marker}") == [], 10)
    wait_until(lambda: not Path((tmp_path / "where").read_text().strip()).exists(), 10)


def test_links_are_brought_over_as_links_and_never_followed(sdd: SddDir, tmp_path: Path) -> None:
    work, secret = tmp_path / "work", tmp_path / "secret"
    secret.write_text("do not read\n")
    (work / "target.txt").write_text("t")
    (work / "old").symlink_to("target.txt")
    (work / "turns").symlink_to(secret)
    script = f"ln -s {secret} new; ln -sfn elsewhere old; rm turns; echo own > turns"
    plan = plan_of(command_step("one", "sh", "-c", script))
    done = run(sdd, plan, work, {})
    assert done.returncode == 0, done.stderr
    source = sdd.find_run("latest")
    assert (source.workspace / "old").readlink() == Path("elsewhere")
    shown = run_client(sdd, "apply", source.run_id, cwd=work)
    assert "do not read" not in shown.stdout + shown.stderr
    assert secret.read_text() == "do not read\n"
    assert (source.workspace / "turns").read_text() == "own\n"
    assert not (source.workspace / "turns").is_symlink()


def test_an_agent_that_the_recording_lacks_goes_live_as_in_a_new_run(
    sdd: SddDir, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    one, two = asked("one", "one.txt"), asked("two", "two.txt")
    with serving(own_answer) as upstream:
        run(sdd, plan_of(one), work, pointed_at(upstream))
        first = sdd.find_run("latest")
        env = {
            **pointed_at(upstream),
            "BERNSTEIN_REPLAY_RUN_ID": first.run_id,
            "BERNSTEIN_REPLAY_ALLOW_LIVE_MISS": "1",
        }
        assert run(sdd, plan_of(one, two), work, env).returncode == 0
    more = sdd.list_runs()[-1]
    assert verify(sdd, more).verdict == "verified"
    again = replay(sdd, more, plan_of(one, two), work)
    assert again.returncode == 0, again.stderr
    assert "hits=4 misses=0" in again.stderr


def test_a_plans_run_is_not_replayed_as_a_clients(sdd: SddDir, tmp_path: Path) -> None:
    with serving(own_answer) as upstream:
        run(sdd, plan_of(asked("one", "one.txt")), tmp_path / "work", pointed_at(upstream))
    done = run_client(sdd, "replay", "latest", "--", "true", cwd=tmp_path / "work")
    assert done.returncode == 1
    assert "is replayed by what recorded it" in done.stderr


def test_in_an_encrypted_run_nothing_of_an_agent_is_in_the_clear(
    sdd: SddDir, tmp_path: Path
) -> None:
    plan = plan_of(command_step("one", "sh", "-c", "echo PLAINLY-SAID; echo PLAINLY-TOO >&2"))
    done = run(sdd, plan, tmp_path / "work", {"BERNSTEIN_ENCRYPT": "1"})
    assert done.returncode == 0, done.stderr
    assert verify(sdd, sdd.find_run("latest")).verdict == "verified"
    for path in sdd.path.rglob("*"):
        if path.is_file() and "workspace" not in path.parts:
            data = path.read_bytes()
            assert b"PLAINLY" not in data or path.name == "run.json", path


def test_a_failed_agent_is_tried_again_with_what_was_wrong(sdd: SddDir, tmp_path: Path) -> None:
    script = 'case "$1" in *"was not accepted"*) touch done.txt;; *) exit 7;; esac'
    step = command_step("one", "sh", "-c", script, "sh", "{prompt}", more=", retries: 1")
    assert run(sdd, plan_of(step), tmp_path / "work", {}).returncode == 0
    source = sdd.find_run("latest")
    ended = [row["payload"] for row in events(source, "agent.finished")]
    assert [(e["attempt"], e["outcome"], e["exitCode"]) for e in ended] == [
        (1, "failed", 7),
        (2, "ok", 0),
    ]
    assert sorted(written(source)) == ["done.txt"]


def test_what_git_ignores_is_no_artifact(sdd: SddDir, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / ".gitignore").write_text("*.log\n.sdd\n")
    for arguments in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.email=a@b.c", "-c", "user.name=n", "commit", "-qm", "first"],
    ):
        subprocess.run(["git", *arguments], cwd=work, check=True)
    plan = plan_of(command_step("one", "sh", "-c", "echo x > a.log; git status --short > b.txt"))
    assert run(sdd, plan, work, {}).returncode == 0
    source = sdd.find_run("latest")
    assert [row["payload"]["path"] for row in events(source, "artifact.written")] == ["b.txt"]


def repository(folder: Path) -> None:
    for arguments in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.email=a@b.c", "-c", "user.name=n", "commit", "-qm", "first"],
    ):
        subprocess.run(["git", *arguments], cwd=folder, check=True)


def test_what_an_agent_makes_of_its_repository_decides_on_nothing_of_ours(
    sdd: SddDir, tmp_path: Path
) -> None:
    work, proof = tmp_path / "work", tmp_path / "escaped"
    (work / ".gitignore").write_text("*.log\n.sdd\n")
    (work / "data").mkdir()
    (work / "data" / "kept.txt").write_text("kept")
    repository(work)
    monitor = f"printf '#!/bin/sh\\ntouch {proof}\\n' > m.sh; chmod +x m.sh"
    steps = [
        command_step("one", "sh", "-c", "rm -rf .git; echo hi > new.txt"),
        command_step("two", "sh", "-c", "echo data > .bernsteinignore; echo 2 > two.txt"),
        command_step("three", "sh", "-c", f"{monitor}; git config core.fsmonitor ./m.sh"),
    ]
    assert run(sdd, plan_of(*steps), work, {}).returncode == 0
    source = sdd.find_run("latest")
    paths = {row["payload"]["path"] for row in events(source, "artifact.written")}
    assert paths == {"new.txt", ".bernsteinignore", "two.txt", "m.sh"}
    assert events(source, "artifact.removed") == []
    assert (source.workspace / "data" / "kept.txt").read_text() == "kept"
    assert not proof.exists()


@isolates
def test_an_isolated_agent_cannot_write_where_the_history_of_the_project_lies(
    sdd: SddDir, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    (work / "a.txt").write_text("a")
    repository(work)
    hook = work / ".git" / "hooks" / "post-checkout"
    script = f"echo x > {hook}; git log --oneline | wc -l > log.txt; git -c user.email=a@b.c -c user.name=n commit -q --allow-empty -m x"
    plan = plan_of(command_step("one", "sh", "-c", script))
    done = run(sdd, plan, work, {}, "--isolate")
    assert not hook.exists()
    # Its own copy has the history, and takes its commits.
    files = written(sdd.find_run("latest"))
    assert files.get("log.txt", b"").strip() == b"1", done.stderr


def test_a_file_that_became_a_link_or_a_program_is_another_artifact(
    sdd: SddDir, tmp_path: Path
) -> None:
    script = "ln -s abc link; printf abc > file; printf abc > program; chmod +x program"
    assert (
        run(sdd, plan_of(command_step("one", "sh", "-c", script)), tmp_path / "work", {}).returncode
        == 0
    )
    written_rows = [row["payload"] for row in events(sdd.find_run("latest"), "artifact.written")]
    kinds = {row["path"]: row.get("kind") for row in written_rows}
    assert kinds == {"link": "link", "file": None, "program": "exec"}


@pytest.mark.parametrize(
    "script",
    [
        "cd ..; rm -rf workspace",
        "cd ..; rm -rf workspace; ln -s / workspace",
        'python3 -c \'import os\nfor _ in range(1500): os.mkdir("d"); os.chdir("d")\'',
    ],
)
def test_an_agent_that_takes_its_folder_away_fails_and_the_run_is_sealed(
    sdd: SddDir, tmp_path: Path, script: str
) -> None:
    plan = plan_of(command_step("one", "sh", "-c", script))
    done = run(sdd, plan, tmp_path / "work", {})
    assert done.returncode in {0, 1}, done.stderr
    assert "a fault of bernstein" not in done.stderr
    assert verify(sdd, sdd.find_run("latest")).verdict == "verified"


def test_a_name_that_is_no_utf_8_and_ids_that_are_none_leave_a_run_that_can_be_read(
    sdd: SddDir, tmp_path: Path
) -> None:
    (tmp_path / "work" / os.fsdecode(b"bad\xff")).write_text("x")
    plan = plan_of(command_step("one", "sh", "-c", "true"))
    assert run(sdd, plan, tmp_path / "work", {}).returncode == 0
    assert verify(sdd, sdd.find_run("latest")).verdict == "verified"


def test_a_client_that_gives_up_gives_up_again_in_a_replay(sdd: SddDir, tmp_path: Path) -> None:
    impatient = ASK.replace("urlopen(request)", "urlopen(request, timeout=1)")
    script = f"{impatient}\n".replace(
        "first = ask", "try:\n    ask('slow')\nexcept OSError:\n    pass\nfirst = ask"
    )

    def answer(path: str, body: dict[str, Any], number: int) -> Reply:
        is_slow = body["messages"][0]["content"] == "slow"
        return Reply(chat(f"answer {number}"), delay_s=2.0 if is_slow else 0.0)

    (tmp_path / "work" / "impatient.py").write_text(script)
    plan = plan_of(command_step("one", "python3", "impatient.py", "{title}", "one.txt"))
    with serving(answer) as upstream:
        assert run(sdd, plan, tmp_path / "work", pointed_at(upstream)).returncode == 0
    source = sdd.find_run("latest")
    for _ in range(2):
        again = replay(sdd, source, plan, tmp_path / "work")
        assert again.returncode == 0, again.stderr
        assert "replay identical" in again.stderr or "replay equivalent" in again.stderr


def test_an_agent_of_a_folder_without_a_repository_has_a_copy(sdd: SddDir, tmp_path: Path) -> None:
    (tmp_path / "work" / "a.txt").write_text("a")
    plan = plan_of(command_step("one", "sh", "-c", "pwd > where.txt; cat a.txt >> where.txt"))
    assert run(sdd, plan, tmp_path / "work", {}).returncode == 0
    where = written(sdd.find_run("latest"))["where.txt"].decode()
    assert where.startswith(str(sdd.runs))
    assert not (tmp_path / "work" / "where.txt").exists()


def test_what_an_agent_prints_is_kept_without_secrets_and_checked(
    sdd: SddDir, tmp_path: Path
) -> None:
    key = "sk-ant-REAL-0123456789abcdef0123456789"
    plan = plan_of(command_step("one", "sh", "-c", "echo said $ANTHROPIC_API_KEY; echo no >&2"))
    assert run(sdd, plan, tmp_path / "work", {"ANTHROPIC_API_KEY": key}).returncode == 0
    source = sdd.find_run("latest")
    (attempt,) = source.read_info()["agents"]["s/one/t1"]["attempts"]
    digest = attempt["output"]["digest"]
    blob = sdd.blobs / digest[:2] / digest
    assert blob.read_bytes().startswith(b"said ")
    for path in sdd.path.rglob("*"):
        assert not path.is_file() or key.encode() not in path.read_bytes()
    blob.chmod(0o600)
    blob.write_bytes(b"said something else\n")
    deep = run_client(sdd, "replay", source.run_id, "--deep", cwd=tmp_path / "work")
    assert deep.returncode == 1


def test_an_agent_that_is_not_installed_is_named_before_the_run(
    sdd: SddDir, tmp_path: Path
) -> None:
    plan = plan_of("{title: one, cli: gemini}")
    done = run(sdd, plan, tmp_path / "work", {"PATH": "/usr/bin:/bin"})
    assert done.returncode == 2
    assert "there is no program gemini" in done.stderr
    assert sdd.list_runs() == []


@pytest.mark.parametrize(
    ("step", "where", "said"),
    [
        ("{title: a, cli: command}", "5:25", "needs a `command:`"),
        ("{title: a, cli: command, command: []}", "5:43", "the program first"),
        ("{title: a, cli: command, command: ['{nothing}']}", "5:44", "nothing is filled in"),
        ("{title: a, cli: claude, command: [x]}", "5:42", "is for `cli: command`"),
        ("{title: a, cli: claude, timeout: 0}", "5:42", "timeout"),
    ],
)
def test_a_plan_that_asks_an_agent_wrongly_says_where(step: str, where: str, said: str) -> None:
    with pytest.raises(PlanError, match=said) as caught:
        parse_plan(plan_of(step).encode(), "plan.yaml")
    assert f":{where}:" in str(caught.value)


def test_auto_is_what_is_installed_and_in_a_replay_what_was_recorded(
    sdd: SddDir, tmp_path: Path
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    said = json.dumps({"type": "result", "is_error": False, "result": "done"})
    (tools / "claude").write_text(f"#!/bin/sh\necho x > made.txt\necho '{said}'\n")
    (tools / "claude").chmod(0o755)
    env = {"PATH": f"{tools}:/usr/bin:/bin"}
    plan = plan_of("{title: one, cli: auto}")
    assert run(sdd, plan, tmp_path / "work", env).returncode == 0
    source = sdd.find_run("latest")
    assert events(source, "agent.started")[0]["payload"]["agent"] == "claude"
    (tools / "codex").write_text("#!/bin/sh\nexit 1\n")
    (tools / "codex").chmod(0o755)
    again = run(sdd, plan, tmp_path / "work", {**env, "BERNSTEIN_REPLAY_RUN_ID": source.run_id})
    assert again.returncode in {0, 3}, again.stderr
    assert events(sdd.list_runs()[-1], "agent.started")[0]["payload"]["agent"] == "claude"


def test_a_saved_recording_of_an_agent_that_asks_nothing_replays(
    sdd: SddDir, tmp_path: Path
) -> None:
    plan = plan_of(command_step("Write", "sh", "-c", "echo a > a.txt"))
    folder = tmp_path / "project"
    folder.mkdir()
    assert run(sdd, plan, folder, {}).returncode == 0
    saved = tmp_path / "saved"
    run_client(sdd, "save", "latest", str(saved), cwd=folder, env={})
    done = run(sdd, plan, folder, {"BERNSTEIN_REPLAY_RUN_ID": str(saved)}, "--trust")
    assert done.returncode == 0, done.stderr
    assert "replay identical" in done.stderr
