"""What was asked and said in a row: its text, out of the recording beside the journal.

Rule: a text is found by the digest that stands in the row, so that what is shown is what was
chained, or nothing is.
"""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING

from bernstein.canonical import (
    JsonObject,
    JsonValue,
    decode_strict,
    digest_of,
    digest_of_bytes,
    utf8,
)
from bernstein.errors import CanonicalError, UsageError
from bernstein.events import trajectory as event
from bernstein.fold.thread import project_journal
from bernstein.recording.answer import LlmAnswer, Outcome
from bernstein.recording.exchanges import load_exchanges, read_requests
from bernstein.recording.explain import shown_prompt
from bernstein.recording.fixtures import read_fixtures
from bernstein.recording.queue import load_recording
from bernstein.recording.rows import read_prompts
from bernstein.runner.pending import asked_texts
from bernstein.seal.body_key import bodies_of
from bernstein.wire.answers import read_answer
from bernstein.wire.chained import TermsOfRun, said_of_row
from bernstein.wire.protocol import MODEL_KINDS, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bernstein.recording.blobs import BlobStore
    from bernstein.recording.exchanges import ExchangeRow
    from bernstein.rundir import RunDir, SddDir
    from bernstein.seal.signing import KeyStore

# Of which member of a row's payload the text is.
_MEMBERS = {
    event.MODEL_CALL: "prompt",
    event.HTTP_REQUEST: "request",
    event.MODEL_ANSWER: "answer",
    event.HTTP_RESPONSE: "answer",
    event.FIXTURE_ANSWERED: "answer",
    event.TOOL_PROPOSED: "args",
    event.TOOL_RESULT: "result",
}


def text_of(run: RunDir, sdd: SddDir, keys: KeyStore, index: int) -> str | None:
    """The text of a row; None where the row has none, or the recording has not the one it names.

    Args:
        run: A run; of a replay without a recording of its own that of its source is looked at.
        sdd: Its project.
        keys: To open encrypted bodies with.
        index: The row.
    Raises:
        UsageError: There is no such row.
        RecordingError: The recording is damaged, or what it had is forgotten.
    Source: docs/live.md.
    """
    after = index - 1 if index else None
    row = next(islice(project_journal(run.journal, after_index=after), 1), None)
    if row is None or row.index != index:
        raise UsageError(f"there is no row {index}")
    payload = decode_strict(row.data)["payload"]
    ref = payload.get(_MEMBERS.get(row.event, ""))
    if not isinstance(ref, dict):
        return None
    source = sdd.find_recording(run.run_id) if run.path.parent == sdd.runs else run
    blobs = bodies_of(source, sdd, keys)
    wanted = str(ref.get("digest"))
    match row.event:
        case event.MODEL_CALL | event.HTTP_REQUEST:
            found = _requests(source, blobs)
        case event.MODEL_ANSWER | event.HTTP_RESPONSE:
            found = _answers(source, blobs)
        case event.TOOL_PROPOSED:
            found = asked_texts(source, blobs)
        case _:
            found = _results(source, blobs)
    return next((text for digest, text in found if digest == wanted), None)


def _requests(run: RunDir, blobs: BlobStore) -> Iterator[tuple[str, str]]:
    for _, prompt in read_prompts(load_recording(run.llm_calls).rows, blobs):
        yield digest_of_bytes(utf8(prompt)).digest, _readable(shown_prompt(prompt))
    terms = TermsOfRun(run.read_info())
    for row, request in read_requests(load_exchanges(run.exchanges).rows, blobs):
        if request is not None:
            match = terms.of(row.lane).match_row(row, request)
            yield match.digest.digest, _readable(request)


def _answers(run: RunDir, blobs: BlobStore) -> Iterator[tuple[str, str]]:
    for row in load_recording(run.llm_calls).rows:
        outcome = row.read_outcome(blobs)
        yield outcome.digest().digest, _said(outcome)
    terms = TermsOfRun(run.read_info())
    for exchange in load_exchanges(run.exchanges).rows:
        body = exchange.read_response(blobs)
        said = said_of_row(exchange, body, terms.of(exchange.lane))
        yield said.answer.digest, _response(exchange, body)


def _results(run: RunDir, blobs: BlobStore) -> Iterator[tuple[str, str]]:
    if run.fixtures.exists():
        for _, _, _, response in read_fixtures(run.fixtures, blobs):
            text = response.get("text") if isinstance(response, dict) else None
            shown = text if isinstance(text, str) else _indented(response)
            yield digest_of(response).digest, shown


def _response(row: ExchangeRow, body: bytes) -> str:
    kind = kind_of(row.method, row.path)
    said = read_answer(kind, row.status, body, is_whole=True) if kind in MODEL_KINDS else None
    return _said(said) if isinstance(said, LlmAnswer) else body.decode("utf-8", "replace")


def _said(outcome: Outcome) -> str:
    if not isinstance(outcome, LlmAnswer):
        return str(outcome.as_error())
    tools = [f"[{call.name} {call.args}]" for call in outcome.tool_calls]
    return "\n".join([outcome.text, *tools] if outcome.text else tools)


def _readable(text: str) -> str:
    """JSON on lines of its own; another text as it is."""
    head, _, rest = text.partition("\n")
    body = rest if head.startswith("bernstein.request.") else text
    try:
        value: JsonObject = decode_strict(body.encode())
    except (CanonicalError, UnicodeEncodeError):
        return text
    return _indented(value)


def _indented(value: JsonValue) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
