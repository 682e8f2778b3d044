"""Keeps secrets from the disk: what a request is known to carry, and whatever looks like a token.

Rule: headers are kept by an allow-list; bodies, paths and errors go through ``Redactor``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote, urlencode

if TYPE_CHECKING:
    from collections.abc import Iterable

SECRET = "<secret>"  # noqa: S105 - what stands in a secret's place
_MIN_SECRET_CHARS = 8
_CARRIERS = frozenset(
    {
        "authorization",
        "proxy-authorization",
        "cookie",
        "x-api-key",
        "api-key",
        "x-goog-api-key",
        "x-auth-token",
    }
)
_QUERY = frozenset(
    {"key", "api_key", "apikey", "access_token", "token", "sig", "signature", "auth", "code"}
)
# Forms that tokens of well-known services have; each is anchored at its own prefix.
_TOKENS = re.compile(
    r"""(?<![A-Za-z0-9_])(?:
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


class Redactor:
    """Takes the secrets that one run has shown out of what is kept of it."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        """Begin with ``known`` secrets, as the values of variables that hold keys."""
        self._known: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        for value in known:
            self._learn(value)

    def learn(self, headers: Iterable[tuple[str, str]], query: str) -> None:
        """Remember what a request carries to prove who it is."""
        for name, value in headers:
            if name.lower() == "cookie":
                for part in value.split(";"):
                    self._learn(part.partition("=")[2].strip())
            elif name.lower() in _CARRIERS:
                self._learn(value.removeprefix("Bearer ").removeprefix("Basic ").strip())
        for name, value in parse_qsl(query):
            if name.lower() in _QUERY:
                self._learn(value)

    def _learn(self, value: str) -> None:
        if len(value) >= _MIN_SECRET_CHARS and value not in self._known:
            self._known |= {value, quote(value, safe=""), unquote(value)}
            longest_first = sorted(self._known, key=len, reverse=True)
            self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def text(self, text: str) -> str:
        """``text`` with each secret replaced."""
        if self._pattern is not None:
            text = self._pattern.sub(SECRET, text)
        return _TOKENS.sub(SECRET, text)

    def query(self, query: str) -> str:
        """A query string with the values of what carries secrets replaced."""
        if not query:
            return ""
        pairs = parse_qsl(query, keep_blank_values=True)
        if not any(name.lower() in _QUERY for name, _ in pairs):
            return self.text(query)
        kept = [(n, SECRET if n.lower() in _QUERY else self.text(v)) for n, v in pairs]
        return urlencode(kept, safe="<>")
