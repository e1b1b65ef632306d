"""One connection of a client: uvicorn's protocol, with what it leaves unbounded bounded.

A header has a size and a time in which it must come, a body a time; and when a connection is lost, every
request on it learns of that, also one that others were sent behind of (pipelining).
"""

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from octavo.server.errors import ApiError, json_bytes

MAX_HEADER_BYTES: Final = 64 << 10
HEADER_S: Final = 20.0  # from the connection, or from a request's first byte, to its last header
BODY_S: Final = 120.0  # from there to the end of its body
MAX_BEHIND: Final = 16  # requests that wait behind one on the same connection,
MAX_BEHIND_BYTES: Final = 64 << 10  # and bytes of the body of each


class BoundedConnection(HttpToolsProtocol):
    """What uvicorn is told to use for HTTP."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._cycles: list[RequestResponseCycle] = []
        self._deadline: asyncio.TimerHandle | None = None
        self._is_in_header = True
        self._num_header_bytes = 0

    # Of the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client came."""
        super().connection_made(transport)
        self._set_deadline(HEADER_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """It left: all of its requests end."""
        self._clear_deadline()
        self.pipeline.clear()
        for cycle in self._cycles:
            if not cycle.response_complete:
                cycle.disconnected = True
            cycle.message_event.set()
        self._cycles.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """More of a request, or of several."""
        super().data_received(data)
        if self._is_in_header:
            self._num_header_bytes += len(data)
            if self._num_header_bytes > MAX_HEADER_BYTES:
                self._refuse(431, f"the header is larger than {MAX_HEADER_BYTES} bytes", "header_too_large")

    def send_400_response(self, msg: str) -> None:
        """What came is not HTTP."""
        self._refuse(400, msg, "invalid_http")

    # Of one request

    def on_message_begin(self) -> None:
        """Its first byte."""
        super().on_message_begin()
        self._is_in_header = True
        self._num_header_bytes = 0
        self._set_deadline(HEADER_S)

    def on_headers_complete(self) -> None:
        """Its header is there."""
        self._is_in_header = False
        self._set_deadline(BODY_S)
        super().on_headers_complete()
        self._cycles = [cycle for cycle in self._cycles if not cycle.response_complete]
        self._cycles.append(self.cycle)
        if len(self.pipeline) > MAX_BEHIND:
            self._refuse(400, f"more than {MAX_BEHIND} requests wait on this connection", "too_many_in_a_row")
        elif self.pipeline:
            # Reading goes on behind a request that is served, or nobody would see that the client has left.
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        """More of its body."""
        super().on_body(body)
        if self.pipeline:
            if len(self.cycle.body) > MAX_BEHIND_BYTES:
                self._refuse(
                    413,
                    f"a body of more than {MAX_BEHIND_BYTES} bytes behind another request",
                    "body_too_large",
                )
            self.flow.resume_reading()

    def on_message_complete(self) -> None:
        """Its body is there."""
        self._clear_deadline()
        super().on_message_complete()

    def _set_deadline(self, seconds: float) -> None:
        self._clear_deadline()
        self._deadline = self.loop.call_later(seconds, self._expire)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        if not self.transport.is_closing():
            self._refuse(408, "the request did not come in time", "timeout")

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Say why, if nothing else was said on this connection, and end it."""
        if self.transport.is_closing():
            return
        if all(cycle.response_complete or not cycle.response_started for cycle in self._cycles):
            body = json_bytes(ApiError(status, message, code=code).body())
            head = (
                f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode("ascii") + body)
        self.transport.close()
