"""What tells one model from another without reading all of it."""

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
    ("change", "is_seen"),
    [
        ((0, b"x"), True),
        ((3 * MIB - 1, b"x"), True),
        ((3 * MIB, b"\0"), True),  # a byte more
        ((MIB + MIB // 2, b"x"), False),  # in the middle: that is not read
    ],
)
def test_ends_and_size_of_a_file(tmp_path, change, is_seen):
    file = tmp_path / "m.gguf"
    file.write_bytes(bytes(3 * MIB))
    before = model_digest(file)
    assert model_digest(file) == before
    place, new = change
    with file.open("r+b") as content:
        content.seek(place)
        content.write(new)
    assert (model_digest(file) != before) == is_seen


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
