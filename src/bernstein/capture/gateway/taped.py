"""Makes a run of our own of what somebody else recorded: exchanges, or a client's events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.canonical import digest_of_bytes
from bernstein.capture.gateway.wire_run import WireRun
from bernstein.capture.run import OpenRun
from bernstein.errors import RecordingError, SealError
from bernstein.events import trajectory as event
from bernstein.interop.claude_code import SIGHT, SIGHT_OF_TRANSCRIPTS
from bernstein.interop.events import EventFile, read_event_file
from bernstein.wire.chained import Terms
from bernstein.wire.folders import Folders
from bernstein.wire.key import Request
from bernstein.wire.profile import load_profile
from bernstein.wire.protocol import Kind
from bernstein.wire.reported import mutation_of_report
from bernstein.wire.secrets import Redactor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bernstein.interop.vcr import Taped
    from bernstein.rundir import RunDir, SddDir
    from bernstein.settings import Settings


def import_taped(
    taped: Sequence[Taped], name: str, sdd: SddDir, settings: Settings, profile: str
) -> RunDir:
    """Chain, record and seal exchanges as a run, one after the other.

    Args:
        taped: The exchanges.
        name: Where they are from; it stands in ``run.json``.
        sdd: Where the run goes.
        settings: Whose keys seal it.
        profile: The name of the profile that its replays match by.
    Raises:
        BernsteinError: The run cannot be made.
    """
    terms = Terms(load_profile(profile), Folders({}))
    run = OpenRun(
        sdd, settings, {"kind": "client", "argv": ["import", "vcr", name]}, follows_score=False
    )
    upstreams = {item.provider: item.origin for item in taped}
    run.describe({**terms.to_json(), "upstreams": upstreams})
    wire = WireRun(run, terms, Redactor())
    run.append(event.RUN_STARTED, {"agentId": f"client/{profile}"})
    for item in taped:
        request = Request(
            item.method,
            item.provider,
            item.origin,
            item.path,
            item.query,
            item.headers,
            item.body,
        )
        kept, match = wire.match(request)
        lane = wire.lane_of(request, match)
        exchange, response = wire.begin(request, kept, match, lane)
        response.status, response.headers = item.status, list(item.response_headers)
        for piece in item.pieces:
            wire.add(exchange, response, piece)
        wire.end(exchange, response)
    run.append_end("completed")
    run.close("completed")
    if run.seal_problem is not None:
        raise SealError(run.seal_problem)
    return run.dir


_PROVIDERS: dict[Kind, str] = {
    "messages": "anthropic",
    "responses": "openai",
    "compact": "openai",
    "generate": "google",
}


def import_events(
    data: bytes, name: str, sdd: SddDir, settings: Settings, profile: str
) -> tuple[RunDir, EventFile]:
    """Chain and seal, as a run, what a file of events reports of the model's context.

    The file itself is kept as a body. The other arguments are those of ``import_taped``.

    Raises:
        RecordingError: It holds no event.
        BernsteinError: The run cannot be made.
    """
    found = read_event_file(data)
    if not found.events:
        raise RecordingError("this holds no events: expected JSON, a line each, or a stream")
    chosen, redactor = load_profile(profile), Redactor()
    run = OpenRun(
        sdd, settings, {"kind": "client", "argv": ["import", "events", name]}, follows_score=False
    )
    text = redactor.body(data.decode("utf-8", "surrogateescape"))
    kept = text.encode("utf-8", "surrogateescape")
    blobs = run.store.own_blobs
    ref = blobs.put_encrypted(digest_of_bytes(kept), kept) if blobs.encrypts else blobs.put(kept)
    run.describe(Terms(chosen, Folders({})).to_json())
    run.describe({"attempts": [{"output": ref.to_json(), "bad_lines": len(found.bad_lines)}]})
    run.append(event.RUN_STARTED, {"agentId": f"client/{profile}"})
    for report in found.reports:
        run.append_all([], "", [mutation_of_report(report, chosen, str)])
    for model, usage in found.usage.values():
        run.append(event.MODEL_USAGE, event.model_usage(None, "anthropic", model, usage.to_json()))
    for kind in sorted(found.answers):
        run.context.sights.answered(_PROVIDERS[kind], kind)
    if found.is_of_claude:
        sight = SIGHT_OF_TRANSCRIPTS if found.is_transcript else SIGHT
        is_whole = found.is_whole or found.is_transcript
        run.context.sights.client_ended("client/claude", sight, is_whole=is_whole)
    run.append_end("completed")
    run.close("completed")
    if run.seal_problem is not None:
        raise SealError(run.seal_problem)
    return run.dir, found
