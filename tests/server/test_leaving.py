"""Clients that vanish, too many of them, and a server that is told to stop."""

import asyncio
import itertools
import json
import signal
import socket
import threading
import time
from typing import Any

import httpx
import pytest
from real_server import Launch, Server

LONG: dict[str, Any] = {"prompt": "Count:", "max_tokens": 6000, "temperature": 1.0, "ignore_eos": True}


def test_fifty_clients_that_leave_in_mid_stream(server: Server):
    free = server.wait_until_idle()["pool"]
    total = free["free_blocks"] + free["cached_blocks"]

    async def leave(client: httpx.AsyncClient, number: int) -> None:
        ask = {**LONG, "prompt": f"{number}: once upon a time", "stream": number % 5 != 0}
        if not ask["stream"]:  # leaves without having seen anything
            with pytest.raises(httpx.ReadTimeout):
                await client.post("/v1/completions", json=ask, timeout=httpx.Timeout(60, read=0.5))
            return
        async with client.stream("POST", "/v1/completions", json=ask) as response:
            lines = response.aiter_lines()
            for _ in range(3):
                await anext(lines)

    async def all_of_them() -> None:
        limits = httpx.Limits(max_connections=60)
        async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as client:
            await asyncio.gather(*(leave(client, number) for number in range(50)))

    asyncio.run(all_of_them())
    pool = server.wait_until_idle()["pool"]
    assert pool["used_blocks"] == 0
    assert pool["free_blocks"] + pool["cached_blocks"] == total
    with server.http() as http:
        answer = http.post("/v1/completions", json={**LONG, "max_tokens": 4}).json()
    assert answer["usage"]["completion_tokens"] == 4


def test_a_full_queue_says_so_and_serves_the_rest(launch_server: Launch):
    server = launch_server("--max-waiting", "64", "--max-num-seqs", "8")

    async def ask(client: httpx.AsyncClient, number: int) -> int:
        body = {"prompt": f"Number {number} is", "max_tokens": 16, "temperature": 0, "ignore_eos": True}
        response = await client.post("/v1/completions", json=body)
        if response.status_code == 429:
            assert int(response.headers["retry-after"]) >= 1
            assert response.json()["error"]["code"] == "queue_full"
            assert "64" in response.json()["error"]["message"]
        else:
            assert response.status_code == 200
            assert response.json()["usage"]["completion_tokens"] == 16
        return response.status_code

    async def all_of_them() -> list[int]:
        limits = httpx.Limits(max_connections=300)
        async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(300)))

    statuses = asyncio.run(all_of_them())
    assert len(statuses) == 300
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= 64
    assert server.wait_until_idle()["pool"]["used_blocks"] == 0
    assert server.stop() == 0


def streaming(server: Server, ask: dict[str, Any]) -> tuple[threading.Thread, list[str]]:
    """A stream in a thread of its own that has begun; the lines it gets."""
    lines: list[str] = []

    def read() -> None:
        with server.http() as http, http.stream("POST", "/v1/completions", json={**ask, "stream": True}) as r:
            lines.extend(line for line in r.iter_lines() if line)

    def read_on() -> None:
        try:
            read()
        except httpx.HTTPError as error:
            lines.append(repr(error))

    thread = threading.Thread(target=read_on)
    thread.start()
    wait_until_running(server)
    return thread, lines


def wait_until_running(server: Server) -> None:
    end = time.monotonic() + 60
    while server.memory()["scheduler"]["num_running"] == 0:
        assert time.monotonic() < end
        time.sleep(0.01)


def texts(lines: list[str]) -> list[str]:
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line != "data: [DONE]"]
    return [chunk["choices"][0]["text"] for chunk in chunks]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_lets_what_runs_finish_and_takes_nothing_new(launch_server: Launch, signum: int):
    server = launch_server("--drain-timeout", "300")
    ask = {**LONG, "max_tokens": 900, "seed": 1}
    with server.http() as http:
        thread, lines = streaming(server, ask)
        server.process.send_signal(signum)
        deadline = time.monotonic() + 60
        while http.get("/ready").status_code == 200:
            assert time.monotonic() < deadline
        assert http.get("/ready").json() == {"status": "draining"}
        assert http.get("/health").status_code == 200
        late = http.post("/v1/completions", json={"prompt": "a"})
        assert late.status_code == 503
        assert late.headers["retry-after"]
        assert late.json()["error"]["code"] == "draining"
        thread.join(300)
    assert server.process.wait(60) == 0
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"


def test_what_takes_too_long_is_broken_off_and_told(launch_server: Launch):
    server = launch_server("--drain-timeout", "0.5")
    thread, lines = streaming(server, {**LONG, "max_tokens": 7000})
    assert server.stop() == 0
    thread.join(60)
    assert lines[-1] == "data: [DONE]"
    error = json.loads(lines[-2].removeprefix("data: "))["error"]
    assert error["code"] == "draining"


def test_a_second_signal_ends_at_once(launch_server: Launch):
    server = launch_server("--drain-timeout", "600")
    thread, _ = streaming(server, {**LONG, "max_tokens": 7000})
    server.process.send_signal(signal.SIGTERM)
    with server.http() as http:
        while http.get("/ready").status_code == 200:
            time.sleep(0.01)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0
    thread.join(30)


def test_those_who_leave_with_requests_in_a_row(server: Server):
    """Pipelined: a second request waits on the same connection when it is lost."""
    server.wait_until_idle()
    host, port = server.url.removeprefix("http://").split(":")
    for stream, comes_late in itertools.product((False, True), repeat=2):
        body = json.dumps({**LONG, "stream": stream}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
            if comes_late:
                wait_until_running(server)
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            wait_until_running(server)
            time.sleep(0.2)
        assert server.wait_until_idle()["pool"]["used_blocks"] == 0


def test_a_stop_in_the_middle_of_a_body(launch_server: Launch):
    server = launch_server()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 1000\r\n\r\n{"
        )
        time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        got = b""
        while piece := connection.recv(65536):
            got += piece
    assert server.process.wait(60) == 0
    assert got == b"" or got.startswith(b"HTTP/1.1 503 ")
    assert "Traceback" not in server.log_text()
