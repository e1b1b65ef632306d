"""What every request passes before its route: an id, a log line, the key, the size of the body.

Plain ASGI, so that streams pass through unbuffered and a client that goes away is noticed.
"""

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Callable, MutableMapping
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.server.errors import ApiError, draining, error_response
from octavo.server.settings import ServerSettings

_log = logging.getLogger("octavo.server")

# The page must load before it can ask for a key; a load balancer has none.
_OPEN_PATHS: Final = ("/health", "/ready", "/version", "/", "/favicon.ico")
_OPEN_FOLDERS: Final = ("/web/",)
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")

CLIENT_LEFT: Final = 499  # the status of an answer that nobody waits for

CountRequest = Callable[[str, str, int, float], None]  # method, route, status, seconds


class Gate:
    """The one middleware.

    Args:
        is_draining: asked at each request.
        count: told of each answer: method, route, status, seconds.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: ServerSettings,
        is_draining: Callable[[], bool],
        count: CountRequest | None = None,
    ) -> None:
        self._app = app
        self._settings = settings
        self._is_draining = is_draining
        self._count = count
        self._keys = [_digest(key) for key in settings.api_keys]
        self._hosts = {*_LOCAL_NAMES, *map(_host_name, (settings.host, *settings.allowed_hosts))}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        began_s = time.monotonic()
        headers = Headers(scope=scope)
        request_id = headers.get("x-request-id", "")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = secrets.token_hex(12)
        scope.setdefault("state", {})["request_id"] = request_id
        status = 0

        async def tagged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        body = _BoundedBody(receive, self._settings.max_body_bytes)
        try:
            self._check(scope, headers)
            await self._app(scope, body, tagged)
        except ClientDisconnect:
            pass  # it went away while it sent its body
        except asyncio.CancelledError:
            if not self._is_draining():
                raise
            if not status:
                await error_response(draining())(scope, receive, tagged)
        except Exception as error:
            if status:  # the answer has begun: all that is left is to break it off
                raise
            await error_response(error)(scope, receive, tagged)
        finally:
            self._tell(scope, status, time.monotonic() - began_s, request_id)

    def _check(self, scope: Scope, headers: Headers) -> None:
        path, method = scope["path"], scope["method"]
        settings = self._settings
        is_open = path in _OPEN_PATHS or path.startswith(_OPEN_FOLDERS)
        if self._keys and not is_open and method != "OPTIONS":
            self._check_key(headers)
        is_known = _host_name(headers.get("host", "")) in self._hosts
        if settings.is_local and not self._keys and not is_known:
            # Else a page anywhere could give its own name our address and read what we answer.
            raise ApiError(
                403, "this server answers to localhost only; --allowed-host names others", code="host"
            )
        if method != "POST":
            return
        if self._is_draining():
            raise draining()
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "application/json":  # also keeps pages of other origins from posting forms
            raise ApiError(415, "content-type: must be application/json", code="unsupported_media_type")
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise ApiError(415, "content-encoding: must be left out", code="unsupported_encoding")
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > settings.max_body_bytes:
            raise _too_large(settings.max_body_bytes)

    def _check_key(self, headers: Headers) -> None:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = _digest(key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", ""))
        # All of them, each in constant time: how long it takes tells nothing.
        if not sum(hmac.compare_digest(given, known) for known in self._keys):
            raise ApiError(
                401,
                "a valid API key is required: Authorization: Bearer <key>",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _tell(self, scope: Scope, status: int, seconds: float, request_id: str) -> None:
        route = scope.get("route")
        name = getattr(route, "path", "other")
        status = 0 if status == CLIENT_LEFT else status
        if self._count is not None:
            self._count(scope["method"], name, status, seconds)
        level = logging.DEBUG if name in ("/health", "/ready", "/metrics", "/web/{name}") else logging.INFO
        code = status or "left"  # the client went away before there was an answer
        _log.log(level, "%s %s %s %.0f ms %s", scope["method"], name, code, seconds * 1e3, request_id)


class _BoundedBody:
    """Receives a body of any declared length, or none, up to a limit."""

    def __init__(self, receive: Receive, most_bytes: int) -> None:
        self._receive = receive
        self._most_bytes = most_bytes
        self._num_bytes = 0

    async def __call__(self) -> MutableMapping[str, Any]:
        message = await self._receive()
        if message["type"] == "http.request":
            self._num_bytes += len(message.get("body", b""))
            if self._num_bytes > self._most_bytes:
                raise _too_large(self._most_bytes)
        return message


def _too_large(most_bytes: int) -> ApiError:
    return ApiError(413, f"the body is larger than {most_bytes} bytes", code="body_too_large")


def _host_name(host: str) -> str:
    """Without a port, in lower case."""
    host = host.lower()
    return host[: host.rfind("]") + 1] if host.startswith("[") else host.partition(":")[0]


def _digest(key: str) -> bytes:
    """Of equal length whatever the key, so that comparing takes the same time."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
