"""An HTTP client that does little, so that it can say when each piece of an answer came.

The time is taken as soon as the event loop hands over what arrived, before it is parsed. Parsing is left to
httptools, and what pieces say is read after the run. A client with more comfort takes several times the
processor time for each piece of a stream, on the cores that a server on the same machine computes with. On
two Zen 4 cores, twenty streams of together 2,000 pieces a second took 14 us per piece here and 59 us with
httpx, both on uvloop, which is 3 % and 12 % of a core, and half of the pieces were seen within 0.05 ms and
1.1 ms of being written (``benchmarks/tool_accuracy.py``). asyncio's own loop took half as much again.
"""

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, cast
from urllib.parse import urlsplit

import httptools

from octavo.core.errors import InvalidRequest, shown

# Takes a part of a body, and when it came; says whether the answer is complete with it, whatever may follow.
OnBody = Callable[[bytes, float], bool]
# What is no address of a server, and what to add to one instead.
_ENDPOINTS: Final = {"/chat/completions": " and --chat", "/completions": "", "/models": ""}
_MOST_IDLE: Final = 1024
# Most servers end the message right behind the answer in it: so long the connection is waited for, to be used
# again. Then others take its place, and it may take so long to end by itself.
_SOON_S: Final = 0.005
_LINGER_S: Final = 5.0
# A server's goodbye to an idle connection crosses a request within a round trip. If the connection is lost
# later, the server has likely begun.
_CROSSING_S: Final = 0.3


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is.

    Attributes:
        base: the path under which the API lies, such as ``/v1``.
    """

    scheme: str
    host: str
    port: int
    base: str

    @staticmethod
    def parse(url: str) -> "Address":
        """Of a URL, with or without the API's ``/v1``.

        Raises:
            InvalidRequest: it is no URL of a server.
        """
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError as error:
            raise InvalidRequest(f"url={shown(url)}: {error}", param="url") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise InvalidRequest(
                f"url={shown(url)}: write for example http://127.0.0.1:8000 (a key goes into --api-key)",
                param="url",
            )
        base = parts.path.rstrip("/")
        for endpoint, instead in _ENDPOINTS.items():
            if base.endswith(endpoint):
                root = f"{parts.scheme}://{parts.netloc}{base.removesuffix(endpoint)}"
                raise InvalidRequest(
                    f"url={shown(url)}: {endpoint} is added to a server's address; give {root}{instead}",
                    param="url",
                )
        if not base.endswith("/v1"):
            base += "/v1"
        return Address(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80), base)

    @property
    def netloc(self) -> str:
        """Host and port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def root(self) -> str:
        """The path above the API's."""
        return self.base.removesuffix("/v1")

    @property
    def is_local(self) -> bool:
        """Whether it is this machine, as far as the name tells."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    def at(self, path: str) -> str:
        """The URL of a path."""
        return f"{self.scheme}://{self.netloc}{path}"

    def __str__(self) -> str:
        return self.at(self.root)


@dataclass(slots=True)
class Response:
    """Status and headers (names in lower case) of an answer; its body was handed out as it came."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)


class Disconnected(ConnectionError):
    """The connection ended before the answer did.

    Attributes:
        began: whether a part of the answer had come.
    """

    def __init__(self, message: str, *, began: bool) -> None:
        super().__init__(message)
        self.began = began


class HttpClient:
    """Connections to one server, each used again after a complete answer.

    An answer may be complete before the message is that it comes in: then it does not wait for the rest. The
    connection does, for a while, and another one takes the next request.
    """

    def __init__(self, address: Address, headers: dict[str, str]) -> None:
        self._address = address
        self._ssl = ssl.create_default_context() if address.scheme == "https" else None
        self._idle: list[_Connection] = []
        self._lingering: dict[_Connection, asyncio.TimerHandle] = {}
        fixed = {"Host": address.netloc, "Accept-Encoding": "identity", **headers}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in fixed.items())

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        on_response: Callable[[Response], OnBody],
        on_resend: Callable[[], None] = lambda: None,
    ) -> Response:
        """Send a request and wait for the end of its answer.

        If an idle connection is lost without a word as the request goes out on it, the server had probably
        just given it up, and the request is sent once more, on a new one.

        Args:
            on_response: called when the headers are there; gives what takes the body's pieces.
            on_resend: called before it is sent once more.

        Raises:
            OSError: no connection.
            Disconnected: the answer is incomplete, or no HTTP.
        """
        head = f"{method} {path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n".encode()
        connection = self._idle_connection()
        if connection is not None:
            begin_s = time.perf_counter()
            try:
                return await self._exchange(connection, head + body, on_response)
            except Disconnected as error:
                if error.began or time.perf_counter() - begin_s > _CROSSING_S:
                    raise
                on_resend()
        return await self._exchange(await self._connect(), head + body, on_response)

    async def close(self) -> None:
        """Close all connections that no request is on."""
        for connection in (*self._idle, *self._lingering):
            connection.abort()
        self._idle.clear()

    async def _exchange(
        self, connection: "_Connection", request: bytes, on_response: Callable[[Response], OnBody]
    ) -> Response:
        try:
            response = await connection.exchange(request, on_response)
            is_over = await connection.is_over(within_s=_SOON_S)
        except BaseException:
            connection.abort()
            raise
        if is_over:
            self._put_back(connection)
        else:
            loop = asyncio.get_running_loop()
            self._lingering[connection] = loop.call_later(_LINGER_S, connection.abort)
            connection.when_over(lambda: self._see_off(connection))
        return response

    def _see_off(self, connection: "_Connection") -> None:
        """A message has ended that had no more to say."""
        self._lingering.pop(connection).cancel()
        self._put_back(connection)

    def _put_back(self, connection: "_Connection") -> None:
        if connection.is_reusable and len(self._idle) < _MOST_IDLE:
            self._idle.append(connection)
        else:
            connection.abort()

    def _idle_connection(self) -> "_Connection | None":
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable and connection.is_open:
                return connection
        return None

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            _Connection, self._address.host, self._address.port, ssl=self._ssl
        )
        return connection


class _Connection(asyncio.Protocol):
    """One connection; one request at a time. Methods named ``on_*`` are called by the parser.

    Attributes:
        is_reusable: whether it may take a request: not before the message of the last answer has ended.
    """

    def __init__(self) -> None:
        self.is_reusable = True
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[Response] | None = None
        self._over: asyncio.Future[None] | None = None
        self._now = 0.0

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes, on_response: Callable[[Response], OnBody]) -> Response:
        if self._transport is None or not self.is_open:
            raise Disconnected("the connection is closed", began=False)
        self._parser = httptools.HttpResponseParser(self)
        self._response = Response()
        self._on_response = on_response
        self._sink: OnBody | None = None
        loop = asyncio.get_running_loop()
        self._done, self._over = loop.create_future(), loop.create_future()
        self.is_reusable = False
        self._transport.write(request)
        return await self._done

    async def is_over(self, *, within_s: float) -> bool:
        """Whether the message in which an answer came ends within that time, or its connection does."""
        assert self._over is not None
        if not self._over.done():
            await asyncio.wait({self._over}, timeout=within_s)
        return self._over.done()

    def when_over(self, tell: Callable[[], None]) -> None:
        """Have it told when that is so."""
        assert self._over is not None
        self._over.add_done_callback(lambda _: tell())

    def abort(self) -> None:
        self.is_reusable = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        if self._over is None or self._over.done():
            self.abort()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(Disconnected(f"not HTTP: {error}", began=True))
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_reusable = False
        response = getattr(self, "_response", None)
        if self._done is None or response is None:
            return
        headers = response.headers
        ends_with_connection = response.status and not (
            "content-length" in headers or "transfer-encoding" in headers
        )
        if ends_with_connection and error is None:
            self._end(None)
        else:
            why = "the connection was closed" if error is None else str(error)
            self._end(Disconnected(why, began=response.status != 0))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._response.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._response.status = self._parser.get_status_code()
        if self._response.status >= 200:
            self._sink = self._on_response(self._response)

    def on_body(self, body: bytes) -> None:
        if self._sink is not None and self._sink(body, self._now):
            self._sink = None
            self._complete()

    def on_message_complete(self) -> None:
        if self._response.status < 200:
            self._response = Response()  # "continue" and the like: the answer follows
            return
        self.is_reusable = self._parser.should_keep_alive()
        self._end(None)

    def _complete(self) -> None:
        """The answer is there."""
        if self._done is not None and not self._done.done():
            self._done.set_result(self._response)

    def _end(self, error: Exception | None) -> None:
        """The message is over: there is no more of it."""
        if self._done is None or self._over is None or self._over.done():
            return
        self._over.set_result(None)
        if error is None:
            self._complete()
        elif not self._done.done():
            self._done.set_exception(error)
