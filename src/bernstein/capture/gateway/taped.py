"""Makes a run of our own of exchanges that somebody else recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.capture.gateway.wire_run import WireRun
from bernstein.capture.run import OpenRun
from bernstein.errors import SealError
from bernstein.events import trajectory as event
from bernstein.wire.chained import Terms
from bernstein.wire.folders import Folders
from bernstein.wire.key import Request
from bernstein.wire.profile import load_profile
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
