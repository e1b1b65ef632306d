"""The CPU backend's logits are the same bits however a step is made up and wherever its blocks lie."""

from typing import Any

import numpy as np
import pytest
import tiny
from gguf_files import Type, write
from harness import PagedModel

from octavo.backends.cpu import CpuBackend
from octavo.models.loading import LoadedModel, load_model

PROMPTS = tiny.prompts(1, 15, 16, 17, 60, 100)


@pytest.fixture(scope="module", params=["llama", "qwen3", "mistral"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """4-bit layers, 8-bit embedding: integer kernels everywhere but in attention."""
    path = tmp_path_factory.mktemp(request.param) / "model.gguf"
    window = {"attention.sliding_window": 7} if request.param == "mistral" else {}
    types = {"token_embd.weight": Type.Q8_0, "output.weight": Type.Q8_0}
    write(tiny.make(request.param), path, matrix_type=lambda n: types.get(n, Type.Q4_1), values=window)
    return load_model(path)


@pytest.fixture(scope="module", params=["int8", "float32"])
def expected(request: pytest.FixtureRequest, model: LoadedModel) -> tuple[Any, list[Any]]:
    """Logits of each prompt alone, in one step, on one thread."""

    def alone(prompt: list[int]) -> Any:
        return PagedModel(model, CpuBackend(1, request.param), kv_dtype="bfloat16").logits([prompt])[0]

    return request.param, [alone(prompt) for prompt in PROMPTS]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("block_size", "chunks"), [(8, (100,)), (16, (1,)), (64, (3, 15, 1, 40)), (128, (16, 17))]
)
def test_same_bits(model, expected, threads, block_size, chunks):
    activations, alone = expected
    paged = PagedModel(
        model,
        CpuBackend(threads, activations),
        block_size=block_size,
        kv_dtype="bfloat16",
        seed=block_size,
    )
    for found, logits in zip(paged.logits(PROMPTS, chunks), alone, strict=True):
        assert np.array_equal(found, logits)


def test_quantized_activations_make_a_difference(model):
    """Else the two cases above would be one."""
    int8, full = (
        PagedModel(model, CpuBackend(1, activations)).logits(PROMPTS[4:5])[0]
        for activations in ("int8", "float32")
    )
    assert 1e-3 < np.abs(int8 - full).max() < 1.0
