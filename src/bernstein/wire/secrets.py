"""Keeps secrets from the disk: what a request is known to carry, and whatever looks like a token.

Rule: headers are kept by an allow-list; bodies, paths and errors go through ``Redactor``. A text
that is JSON is searched in its decoded strings, so that no escape hides a secret.
"""

from __future__ import annotations

import base64
import binascii
import re
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from bernstein.canonical import JsonValue, decode_strict, spelled_json
from bernstein.errors import CanonicalError
from bernstein.wire.folders import OPAQUE_MEMBERS
from bernstein.wire.pieces import Finder, is_plain_in_json

if TYPE_CHECKING:
    from collections.abc import Iterable

SECRET = "<secret>"  # noqa: S105 - what stands in a secret's place
_MIN_SECRET_CHARS = 8
_CARRIERS = re.compile(
    r"auth|cookie|api-?key|token|secret|signature|credential|password", re.IGNORECASE
)
# Query parameters that carry secrets; a short value under a name like `token` is a page, not a key.
_QUERY = re.compile(
    r"(?:^|[-_])(?:key|apikey|token|sig|signature|auth|code|secret|password|credential)$",
    re.IGNORECASE,
)
_MIN_QUERY_CHARS = 16
# Under these names even a short value is one.
_SURE_QUERY = re.compile(
    r"^(?:access_token|refresh_token|id_token|client_secret|api[-_]?key|password|x-amz-signature)$",
    re.IGNORECASE,
)
_MEMBERS = frozenset(
    {"access_token", "refresh_token", "id_token", "client_secret", "api_key", "apikey", "password"}
)
# A form as it is sent: names and values, and no white space.
_FORM = re.compile(r"[\w.~*-]+=[^\s=&]*(?:&[\w.~*-]+=[^\s=&]*)*")
_QUOTED_MEMBERS = tuple(f'"{name}"' for name in sorted(_MEMBERS))
# Forms that tokens of well-known services have; each is anchored at its own prefix, which may
# stand behind an escape of raw JSON.
_TOKENS = re.compile(
    r"""(?:(?<![A-Za-z0-9_])|(?<=\\[nrtbf])|(?<=\\u[0-9a-fA-F]{4}))(?:
      sk-[A-Za-z0-9_-]{16,}            # Anthropic, OpenAI and others
    | AIza[A-Za-z0-9_-]{30,}           # Google
    | ya29\.[A-Za-z0-9_-]{20,}
    | gh[pousr]_[A-Za-z0-9]{30,} | github_pat_[A-Za-z0-9_]{30,}
    | glpat-[A-Za-z0-9_-]{18,}
    | xox[abeprs]-[A-Za-z0-9-]{10,}
    | (?:AKIA|ASIA)[A-Z0-9]{16}
    | hf_[A-Za-z0-9]{30,} | npm_[A-Za-z0-9]{30,} | pypi-[A-Za-z0-9_-]{30,}
    | eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}   # JWT
    )""",
    re.VERBOSE,
)
# Every token holds one of these.
_TOKEN_PARTS = (
    *("sk-", "AIza", "ya29.", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-"),
    *("xox", "AKIA", "ASIA", "hf_", "npm_", "pypi-", "eyJ"),
)
_TOKEN_FINDER = Finder(_TOKENS, _TOKEN_PARTS)
_LONG_SECRET_CHARS = 20


def _is_like_a_secret(value: str) -> bool:
    """Whether a value is one that nobody says otherwise: `not-needed` and `password` are words."""
    if len(value) >= _LONG_SECRET_CHARS:
        return True
    has_both = any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    return len(value) >= _MIN_SECRET_CHARS and has_both


class Redactor:
    """Takes the secrets that one run has shown out of what is kept of it."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        """Begin with ``known`` secrets, as the values of variables that hold keys."""
        self._known: set[str] = set()
        self._seen: set[tuple[str, str]] = set()  # headers that were looked at
        self._longest_first: list[str] = []
        self._is_plain = True  # no known secret is spelled otherwise in JSON
        for value in known:
            self._learn(value)

    def learn(self, headers: Iterable[tuple[str, str]], query: str) -> None:
        """Remember what a request carries to prove who it is."""
        for header in headers:
            if header not in self._seen:
                self._seen.add(header)
                if _CARRIERS.search(header[0]):
                    self._learn_header(header[1])
        for name, value in parse_qsl(query) if query else ():
            if _is_query_secret(name, value):
                self._learn(value)

    def know(self, secret: str) -> None:
        """Remember a secret that is known otherwise."""
        self._learn(secret)

    def _learn_header(self, value: str) -> None:
        self._learn(value)
        scheme, _, rest = value.strip().partition(" ")
        self._learn(rest.strip())
        if scheme.lower() == "basic":
            with suppress(binascii.Error, UnicodeDecodeError):
                user_password = base64.b64decode(rest.strip(), validate=True).decode()
                self._learn(user_password)
                self._learn(user_password.partition(":")[2])
        for part in value.split(";"):
            self._learn(part.partition("=")[2].strip())

    def _learn(self, value: str) -> None:
        if value in self._known or not _is_like_a_secret(value):
            return
        self._known |= {value, quote(value, safe=""), unquote(value)}
        self._longest_first = sorted(self._known, key=len, reverse=True)
        self._is_plain = all(is_plain_in_json(known) for known in self._known)

    def _known_in(self, text: str) -> list[str]:
        return [known for known in self._longest_first if known in text]

    # --- what is changed

    def text(self, text: str) -> str:
        """``text`` with each secret replaced."""
        for known in self._known_in(text):
            text = text.replace(known, SECRET)
        return _TOKEN_FINDER.replace(text, lambda _: SECRET)

    def pieces(self, pieces: list[str]) -> list[str]:
        """Pieces of one text, a secret replaced in the piece where it begins."""
        if found := self._known_in("".join(pieces)):
            finder = Finder(re.compile("|".join(map(re.escape, found))), found)
            pieces = finder.replace_in_pieces(pieces, lambda _: SECRET)
        return _TOKEN_FINDER.replace_in_pieces(pieces, lambda _: SECRET)

    def takes(self, name: str) -> bool:
        """Whether deltas of this name are changed: not a signature."""
        return name not in OPAQUE_MEMBERS

    def may_change(self, document: str) -> bool:
        """False where a JSON document holds no secret; ``document`` is as it is spelled."""
        lowered = document.lower()
        return (
            not self._is_plain
            or _TOKEN_FINDER.may_find_in_json(document)
            or bool(self._known_in(document))
            or any(name in lowered for name in _QUOTED_MEMBERS)
        )

    def body(self, text: str) -> str:
        """A body with each secret replaced: in the strings of JSON, and by name in a form."""
        if _FORM.fullmatch(text):
            return self.query(text)
        if not self.may_change(text):
            return text
        try:
            value = decode_strict(text.encode("utf-8"))
        except (CanonicalError, UnicodeEncodeError):
            return self.text(text)
        kept = self.value(value)
        if kept == value:
            return text
        return spelled_json(kept)

    def value(self, value: JsonValue) -> JsonValue:
        """A JSON value with each secret in its strings replaced."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {self.text(name): self._member(name, item) for name, item in value.items()}
        return value

    def _member(self, name: str, item: JsonValue) -> JsonValue:
        if name in OPAQUE_MEMBERS:
            return item
        if name.lower() in _MEMBERS and isinstance(item, str) and len(item) >= _MIN_SECRET_CHARS:
            return SECRET
        return self.value(item)

    def query(self, query: str) -> str:
        """A query string with the values of what carries secrets replaced."""
        if not query:
            return query
        pairs = parse_qsl(query, keep_blank_values=True)
        if not any(_is_query_secret(name, value) for name, value in pairs):
            return self.text(query)
        kept = [(n, SECRET if _is_query_secret(n, v) else self.text(v)) for n, v in pairs]
        return urlencode(kept, safe="<>")

    def url(self, url: str) -> str:
        """A URL without the user and password in it, and with secrets in its query replaced."""
        parts = urlsplit(url)
        host = parts.netloc.rsplit("@", 1)[-1]
        return urlunsplit((parts.scheme, host, self.text(parts.path), self.query(parts.query), ""))


def _is_query_secret(name: str, value: str) -> bool:
    if _SURE_QUERY.search(name):
        return len(value) >= _MIN_SECRET_CHARS
    return _QUERY.search(name) is not None and len(value) >= _MIN_QUERY_CHARS
