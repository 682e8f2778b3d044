"""Decisions over HTTP: who may, on what they saw, once; all else chains nothing."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from bernstein.seal.audit import audit_keys, read_audit
from bernstein.seal.signing import default_keys
from tests.helpers import events, resume, run_plan
from tests.test_approvals import CALL, PLAN, ask_for
from tests.test_serve import OPERATOR, TOKEN, body_of, cookie_of, get, send, serving

if TYPE_CHECKING:
    import http.client
    from collections.abc import Iterator
    from pathlib import Path

    from bernstein.rundir import RunDir, SddDir

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(120)]
AS_OPERATOR = f"Bearer {OPERATOR}"


@pytest.fixture
def parked(sdd: SddDir, tmp_path: Path) -> RunDir:
    ask_for(f"echo ran >> {tmp_path / 'outside.txt'}; echo b > b.txt")
    return sdd.run(run_plan(PLAN, sdd).run_id)


@pytest.fixture
def port(sdd: SddDir) -> Iterator[int]:
    with serving(sdd) as port:
        yield port


def path_of(run: RunDir) -> str:
    return f"/api/runs/{run.run_id}/approvals"


def waiting(port: int, run: RunDir) -> Any:
    return body_of(get(port, path_of(run), Authorization=AS_OPERATOR))


def asked(port: int, run: RunDir, decision: str = "approved") -> dict[str, Any]:
    """What the page sends of the one call that waits."""
    (call,) = waiting(port, run)
    return {
        "index": call["index"],
        "event_hash": call["event_hash"],
        "decision": decision,
        "actor": "alice",
    }


def post(port: int, run: RunDir, value: Any, **headers: str) -> http.client.HTTPResponse:
    return send(port, path_of(run), value, **{"Authorization": AS_OPERATOR, **headers})


def chained(sdd: SddDir) -> list[Any]:
    keys = default_keys(sdd)
    rows = read_audit(sdd.audit, audit_keys(keys.folder))
    return [row.payload for row in rows if row.type == "thread.approval"]


def test_what_waits_is_shown_and_an_approval_is_in_both_chains(
    sdd: SddDir, parked: RunDir, port: int, tmp_path: Path
) -> None:
    (call,) = waiting(port, parked)
    assert (call["call"], call["tool"]) == (CALL, "run_command")
    assert "outside.txt" in call["asked"]
    response = post(port, parked, asked(port, parked))
    assert response.status == 201
    assert body_of(response)["decision"] == "approved"
    (said,) = chained(sdd)
    assert (said["run_id"], said["index"]) == (parked.run_id, call["index"])
    assert waiting(port, parked) == []
    resume(sdd, parked)
    decided = [row["payload"] for row in events(parked, "tool.approved")]
    assert decided[-1] == {"toolCallId": CALL, "actor": "alice"}
    assert (tmp_path / "outside.txt").read_text() == "ran\n"


def test_who_has_no_right_to_decide_chains_nothing(sdd: SddDir, parked: RunDir, port: int) -> None:
    value, own = asked(port, parked), f"http://127.0.0.1:{port}"
    for headers, status in (
        ({"Authorization": ""}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": f"Bearer {TOKEN}"}, 403),  # it lets nobody decide
        ({"Authorization": "", "Cookie": cookie_of(port)}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Host": "evil.example"}, 421),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded", "Origin": own}, 415),
    ):
        response = post(port, parked, value, **headers)
        assert (response.status, set(body_of(response))) == (status, {"error"}), headers
    response = get(port, path_of(parked))
    assert response.status == 403  # nor does it show what is asked for
    response.close()
    assert chained(sdd) == []
    with serving(sdd, operator=None) as read_only:
        response = post(read_only, parked, value, Authorization=f"Bearer {TOKEN}")
        assert response.status == 405
        response.close()
    assert chained(sdd) == []


def test_stale_and_forged_decisions_chain_nothing(sdd: SddDir, parked: RunDir, port: int) -> None:
    value = asked(port, parked)
    other = "0" * 64
    for changed, status in (
        ({"index": 0}, 409),
        ({"index": value["index"] + 1}, 409),
        ({"index": 10**9}, 409),
        ({"event_hash": other}, 409),
        ({"event_hash": value["event_hash"].upper()}, 409),
        ({"index": str(value["index"])}, 400),
        ({"index": True}, 400),
        ({"index": -1}, 409),
        ({"decision": "maybe"}, 400),
        ({"actor": ""}, 400),
        ({"actor": "policy"}, 400),
        ({"actor": "a\x1b[31m"}, 400),
        ({"more": 1}, 400),
    ):
        response = post(port, parked, value | changed)
        assert (response.status, set(body_of(response))) == (status, {"error"}), changed
    text = json.dumps(value)
    twice = text.replace('"index"', '"index": 0, "index"').encode()
    for body, status in ((b"", 400), (b"[]", 400), (twice, 400), (b" " * 5000, 413)):
        response = post(port, parked, body)
        assert response.status == status
        response.close()
    for name in ("latest", parked.run_id[:12]):
        response = send(port, f"/api/runs/{name}/approvals", value, Authorization=AS_OPERATOR)
        assert response.status == 409
        response.close()
    assert chained(sdd) == []


def test_of_many_decisions_at_once_one_is_chained(sdd: SddDir, parked: RunDir, port: int) -> None:
    both = [asked(port, parked), asked(port, parked, "denied")]

    def one(number: int) -> int:
        response = post(port, parked, both[number % 2])
        response.close()
        return response.status

    with serving(sdd) as other, ThreadPoolExecutor(8) as pool:
        assert other != port
        statuses = sorted(pool.map(one, range(16)))
    assert statuses == [201, *[409] * 15]
    assert len(chained(sdd)) == 1


def test_a_decision_on_a_run_that_has_ended_is_refused(
    sdd: SddDir, parked: RunDir, port: int
) -> None:
    value = asked(port, parked)
    assert post(port, parked, value).status == 201
    resume(sdd, parked)
    assert waiting(port, parked) == []
    response = post(port, parked, value)
    assert (response.status, len(chained(sdd))) == (409, 1)
    response.close()
