"""The page's files: what is served, with which headers, and the colours in them."""

import re
from itertools import combinations

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from real_server import Server

from octavo.server.routes import page
from octavo.server.routes.page import WEB_FILES, read_web_files


@pytest.fixture
def web() -> TestClient:
    app = FastAPI()
    app.include_router(page.router)
    return TestClient(app)


@pytest.mark.parametrize("name", WEB_FILES)
def test_each_file_is_served_as_what_it_is(web: TestClient, name: str) -> None:
    answer = web.get(f"/web/{name}")
    assert answer.status_code == 200
    assert answer.content == read_web_files()[name].body
    assert answer.headers["content-type"] == WEB_FILES[name]
    assert answer.headers["content-security-policy"].startswith("default-src 'self'")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    again = web.get(f"/web/{name}", headers={"If-None-Match": f'"other", W/{answer.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert web.get(f"/web/{name}", headers={"If-None-Match": '"other"'}).status_code == 200
    assert web.head(f"/web/{name}").content == b""


def test_the_list_is_what_the_folder_holds() -> None:
    from importlib.resources import files

    held = {entry.name for entry in files("octavo.server").joinpath("web").iterdir()}
    assert held == set(WEB_FILES)


@pytest.mark.parametrize(
    "path",
    [
        "x",
        "../settings.py",
        "..%2fsettings.py",
        "%2e%2e%2fsettings.py",
        "....//settings.py",
        "/etc/passwd",
        "a%00.js",
    ],
)
def test_nothing_else_is_served(web: TestClient, path: str) -> None:
    answer = web.get(f"/web/{path}")
    assert answer.status_code == 404
    assert b"import" not in answer.content


def test_nothing_in_the_page_needs_another_host_or_inline_code() -> None:
    for name, web_file in read_web_files().items():
        text = web_file.body.decode()
        addresses = set(re.findall(r"https?://[^\s\"')]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not addresses, name
        assert not re.search(r"\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval)\b", text), name
        if name.endswith(".html"):
            assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*src=)", text), name


def test_the_server_serves_the_page(server: Server) -> None:
    with server.http() as client:
        answer = client.get("/")
        assert answer.status_code == 200
        assert "<title>Octavo</title>" in answer.text
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        for name in re.findall(r"(?:src|href)=\"(/[^\"]+)\"", answer.text):
            assert client.get(name).status_code == 200, name
        path = client.build_request("GET", "/web/../settings.py").url.copy_with(
            raw_path=b"/web/..%2fsettings.py"
        )
        assert client.send(httpx.Request("GET", path)).status_code == 404


# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def lab(hex_colour: str, blindness: str) -> np.ndarray:
    """CIELAB of a colour as seen."""
    srgb = np.array([int(hex_colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(BLINDNESS[blindness]) @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    ratio = to_xyz @ seen / np.array([0.9505, 1.0, 1.089])
    f = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("blindness", BLINDNESS)
def test_the_colour_blind_can_tell_the_states_apart(theme: int, blindness: str) -> None:
    css = read_web_files()["style.css"].body.decode()
    states = {m[0]: m[1:][theme] for m in re.findall(r"--state-(\w+): light-dark\((#\w{6}), (#\w{6})\)", css)}
    assert len(states) == 6
    seen = {name: lab(colour, blindness) for name, colour in states.items()}
    for one, other in combinations(seen, 2):
        # About 2.3 can just be seen side by side; cells are small, so ask for much more.
        assert np.linalg.norm(seen[one] - seen[other]) > 18, (one, other)
