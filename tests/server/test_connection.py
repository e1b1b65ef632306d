"""Connections on which a request never comes whole, or comes in pieces, or too large."""

import asyncio
import json

import pytest
import uvicorn

from octavo.server import connection
from octavo.server.connection import BoundedConnection


async def answer(scope, receive, send) -> None:
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message["body"]
        if not message["more_body"]:
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def talk(*sent: bytes, pause_s: float = 0.0) -> bytes:
    """What comes back of a connection on which these come, with pauses, until it is closed."""

    async def whole() -> bytes:
        config = uvicorn.Config(
            answer, host="127.0.0.1", port=0, http=BoundedConnection, lifespan="off", log_config=None
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for piece in sent:
            writer.write(piece)
            await asyncio.sleep(pause_s)
        got = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        server.should_exit = True
        await serving
        return got

    return asyncio.run(whole())


def code(got: bytes) -> str:
    return json.loads(got.partition(b"\r\n\r\n")[2])["error"]["code"]


HEADER = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"


@pytest.mark.parametrize("sent", [b"", b"P", b"POST / HTTP/1.1\r\nHost: x\r\n", HEADER, HEADER + b"ab"])
def test_what_does_not_come_whole_is_given_up(monkeypatch: pytest.MonkeyPatch, sent: bytes):
    monkeypatch.setattr(connection, "HEADER_S", 0.2)
    monkeypatch.setattr(connection, "BODY_S", 0.4)
    got = talk(sent)
    assert got.startswith(b"HTTP/1.1 408 ")
    assert code(got) == "timeout"


def test_what_comes_slowly_but_in_time_is_answered():
    last = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 4\r\n\r\n"
    got = talk(HEADER[:20], HEADER[20:], b"ab", b"cd" + last + b"efgh", pause_s=0.1)
    assert got.count(b"HTTP/1.1 200") == 2
    assert b"abcd" in got
    assert b"efgh" in got


def test_a_header_has_a_size_and_a_body_has_another():
    size = connection.MAX_HEADER_BYTES
    close = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    assert code(talk(close + b"X-Large: " + b"a" * size)) == "header_too_large"
    assert b"a" * size in talk(close + b"Content-Length: %d\r\n\r\n" % size + b"a" * size)
    assert code(talk(b"\x00\xff nonsense\r\n\r\n")) == "invalid_http"


def test_requests_in_a_row_have_limits():
    quick = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    assert talk(quick * 3 + quick.replace(b"x", b"x\r\nConnection: close")).count(b"HTTP/1.1 200") == 4
    got = talk(quick * (connection.MAX_BEHIND + 2))
    assert got.endswith(b"}}")
    assert code(got) == "too_many_in_a_row"
