"""Makes a run of our own of what somebody else recorded: exchanges, events, or whole runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.canonical import (
    DigestRef,
    JsonObject,
    JsonValue,
    as_ref,
    decode_strict,
    digest_of_bytes,
)
from bernstein.capture.gateway.wire_run import WireRun
from bernstein.capture.run import OpenRun
from bernstein.errors import CanonicalError, RecordingError, SealError
from bernstein.events import trajectory as event
from bernstein.interop.claude_code import SIGHT, SIGHT_OF_TRANSCRIPTS
from bernstein.interop.events import EventFile, read_event_file
from bernstein.interop.members import body_bytes
from bernstein.interop.transcript import Told, Transcript
from bernstein.wire.chained import Terms
from bernstein.wire.folders import Folders
from bernstein.wire.key import Request
from bernstein.wire.profile import load_profile
from bernstein.wire.protocol import Kind
from bernstein.wire.reported import Report, mutation_of_report
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
    writer = _Writer(["import", "events", name], sdd, settings, profile)
    writer.begin(f"client/{profile}", data, found.bad_lines)
    for report in found.reports:
        writer.report(report)
    run = writer.run
    for model, usage in found.usage.values():
        run.append(event.MODEL_USAGE, event.model_usage(None, "anthropic", model, usage.to_json()))
    for kind in sorted(found.answers):
        run.context.sights.answered(_PROVIDERS[kind], kind)
    if found.is_of_claude:
        sight = SIGHT_OF_TRANSCRIPTS if found.is_transcript else SIGHT
        is_whole = found.is_whole or found.is_transcript
        run.context.sights.client_ended("client/claude", sight, is_whole=is_whole)
    return writer.end("completed"), found


def import_transcript(
    told: Transcript, name: str, sdd: SddDir, settings: Settings, profile: str
) -> RunDir:
    """Chain and seal, as a run, what a file tells of one.

    Its bodies are kept once secrets are out of them. The other arguments are those of
    ``import_taped``.

    Raises:
        BernsteinError: The run cannot be made.
    """
    writer = _Writer(["import", told.kind, name], sdd, settings, profile)
    writer.begin(f"client/{told.kind}", told.kept, told.bad_lines)
    for item in told.events:
        if isinstance(item, Report):
            writer.report(item)
        else:
            writer.tell(item)
    client = "client/claude" if told.kind == "claude-code" else f"client/{told.kind}"
    writer.run.context.sights.client_ended(client, told.sight, is_whole=told.is_whole)
    return writer.end(told.status, told.reason, told.output)


class _Writer:
    """Writes one run of what somebody else told; nobody replays from it."""

    def __init__(self, argv: list[str], sdd: SddDir, settings: Settings, profile: str) -> None:
        self._profile = load_profile(profile)
        self._redactor = Redactor()
        self.run = OpenRun(sdd, settings, {"kind": "client", "argv": argv}, follows_score=False)
        self._kept: JsonObject = {}
        self._bodies: dict[str, DigestRef] = {}
        self.run.describe(Terms(self._profile, Folders({})).to_json())

    def begin(self, agent_id: str, file: bytes, bad_lines: Sequence[int]) -> None:
        """Keep the file, and chain the run's first row."""
        kept = self._redacted(file.decode("utf-8", "surrogateescape"))
        ref = self._stored(kept.encode("utf-8", "surrogateescape"))
        self._kept = {"output": ref.to_json(), "bad_lines": len(bad_lines)}
        self.run.append(event.RUN_STARTED, {"agentId": agent_id})

    def _redacted(self, text: str) -> str:
        if not self._redactor.may_change(text):
            return text
        try:
            decode_strict(text.encode("utf-8"))
        except (CanonicalError, UnicodeEncodeError):
            # Each line by itself: then a secret is found by the name of its member too.
            return "\n".join(map(self._redactor.body, text.split("\n")))
        return self._redactor.body(text)

    def report(self, report: Report) -> None:
        """Chain a change of the context."""
        self.run.append_all([], "", [mutation_of_report(report, self._profile, str)])

    def tell(self, told: Told) -> None:
        """Chain an event, and keep its bodies."""
        refs = {name: self._body(value) for name, value in told.bodies.items()}
        named = {name: self._inline(value) for name, value in told.payload.items()}
        self.run.append(told.kind, {**named, **refs})

    def _inline(self, value: JsonValue) -> JsonValue:
        return self._redactor.text(value) if isinstance(value, str) else value

    def _body(self, value: JsonValue) -> JsonObject:
        data = body_bytes(self._redactor.value(value))
        ref = digest_of_bytes(data)
        if ref.digest not in self._bodies:
            self._bodies[ref.digest] = self._stored(data)
        # Not the name of a ciphertext: that is another one in each import.
        return ref.to_json()

    def _stored(self, data: bytes) -> DigestRef:
        blobs = self.run.store.own_blobs
        if blobs.encrypts:
            return blobs.put_encrypted(digest_of_bytes(data), data)
        return blobs.put(data)

    def end(
        self,
        status: event.RunStatus,
        reason: event.ErrorCode | None = None,
        output: JsonValue = None,
    ) -> RunDir:
        """Chain the run's last rows and seal it.

        Raises:
            SealError: It cannot be sealed.
        """
        ref = None if output is None else as_ref(self._body(output))
        bodies = [body.to_json() for body in self._bodies.values()]
        self.run.describe({"attempts": [{**self._kept, **({"bodies": bodies} if bodies else {})}]})
        self.run.append_end(status, reason, ref)
        self.run.close(status)
        if self.run.seal_problem is not None:
            raise SealError(self.run.seal_problem)
        return self.run.dir
