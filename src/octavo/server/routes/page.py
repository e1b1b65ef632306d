"""The web page: a chat, and the memory as it changes. Files of the package, read once, served as they are."""

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from fastapi import APIRouter, Request, Response

_JAVASCRIPT: Final = "text/javascript; charset=utf-8"
# What is served, and as what. Nothing else under /web/ exists, whatever the path looks like.
WEB_FILES: Final = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "memory.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "theme.js": _JAVASCRIPT,
    "main.js": _JAVASCRIPT,
    "dom.js": _JAVASCRIPT,
    "format.js": _JAVASCRIPT,
    "api.js": _JAVASCRIPT,
    "chat.js": _JAVASCRIPT,
    "transcript.js": _JAVASCRIPT,
    "settings.js": _JAVASCRIPT,
    "memory.js": _JAVASCRIPT,
    "feed.js": _JAVASCRIPT,
    "frames.js": _JAVASCRIPT,
    "history.js": _JAVASCRIPT,
    "states.js": _JAVASCRIPT,
    "grid.js": _JAVASCRIPT,
    "inspector.js": _JAVASCRIPT,
    "requests.js": _JAVASCRIPT,
    "charts.js": _JAVASCRIPT,
}
_HEADERS: Final = {
    # The browser asks again each time, and is told 304: a newer server is seen at once.
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True, slots=True)
class WebFile:
    """One file of the page.

    Attributes:
        body: its bytes.
        content_type: for the header of that name.
        etag: changes with the bytes, in quotes.
    """

    body: bytes
    content_type: str
    etag: str


def read_web_files() -> dict[str, WebFile]:
    """All files of the page by name, from the installed package.

    Raises:
        OSError: a file is missing; the installation is damaged.
    """
    folder = files("octavo.server").joinpath("web")
    found = {}
    for name, content_type in WEB_FILES.items():
        body = folder.joinpath(name).read_bytes()
        found[name] = WebFile(body, content_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return found


_web_files: Final = read_web_files()
router = APIRouter(include_in_schema=False)


@router.api_route("/", methods=["GET", "HEAD"])
async def page(request: Request) -> Response:
    """The page; it holds nothing secret and needs no API key."""
    return _answer(request, _web_files["index.html"])


@router.api_route("/web/{name}", methods=["GET", "HEAD"])
async def web_file(name: str, request: Request) -> Response:
    """One of the page's files."""
    found = _web_files.get(name)
    if found is None:
        return Response("There is no such file.\n", 404, _HEADERS, "text/plain; charset=utf-8")
    return _answer(request, found)


def _answer(request: Request, web_file: WebFile) -> Response:
    headers = {**_HEADERS, "ETag": web_file.etag}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if web_file.etag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(web_file.body, headers=headers, media_type=web_file.content_type)
