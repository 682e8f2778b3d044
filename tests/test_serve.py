"""Runs over HTTP: who may read, and that each viewer gets each row once, whatever breaks."""

from __future__ import annotations

import http.client
import json
import random
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from bench.stream import NOT_READING, VIEWERS, live

from bernstein import EventJournal
from bernstein.capture.gateway.server import loopback_listener
from bernstein.errors import UsageError
from bernstein.seal.signing import default_keys
from bernstein.show.access import Access, read_token
from bernstein.show.app import make_app
from tests.helpers import bernstein, events, run_plan, script
from tests.test_tools import call, plan_with, turns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bernstein.rundir import SddDir

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(120)]
TOKEN = "read-token-of-this-test"
OPERATOR = "operator-token-of-this-test"
# The response is all that is left of such a connection, and is closed with it.
HEADERS = {"Authorization": f"Bearer {TOKEN}", "Connection": "close"}


class _Server(uvicorn.Server):
    def install_signal_handlers(self) -> None:
        """Not in a thread."""


@contextmanager
def serving(
    sdd: SddDir,
    port: int = 0,
    keep_alive_s: float = 15,
    operator: str | None = OPERATOR,
    *,
    shows_texts: bool = False,
) -> Iterator[int]:
    """A server on loopback, in a thread; gives its port."""
    listener = loopback_listener(port)
    app = make_app(sdd, default_keys(sdd), Access(TOKEN, operator, (), shows_texts), keep_alive_s)
    config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1)
    server = _Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()


def status_of(port: int, path: str, **headers: str) -> int:
    response = get(port, path, **headers)
    response.close()
    return response.status


def get(port: int, path: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("GET", path, headers={**HEADERS, **named})
    return connection.getresponse()


def cookie_of(port: int) -> str:
    """The cookie that a page gets for the token."""
    response = send(port, "/api/session", None)
    assert response.status == 200
    cookie, _, rules = (response.getheader("Set-Cookie") or "").partition("; ")
    assert {"HttpOnly", "SameSite=strict", "Path=/api"} <= set(rules.split("; "))
    response.close()
    return cookie


def send(port: int, path: str, value: Any, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    json_type = {"Content-Type": "application/json"}
    connection.request("POST", path, body, headers={**HEADERS, **json_type, **named})
    return connection.getresponse()


def body_of(response: http.client.HTTPResponse) -> Any:
    value = json.loads(response.read())
    response.close()
    return value


def events_of(response: http.client.HTTPResponse) -> Iterator[dict[str, str]]:
    """The events of a stream, comments too."""
    with response:
        yield from _parsed(response)


def _parsed(lines: Iterable[bytes]) -> Iterator[dict[str, str]]:
    found: dict[str, str] = {}
    for line in lines:
        text = line.decode("utf-8").rstrip("\n")
        if not text:
            if found:
                yield found
            found = {}
            continue
        name, _, value = text.partition(": ")
        found[name or "comment"] = value


def write(sdd: SddDir, name: str, count: int, size: int = 20, *, ends: bool = True) -> list[bytes]:
    """A run of so many rows; gives them as they stand."""
    draw = random.Random(count)
    with EventJournal(name, sdd.path) as journal:
        for index in range(count - ends):
            text = "\u2028<b>" + "x" * draw.randrange(size)
            journal.append("custom.row", {"n": index, "text": text}, f"lane/{index % 3}")
        if ends:
            journal.append("run.finished", {"status": "completed"})
        return journal.path.read_bytes().split(b"\n")[:-1]


class Held:
    """A run that another process holds, so that it is running."""

    def __init__(self, sdd: SddDir, name: str) -> None:
        lock = sdd.run(name).lock
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
        code = "import fcntl,sys;f=open(sys.argv[1]);fcntl.flock(f,2);print(1,flush=1);input()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, str(lock)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def end(self) -> None:
        """It runs no more."""
        self._process.communicate(b"\n")


@pytest.fixture
def finished(sdd: SddDir) -> list[bytes]:
    return write(sdd, "done", 400)


# --- events


def test_the_events_are_the_rows_as_they_stand_then_the_end(
    sdd: SddDir, finished: list[bytes]
) -> None:
    with serving(sdd) as port:
        response = get(port, "/api/runs/done/events")
        assert response.status == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache, no-transform"
        assert response.headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in response.headers
        *rows, end = [event for event in events_of(response) if "data" in event]
    assert [row["data"].encode() for row in rows] == finished
    assert [int(row["id"]) for row in rows] == list(range(400))
    assert (end["event"], json.loads(end["data"])) == ("end", {"run": "finished"})


def test_a_viewer_that_is_dropped_fifty_times_gets_each_row_once_from_any_server(
    sdd: SddDir, finished: list[bytes]
) -> None:
    draw, seen, port, drops = random.Random(3), list[bytes](), 0, 0
    while len(seen) < 400:
        with serving(sdd, port) as port:
            for _ in range(10):
                last = {"Last_Event_ID": str(len(seen) - 1)} if seen else {}
                stop = len(seen) + draw.randrange(1, 15)
                response = get(port, "/api/runs/done/events", **last)
                for event in events_of(response):
                    if event.get("event") == "end" or len(seen) >= stop:
                        break
                    if "id" in event:
                        assert int(event["id"]) == len(seen)
                        seen.append(event["data"].encode())
                response.close()
                drops += 1
    assert seen == finished
    assert drops >= 50


def test_where_to_go_on_from(sdd: SddDir, finished: list[bytes]) -> None:
    with serving(sdd) as port:
        path = "/api/runs/done/events"

        def first(query: str = "", **headers: str) -> str:
            response = get(port, path + query, **headers)
            assert response.status == 200
            found = next(event["id"] for event in events_of(response) if "id" in event)
            response.close()
            return found

        assert first() == "0"
        assert first("?last_event_id=7") == "8"
        assert first("?last_event_id=7", Last_Event_ID="9") == "10"  # the header wins
        assert status_of(port, path, Last_Event_ID="399") == 204
        for wrong in ("-1", "x", "1.0", "400", "9" * 30):
            response = get(port, path, Last_Event_ID=wrong)
            assert response.status == 400
            assert "error" in body_of(response)
    assert finished


def test_a_run_is_seen_as_it_happens_by_all_who_view_it(sdd: SddDir) -> None:
    held = Held(sdd, "live")
    write(sdd, "live", 3, ends=False)
    seen: list[list[int]] = [[] for _ in range(20)]

    def view(port: int, into: list[int]) -> None:
        for event in events_of(get(port, "/api/runs/live/events")):
            if "id" in event:
                into.append(int(event["id"]))

    with serving(sdd) as port:
        viewers = [threading.Thread(target=view, args=(port, into)) for into in seen]
        for viewer in viewers:
            viewer.start()
        with EventJournal("live", sdd.path) as journal:
            for index in range(300):
                journal.append("custom.row", {"n": index})
                if index % 50 == 0:
                    time.sleep(0.06)
            journal.append("run.finished", {"status": "completed"})
        held.end()
        for viewer in viewers:
            viewer.join(20)
    assert seen == [list(range(304))] * 20


def test_a_run_that_ends_without_its_last_row_is_told_as_interrupted(sdd: SddDir) -> None:
    write(sdd, "cut", 5, ends=False)
    with serving(sdd) as port:
        *_, end = events_of(get(port, "/api/runs/cut/events"))
    assert (end["event"], json.loads(end["data"])) == ("end", {"run": "interrupted"})


def test_a_run_that_waits_is_told_as_parked_and_may_be_asked_again(sdd: SddDir) -> None:
    write(sdd, "parked", 5, ends=False)
    sdd.run("parked").write_info({"run_id": "parked", "status": "parked"})
    with serving(sdd) as port:
        for headers in ({}, {"Last_Event_ID": "4"}):
            *_, end = events_of(get(port, "/api/runs/parked/events", **headers))
            assert (end["event"], json.loads(end["data"])) == ("end", {"run": "parked"})


def test_a_silent_run_keeps_its_connections_open(sdd: SddDir) -> None:
    held = Held(sdd, "quiet")
    write(sdd, "quiet", 1, ends=False)
    with serving(sdd, keep_alive_s=0.1) as port:
        response = get(port, "/api/runs/quiet/events")
        kinds = [next(iter(event)) for event, _ in zip(events_of(response), range(6), strict=False)]
        response.close()
        held.end()
    assert kinds == ["retry", "id", "comment", "comment", "comment", "comment"]


def test_viewers_who_do_not_read_cost_no_memory(sdd: SddDir) -> None:
    write(sdd, "big", 3000, 60_000)  # some 90 MB
    with serving(sdd) as port:
        before_kb = _memory_kb()
        lazy = []
        for _ in range(10):
            connection = socket.create_connection(("127.0.0.1", port))
            request = f"GET /api/runs/big/events HTTP/1.1\r\nHost: 127.0.0.1\r\n{_AUTH}\r\n\r\n"
            connection.sendall(request.encode())
            lazy.append(connection)
        read = sum("id" in event for event in events_of(get(port, "/api/runs/big/events")))
        grown_kb = _memory_kb() - before_kb
        for connection in lazy:
            connection.close()
    assert read == 3000
    assert grown_kb < 60_000


_AUTH = f"Authorization: Bearer {TOKEN}"


def _memory_kb() -> int:
    """What this process has in memory, in KB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def test_two_hundred_viewers_of_whom_ten_do_not_read(sdd: SddDir) -> None:
    assert sdd.path
    found = live(100, 3)
    assert found["complete"] == VIEWERS - NOT_READING  # each row once and in order, to each of them
    assert found["most_mb"] < found["before_mb"] + 40


def test_viewers_who_come_and_go_leave_nothing_behind(sdd: SddDir) -> None:
    held = Held(sdd, "live")
    write(sdd, "live", 50, ends=False)
    with serving(sdd) as port:
        before = _descriptors()
        for _ in range(200):
            response = get(port, "/api/runs/live/events")
            response.readline()
            response.close()
        deadline_s = time.monotonic() + 20
        while _descriptors() > before and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert _descriptors() <= before
    held.end()


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


# --- who may read


@pytest.mark.parametrize("path", ["/api/runs", "/api/runs/done", "/api/runs/done/events"])
def test_who_shows_no_token_reads_nothing(sdd: SddDir, finished: list[bytes], path: str) -> None:
    with serving(sdd) as port:
        for headers in (
            {"Authorization": ""},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "", "Cookie": f"bernstein_read_{port}=wrong"},
        ):
            response = get(port, path, **headers)
            assert response.status == 401
            assert set(body_of(response)) == {"error"}
        stolen = f"bernstein_read_{port}={TOKEN}"  # the token is no cookie
        assert status_of(port, path, Authorization="", Cookie=stolen) == 401
        cookie = cookie_of(port)
        assert status_of(port, path, Authorization="", Cookie=cookie) == 200
        assert status_of(port, path, Authorization=f"Bearer {cookie.partition('=')[2]}") == 401
        assert status_of(port, path, Host="evil.example") == 421
        assert status_of(port, path, Origin="https://evil.example") == 403
        assert status_of(port, path, Sec_Fetch_Site="cross-site") == 403
        assert status_of(port, path, Origin=f"http://127.0.0.1:{port}") == 200
    assert finished


def test_runs_and_one_of_them(sdd: SddDir, finished: list[bytes]) -> None:
    with serving(sdd) as port:
        (listed,) = body_of(get(port, "/api/runs"))
        assert listed["run_id"] == "done"
        assert body_of(get(port, "/api/runs?limit=0")) == []
        assert status_of(port, "/api/runs?limit=-1") == 400
        assert body_of(get(port, "/api/runs/done")) == listed
        assert body_of(get(port, "/api/runs/done/projection"))["status"] == "completed"
        assert status_of(port, "/api/runs/nowhere") == 404
        assert status_of(port, "/api/runs/..%2f..%2fetc/events") == 404
        assert status_of(port, "/api/nothing") == 404
    assert finished


def test_a_token_of_a_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        read_token(path)
    path.chmod(0o600)
    assert read_token(path) == "0123456789abcdef"
    path.write_text("short")
    with pytest.raises(UsageError, match="holds no token"):
        read_token(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_token(tmp_path / "none")
    assert len(read_token(None)) >= 32


def test_serve_by_the_command_line(sdd: SddDir, finished: list[bytes]) -> None:
    command = [sys.executable, "-m", "bernstein", "serve", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    token = process.stdout.readline().removeprefix("read token: ").strip()
    assert address.endswith(f"/#token={token}")
    assert "operator.token" in process.stdout.readline()
    port = int(address.split(":")[2].split("/")[0])
    for _ in range(100):
        try:
            response = get(port, "/api/runs/latest", Authorization=f"Bearer {token}")
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    assert response.status in {200, 404}
    assert bernstein("serve", "--port", str(port)).returncode == 1
    process.terminate()
    assert process.wait(20) in {0, -15, 143}
    process.stdout.close()
    assert finished
    assert sdd.path


# --- texts


def test_texts_are_found_by_the_digest_in_their_row(sdd: SddDir) -> None:
    command = call("run_command", command="echo said by a tool")
    turns([command])
    run = sdd.run(run_plan(plan_with(), sdd).run_id)
    shown: dict[str, list[str | None]] = {}
    with serving(sdd) as port:
        for row in events(run):
            path = f"/api/runs/{run.run_id}/texts/{row['index']}"
            text = body_of(get(port, path, Authorization=f"Bearer {OPERATOR}"))["text"]
            shown.setdefault(row["event"], []).append(text)
        assert status_of(port, path) == 403  # who reads sees no text
        past = f"/api/runs/{run.run_id}/texts/99999"
        assert status_of(port, past, Authorization=f"Bearer {OPERATOR}") == 400
    first, second = shown["model.call"]
    assert first is not None
    assert second is not None
    assert "Work" in first
    assert "said by a tool" in second
    answers = shown["model.answer"]
    assert answers == [f"turn 0\n[run_command {command['args']}]", "all is done"]
    assert shown["tool.proposed"] == [command["args"]]
    assert shown["tool.result"] == ["exit code 0\nsaid by a tool\n"]
    assert shown["run.started"] == [None]


def test_a_text_that_is_another_one_is_not_shown(sdd: SddDir) -> None:
    script({"text": '{"tasks":[]}'}, {"text": "a text"})
    run = sdd.run(run_plan(plan_with(tools="list_files"), sdd).run_id)
    recorded = run.llm_calls.read_bytes()
    run.llm_calls.write_bytes(recorded.replace(b'{\\"tasks\\":[]}', b'{\\"tasks\\":[7]}'))
    assert run.llm_calls.read_bytes() != recorded
    (row,) = events(run, "model.answer")
    path = f"/api/runs/{run.run_id}/texts/{row['index']}"
    with serving(sdd, shows_texts=True) as port:
        assert body_of(get(port, path)) == {"text": None}
        run.llm_calls.write_bytes(recorded)
        assert body_of(get(port, path)) == {"text": '{"tasks":[]}'}
