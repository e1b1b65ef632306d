"""A server on this machine, for what only a network does."""

import pytest
from source_case import Server


@pytest.fixture
def server(monkeypatch):
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    server = Server()
    yield server
    server.close()
