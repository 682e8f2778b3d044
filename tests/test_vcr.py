"""Cassettes that others recorded: every one is read, sealed, and answers its own requests."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bernstein.capture.gateway.session import GatewaySession
from bernstein.capture.gateway.taped import import_taped
from bernstein.errors import RecordingError
from bernstein.interop.vcr import Taped, read_cassette
from bernstein.recording.answer import LlmAnswer
from bernstein.recording.blobs import BlobStore
from bernstein.recording.exchanges import load_exchanges
from bernstein.rundir import SddDir
from bernstein.settings import read_settings
from bernstein.wire.answers import events, read_answer
from bernstein.wire.protocol import MODEL_KINDS, kind_of
from tests.helpers import bernstein, verify
from tests.test_gateway import ask

pytestmark = pytest.mark.loopback

CASSETTE = """\
interactions:
- request:
    body: '{"model":"m","messages":[{"role":"user","content":"hi"}]}'
    headers: {accept: ['application/json'], authorization: ['Bearer sk-canary-0123456789abcdef']}
    method: POST
    uri: https://api.openai.com/v1/chat/completions?b=2
  response:
    body: {string: "data: {\\"a\\":1}\\n\\ndata: [DONE]\\n\\n"}
    headers: {content-type: [text/event-stream]}
    status: {code: 200, message: OK}
version: 1
"""


def families(data: Path) -> dict[str, dict[str, Any]]:
    """The facts of every cassette, by its path: worked out by somebody else's reader."""
    rows = map(json.loads, (data / "recorded" / "MANIFEST.jsonl").read_text().splitlines())
    return {
        row["file"]: row["facts"]
        for row in rows
        if row["file"].startswith(("vcr-", "httpmock-rig"))
        and row["facts"].get("kind") in {"vcr", "when/then"}
    }


def test_every_cassette_is_read_with_the_exchanges_that_it_has(data: Path) -> None:
    read, wrong = 0, []
    for name, facts in families(data).items():
        try:
            taped = read_cassette((data / "recorded" / name).read_bytes())
        except RecordingError:
            wrong.append(name)
            continue
        read += 1
        assert len(taped) == facts["interactions"], name
        if None not in facts["status"]:  # their reader does not know the oldest dialect
            assert sorted({item.status for item in taped}) == sorted(set(facts["status"])), name
    assert read > 400
    assert wrong == [], "the old cassette with Python objects in it has no facts"


def test_a_sample_of_cassettes_answers_its_own_requests_byte_for_byte(
    data: Path, sdd: SddDir
) -> None:
    names = sorted(families(data))[::12]
    assert len(names) > 30
    exact = 0
    for name in names:
        try:
            taped = read_cassette((data / "recorded" / name).read_bytes())
        except RecordingError:
            continue
        run = import_taped(taped, name, sdd, read_settings(), "generic")
        assert verify(sdd, run).verdict == "verified", name
        rows = load_exchanges(run.exchanges).rows
        said = [row.read_response(BlobStore(sdd.blobs)) for row in rows]
        for item, body in zip(taped, said, strict=True):
            sent = b"".join(item.pieces)
            # The only bytes that differ are those of a secret.
            assert body == sent or b"<secret>" in body, name
            exact += body == sent
        _replay(sdd, run.run_id, taped, said)
    assert exact > 40


def _replay(sdd: SddDir, run_id: str, taped: list[Taped], said: list[bytes]) -> None:
    settings = replace(read_settings(), replay_run_id=run_id)
    session = GatewaySession(sdd, settings, argv=["test"])
    with session:
        for item, body in zip(taped, said, strict=True):
            url = session.server.base_url(item.provider)
            path = item.path + (f"?{item.query}" if item.query else "")
            headers = {n: v for n, v in item.headers if n.lower() in _SENT}
            status, pieces = ask(url, path, item.body, headers, item.method)
            assert status == item.status
            assert b"".join(pieces) == body
            assert list(events(b"".join(pieces))) == list(events(body))
    assert session.finish(0) == 0


_SENT = {
    "accept",
    "anthropic-beta",
    "anthropic-version",
    "openai-beta",
    "openai-organization",
    "openai-project",
    "x-goog-api-version",
    "authorization",
    "x-api-key",
    "x-goog-api-key",
}


def test_a_cassette_of_each_dialect(sdd: SddDir) -> None:
    (text,) = read_cassette(CASSETTE.encode())
    assert (text.provider, text.path, text.query) == ("openai", "/chat/completions", "b=2")
    assert text.pieces == [b'data: {"a":1}\n\n', b"data: [DONE]\n\n"]
    packed = gzip.compress(b'{"x": 1}')
    value = json.loads(json.dumps({"version": 1, "interactions": []}))
    value["interactions"] = [
        {
            "request": {"method": "GET", "uri": "http://u:p@h/a", "body": None, "headers": {}},
            "response": {
                "body": {"string": "BODY"},
                "headers": {"Content-Encoding": ["gzip"]},
                "status": {"code": 200},
            },
        }
    ]
    import yaml

    value["interactions"][0]["response"]["body"]["string"] = packed
    (binary,) = read_cassette(yaml.safe_dump(value).encode())
    assert (binary.pieces, binary.origin, binary.is_exact) == ([b'{"x": 1}'], "http://h", True)
    parsed = {
        "request": {"method": "POST", "uri": "https://h/", "parsed_body": {"b": 1}},
        "response": {"parsed_body": {"c": 2}, "headers": {}, "status": {"code": 200}},
    }
    (item,) = read_cassette(json.dumps({"interactions": [parsed]}).encode())
    assert (item.body, item.is_exact) == (b'{"b":1}', False)
    when = "when: {path: /v1/x, method: POST, body: '{}'}\nthen: {status: 401, body: 'no'}\n"
    first, second = read_cassette((when + "---\n" + when).encode())
    assert (first.status, second.pieces) == (401, [b"no"])


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "interactions: 7", "a: !!python/object:os.system x", "\t- :", "&a [*a]"],
)
def test_what_is_no_cassette_is_refused(text: str) -> None:
    with pytest.raises(RecordingError, match="not a cassette"):
        read_cassette(text.encode())


def test_cassettes_are_imported_on_the_command_line(sdd: SddDir) -> None:
    Path("good.yaml").write_text(CASSETTE)
    Path("bad.yaml").write_text("a: 1")
    done = bernstein("import", "vcr", "good.yaml", "bad.yaml")
    assert done.returncode == 1
    assert "good.yaml: run " in done.stdout
    assert "1 exchanges" in done.stdout
    assert "bad.yaml: this is not a cassette" in done.stderr
    (run,) = sdd.list_runs()
    assert b"canary" not in run.exchanges.read_bytes()
    assert bernstein("verify", run.run_id).returncode == 0
    assert bernstein("import", "nothing.zip").returncode == 2


def test_what_real_providers_answered_is_understood(data: Path) -> None:
    understood = Counter[str]()
    empty = 0
    for name in families(data):
        for item in read_cassette((data / "recorded" / name).read_bytes()):
            kind = kind_of(item.method, item.path)
            if kind not in MODEL_KINDS or "/bin/" in item.path or "invalid_response" in name:
                continue
            said = read_answer(kind, item.status, b"".join(item.pieces), is_whole=True)
            assert said is not None, name
            assert isinstance(said, LlmAnswer) == (item.status < 400) or "error" in name, name
            understood[kind] += 1
            empty += isinstance(said, LlmAnswer) and not (
                said.text or said.tool_calls or said.refusal or said.stop_reason
            )
    assert min(understood[kind] for kind in MODEL_KINDS) >= 60
    assert empty == 0
