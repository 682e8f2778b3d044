"""The web page: its files, as they lie in the package, and what a browser may do with them."""

from __future__ import annotations

from importlib.resources import files

from starlette.responses import Response

_KINDS = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
# Nothing but what lies here: no other host, no script or style inside the page, no frame around it,
# and no text of a run that becomes markup.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def page_file(name: str) -> bytes | None:
    """A file of the page, or None where there is none of this name."""
    for file in files("bernstein.show").joinpath("page").iterdir():
        if file.name == name and file.is_file():
            return file.read_bytes()
    return None


def page_response(name: str) -> Response:
    """A file of the page as it is served."""
    data = page_file(name)
    kind = _KINDS.get(name.rpartition(".")[2])
    if data is None or kind is None:
        return Response("there is nothing here\n", 404, _HEADERS, "text/plain")
    return Response(data, 200, _HEADERS, kind)
