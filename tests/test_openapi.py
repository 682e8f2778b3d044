"""The description of the HTTP interface: it names what there is, and real answers are as it says."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator
from starlette.routing import Route

from bernstein.seal.signing import default_keys
from bernstein.show.access import Access
from bernstein.show.app import make_app
from tests.helpers import no_model, run_plan, script
from tests.test_approvals import PLAN, ask_for
from tests.test_serve import OPERATOR, TOKEN, get, send, serving

if TYPE_CHECKING:
    import http.client

    from bernstein.rundir import SddDir

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(120)]
DOCUMENT = json.loads(files("bernstein.show").joinpath("page/openapi.json").read_bytes())
AS_OPERATOR = {"Authorization": f"Bearer {OPERATOR}"}


def test_it_names_what_there_is_and_nothing_else(sdd: SddDir) -> None:
    app = make_app(sdd, default_keys(sdd), Access(TOKEN, OPERATOR))
    there = {
        (route.path, method.lower())
        for route in app.routes
        if isinstance(route, Route) and route.path.startswith("/api/")
        for method in (route.methods or set()) - {"HEAD"}
    }
    described = {
        (path, method)
        for path, item in DOCUMENT["paths"].items()
        for method in item
        if method in {"get", "post"}
    }
    assert described == there
    for path, item in DOCUMENT["paths"].items():
        named = [resolved(one)["name"] for one in item.get("parameters", [])]
        assert named == re.findall(r"\{(\w+)\}", path)
    ids = [
        item[method]["operationId"]
        for item in DOCUMENT["paths"].values()
        for method in item
        if method in {"get", "post"}
    ]
    assert len(set(ids)) == len(ids)


def test_every_reference_leads_somewhere_and_every_schema_is_one() -> None:
    for pointer in re.findall(r'"\$ref": "([^"]+)"', json.dumps(DOCUMENT)):
        assert resolved({"$ref": pointer})
    for schema in DOCUMENT["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def resolved(value: dict[str, Any]) -> dict[str, Any]:
    """What a reference leads to."""
    if "$ref" not in value:
        return value
    found = DOCUMENT
    for name in value["$ref"].removeprefix("#/").split("/"):
        found = found[name]
    return found


def as_described(path: str, response: http.client.HTTPResponse, method: str = "get") -> Any:
    """Hold an answer against what is said of it; gives its value."""
    answers = DOCUMENT["paths"][path][method]["responses"]
    assert str(response.status) in answers, f"{method} {path}: {response.status}"
    described = resolved(answers[str(response.status)])
    value = json.loads(response.read())
    response.close()
    schema = described["content"]["application/json"]["schema"]
    whole = {**schema, "components": DOCUMENT["components"]}
    Draft202012Validator(whole).validate(value)
    return value


def test_real_answers_are_as_it_says(sdd: SddDir) -> None:
    script({"match": "Split", "text": '{"tasks":[]}'}, {"text": "a text"})
    plan = "name: P\nstages:\n  - name: s\n    steps: [{title: First, files: [a.txt]}]\n"
    first = run_plan(plan, sdd).run_id
    no_model()
    replay = run_plan(plan.replace("First", "Other"), sdd, replay=first).run_id
    ask_for("true")
    parked = run_plan(PLAN, sdd).run_id
    run = "/api/runs/{run_id}"
    with serving(sdd) as port:
        as_described("/api/openapi.json", get(port, "/api/openapi.json"))
        as_described("/api/session", get(port, "/api/session"))
        as_described("/api/session", send(port, "/api/session", None), "post")
        assert len(as_described("/api/runs", get(port, "/api/runs"))) == 3
        for run_id in (first, replay, parked):
            for more in ("", "/projection", "/evidence", "/misses"):
                as_described(run + more, get(port, f"/api/runs/{run_id}{more}"))
        assert as_described(f"{run}/misses", get(port, f"/api/runs/{replay}/misses"))
        for other in (first, replay):
            found = as_described(
                f"{run}/diff/{{other}}", get(port, f"/api/runs/{first}/diff/{other}")
            )
            assert (found["diff"] is None) == (other == first)
        path = f"/api/runs/{parked}/approvals"
        (call,) = as_described(f"{run}/approvals", get(port, path, **AS_OPERATOR))
        asked = {
            "index": call["index"],
            "event_hash": call["event_hash"],
            "decision": "denied",
            "actor": "alice",
        }
        Draft202012Validator(resolved({"$ref": "#/components/schemas/Decision"})).validate(asked)
        for _ in range(2):
            as_described(f"{run}/approvals", send(port, path, asked, **AS_OPERATOR), "post")


@pytest.mark.parametrize(
    ("path", "at", "headers"),
    [
        ("/api/runs", "/api/runs", {"Authorization": ""}),
        ("/api/runs", "/api/runs", {"Origin": "https://evil.example"}),
        ("/api/runs", "/api/runs", {"Host": "evil.example"}),
        ("/api/runs/{run_id}", "/api/runs/nowhere", {}),
        ("/api/runs/{run_id}/events", "/api/runs/nowhere/events", {}),
        ("/api/runs/{run_id}/approvals", "/api/runs/nowhere/approvals", {}),
        ("/api/runs/{run_id}/approvals", "/api/runs/nowhere/approvals", AS_OPERATOR),
    ],
)
def test_a_no_is_as_it_says(sdd: SddDir, path: str, at: str, headers: dict[str, str]) -> None:
    with serving(sdd) as port:
        assert set(as_described(path, get(port, at, **headers))) == {"error"}
