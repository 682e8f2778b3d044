"""Cassettes of VCR.py and its relatives, read as HTTP exchanges.

Four dialects: VCR.py's YAML or JSON with a body as text, the same with a binary body, pydantic-ai's
with a body that is parsed already, and when/then documents. YAML is read by the safe loader alone.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import yaml

from bernstein.errors import RecordingError

_HOSTS = {
    "api.anthropic.com": "anthropic",
    "api.openai.com": "openai",
    "generativelanguage.googleapis.com": "google",
}
_PACKED = {b"\x1f\x8b", b"\x78\x9c", b"\x78\x01"}  # how gzip and zlib begin
_EVENT_END = re.compile(rb"(?<=\n\n)|(?<=\r\n\r\n)")


@dataclass(frozen=True, slots=True)
class Taped:
    """One exchange of a cassette.

    Attributes:
        provider: openai, anthropic, google, or the host.
        origin: Scheme and host.
        path, query, method, headers, body: The request.
        status, response_headers, pieces: The response; a stream has a piece for each event.
        is_exact: False where the cassette does not hold the bytes of a body.
    """

    provider: str
    origin: str
    path: str
    query: str
    method: str
    headers: list[tuple[str, str]]
    body: bytes
    status: int
    response_headers: list[tuple[str, str]]
    pieces: list[bytes]
    is_exact: bool


def read_cassette(data: bytes, default_origin: str = "http://recorded") -> list[Taped]:
    """The exchanges of a cassette, in their order.

    Args:
        data: The file.
        default_origin: Where requests went that name no host (when/then documents).
    Raises:
        RecordingError: It is no cassette of a dialect that is known.
    """
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        documents = [d for d in yaml.load_all(data, Loader=loader) if d is not None]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RecordingError(f"this is not a cassette: {str(error).splitlines()[0]}") from error
    try:
        if documents and all(
            isinstance(d, dict) and d.keys() >= {"when", "then"} for d in documents
        ):
            return [_when_then(document, default_origin) for document in documents]
        (cassette,) = documents
        found = cassette["interactions"]
        return [_interaction(interaction) for interaction in found]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordingError(
            f"this is not a cassette of a dialect that is known ({type(error).__name__}: {error})"
        ) from error


def _is_when_then(document: object) -> bool:
    return isinstance(document, dict) and document.keys() >= {"when", "then"}


def _interaction(value: dict[str, Any]) -> Taped:
    request, response = value["request"], value["response"]
    body, is_exact = _body(request)
    said, is_said_exact = _body(response)
    headers = _headers(response.get("headers"))
    status = response["status_code"] if "status_code" in response else response["status"]
    url = urlsplit(request["uri"])
    origin = f"{url.scheme}://{url.netloc.rsplit('@', 1)[-1]}"
    return _taped(
        (origin, url.path or "/", url.query),
        (request["method"], _headers(request.get("headers")), body),
        (int(status["code"] if isinstance(status, dict) else status), headers, said),
        is_exact=is_exact and is_said_exact,
    )


def _when_then(value: dict[str, Any], origin: str) -> Taped:
    when, then = value["when"], value["then"]
    query = "&".join(f"{pair['name']}={pair['value']}" for pair in when.get("query_param") or [])
    return _taped(
        (origin, when["path"], query),
        (when["method"], _pairs(when.get("header")), _to_bytes(when.get("body"))),
        (int(then["status"]), _pairs(then.get("header")), _to_bytes(then.get("body"))),
        is_exact=True,
    )


def _taped(
    where: tuple[str, str, str],
    asked: tuple[str, list[tuple[str, str]], bytes],
    said: tuple[int, list[tuple[str, str]], bytes],
    *,
    is_exact: bool,
) -> Taped:
    origin, path, query = where
    method, headers, body = asked
    status, response_headers, data = said
    data, is_decoded = _decoded(response_headers, data)
    kind = next((v for n, v in response_headers if n.lower() == "content-type"), "")
    pieces = [data] if data else []
    if kind.startswith("text/event-stream"):
        pieces = [piece for piece in _EVENT_END.split(data) if piece]
    host = urlsplit(origin).netloc
    if _HOSTS.get(host) == "openai" and path.startswith("/v1/"):
        # An OpenAI client's base URL ends in /v1: what it adds to that is the path.
        origin, path = f"{origin}/v1", path.removeprefix("/v1")
    return Taped(
        _HOSTS.get(host, host),
        origin,
        path,
        query,
        method.upper(),
        headers,
        body,
        status,
        response_headers,
        pieces,
        is_exact and is_decoded,
    )


def _body(part: dict[str, Any]) -> tuple[bytes, bool]:
    """The body of a request or response, and whether these are its bytes."""
    if "parsed_body" in part:
        parsed = part["parsed_body"]
        if isinstance(parsed, str):
            return parsed.encode(), False
        return json.dumps(parsed, ensure_ascii=False, separators=(",", ":")).encode(), False
    body = part.get("body", part.get("content"))
    if isinstance(body, dict):
        body = body.get("string", body.get("base64_string"))
    return _to_bytes(body), True


def _to_bytes(body: Any) -> bytes:
    if body is None:
        return b""
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode("utf-8", "surrogatepass")
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _headers(value: Any) -> list[tuple[str, str]]:
    """Headers as pairs: of a mapping to texts or to lists of them, or of lines."""
    if isinstance(value, list):
        lines = [str(line).partition(":") for line in value]
        return [(name.strip(), text.strip()) for name, _, text in lines]
    pairs = []
    for name, texts in (value or {}).items():
        for text in texts if isinstance(texts, list) else [texts]:
            pairs.append((str(name), str(text)))
    return pairs


def _pairs(value: Any) -> list[tuple[str, str]]:
    return [(str(pair["name"]), str(pair["value"])) for pair in value or []]


def _decoded(headers: list[tuple[str, str]], data: bytes) -> tuple[bytes, bool]:
    """A body without its content encoding; False where that cannot be taken off."""
    coding = next((v.lower() for n, v in headers if n.lower() == "content-encoding"), "")
    if coding in {"gzip", "x-gzip", "deflate"} and data[:2] in _PACKED:
        try:
            return zlib.decompress(data, 47), True
        except zlib.error:
            return data, False
    # A recorder that decodes bodies leaves the header: then this is the body.
    is_text = data[:1] in {b"{", b"[", b"<", b"d", b"e", b":", b""}
    return data, not coding or is_text
