"""Server-sent events: one ``data:`` line of JSON per chunk, ``[DONE]`` in the end."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.server.answering.generating import until_left
from octavo.server.errors import as_api_error, json_bytes

DONE: Final = b"data: [DONE]\n\n"
_HEADERS: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_log = logging.getLogger("octavo.server")


def event(value: object) -> bytes:
    """One event."""
    return b"data: " + json_bytes(value) + b"\n\n"


class EventStream(Response):
    """Sends events as they come, and stops at once when the client has gone away.

    Args:
        events: values that become JSON. An error in the middle becomes the last of them, as the status has
            been sent long before.
        close: called in the end, whatever that was.
        ends_with_done: whether ``[DONE]`` comes last, as OpenAI's clients expect.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[Any],
        close: Callable[[], None] = lambda: None,
        *,
        ends_with_done: bool = True,
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._close = close
        self._ends_with_done = ends_with_done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything."""
        pump = asyncio.create_task(self._pump(send))
        watcher = asyncio.create_task(until_left(receive))
        try:
            await asyncio.wait({pump, watcher}, return_when=asyncio.FIRST_COMPLETED)
            if pump.done():
                pump.result()
        finally:
            for task in (pump, watcher):
                task.cancel()
            await asyncio.gather(pump, watcher, return_exceptions=True)
            self._close()

    async def _pump(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for value in self._events:
                await send({"type": "http.response.body", "body": event(value), "more_body": True})
        except Exception as error:
            told = as_api_error(error)
            if told.status == 500:
                _log.exception("a stream failed")
            await send({"type": "http.response.body", "body": event(told.body()), "more_body": True})
        last = DONE if self._ends_with_done else b""
        await send({"type": "http.response.body", "body": last, "more_body": False})
