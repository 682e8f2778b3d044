"""Commands that the gateway starts: alone with it in namespaces of their own, and gone with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bernstein.rundir import SddDir
from tests.upstream import own_answer, serving

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(120)]

has_namespaces = (
    sys.platform == "linux"
    and not subprocess.run(
        ["unshare", "-Urnm", "true"], capture_output=True, check=False
    ).returncode
)
isolates = pytest.mark.skipif(not has_namespaces, reason="this system gives no namespaces")

# Says what it can see and reach, and asks its model once.
AGENT = """
import json, os, socket, sys, urllib.request

def reaches(host, port):
    try:
        socket.create_connection((host, port), 2).close()
        return True
    except OSError:
        return False

def sees(folder):
    return os.path.isdir(folder) and bool(os.listdir(folder))

port, keys, source = int(sys.argv[1]), sys.argv[2], sys.argv[3]
here = os.getcwd()
print(here, os.environ["HOME"], os.environ["TMPDIR"])
print([reaches("127.0.0.1", port), reaches("192.0.2.1", 80), sees(".sdd"), sees(keys), sees(source)])
print([name for name in os.environ if name.startswith("BERNSTEIN_")])
body = {"model": "m", "messages": [{"role": "user", "content": f"I am in {here}"}]}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    data=json.dumps(body).encode(),
    headers={"content-type": "application/json"},
)
answer = json.load(urllib.request.urlopen(request))
with open("answer.txt", "w") as file:
    file.write(answer["choices"][0]["message"]["content"])
for path in (".sdd", keys):
    if not os.system(f"umount {path} 2>/dev/null") or not os.system(f"touch {path}/x 2>/dev/null"):
        print("undone", path)
"""


def _command(sdd: SddDir) -> list[str]:
    return [sys.executable, "-m", "bernstein", "--sdd", str(sdd.path)]


@pytest.fixture
def keys_dir() -> Path:
    return Path(os.environ["BERNSTEIN_KEYS_DIR"])


def bernstein(
    sdd: SddDir, *arguments: str, cwd: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_command(sdd), *arguments],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@isolates
def test_an_isolated_command_has_no_network_but_the_gateway_and_sees_no_recording(
    tmp_path: Path, keys_dir: Path
) -> None:
    workspace = tmp_path / "project"
    workspace.mkdir()
    (tmp_path / "agent.py").write_text(AGENT)
    sdd = SddDir(workspace / ".sdd")
    with serving(own_answer) as upstream:
        port = upstream.base_url.rsplit(":", 1)[1]
        command = ["--", sys.executable, str(tmp_path / "agent.py"), port, str(keys_dir)]
        to = ["--upstream", f"openai={upstream.base_url}/v1"]
        done = bernstein(sdd, "record", "--isolate", *to, *command, str(sdd.path), cwd=workspace)
        assert done.returncode == 0, done.stderr
        said = done.stdout
        assert said.splitlines() == [
            "/mnt/workspace /mnt/home /mnt/tmp",
            "[False, False, False, False, False]",
            "['BERNSTEIN_INSIDE_RUN']",
        ]
        written = (workspace / "answer.txt").read_text()
        assert "I am in /mnt/workspace answered 1" in written
        elsewhere = tmp_path / "deeper" / "elsewhere"
        elsewhere.mkdir(parents=True)
        # The provider is there and could be reached: only the namespace keeps it away.
        done = bernstein(
            sdd, "replay", "latest", "--isolate", *command, str(sdd.path), cwd=elsewhere
        )
        assert done.returncode == 0, done.stderr
        assert len(upstream.seen) == 1
    assert done.stdout == said
    assert "misses=0 strict_violations=0 unused=0 recorded=1 strict=true guard=netns" in done.stderr
    assert "replay identical" in done.stderr
    assert (elsewhere / "answer.txt").read_text() == written


@isolates
def test_a_saved_recording_is_hidden_from_the_command_that_replays_it(
    sdd: SddDir, tmp_path: Path, keys_dir: Path
) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    saved = tmp_path / "saved"
    with serving(own_answer) as upstream:
        command = [sys.executable, str(tmp_path / "agent.py"), "9", str(keys_dir), str(saved)]
        to = ["--upstream", f"openai={upstream.base_url}/v1"]
        done = bernstein(sdd, "record", "--isolate", *to, "--", *command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert bernstein(sdd, "save", "latest", str(saved), cwd=tmp_path).returncode == 0
    done = bernstein(
        sdd, "replay", str(saved), "--trust", "--isolate", "--", *command, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "[False, False, False, False, False]" in done.stdout
    assert (saved / "journal.jsonl").exists()


@isolates
def test_exit_code_streams_and_signals_of_an_isolated_command_are_its_own(
    sdd: SddDir, tmp_path: Path
) -> None:
    script = "read line; echo got $line; echo err >&2; exit 7"
    started = subprocess.Popen(
        [*_command(sdd), "record", "--isolate", "--", "sh", "-c", script],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = started.communicate("hello\n", timeout=60)
    assert (started.returncode, out) == (7, "got hello\n")
    assert err.startswith("err\n")
    waiting = "trap 'echo ended; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    started = subprocess.Popen(
        [*_command(sdd), "record", "--isolate", "--", "sh", "-c", waiting],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    started.send_signal(signal.SIGTERM)
    assert started.communicate(timeout=60)[0] == "ended\n"
    assert started.returncode == 5


def test_a_command_ends_when_bernstein_is_killed(sdd: SddDir, tmp_path: Path) -> None:
    started = subprocess.Popen(
        [*_command(sdd), "record", "--", "sh", "-c", "echo $$; exec sleep 600"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    pid = int(started.stdout.readline())
    started.kill()
    started.wait()
    started.stdout.close()
    until = time.monotonic() + 30
    while _runs(pid):
        assert time.monotonic() < until, "the command outlived its gateway"
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_a_command_that_cannot_be_run_is_said(sdd: SddDir, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF no program")
    broken.chmod(0o755)
    done = bernstein(sdd, "record", "--", str(broken), cwd=tmp_path)
    assert done.returncode == 2
    assert f"{broken} cannot be run" in done.stderr
    assert "Traceback" not in done.stderr
