"""What tells one model from another."""

import os

import pytest

from octavo.bench.conditions import conditions, model_digest
from octavo.core.errors import ModelNotFound

MIB = 1 << 20
HEAD = {"octavo": "1", "machine": {"cpu": "C", "isa": "i"}}


def test_the_machine_and_the_model(tmp_path, monkeypatch):
    file = tmp_path / "m.gguf"
    file.write_bytes(b"m")
    monkeypatch.setattr("octavo._native.usable_cores", lambda: 7)
    assert conditions(HEAD, str(file)) == {
        "octavo": "1",
        "cpu": "C",
        "isa": "i",
        "usable_cores": 7,
        "model_digest": model_digest(file),
    }
    with pytest.raises(ModelNotFound):
        conditions(HEAD, str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("place", "new"),
    [
        (0, b"x"),
        (MIB + MIB // 2, b"x"),  # one byte in the middle
        (3 * MIB - 1, b"x"),
        (3 * MIB, b"\0"),  # a byte more
    ],
)
def test_every_byte_of_a_file_counts(tmp_path, place, new):
    file = tmp_path / "m.gguf"
    file.write_bytes(bytes(3 * MIB))
    before, times = model_digest(file), file.stat()
    with file.open("r+b") as content:
        content.seek(place)
        content.write(new)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert model_digest(file) != before
    # A copy is the same model, whenever it was made.
    file.write_bytes(bytes(3 * MIB))
    assert model_digest(file) == before


def test_bytes_of_one_file_are_not_those_of_the_next(tmp_path):
    digests = set()
    for name, contents in (("a", ("xy", "z")), ("b", ("x", "yz"))):
        (tmp_path / name).mkdir()
        for number, content in enumerate(contents):
            (tmp_path / name / f"{number}.safetensors").write_text(content)
        digests.add(model_digest(tmp_path / name))
    assert len(digests) == 2


def test_a_name_alone_makes_no_other_model(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"m")
    (tmp_path / "b.gguf").write_bytes(b"m")
    assert model_digest(tmp_path / "a.gguf") == model_digest(tmp_path / "b.gguf")


def test_a_directory_is_what_a_model_is_loaded_from(tmp_path):
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes(b"m")
    before = model_digest(tmp_path)
    (tmp_path / "sweep.jsonl").write_bytes(b"a journal")
    (tmp_path / "report.json").write_bytes(b"{}")
    assert model_digest(tmp_path) == before
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes(b"n")
        assert model_digest(tmp_path) != before
        (tmp_path / name).write_bytes(b"m")
