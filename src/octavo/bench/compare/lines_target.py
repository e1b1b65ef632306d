"""A program that takes requests on standard input and answers on standard output, a JSON object per line.

For libraries that have no server. The program first says ``{"ready": true}``. A request is

    {"id": 7, "prompt": [1, 2, 3], "max_tokens": 16}

and is answered, when it is over, by one line, so that nothing is written while it runs:

    {"id": 7, "chunks": [[12.5, 1], [12.6, 1]], "prompt_tokens": 3, "cached_tokens": 0}

or by ``{"id": 7, "error": "why"}``. A chunk is the moment at which new tokens were there, and how many;
moments are by the system's monotonic clock (``time.perf_counter()`` on Linux), which all processes share.
Requests come at any time and run together; the model's end tokens do not end them. Without "chunks",
"output_tokens" says how many there were: the moments are then not known, and only rates are compared.
"""

import asyncio
import contextlib
import json
import math
import time
from collections.abc import Callable
from typing import Any, Final

from octavo.bench.load.exchange import BAD_ANSWER, BROKEN, NO_OUTPUT, REFUSED, TIMEOUT, Exchange
from octavo.bench.load.target import MemoryFacts
from octavo.bench.workloads.item import Prompt, prompt_as_json
from octavo.core.errors import OctavoError, shown

_GONE: Final = "the program ended"
# What reading a line that is not what it should be may raise; JSON may be nested too deeply to be read.
_NOT_IT: Final = (ValueError, KeyError, TypeError, RecursionError)


class LinesTarget:
    """Sends requests to such a program through its pipes.

    Args:
        timeout_s: for a whole request.
    """

    def __init__(
        self, stdin: asyncio.StreamWriter, stdout: asyncio.StreamReader, *, timeout_s: float
    ) -> None:
        self._stdin = stdin
        self._stdout = stdout
        self._timeout_s = timeout_s
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next_id = 0
        self._reading: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Wait until the program is ready.

        Raises:
            OctavoError: it ends before, or says something else.
        """
        line = await self._stdout.readline()
        if not line:
            await asyncio.Event().wait()  # whoever started it notices that it has ended
        try:
            is_ready = json.loads(line)["ready"] is True
        except _NOT_IT:
            is_ready = False
        if not is_ready:
            raise OctavoError(f'instead of {{"ready": true}} the program said {shown(line)}')
        self._reading = asyncio.create_task(self._read())

    async def close(self) -> None:
        """Tell it that nothing more comes."""
        if self._reading is not None:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading
        self._stdin.close()

    async def send(self, prompt: Prompt, max_tokens: int, exchange: Exchange) -> None:
        """Have a prompt continued."""
        number = self._next_id
        self._next_id += 1
        answered = asyncio.get_running_loop().create_future()
        self._waiting[number] = answered
        line = json.dumps({"id": number, "prompt": prompt_as_json(prompt), "max_tokens": max_tokens})
        exchange.sent_s = time.perf_counter()
        try:
            if self._reading is None or self._reading.done():
                raise ConnectionError
            self._stdin.write(line.encode() + b"\n")
            async with asyncio.timeout(self._timeout_s):
                await self._stdin.drain()
                _take(await answered, exchange)
        except TimeoutError:
            exchange.fail(TIMEOUT, f"after {self._timeout_s:g} s")
        except ConnectionError:
            exchange.fail(BROKEN, _GONE)
        finally:
            del self._waiting[number]
        exchange.closed_s = time.perf_counter()

    async def memory(self) -> MemoryFacts | None:
        """It does not tell."""
        return None

    def watch(self, see: Callable[[MemoryFacts], None] | None) -> bool:
        """It cannot."""
        return False

    def describe(self) -> dict[str, Any]:
        """For reports."""
        return {"kind": "program", "is_local": True, "ignore_eos": True}

    def peak_rss_bytes(self) -> int | None:
        """Known to whoever started it."""
        return None

    async def _read(self) -> None:
        with contextlib.suppress(ValueError):  # a line without end: nothing more can be understood
            while line := await self._stdout.readline():
                try:
                    found = json.loads(line)
                    answered = self._waiting.get(found["id"])
                except _NOT_IT:
                    continue  # libraries print all kinds of things
                if answered is not None and not answered.done():
                    answered.set_result(found)
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(ConnectionError(_GONE))


def _take(found: dict[str, Any], exchange: Exchange) -> None:
    if "error" in found:
        exchange.fail(REFUSED, str(found["error"]))
        return
    try:
        before = -math.inf
        for moment, count in found.get("chunks", ()):
            if not before <= moment < math.inf:
                raise ValueError(f"moment {shown(moment)} after {before}")
            before = moment
            exchange.chunk_s.append(float(moment))
            exchange.chunk_tokens.append(_integer(count, least=1))
        exchange.prompt_tokens = _integer(found["prompt_tokens"])
        exchange.output_tokens = _integer(found.get("output_tokens", sum(exchange.chunk_tokens)))
        if found.get("cached_tokens") is not None:
            exchange.cached_tokens = _integer(found["cached_tokens"])
    except (KeyError, TypeError, ValueError) as error:
        exchange.fail(BAD_ANSWER, f"{error!r} in {shown(found)}")
        return
    if not exchange.output_tokens:
        exchange.fail(NO_OUTPUT)
    exchange.finish_reason = "length"
    exchange.finish_s = exchange.chunk_s[-1] if exchange.chunk_s else time.perf_counter()
    exchange.finish_had_output = bool(exchange.chunk_s)


def _integer(value: Any, *, least: int = 0) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"{shown(value)} is no integer from {least}")
    return value
