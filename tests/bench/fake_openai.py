"""A server that streams completions on a schedule that is known beforehand, and fails when told to.

    python tests/bench/fake_openai.py '{"first_s": 0.1, "gap_s": 0.01}'

prints its URL and serves until it is ended. Every request gets the same behaviour; in tests a function
chooses. ``GET /log`` says when requests came and chunks went, by ``time.perf_counter``, which on Linux is one
clock for all processes of a machine.
"""

import asyncio
import contextlib
import json
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

_SO_TIMESTAMPING: Final = 37  # Linux: moments by the system's clock come with what is read
_OF_WHAT_IS_RECEIVED: Final = 8 | 16  # taken when it comes, by software


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What comes after a request.

    Attributes:
        first_s, gap_s: from the request to the first chunk, and from chunk to chunk.
        num_tokens: None is as many as are asked for.
        tokens_per_chunk: text of so many tokens in each chunk; the last may have fewer.
        empty_last: the last token has no text and comes with the reason of the end.
        status: other than 200 is an error with that status.
        break_after: close the connection after so many chunks.
        error_after: send an error event after so many chunks.
        garbage_after: send an event that is not JSON after so many chunks.
        no_finish: end without saying why.
        no_usage: do not count tokens.
        as_json: answer at once with JSON instead of a stream.
        dribble: send every event in pieces of so many bytes.
        line_end: of events.
        close: end the connection after the answer, whose length is not told.
        hang_up: end the connection after a complete answer, without having said so.
        drop_s: reset the connection after so many seconds instead of an answer.
        linger_s: from the last byte of the answer to the end of the message.
        events: sent before everything else, as they are.
        content_type, encoding: of the answer.
    """

    first_s: float = 0.0
    gap_s: float = 0.0
    num_tokens: int | None = None
    tokens_per_chunk: int = 1
    empty_last: bool = False
    status: int = 200
    break_after: int | None = None
    error_after: int | None = None
    garbage_after: int | None = None
    no_finish: bool = False
    no_usage: bool = False
    as_json: bool = False
    dribble: int | None = None
    line_end: str = "\n"
    close: bool = False
    hang_up: bool = False
    drop_s: float | None = None
    linger_s: float = 0.0
    events: tuple[object, ...] = ()
    content_type: str = "text/event-stream"
    encoding: str | None = None


@dataclass(slots=True)
class Asked:
    """A request as it came.

    Attributes:
        arrived_s: when the last of its body had come, by the system where it tells, else when it was read.
        number: how many its connection had brought before.
        written_s: when each chunk, or the last part of it, was handed to the socket.
    """

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    arrived_s: float
    number: int = 0
    written_s: list[float] = field(default_factory=list)


@dataclass(slots=True)
class FakeServer:
    """``async with FakeServer(choose) as server``: ``choose`` gives the behaviour of each generating request.

    Attributes:
        port: where it listens; 0 is a free one.
        forbidden: fields of a body that are answered with status 400.
        asked: all generating requests.
        num_running, most_running: requests in progress, now and at most.
    """

    choose: Callable[[Asked], Behaviour] = lambda _: Behaviour()
    port: int = 0
    forbidden: tuple[str, ...] = ()
    models: tuple[str, ...] = ("fake",)
    precision: str = ""
    memory: Callable[[], dict[str, Any] | None] = lambda: None
    asked: list[Asked] = field(default_factory=list)
    num_connections: int = 0
    num_running: int = 0
    most_running: int = 0
    url: str = ""
    _server: asyncio.Server | None = None
    _listener: "_TimedSocket" = field(init=False)
    _open: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> "FakeServer":
        self._listener = _TimedSocket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", self.port))
        self._server = await asyncio.start_server(self._serve, sock=self._listener)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        self.num_connections += 1
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                number = 0
                while await self._answer(reader, writer, number):
                    number += 1
        finally:
            self._open.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        method, path, _ = first.split()
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
        content = await reader.readexactly(int(headers.get("content-length", 0)))
        if method == "GET":
            return self._look_up(path, writer)
        arrived_s = self._listener.accepted[writer.get_extra_info("peername")].arrived_s
        asked = Asked(path, headers, json.loads(content), arrived_s, number)
        if wrong := [name for name in self.forbidden if name in asked.body]:
            _send(writer, 400, {"error": {"message": f"unknown field {wrong[0]}", "code": "extra"}})
            return True
        self.asked.append(asked)
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            return await self._stream(asked, self.choose(asked), writer)
        finally:
            self.num_running -= 1

    def _look_up(self, path: str, writer: asyncio.StreamWriter) -> bool:
        found: dict[str, Any] | None = None
        if path == "/v1/models":
            told = {"owned_by": "nobody"} | ({"precision": self.precision} if self.precision else {})
            found = {"data": [{"id": name, **told} for name in self.models]}
        elif path == "/version":
            found = {"version": "7.7"}
        elif path == "/v1/memory":
            found = self.memory()
        elif path == "/log":
            found = {
                "asked": [
                    {"prompt": a.body.get("prompt"), "arrived_s": a.arrived_s, "written_s": a.written_s}
                    for a in self.asked
                ]
            }
        _send(writer, 404 if found is None else 200, found or {"error": "not found"})
        return True

    async def _stream(self, asked: Asked, how: Behaviour, writer: asyncio.StreamWriter) -> bool:
        if how.drop_s is not None:
            await asyncio.sleep(how.drop_s)
            writer.transport.abort()
            return False
        if how.status != 200:
            _send(writer, how.status, {"error": {"message": f"told to answer {how.status}"}})
            return True
        if how.as_json:
            _send(writer, 200, {"choices": [{"text": "all at once", "finish_reason": "stop"}]})
            return True
        stream = _Stream(writer, how, asked)
        for event in how.events:
            stream.add_event(event)
        await stream.send()
        wanted = asked.body.get("max_tokens", 16) if how.num_tokens is None else how.num_tokens
        with_text = wanted - 1 if how.empty_last else wanted
        sizes = [how.tokens_per_chunk] * (with_text // how.tokens_per_chunk)
        sizes += [with_text % how.tokens_per_chunk] if with_text % how.tokens_per_chunk else []
        moment = asked.arrived_s + how.first_s
        for number, size in enumerate(sizes):
            await until(moment)
            moment += how.gap_s
            if number == how.break_after:
                writer.transport.abort()
                return False
            if number in (how.error_after, how.garbage_after):
                if number == how.error_after:
                    stream.add_event({"error": {"message": "the model caught fire", "code": 500}})
                else:
                    stream.add("data: {oops\n\n")
                stream.add_end()
                await stream.send()
                return True
            last = number == len(sizes) - 1 and not how.empty_last and not how.no_finish
            await stream.chunk(" tok" * size, "length" if last else None)
        if how.empty_last and not how.no_finish:
            await until(moment)
            await stream.chunk("", "length")
        if not how.no_usage and asked.body.get("stream_options", {}).get("include_usage"):
            prompt = asked.body.get("prompt", "")
            count = len(prompt) if isinstance(prompt, list) else len(str(prompt).split())
            usage = {"prompt_tokens": count, "completion_tokens": wanted}
            stream.add_event(
                {"choices": [], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": 3}}}
            )
        stream.add("data: [DONE]\n\n")
        if how.linger_s:
            await stream.send()
            await asyncio.sleep(how.linger_s)
        stream.add_end()
        await stream.send()
        return not (how.close or how.hang_up)


class _TimedSocket(socket.socket):
    """Knows when what was read last had come. Linux tells, so that it does not depend on when it was read.

    Attributes:
        accepted: by the other side's address.
    """

    def __init__(self, fileno: int | None = None) -> None:
        super().__init__(fileno=fileno)
        self.arrived_s = 0.0
        self.accepted: dict[tuple[str, int], _TimedSocket] = {}
        if sys.platform == "linux":
            self.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPING, _OF_WHAT_IS_RECEIVED)

    def accept(self) -> "tuple[_TimedSocket, tuple[str, int]]":
        plain, address = super().accept()
        self.accepted[address] = _TimedSocket(plain.detach())
        return self.accepted[address], address

    def recv(self, size: int, flags: int = 0) -> bytes:
        data, told, *_ = self.recvmsg(size, 64, flags)
        age_s = 0.0
        for level, kind, value in told:
            if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPING):
                seconds, nanoseconds = struct.unpack_from("@ll", value)
                age_s = (time.time_ns() - seconds * 10**9 - nanoseconds) / 1e9
        self.arrived_s = time.perf_counter() - age_s
        return data


class _Stream:
    """The answer to one request. What is added goes out in one write: each takes time from other streams."""

    def __init__(self, writer: asyncio.StreamWriter, how: Behaviour, asked: Asked) -> None:
        self._writer = writer
        self._how = how
        self._is_chat = asked.path.endswith("chat/completions")
        self._written_s = asked.written_s
        chunked = "" if how.close else "Transfer-Encoding: chunked\r\n"
        encoding = f"Content-Encoding: {how.encoding}\r\n" if how.encoding else ""
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {how.content_type}\r\n{encoding}{chunked}\r\n"
        self._parts = [head.encode()]
        if self._is_chat:
            self.add_event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})

    async def chunk(self, text: str, reason: str | None) -> None:
        said: dict[str, Any] = {"delta": {"content": text}} if self._is_chat else {"text": text}
        self.add_event({"choices": [{"index": 0, **said, "finish_reason": reason}]})
        self._written_s.append(await self.send())

    def add_event(self, value: object) -> None:
        self.add(f"data: {json.dumps(value)}\n\n")

    def add(self, text: str) -> None:
        data = text.replace("\n", self._how.line_end).encode()
        size = self._how.dribble or len(data)
        for begin in range(0, len(data), size):
            part = data[begin : begin + size]
            self._parts.append(part if self._how.close else b"%x\r\n%s\r\n" % (len(part), part))

    def add_end(self) -> None:
        if not self._how.close:
            self._parts.append(b"0\r\n\r\n")

    async def send(self) -> float:
        """Gives the moment just before the last write."""
        now = 0.0
        for part in self._parts if self._how.dribble else [b"".join(self._parts)]:
            now = time.perf_counter()
            self._writer.write(part)
            await self._writer.drain()
            if self._how.dribble:
                await asyncio.sleep(0)
        self._parts.clear()
        return now


def _send(writer: asyncio.StreamWriter, status: int, body: object) -> None:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} Said\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)


async def until(moment_s: float) -> None:
    """Wait, to a few microseconds if the loop has fine timers: the last part of it by asking the clock.

    That part is short: who keeps the processor busy is not given it at once when others want it too. Linux
    may end a wait a thousandth of its length too late, so a long one is ended early, and the rest waited for.
    """
    while (left_s := moment_s - time.perf_counter()) > 0:
        await asyncio.sleep(max(0.0, 0.995 * left_s - 0.0002))


def _fine_loop() -> asyncio.AbstractEventLoop:
    """One that wakes up within a tenth of a millisecond; others wait for whole ones, as epoll does."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


async def _main() -> None:
    how = Behaviour(**json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}"))
    async with FakeServer(lambda _: how) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=_fine_loop) as runner:
        runner.run(_main())
