"""The key of an HTTP exchange: one SHA-256 over every input that determines its response."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Literal, TypeAlias
from urllib.parse import urlsplit

from bernstein.canonical import (
    DigestRef,
    JsonObject,
    JsonValue,
    canonical_bytes,
    decode_strict,
    digest_of_bytes,
    sha256_hex,
)
from bernstein.errors import CanonicalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bernstein.wire.folders import Folders
    from bernstein.wire.profile import Names, Profile
    from bernstein.wire.secrets import Redactor

ExchangeScheme: TypeAlias = Literal["wire.v1", "form.v1", "raw.v1"]


# The first line of a multipart form.
_BOUNDARY = re.compile(rb"--([0-9A-Za-z'()+_,./:=?-]{8,70})\r\n")


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it arrived; ``path`` is without the gateway's own part of it."""

    method: str
    provider: str
    origin: str
    path: str
    query: str
    headers: Sequence[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """The value of a header, those of one name joined; None where there is none."""
        found = [value for key, value in self.headers if key.lower() == name]
        return ", ".join(found) if found else None


@dataclass(frozen=True, slots=True)
class Match:
    """What a request is matched by.

    Attributes:
        key: 64 hex digits.
        scheme: ``form.v1`` where the body is a multipart form, ``raw.v1`` where it has no canonical
            spelling otherwise.
        request: What the key covers, as a value: what a miss is explained with.
        digest: The digest of its canonical spelling.
        body: The body after the rules; None where it is not JSON, and where there is none.
        ids: By the name of a rule, the ids that it renamed, in the order of their numbers.
    """

    key: str
    scheme: ExchangeScheme
    request: JsonObject
    digest: DigestRef
    body: JsonValue
    ids: dict[str, list[str]]


def without_secrets(request: Request, profile: Profile, redactor: Redactor) -> Request:
    """A request as it is kept: what is matched is the very text that is recorded."""
    headers = [(n.lower(), v) for n, v in request.headers if n.lower() in profile.headers]
    body = redactor.body(request.body.decode("utf-8", "surrogateescape"))
    return replace(
        request,
        origin=redactor.url(request.origin),
        path=redactor.text(request.path),
        query=redactor.query(request.query),
        headers=[(name, redactor.text(value)) for name, value in headers],
        body=body.encode("utf-8", "surrogateescape"),
    )


def match_of(
    request: Request, profile: Profile, folders: Folders, *, has_forms: bool = True
) -> Match:
    """Work out what a request is matched by, its secrets gone already.

    Without ``has_forms`` a multipart form is matched by its bytes, as before there was ``form.v1``.
    """
    prepare = folders.to_variables
    scheme: ExchangeScheme = "wire.v1"
    body: JsonValue = None
    names: Names = {}
    covered: JsonObject = {
        "method": request.method,
        "origin": key_origin(request.origin, request.provider),
        "path": prepare(request.path),
        "query": request.query,
        "headers": _headers(request, profile),
        "body": None,
    }
    try:
        if request.body:
            body = decode_strict(request.body)
            names_folders = folders.may_stand_in(request.body.decode())
            body = profile.normalise(body, prepare if names_folders else None, names)
            covered["body"] = body
        spelled = canonical_bytes(covered)
    except CanonicalError:
        scheme, body, names = "raw.v1", None, {}
        data = request.body
        boundary = _BOUNDARY.match(data) if has_forms else None
        if boundary is not None and data.rstrip().endswith(b"--%b--" % boundary[1]):
            # It is drawn at random for each upload.
            scheme, data = "form.v1", data.replace(b"--" + boundary[1], b"--<boundary>")
        covered["body"] = {"sha256": sha256_hex(data)}
        spelled = canonical_bytes(covered)
    # sha256("bernstein.exchange.v1\n" + scheme + "\n" + JCS of what is covered)
    key = sha256(b"bernstein.exchange.v1\n%b\n%b" % (scheme.encode(), spelled)).hexdigest()
    ids = {name: list(olds) for name, olds in names.items() if olds and name in profile.id_names}
    return Match(key, scheme, covered, digest_of_bytes(spelled), body, ids)


def key_origin(origin: str, provider: str) -> str:
    """An upstream's origin as it stands in keys: one on loopback without its port."""
    parts = urlsplit(origin)
    if parts.hostname in {"127.0.0.1", "localhost", "::1"}:
        return f"loopback/{provider}"
    return origin.rstrip("/")


def _headers(request: Request, profile: Profile) -> JsonObject:
    found: JsonObject = {}
    for name in profile.headers:
        value = request.header(name)
        if value is None:
            continue
        if name in profile.set_headers:
            value = ",".join(sorted({part.strip() for part in value.split(",") if part.strip()}))
        found[name] = value
    return found
