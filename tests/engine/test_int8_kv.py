"""K and V as int8 on the real model: sensible text, room for nearly twice as many, the same however cut."""

import pytest

from octavo import LLM, SamplingParams
from octavo.engine.capacity import plan_layers
from octavo.models.loading import load_model
from octavo.paging.groups import plan_groups
from octavo.storage.layout import DTYPE_BYTES, KVLayout, tile_bytes

PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a lighthouse keeper who counted ships at dusk, and each of them",
    "1, 1, 2, 3, 5, 8,",
    " ".join(f"Ship {n} came in at dusk, and the keeper wrote it down." for n in range(1, 13)),
]
GREEDY = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
MIXED = {"0-9": 64, "10-19": 24, "20-29": 8}


@pytest.fixture(scope="module")
def spec(smollm2_path):
    return load_model(smollm2_path).spec


@pytest.fixture(scope="module")
def expected(smollm2_path) -> list[list[int]]:
    """One prompt after the other, nothing reused."""
    with LLM(smollm2_path, kv_dtype="int8", kv_memory="32MiB", prefix_cache=False) as llm:
        outputs = [llm.generate(prompt, GREEDY)[0] for prompt in PROMPTS]
        assert outputs[0].outputs[0].text.startswith(" Paris")
        assert all(c.text.isprintable() or "\n" in c.text for o in outputs for c in o.outputs)
        return [o.outputs[0].token_ids for o in outputs]


@pytest.mark.parametrize(
    "settings",
    [
        *({"block_size": size} for size in (8, 16, 24, 32, 64, 128)),
        {"block_size": {"0-9": 32, "10-29": 16}},
        {"max_step_tokens": 5},
        {"threads": 1, "block_size": 40},
    ],
    ids=str,
)
def test_the_same_tokens_however_they_are_cut(smollm2_path, expected, settings):
    with LLM(smollm2_path, kv_dtype="int8", kv_memory="32MiB", **settings) as llm:
        for _ in range(2):  # the second time from the cache
            found = [o.outputs[0].token_ids for o in llm.generate(PROMPTS, GREEDY)]
            assert found == expected
        assert llm.memory().stats.hit_tokens > 0


def test_nearly_twice_the_tokens(smollm2_path):
    num_tokens = {}
    for dtype in ("bfloat16", "int8"):
        with LLM(smollm2_path, kv_dtype=dtype, kv_memory="32MiB") as llm:
            num_tokens[dtype] = llm.capacity.num_tokens
            assert llm.capacity.padding == 0
            assert llm.capacity.num_bytes <= 32 << 20
    assert num_tokens["int8"] / num_tokens["bfloat16"] == pytest.approx(128 / 68, rel=0.02)


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
@pytest.mark.parametrize("block_size", [8, 16, 24, 40, 104, 128, {"0-9": 64, "10-29": 16}, MIXED], ids=str)
def test_frames_hold_their_tiles_and_no_more(spec, dtype, block_size):
    plan = plan_layers(spec, block_size, dtype)
    layout = KVLayout.grouped(
        plan.placement,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        frame_bytes=plan.frame_bytes,
        dtype=dtype,
    )
    assert plan.frame_bytes % 64 == 0
    ends = [
        tile.offset + tile_bytes(dtype, layer.block_size, spec.head_dim)
        for layer in layout.layers
        for tile in (*layer.k_tiles, *layer.v_tiles)
    ]
    assert max(ends) == plan.frame_bytes
    used = sum(
        2 * spec.num_kv_heads * tile_bytes(dtype, x.block_size, 64) / x.block_size for x in layout.layers
    )
    assert plan.bytes_per_token * (1 - plan.padding) == pytest.approx(used)
    if isinstance(block_size, int):
        assert plan.padding == 0
    if dtype != "int8":
        assert plan == plan_groups(
            block_size, num_layers=30, num_kv_heads=3, token_bytes=64 * DTYPE_BYTES[dtype]
        )
    assert 0 <= plan.padding < 0.12
