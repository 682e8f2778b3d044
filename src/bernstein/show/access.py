"""Who may read, and who may decide: two tokens, and the hosts that the server answers to.

The read token is shown as a bearer, or as the cookie that a page gets for it. It lets nobody decide
anything: that takes the operator's token, which lies beside the private keys of this user.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse

from bernstein.errors import UsageError
from bernstein.files import make_private, read_file, write_file

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import HTTPConnection
    from starlette.responses import Response

_LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_MIN_CHARS = 16
_MAX_AGE_S = 30 * 24 * 3600


def read_token(path: Path | None) -> str:
    """The token that readers show: that of a file, else one that is made now.

    Raises:
        UsageError: The file can be read by others, or holds no token.
    """
    return secrets.token_urlsafe(24) if path is None else _token_of(path)


def operator_token(keys_dir: Path, *, is_kept: bool) -> tuple[Path | None, str]:
    """The token that lets somebody decide, and its file; made where there is none.

    Args:
        keys_dir: Where it lies.
        is_kept: Whether it may lie in a file; else it is made anew, for this time alone.
    Raises:
        UsageError: The file can be read by others, or holds no token.
        OSError: It cannot be made.
    """
    if not is_kept:
        return None, secrets.token_urlsafe(24)
    path = keys_dir / "operator.token"
    if not path.exists():
        make_private(keys_dir)
        new = keys_dir / f".operator.token.{secrets.token_hex(4)}"
        write_file(new, secrets.token_urlsafe(24).encode() + b"\n")
        with suppress(FileExistsError):
            # A link, not a rename: of two processes that make a first one, one is first.
            os.link(new, path)
        new.unlink()
    return path, _token_of(path)


def _token_of(path: Path) -> str:
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


def is_loopback(address: str) -> bool:
    """Whether an IP address leads to this machine alone.

    Raises:
        UsageError: It is no address.
    """
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError as error:
        raise UsageError(
            f"{address!r} is no IP address to listen at\n  for example: --host 0.0.0.0"
        ) from error


@dataclass(frozen=True, slots=True)
class Access:
    """The rule that every request is held against.

    Attributes:
        token: Lets who shows it read.
        operator: Lets who shows it decide, and read; None: nobody decides here.
        names: Further names and addresses that lead here.
        shows_texts: Whether who reads sees what was asked and said, and not the operator alone.
    """

    token: str
    operator: str | None = None
    names: tuple[str, ...] = ()
    shows_texts: bool = False

    def refuse_host(self, request: HTTPConnection) -> Response | None:
        """What a request is answered whose address is none of ours."""
        stated = request.headers.get("host", "")
        host = stated if stated.endswith("]") else stated.rpartition(":")[0] or stated
        if host.lower() in (*_LOCAL_HOSTS, *self.names):
            return None
        # A page of somebody else's whose name was made to lead here.
        return refused(421, "this server does not answer to that name")

    def refuse(self, request: HTTPConnection) -> Response | None:
        """What a request to the API is answered that may not read; None where it may."""
        site = request.headers.get("sec-fetch-site", "same-origin")
        if site not in {"same-origin", "none"} or not self._is_own(request):
            return refused(403, "pages of other sites may not read here")
        cookie = request.cookies.get(cookie_name(request), "")
        shown = _bearer(request)
        if not (
            _same(shown, self.token) or self.may_decide(request) or _same(cookie, self._cookie())
        ):
            return refused(401, "show the read token that `bernstein serve` printed")
        return None

    def may_decide(self, request: HTTPConnection) -> bool:
        """Whether a request shows the operator's token; a cookie never does."""
        return self.operator is not None and _same(_bearer(request), self.operator)

    def let_in(self, request: HTTPConnection, response: Response) -> None:
        """Give a page its cookie."""
        response.set_cookie(
            cookie_name(request),
            self._cookie(),
            max_age=_MAX_AGE_S,
            path="/api",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )

    def _cookie(self) -> str:
        # Not the token: what a browser keeps is of no use as a bearer.
        return hmac.new(self.token.encode(), b"bernstein.cookie.v1", sha256).hexdigest()

    def _is_own(self, request: HTTPConnection) -> bool:
        origin = request.headers.get("origin")
        return origin is None or origin == f"{request.url.scheme}://{request.headers.get('host')}"


def cookie_name(request: HTTPConnection) -> str:
    """The cookie of this server: browsers keep one jar for all ports of a host."""
    return f"bernstein_read_{request.url.port or request.url.scheme}"


def refused(status: int, why: str) -> Response:
    """An answer that says no."""
    return JSONResponse({"error": why}, status, {"Cache-Control": "no-store"})


def _bearer(request: HTTPConnection) -> str:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token if kind.lower() == "bearer" else ""


def _same(shown: str, wanted: str) -> bool:
    return hmac.compare_digest(shown.encode(), wanted.encode())
