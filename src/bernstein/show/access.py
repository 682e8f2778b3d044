"""Who may read: the token that ``bernstein serve`` prints, as a bearer or as a cookie made of it.

It lets nobody decide anything: approvals need the operator's key.
"""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse

from bernstein.errors import UsageError
from bernstein.files import read_file

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request
    from starlette.responses import Response

COOKIE = "bernstein_read"
_LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_MIN_CHARS = 16


def read_token(path: Path | None) -> str:
    """The token that readers show: that of a file, else one that is made now.

    Raises:
        UsageError: The file can be read by others, or holds no token.
    """
    if path is None:
        return secrets.token_urlsafe(24)
    try:
        mode = path.stat().st_mode
        token = read_file(path).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the token cannot be read from {path}: {error}") from error
    if mode & 0o077:
        raise UsageError(f"{path} can be read by others\n  keep it for yourself: chmod 600 {path}")
    if len(token) < _MIN_CHARS or not token.isprintable() or " " in token:
        raise UsageError(f"{path} holds no token: at least {_MIN_CHARS} characters on one line")
    return token


class Access:
    """The rule that every request to the API is held against."""

    def __init__(self, token: str) -> None:
        """Let those read who show this token."""
        self._token = token

    def refuse(self, request: Request) -> Response | None:
        """What a request is answered that may not read; None where it may."""
        host = request.headers.get("host", "").rpartition(":")[0] or request.headers.get("host", "")
        if host not in _LOCAL_HOSTS:
            # A page of somebody else's whose name was made to lead here.
            return _refused(421, "this server answers to its loopback address alone")
        site = request.headers.get("sec-fetch-site", "same-origin")
        if site not in {"same-origin", "none"} or not self._is_own(request):
            return _refused(403, "pages of other sites may not read here")
        if not self._is_shown(request):
            return _refused(401, "show the read token that `bernstein serve` printed")
        return None

    def _is_own(self, request: Request) -> bool:
        origin = request.headers.get("origin")
        return origin is None or origin == f"{request.url.scheme}://{request.headers.get('host')}"

    def _is_shown(self, request: Request) -> bool:
        kind, _, bearer = request.headers.get("authorization", "").partition(" ")
        shown = bearer if kind.lower() == "bearer" else request.cookies.get(COOKIE, "")
        return hmac.compare_digest(shown.encode(), self._token.encode())


def _refused(status: int, why: str) -> Response:
    return JSONResponse({"error": why}, status)
