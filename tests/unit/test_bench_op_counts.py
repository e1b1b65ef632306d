"""Bytes and operations of known shapes."""

import numpy as np
import pytest

from octavo.attention.plan import StepInputs
from octavo.bench.parts.kernel_case import MODELS, QWEN3, SMOLLM2
from octavo.bench.parts.op_counts import CountingLoader, CountingOps, join_counts
from octavo.bench.parts.random_weights import float_tensor, random_weight
from octavo.storage.layout import KVLayout
from octavo.weights.encoding import dequantize

HEADS, KV_HEADS, DIM, SIZE = 9, 3, 64, 16
Q = HEADS * DIM
QKV = (HEADS + 2 * KV_HEADS) * DIM


def step_of(*work: tuple[int, int, int, bool], tables: np.ndarray | None = None) -> StepInputs:
    """Rows as (row, context, new tokens, wants logits)."""
    table = np.arange(1, 1 + 4 * 64, dtype=np.int32).reshape(4, 64) if tables is None else tables
    return StepInputs.build([(r, c, [0] * n, w) for r, c, n, w in work], (table,))


def ops_of(step: StepInputs, *, dtype="bfloat16", window: int | None = None) -> CountingOps:
    layout = KVLayout.uniform(num_layers=2, num_kv_heads=KV_HEADS, head_dim=DIM, block_size=SIZE, dtype=dtype)
    return CountingOps(step, layout, HEADS, (None, window))


def weight(encoding: str, n: int, k: int):
    return random_weight(np.random.default_rng(0), encoding, n, k)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("encoding", "bytes_per_32", "arithmetic"),
    [
        ("Q4_0", 18, "int8"),
        ("Q4_1", 20, "int8"),
        ("Q8_0", 34, "int8"),
        ("BF16", 64, "bfloat16"),
        ("F16", 64, "float32"),
        ("F32", 128, "float32"),
    ],
)
def test_linear(encoding, bytes_per_32, arithmetic):
    loader = CountingLoader()
    layer = loader.load_linear([weight(encoding, 576, 96)])
    assert (layer.num_outputs, layer.num_inputs, layer.arithmetic) == (576, 96, arithmetic)
    assert layer.num_bytes == 576 * 3 * bytes_per_32
    ops = ops_of(step_of((0, 0, 5, True)))
    x = ops.embed(loader.load_embedding(weight(encoding, 1000, 96)))
    ops.linear(x, layer)
    ops.linear(x, layer, residual=x)
    embed, plain, added = ops.counts
    assert (embed.streamed_bytes, embed.activation_bytes, embed.operations) == (
        5 * 3 * bytes_per_32,
        5 * 96 * 4,
        0,
    )
    assert plain.streamed_bytes == layer.num_bytes
    assert plain.operations == added.operations == 2 * 5 * 96 * 576
    assert plain.activation_bytes == 5 * (96 + 576) * 4
    assert added.activation_bytes == 5 * (96 + 2 * 576) * 4
    assert plain.arithmetic == arithmetic


def test_linear_of_several_matrices_and_odd_sizes():
    q, k = weight("Q4_1", 40, 64), weight("Q8_0", 17, 64)
    bias = float_tensor(np.zeros(40, np.float32)), float_tensor(np.zeros(17, np.float32))
    layer = CountingLoader().load_linear([q, k], bias)
    assert layer.num_outputs == 57
    assert layer.num_bytes == 48 * 2 * 20 + 32 * 2 * 34 + 57 * 4  # padded to panels of 16 outputs
    assert CountingLoader("float32").load_linear([q]).arithmetic == "float32"


def test_only_wanted_logits_are_computed():
    loader = CountingLoader()
    ops = ops_of(step_of((0, 0, 5, False), (1, 3, 2, True)))
    x = ops.select(ops.embed(loader.load_embedding(weight("F32", 100, 32))))
    logits = ops.linear(x, loader.load_linear([weight("F32", 100, 32)]))
    assert logits.width == 100
    select, head = ops.counts[1:]
    assert (select.label, select.activation_bytes) == ("select", 2 * 1 * 32 * 4)
    assert (head.label, head.operations) == ("lm_head", 2 * 32 * 100)


@pytest.mark.parametrize(
    ("dtype", "head_bytes"), [("bfloat16", 128), ("float16", 128), ("float32", 256), ("int8", 68)]
)
def test_attention(dtype, head_bytes):
    token_bytes = 2 * KV_HEADS * head_bytes
    ops = ops_of(step_of((0, 127, 1, True), (2, 30, 3, True)), dtype=dtype)
    x = ops.embed(CountingLoader().load_embedding(weight("F32", 10, QKV)))
    q = ops.rope_and_write(x, 0)
    ops.paged_attention(q, 0)
    write, attention = ops.counts[1:]
    assert q.width == Q
    assert write.streamed_bytes == 4 * token_bytes
    assert write.activation_bytes == 4 * (QKV + Q) * 4
    assert attention.streamed_bytes == (128 + 33) * token_bytes
    assert attention.operations == 4 * DIM * HEADS * (128 + 31 + 32 + 33)
    assert attention.arithmetic == ("float32" if dtype == "float16" else dtype)


def test_attention_sees_no_further_than_its_window():
    ops = ops_of(step_of((0, 100, 2, True)), window=10)
    q = ops.rope_and_write(ops.embed(CountingLoader().load_embedding(weight("F32", 10, QKV))), 1)
    ops.paged_attention(q, 1)
    ops.paged_attention(q, 0)
    near, far = ops.counts[-2:]
    assert near.operations == 4 * DIM * HEADS * 20
    assert near.streamed_bytes == 11 * 2 * KV_HEADS * DIM * 2  # positions 91..101
    assert far.streamed_bytes == 102 * 2 * KV_HEADS * DIM * 2


def test_shared_blocks_are_read_once():
    table = np.array([[1, 2, 3], [1, 2, 4]], np.int32)
    ops = ops_of(step_of((0, 39, 1, True), (1, 34, 1, True), tables=table))
    q = ops.rope_and_write(ops.embed(CountingLoader().load_embedding(weight("F32", 10, QKV))), 0)
    ops.paged_attention(q, 0)
    assert ops.counts[-1].streamed_bytes == (32 + 8 + 3) * 2 * KV_HEADS * DIM * 2
    assert ops.counts[-1].operations == 4 * DIM * HEADS * (40 + 35)


def test_small_operations():
    loader = CountingLoader()
    ops = ops_of(step_of((0, 0, 3, True)))
    x = ops.embed(loader.load_embedding(weight("F32", 10, 64)))
    norm = loader.load_vector(float_tensor(np.ones(64, np.float32)))
    ops.rms_norm(x, norm, 1e-5)
    ops.silu_mul(x)
    ops.head_norm(x, 0, 1, norm, 1e-5)
    rms, silu, head = ops.counts[1:]
    assert (rms.streamed_bytes, rms.activation_bytes) == (64 * 4, 2 * 3 * 64 * 4)
    assert silu.activation_bytes == 3 * (64 + 32) * 4
    assert head.activation_bytes == 2 * 3 * 64 * 4


def test_linear_layers_are_named_after_what_surrounds_them():
    loader = CountingLoader()
    ops = ops_of(step_of((0, 0, 3, True)))
    x = ops.embed(loader.load_embedding(weight("F32", 10, Q)))
    qkv = ops.linear(x, loader.load_linear([weight("F32", QKV, Q)]))
    attended = ops.paged_attention(ops.rope_and_write(qkv, 0), 0)
    x = ops.linear(attended, loader.load_linear([weight("F32", Q, Q)]), residual=x)
    gate_up = ops.linear(x, loader.load_linear([weight("F32", 64, Q)]))
    x = ops.linear(ops.silu_mul(gate_up), loader.load_linear([weight("F32", Q, 32)]), residual=x)
    ops.linear(ops.select(x), loader.load_linear([weight("F32", 10, Q)]))
    labels = [c.label for c in ops.counts if c.kind == "linear"]
    assert labels == ["qkv", "output", "gate_up", "down", "lm_head"]


def test_operations_that_run_as_one_do_not_move_what_lies_between():
    loader = CountingLoader()
    ops = ops_of(step_of((0, 0, 3, True)))
    x = ops.embed(loader.load_embedding(weight("F32", 10, 64)))
    y = ops.rms_norm(x, loader.load_vector(float_tensor(np.ones(64, np.float32))), 1e-5)
    ops.linear(y, loader.load_linear([weight("Q4_1", 32, 64)]))
    assert join_counts(ops.counts, ["embed", "rms_norm", "linear"]) == ops.counts
    embed, both = join_counts(ops.counts, ["embed", "rms_norm+linear"])
    assert embed == ops.counts[0]
    assert (both.kind, both.label) == ("rms_norm+linear", "rms_norm + linear")
    assert both.streamed_bytes == 64 * 4 + 32 * 2 * 20
    assert both.activation_bytes == 3 * (64 + 32) * 4
    assert (both.operations, both.arithmetic) == (2 * 3 * 64 * 32, "int8")
    for names in (
        ["embed", "rms_norm"],
        ["embed", "linear", "rms_norm"],
        ["embed", "rms_norm", "linear", "select"],
    ):
        with pytest.raises(ValueError, match="counted"):
            join_counts(ops.counts, names)


def test_sizes_of_the_measured_models():
    assert SMOLLM2.linears["qkv"] == (960, 576)
    assert SMOLLM2.linears["gate_up"] == (3072, 576)
    assert QWEN3.linears["output"] == (1024, 2048)
    assert all(set(m.linears) == {"qkv", "output", "gate_up", "down", "lm_head"} for m in MODELS)


@pytest.mark.parametrize("encoding", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_random_weights_keep_the_size_of_activations(encoding):
    values = dequantize(weight(encoding, 5000, 128))
    assert values.shape == (5000, 128)
    assert 0.7 < float(np.std(values)) * np.sqrt(128) < 1.4
    assert len(np.unique(values, axis=0)) >= 4096
