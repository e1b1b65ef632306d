"""GGUF files: what is read, what is refused, and that damage never surprises."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.errors import CorruptModel, ModelNotFound, OctavoError, UnsupportedModel
from octavo.weights.encoding import dequantize
from octavo.weights.gguf import open_gguf

TYPES = gguf.GGMLQuantizationType
ENCODED = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]
SUPERBLOCKS = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
CONVERTED = ["IQ4_NL", "IQ4_XS", "IQ3_S"]


def raw_rows(type_name: str, shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    """Random bytes in the given type, as the writer takes them."""
    values_per_block, block_bytes = gguf.GGML_QUANT_SIZES[TYPES[type_name]]
    row_bytes = shape[1] // values_per_block * block_bytes
    return np.random.default_rng(seed).integers(0, 64, (shape[0], row_bytes), np.uint8)


def write_gguf(path: Path, tensors: dict[str, tuple[str, np.ndarray]], fill=lambda writer: None) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    fill(writer)
    for name, (type_name, data) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=TYPES[type_name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def fill_metadata(writer: gguf.GGUFWriter) -> None:
    writer.add_uint8("k.u8", 255)
    writer.add_int8("k.i8", -128)
    writer.add_uint16("k.u16", 65535)
    writer.add_int16("k.i16", -32768)
    writer.add_uint32("k.u32", 2**32 - 1)
    writer.add_int32("k.i32", -(2**31))
    writer.add_uint64("k.u64", 2**64 - 1)
    writer.add_int64("k.i64", -(2**63))
    writer.add_float32("k.f32", 0.5)
    writer.add_float64("k.f64", 1e300)
    writer.add_bool("k.true", True)
    writer.add_bool("k.false", False)
    writer.add_string("k.text", "é 漢 🙂")
    writer.add_array("k.texts", ["a", "", "Ġ t", "🙂"])
    writer.add_array("k.ints", [1, -2, 3])
    writer.add_array("k.floats", [0.25, -1.0])
    writer.add_array("k.bools", [True, False])


EXPECTED_METADATA = {
    "general.architecture": "llama",
    "k.u8": 255,
    "k.i8": -128,
    "k.u16": 65535,
    "k.i16": -32768,
    "k.u32": 2**32 - 1,
    "k.i32": -(2**31),
    "k.u64": 2**64 - 1,
    "k.i64": -(2**63),
    "k.f32": 0.5,
    "k.f64": 1e300,
    "k.true": True,
    "k.false": False,
    "k.text": "é 漢 🙂",
    "k.texts": ["a", "", "Ġ t", "🙂"],
    "k.ints": [1, -2, 3],
    "k.floats": [0.25, -1.0],
    "k.bools": [True, False],
}


def test_metadata_is_plain_python(tmp_path):
    checkpoint = open_gguf(write_gguf(tmp_path / "m.gguf", {}, fill_metadata))
    assert dict(checkpoint.metadata) == EXPECTED_METADATA
    for key, value in checkpoint.metadata.items():
        assert type(value) is type(EXPECTED_METADATA[key])
        if isinstance(value, list):
            assert [type(item) for item in value] == [type(item) for item in EXPECTED_METADATA[key]]
    assert (checkpoint.kind, checkpoint.path) == ("gguf", tmp_path / "m.gguf")
    assert len(checkpoint.tensors) == 0


@pytest.mark.parametrize("alignment", [None, 8, 64, 4096])
def test_encodings_with_kernels_are_windows_of_the_file(tmp_path, alignment):
    shapes = dict.fromkeys(ENCODED, (3, 64)) | dict.fromkeys(SUPERBLOCKS, (3, 512))
    raw = {name: (name, raw_rows(name, shape, i)) for i, (name, shape) in enumerate(shapes.items())}
    fill = (lambda writer: writer.add_custom_alignment(alignment)) if alignment else (lambda writer: None)
    checkpoint = open_gguf(write_gguf(tmp_path / "m.gguf", raw, fill))
    assert list(checkpoint.tensors) == list(shapes)
    for name, shape in shapes.items():
        tensor = checkpoint.tensors[name]
        assert (tensor.name, tensor.encoding, tensor.shape) == (name, name, shape)
        assert np.array_equal(tensor.data, raw[name][1])
        assert tensor.data.dtype == np.uint8
        assert not tensor.data.flags.writeable
        assert not tensor.data.flags.owndata
        assert np.shares_memory(tensor.data, checkpoint.tensors[name].data)
        assert checkpoint.stored[name].type_name == name
        assert checkpoint.stored[name].num_bytes == tensor.num_bytes


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("type_name", CONVERTED)
def test_other_types_become_float32_as_the_library_has_it(tmp_path, type_name):
    data = raw_rows(type_name, (4, 512))
    checkpoint = open_gguf(write_gguf(tmp_path / "m.gguf", {"w": (type_name, data)}))
    assert checkpoint.stored["w"].type_name == type_name
    tensor = checkpoint.tensors["w"]
    assert (tensor.encoding, tensor.shape, tensor.data.shape) == ("F32", (4, 512), (4, 2048))
    expected = gguf.dequantize(data, TYPES[type_name])
    assert np.array_equal(dequantize(tensor), expected, equal_nan=True)
    assert np.count_nonzero(expected) > 100


def test_a_type_is_converted_only_when_asked_for(tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "m.gguf", {"w": ("IQ4_XS", raw_rows("IQ4_XS", (2, 256)))})
    calls = []
    monkeypatch.setattr(
        gguf, "dequantize", lambda *args: calls.append(args) or np.zeros((2, 256), np.float32)
    )
    checkpoint = open_gguf(path)
    assert "w" in checkpoint.tensors
    assert list(checkpoint.tensors) == ["w"]
    assert calls == []
    assert checkpoint.tensors["w"].num_bytes == 2 * 256 * 4
    assert len(calls) == 1


def test_vectors_and_three_dimensions(tmp_path):
    vector = np.arange(5, dtype=np.float32)
    experts = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)
    path = write_gguf(tmp_path / "m.gguf", {"v": ("F32", vector), "e": ("F32", experts)})
    tensors = open_gguf(path).tensors
    assert (tensors["v"].shape, tensors["v"].data.shape) == ((5,), (1, 20))
    assert (tensors["e"].shape, tensors["e"].data.shape) == ((2, 3, 4), (6, 16))
    assert np.array_equal(dequantize(tensors["v"]), vector)
    assert np.array_equal(dequantize(tensors["e"]), experts)


def test_missing_tensor_is_a_key_error(tmp_path):
    with pytest.raises(KeyError, match="nope"):
        open_gguf(write_gguf(tmp_path / "m.gguf", {})).tensors["nope"]


def test_a_type_nobody_can_read_is_named_with_its_tensor(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {"ids": ("I32", np.arange(4, dtype=np.int32))})
    with pytest.raises(UnsupportedModel, match="tensor 'ids' has type I32"):
        _ = open_gguf(path).tensors["ids"]


# Files written by hand, to be wrong in exactly one place.


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def entry(name: str | bytes, dims: list[int], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def build(pairs=(), entries=(), data=b"\0" * 64, *, version=3, num_tensors=None, num_pairs=None) -> bytes:
    num_tensors = len(entries) if num_tensors is None else num_tensors
    num_pairs = len(pairs) if num_pairs is None else num_pairs
    head = b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_pairs) + b"".join([*pairs, *entries])
    return head + b"\0" * (-len(head) % 32) + data


F32, Q8_0, Q4_0 = 0, 8, 2
ONE = [entry("w", [8, 2], F32, 0)]

BROKEN = {
    "empty": (b"", CorruptModel, "empty file"),
    "magic": (b"PK\3\4" + build()[4:], CorruptModel, r"starts with b'PK\\x03\\x04' instead of b'GGUF'"),
    "short": (b"GGU", CorruptModel, "the magic number at byte 0 needs 4 bytes, but the file ends at 3"),
    "version 1": (build(version=1), UnsupportedModel, "GGUF version 1; Octavo reads versions"),
    "version 4": (build(version=4), UnsupportedModel, "GGUF version 4"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), UnsupportedModel, "big-endian"),
    "tensor count": (build(num_tensors=10**15), CorruptModel, "1,000,000,000,000,000 tensors announced"),
    "pair count": (build(num_pairs=2**63), CorruptModel, "metadata entries announced at byte 24"),
    "key twice": (build([pair("a", 0, b"1")] * 2), CorruptModel, "metadata key 'a' appears twice"),
    "value type": (build([pair("a", 99, b"1")]), CorruptModel, "'a' has unknown value type 99"),
    "string length": (
        build([pair("a", 8, struct.pack("<Q", 2**40))]),
        CorruptModel,
        "the value of 'a' at byte 37 is 1,099,511,627,776 bytes long, but the file ends at",
    ),
    "array length": (
        build([pair("a", 9, struct.pack("<IQ", 4, 2**60))]),
        CorruptModel,
        "elements of 'a' announced",
    ),
    "array of strings": (
        build([pair("a", 9, struct.pack("<IQ", 8, 2**60))]),
        CorruptModel,
        "elements of 'a' announced",
    ),
    "array type": (
        build([pair("a", 9, struct.pack("<IQ", 77, 1))]),
        CorruptModel,
        "array of unknown type 77",
    ),
    "deep array": (
        build([pair("a", 9, struct.pack("<IQ", 9, 1) * 9)]),
        CorruptModel,
        "array of unknown type 9 at depth 4",
    ),
    "not UTF-8": (build([pair("a", 8, text(b"\xff\xfe"))]), CorruptModel, "the value of 'a' .* is not UTF-8"),
    "alignment 0": (build([pair("general.alignment", 4, b"\0" * 4)]), CorruptModel, "general.alignment is 0"),
    "alignment 24": (
        build([pair("general.alignment", 4, struct.pack("<I", 24))]),
        CorruptModel,
        "general.alignment is 24, not a power of two",
    ),
    "alignment text": (build([pair("general.alignment", 8, text("x"))]), CorruptModel, "alignment is 'x'"),
    "split": (build([pair("split.count", 2, b"\3\0")]), UnsupportedModel, "one of 3 parts of a split model"),
    "tensor twice": (
        build(entries=[entry("w", [4], F32, 0), entry("w", [4], F32, 32)]),
        CorruptModel,
        "tensor 'w' .* appears twice",
    ),
    "no dimensions": (build(entries=[entry("w", [], F32, 0)]), CorruptModel, "'w' has 0 dimensions"),
    "dimensions": (build(entries=[entry("w", [1] * 9, F32, 0)]), CorruptModel, "'w' has 9 dimensions"),
    "zero rows": (build(entries=[entry("w", [4, 0], F32, 0)]), CorruptModel, r"'w' of shape \(0, 4\)"),
    "broken block": (
        build(entries=[entry("w", [33], Q8_0, 0)]),
        CorruptModel,
        r"'w' of shape \(33,\) does not have rows of whole Q8_0 blocks of 32",
    ),
    "unknown type": (build(entries=[entry("w", [4], 99, 0)]), UnsupportedModel, "'w' has type number 99"),
    "removed type": (build(entries=[entry("w", [4], 4, 0)]), UnsupportedModel, "'w' has type number 4"),
    "offset beyond the end": (
        build(entries=[entry("w", [4], F32, 1 << 40)]),
        CorruptModel,
        r"tensor 'w' \(F32, shape \(4,\)\) takes bytes 1,099,511,627,840 to .*, but the file ends at 128",
    ),
    "tensor beyond the end": (
        build(entries=[entry("w", [64], F32, 0)]),
        CorruptModel,
        "takes bytes 64 to 320, but the file ends at 128",
    ),
    "huge dimensions": (
        build(entries=[entry("w", [2**63, 2**63], F32, 0)]),
        CorruptModel,
        "but the file ends at 160",
    ),
    "crooked offset": (
        build(entries=[entry("w", [4], F32, 4)]),
        CorruptModel,
        "has offset 4, not a multiple of the alignment 32",
    ),
    "overlap": (
        build(entries=[entry("a", [12], F32, 0), entry("b", [4], F32, 32)]),
        CorruptModel,
        "tensor 'b' .* starts at offset 32 inside tensor 'a'",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_file_is_named_with_its_fault(tmp_path, case):
    content, kind, message = BROKEN[case]
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(kind, match=message) as caught:
        open_gguf(path)
    assert str(path) in str(caught.value)


def test_the_hand_written_file_is_right_when_nothing_is_wrong(tmp_path):
    path = tmp_path / "m.gguf"
    nested = pair("a", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQHH", 2, 2, 5, 6))
    for version in (2, 3):
        path.write_bytes(build([nested], ONE, np.arange(16, dtype=np.float32).tobytes(), version=version))
        checkpoint = open_gguf(path)
        assert checkpoint.metadata == {"a": [[5, 6]]}
        expected = np.arange(16, dtype=np.float32).reshape(2, 8)
        assert np.array_equal(dequantize(checkpoint.tensors["w"]), expected)


def test_missing_file_and_directory(tmp_path):
    with pytest.raises(ModelNotFound, match=r"none\.gguf: No such file"):
        open_gguf(tmp_path / "none.gguf")
    with pytest.raises(ModelNotFound, match="Is a directory"):
        open_gguf(tmp_path)


# Damage of every kind: a file loads, or an OctavoError says why not.


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> bytes:
    def fill(writer):
        writer.add_uint32("k.u32", 7)
        writer.add_string("k.text", "é")
        writer.add_array("k.texts", ["a", "bc"])
        writer.add_array("k.ints", [1, 2])

    tensors = {name: (name, raw_rows(name, (2, 32))) for name in ("F32", "BF16", "Q4_1", "Q5_0")}
    return write_gguf(tmp_path_factory.mktemp("gguf") / "m.gguf", tensors, fill).read_bytes()


OUTCOMES = {"loaded", "CorruptModel", "UnsupportedModel"}


def open_bytes(directory: Path, content: bytes) -> str:
    """Open and read everything; say how it ended."""
    path = directory / "damaged.gguf"
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    try:
        checkpoint = open_gguf(path)
        for name in checkpoint.tensors:
            dequantize(checkpoint.tensors[name])
    except OctavoError as error:
        return type(error).__name__
    return "loaded"


def test_every_truncation_is_noticed(tmp_path, sample):
    data_end = len(sample) - (-gguf.GGML_QUANT_SIZES[TYPES.Q5_0][1] * 2 % 32)
    assert open_bytes(tmp_path, sample) == "loaded"
    assert open_bytes(tmp_path, sample[:data_end]) == "loaded"
    assert {open_bytes(tmp_path, sample[:length]) for length in range(data_end)} == {"CorruptModel"}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_changed_byte_loads_or_is_refused(tmp_path, sample):
    outcomes = {
        open_bytes(tmp_path, sample[:position] + bytes([value]) + sample[position + 1 :])
        for position in range(len(sample))
        for value in {0, 255, sample[position] ^ 1, sample[position] ^ 128}
    }
    assert outcomes == OUTCOMES


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(max_examples=200)
@given(
    changes=st.lists(st.tuples(st.integers(0, 2000), st.binary(min_size=1, max_size=8)), max_size=6),
    cut=st.integers(0, 2000),
)
def test_arbitrary_damage_loads_or_is_refused(tmp_path_factory, sample, changes, cut):
    content = bytearray(sample)
    for position, replacement in changes:
        content[position : position + len(replacement)] = replacement
    directory = tmp_path_factory.getbasetemp()
    assert open_bytes(directory, bytes(content[: len(content) - cut // 20])) in OUTCOMES


@settings(max_examples=100)
@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused(tmp_path_factory, content):
    directory = tmp_path_factory.getbasetemp()
    assert open_bytes(directory, content) == "CorruptModel"
    assert open_bytes(directory, b"GGUF\3\0\0\0" + content) in OUTCOMES


# The real file.


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_smollm2_equals_what_the_gguf_library_reads(smollm2_path):
    checkpoint = open_gguf(smollm2_path)
    reader = gguf.GGUFReader(smollm2_path)
    fields = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert dict(checkpoint.metadata) == fields
    assert len(fields["tokenizer.ggml.tokens"]) == 49152
    assert list(checkpoint.tensors) == [tensor.name for tensor in reader.tensors]
    assert len(reader.tensors) == 272
    for expected in reader.tensors:
        tensor = checkpoint.tensors[expected.name]
        assert tensor.encoding == expected.tensor_type.name
        assert tensor.shape == tuple(int(size) for size in reversed(expected.shape))
        assert np.array_equal(tensor.data.reshape(-1), expected.data.reshape(-1).view(np.uint8))
    for name in ("blk.3.attn_q.weight", "output_norm.weight", "token_embd.weight"):
        (expected,) = [tensor for tensor in reader.tensors if tensor.name == name]
        values = gguf.dequantize(expected.data, expected.tensor_type)
        assert np.array_equal(dequantize(checkpoint.tensors[name]), values)
