"""Fixtures: the command line, and servers whose behaviour is known."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest
from fake_openai import Asked, Behaviour, FakeServer

from octavo.bench.load import stalls
from octavo.cli import main


@pytest.fixture(autouse=True)
def no_stalls(monkeypatch):
    """The load generator never calls itself late: machines that run tests are busy, and fake servers share
    its processor. The test of stalls sets a limit of its own.
    """
    monkeypatch.setattr(stalls, "_TIMER_S", 600.0)


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    """Lines do not depend on the terminal in which the tests run."""
    monkeypatch.setenv("COLUMNS", "1000")


@pytest.fixture
def run(capsys):
    """Runs a command line; gives exit status, standard output, standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        status = 0
        try:
            main([str(a) for a in arguments])
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else 1
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return status, captured.out, captured.err

    return run


@pytest.fixture
def no_model(tmp_path):
    """A file that is called like a model, and none can be loaded from."""
    file = tmp_path / "m.gguf"
    file.write_bytes(b"no model")
    return file


Fake = Callable[..., FakeServer]


@pytest.fixture
def fake() -> Iterator[Fake]:
    """Starts fake servers in a thread of their own; they end with the test."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    servers: list[FakeServer] = []

    def start(choose: Callable[[Asked], Behaviour] = lambda _: Behaviour(), **options: object) -> FakeServer:
        server = FakeServer(choose, **options)  # type: ignore[arg-type]
        asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(10)
        servers.append(server)
        return server

    yield start
    for server in servers:
        asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()
