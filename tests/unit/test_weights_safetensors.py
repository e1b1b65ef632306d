"""Safetensors models: one file and shards, what is refused, and that damage never surprises."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from octavo.core.errors import CorruptModel, ModelNotFound, OctavoError, UnsupportedModel
from octavo.weights.encoding import dequantize
from octavo.weights.safetensors import open_safetensors

CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 8, "rope_scaling": None}


def write_config(directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    return directory


def write_file(directory: Path, header: object, data: bytes, name: str = "model.safetensors") -> Path:
    """A file with exactly this header, which may be wrong."""
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    (write_config(directory) / name).write_bytes(len(content).to_bytes(8, "little") + content + data)
    return directory


def sample_tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(3, 4, generator=generator)
    return {
        "f32": values,
        "f16": values.to(torch.float16),
        "bf16": values.to(torch.bfloat16),
        "vector": torch.randn(7, generator=generator).to(torch.bfloat16),
        "scalar": torch.tensor(2.5),
        "experts": torch.randn(2, 3, 4, generator=generator),
    }


def assert_equals(checkpoint, tensors: dict[str, torch.Tensor]) -> None:
    assert set(checkpoint.tensors) == set(tensors)
    names = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    for name, expected in tensors.items():
        tensor = checkpoint.tensors[name]
        assert (tensor.name, tensor.shape) == (name, tuple(expected.shape))
        assert tensor.encoding == checkpoint.stored[name].type_name == names[expected.dtype]
        assert np.array_equal(dequantize(tensor), expected.to(torch.float32).numpy())
        assert tensor.num_bytes == expected.numel() * expected.element_size()
        assert not tensor.data.flags.owndata
        assert not tensor.data.flags.writeable


def test_one_file(tmp_path):
    save_file(sample_tensors(), write_config(tmp_path) / "model.safetensors", {"format": "pt"})
    checkpoint = open_safetensors(tmp_path)
    assert (checkpoint.kind, checkpoint.path, checkpoint.metadata) == ("safetensors", tmp_path, CONFIG)
    assert_equals(checkpoint, sample_tensors())
    shapes = {name: checkpoint.tensors[name].data.shape for name in ("f32", "vector", "scalar", "experts")}
    assert shapes == {"f32": (3, 16), "vector": (1, 14), "scalar": (1, 4), "experts": (6, 16)}


def test_one_file_of_another_name(tmp_path):
    save_file(sample_tensors(), write_config(tmp_path) / "weights.safetensors")
    assert_equals(open_safetensors(tmp_path), sample_tensors())


def test_unaligned_data(tmp_path):
    values = np.arange(6, dtype=np.float32)
    header = {"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
    content = json.dumps(header).encode()
    content += b" " * (-len(content) % 8 + 3)
    tensor = open_safetensors(write_file(tmp_path, content, values.tobytes())).tensors["w"]
    assert tensor.data.ctypes.data % 4 == 3
    assert np.array_equal(dequantize(tensor), values.reshape(2, 3))


def test_a_file_without_tensors(tmp_path):
    checkpoint = open_safetensors(write_file(tmp_path, {"__metadata__": {"a": "b"}}, b""))
    assert len(checkpoint.tensors) == 0


@pytest.fixture
def sharded(tmp_path) -> Path:
    tensors = sample_tensors()
    names = list(tensors)
    weight_map = {}
    for number, part in enumerate((names[:2], names[2:])):
        shard = f"model-0000{number + 1}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, write_config(tmp_path) / shard)
        weight_map |= dict.fromkeys(part, shard)
    write_index(tmp_path, weight_map)
    return tmp_path


def write_index(directory: Path, weight_map: object) -> None:
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def test_shards(sharded):
    assert_equals(open_safetensors(sharded), sample_tensors())


def test_shards_may_be_links_out_of_the_directory(sharded):
    blobs = sharded / "blobs"
    blobs.mkdir()
    for shard in sorted(sharded.glob("*.safetensors")):
        shard.rename(blobs / shard.name)
        shard.symlink_to(blobs / shard.name)
    assert_equals(open_safetensors(sharded), sample_tensors())


def test_missing_shard_is_named(sharded):
    (sharded / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(
        CorruptModel, match=r"names shard 'model-00002-of-00002\.safetensors', but .* No such file"
    ):
        open_safetensors(sharded)


def test_truncated_shard_is_named(sharded):
    shard = sharded / "model-00001-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CorruptModel, match=r"model-00001-of-00002\.safetensors: tensor '\w+' ends at byte"):
        open_safetensors(sharded)


def test_tensor_missing_from_its_shard_is_named(sharded):
    write_index(sharded, {"ghost": "model-00001-of-00002.safetensors"})
    with pytest.raises(CorruptModel, match="places tensor 'ghost' in model-00001"):
        open_safetensors(sharded)


@pytest.mark.parametrize("shard", ["../secret.safetensors", "/etc/passwd", "a/../../b", "..", "..\\x", ""])
def test_index_must_stay_in_the_directory(tmp_path, shard):
    model = write_config(tmp_path / "model")
    save_file(sample_tensors(), tmp_path / "secret.safetensors")
    write_index(model, {"f32": shard})
    with pytest.raises(CorruptModel, match=r"lies outside the model's directory|Is a directory"):
        open_safetensors(model)


@pytest.mark.parametrize("weight_map", [None, [], {"w": 3}, {"w": None}])
def test_malformed_index(tmp_path, weight_map):
    write_index(write_config(tmp_path), weight_map)
    with pytest.raises(CorruptModel, match="weight_map must map tensor names to file names"):
        open_safetensors(tmp_path)


def test_missing_files(tmp_path):
    with pytest.raises(ModelNotFound, match=r"config\.json: No such file"):
        open_safetensors(tmp_path)
    write_config(tmp_path)
    with pytest.raises(ModelNotFound, match=r"needs model\.safetensors or .*; safetensors files found: none"):
        open_safetensors(tmp_path)
    save_file(sample_tensors(), tmp_path / "a.safetensors")
    save_file(sample_tensors(), tmp_path / "b.safetensors")
    with pytest.raises(ModelNotFound, match=r"found: a\.safetensors, b\.safetensors"):
        open_safetensors(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "nul", '{"a": 1, "a": 2}', "[" * 100_000])
def test_broken_config(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(CorruptModel, match=r"config\.json: (not valid JSON|expected a JSON object)"):
        open_safetensors(tmp_path)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.bool, torch.float8_e4m3fn])
def test_unsupported_dtype_is_named_when_asked_for(tmp_path, dtype):
    tensors = {"odd": torch.zeros(4, dtype=dtype), "fine": torch.ones(2)}
    save_file(tensors, write_config(tmp_path) / "model.safetensors")
    checkpoint = open_safetensors(tmp_path)
    assert dequantize(checkpoint.tensors["fine"]).tolist() == [1, 1]
    with pytest.raises(
        UnsupportedModel, match=r"tensor 'odd' has dtype [A-Z]\w+; Octavo reads F32, F16, BF16"
    ):
        _ = checkpoint.tensors["odd"]


def test_empty_tensor_is_refused_when_asked_for(tmp_path):
    save_file({"none": torch.zeros(0, 4)}, write_config(tmp_path) / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=r"'none' of shape \(0, 4\) holds no values"):
        _ = open_safetensors(tmp_path).tensors["none"]


def described(**changes: object) -> dict[str, object]:
    return {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]} | changes


BROKEN = {
    "not an object": ([1], "expected a JSON object, found list"),
    "not JSON": (b"{]", "not valid JSON"),
    "not UTF-8": (b'{"\xff": 1}', "not valid JSON"),
    "a name twice": (b'{"w": {}, "w": {}}', "'w' appears twice"),
    "no description": ({"w": 3}, "the description of tensor 'w' is malformed: 3"),
    "no dtype": ({"w": described(dtype=None)}, "'w' is malformed"),
    "no shape": ({"w": described(shape="2x2")}, "'w' is malformed"),
    "negative size": ({"w": described(shape=[-2, -2])}, "'w' is malformed"),
    "true as size": ({"w": described(shape=[True, 4])}, "'w' is malformed"),
    "fraction as size": ({"w": described(shape=[2.0, 2])}, "'w' is malformed"),
    "huge size": ({"w": described(shape=[2**70])}, "'w' is malformed"),
    "many dimensions": ({"w": described(shape=[1] * 99)}, "'w' is malformed"),
    "one offset": ({"w": described(data_offsets=[16])}, "'w' is malformed"),
    "backwards": ({"w": described(data_offsets=[16, 0])}, "ends at byte 0, before its start at 16"),
    "too small": ({"w": described(shape=[2, 1])}, r"\(F32, shape \(2, 1\)\) does not fill its 16 bytes"),
    "beyond the end": (
        {"w": described(shape=[2, 3], data_offsets=[0, 24])},
        "'w' ends at byte 24 of the data, which has 16",
    ),
    "leading gap": (
        {"w": described(shape=[3], data_offsets=[4, 16])},
        "'w' at byte 4 leaves a gap after 'the header'",
    ),
    "overlap": (
        {
            "a": described(shape=[2], data_offsets=[0, 8]),
            "b": described(shape=[3], data_offsets=[4, 16]),
        },
        "'b' at byte 4 overlaps 'a', which ends at 8",
    ),
    "left over": (
        {"w": described(shape=[2], data_offsets=[0, 8])},
        "end at byte 8 of the data, which has 16",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_file_is_named_with_its_fault(tmp_path, case):
    header, message = BROKEN[case]
    with pytest.raises(CorruptModel, match=message) as caught:
        open_safetensors(write_file(tmp_path, header, bytes(16)))
    assert str(tmp_path / "model.safetensors") in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"\2\0\0", "only 3 bytes long"),
        (bytes(8), "not valid JSON"),
        (b"\xff" * 8 + b"{}", "said to be 18,446,744,073,709,551,615 bytes long; the file has 10"),
        (b"\3" + bytes(7) + b"{}", "said to be 3 bytes long; the file has 10"),
        ((100_000_001).to_bytes(8, "little") + b"{}", "the limit is 100,000,000"),
    ],
)
def test_broken_length(tmp_path, content, message):
    (write_config(tmp_path) / "model.safetensors").write_bytes(content)
    with pytest.raises(CorruptModel, match=message):
        open_safetensors(tmp_path)


# Damage of every kind: a file loads, or an OctavoError says why not.

OUTCOMES = {"loaded", "CorruptModel", "UnsupportedModel"}


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("safetensors") / "model.safetensors"
    save_file({"a": torch.ones(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}, path)
    return path.read_bytes()


def open_bytes(directory: Path, content: bytes) -> str:
    """Open and read everything; say how it ended."""
    path = write_config(directory) / "model.safetensors"
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    try:
        checkpoint = open_safetensors(directory)
        for name in checkpoint.tensors:
            dequantize(checkpoint.tensors[name])
    except OctavoError as error:
        return type(error).__name__
    return "loaded"


def test_every_truncation_is_noticed(tmp_path, sample):
    assert open_bytes(tmp_path, sample) == "loaded"
    assert {open_bytes(tmp_path, sample[:length]) for length in range(len(sample))} == {"CorruptModel"}


def test_every_changed_byte_loads_or_is_refused(tmp_path, sample):
    outcomes = {
        open_bytes(tmp_path, sample[:position] + bytes([value]) + sample[position + 1 :])
        for position in range(len(sample))
        for value in {0, 255, sample[position] ^ 1, sample[position] ^ 2, sample[position] ^ 128}
    }
    assert outcomes == OUTCOMES


@settings(max_examples=200)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 200), st.binary(min_size=1, max_size=8)), min_size=1, max_size=6
    )
)
def test_arbitrary_damage_loads_or_is_refused(tmp_path_factory, sample, changes):
    content = bytearray(sample)
    for position, replacement in changes:
        content[position : position + len(replacement)] = replacement
    assert open_bytes(tmp_path_factory.getbasetemp(), bytes(content)) in OUTCOMES
