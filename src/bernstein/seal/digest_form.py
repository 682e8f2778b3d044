"""The digest form of a recording file: each body replaced by the DigestRef of its full text.

A seal commits to digest forms, so a body that is destroyed on purpose leaves everything else
verifiable.
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING

from bernstein.canonical import (
    JsonObject,
    as_ref,
    canonical_bytes,
    decode_canonical,
    decode_known,
    digest_of,
    digest_of_bytes,
    utf8,
)
from bernstein.errors import CanonicalError, ForgottenBodyError
from bernstein.jsonl import read_lines
from bernstein.recording.exchanges import RequestReader, parse_exchange_row
from bernstein.recording.rows import PromptReader, parse_call_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bernstein.recording.blobs import BlobStore
    from bernstein.rundir import RunDir


def recording_digests(run: RunDir, blobs: BlobStore) -> dict[str, JsonObject]:
    """For each recording file that a run has: its rows, and the digest of its digest form.

    Raises:
        CanonicalError: A line is torn, or not in canonical spelling.
        RecordingError: A row of calls cannot be read.
    """
    digests: dict[str, JsonObject] = {}
    for name, lines in digest_forms(run, blobs).items():
        hashed, rows = sha256(), 0
        for line in lines:
            hashed.update(line)
            rows += 1
        digests[name] = {"rows": rows, "digest_form_sha256": hashed.hexdigest()}
    return digests


def digest_forms(run: RunDir, blobs: BlobStore) -> dict[str, Iterator[bytes]]:
    """The rows of each recording file that a run has, in digest form, each with its LF."""
    prompts = PromptReader(blobs)

    def call(line: bytes) -> JsonObject:
        value: JsonObject = decode_canonical(line)
        row = parse_call_row(line)
        if row is None:
            return value
        prompt = value["prompt"]
        if as_ref(prompt) is None:
            prompt = digest_of_bytes(utf8(prompts.read(row))).to_json()
        else:
            with suppress(ForgottenBodyError):
                prompts.read(row)  # a later prompt may be what it adds to this one
        return {**value, "prompt": prompt, "outcome": _ref(value["outcome"])}

    requests = RequestReader(blobs)

    def exchange(line: bytes) -> JsonObject:
        row = parse_exchange_row(line)  # its spelling is checked
        value: JsonObject = decode_known(line)
        request = value["request"]
        if as_ref(request) is None:
            request = digest_of_bytes(utf8(requests.read(row))).to_json()
        else:
            with suppress(ForgottenBodyError):
                requests.read(row)  # a later request may be what it adds to this one
        response = value["response"]
        if isinstance(response, str):
            response = digest_of_bytes(utf8(response)).to_json()
        return {**value, "request": request, "response": response}

    def fixture(line: bytes) -> JsonObject:
        value: JsonObject = decode_canonical(line)
        return {
            **value,
            **{name: _ref(value[name]) for name in ("request", "response") if name in value},
        }

    forms: dict[str, tuple[Path, Callable[[bytes], JsonObject]]] = {
        "llm_calls": (run.llm_calls, call),
        "exchanges": (run.exchanges, exchange),
        "fixtures": (run.fixtures, fixture),
        "wal": (run.wal, decode_canonical),
    }
    return {name: _lines(path, form) for name, (path, form) in forms.items() if path.exists()}


def _lines(path: Path, form: Callable[[bytes], JsonObject]) -> Iterator[bytes]:
    for line in _whole_lines(path):
        yield canonical_bytes(form(line)) + b"\n"


def _whole_lines(path: Path) -> Iterator[bytes]:
    for line in read_lines(path):
        if not line.is_whole:
            raise CanonicalError("$", f"{path.name} ends in a torn line")
        yield line.data


def _ref(body: object) -> JsonObject:
    return (as_ref(body) or digest_of(body)).to_json()
