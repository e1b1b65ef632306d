"""Fixtures: servers, and clients of the one that most tests share."""

from collections.abc import Iterator

import httpx
import openai
import pytest
from browsing import launch_chromium
from playwright.sync_api import Browser, sync_playwright
from real_server import Launch, Server


@pytest.fixture(scope="session")
def launch_server(smollm2_path: object) -> Iterator[Launch]:
    """Starts servers that end with the session at the latest; each is checked to have logged no fault."""
    servers: list[Server] = []

    def launch(*options: str) -> Server:
        servers.append(Server(*options))
        return servers[-1]

    yield launch
    for server in servers:
        server.stop()
        assert "Traceback" not in server.log_text(), server.log_text()
        server.log.close()


@pytest.fixture(scope="session")
def server(launch_server: Launch) -> Server:
    """One for all tests that ask nothing special of it."""
    return launch_server()


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.openai() as client:
        yield client


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with server.http() as client:
        yield client


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium. Not longer than a module: other tests have event loops of their own."""
    with sync_playwright() as playwright:
        browser = launch_chromium(playwright)
        yield browser
        browser.close()
