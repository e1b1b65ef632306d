"""The CPU backend's logits are the same bits however a step is made up and wherever its blocks lie."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tiny
from gguf_files import Type, write
from harness import PagedModel

from octavo import _native
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


@pytest.fixture(
    scope="module", params=[(isa, kind) for isa in _native.available_isas() for kind in ("int8", "float32")]
)
def setting(request: pytest.FixtureRequest) -> tuple[str, Any]:
    """Instruction set and activations."""
    return request.param


@pytest.fixture(scope="module")
def alone(model: LoadedModel, setting: tuple[str, Any]) -> Callable[[list[int]], Any]:
    """Logits of a prompt alone, in one step, on one thread."""
    isa, activations = setting
    return lambda prompt: PagedModel(model, CpuBackend(1, activations, isa=isa), kv_dtype="bfloat16").logits(
        [prompt]
    )[0]


@pytest.fixture(scope="module")
def expected(alone: Callable[[list[int]], Any]) -> list[Any]:
    return [alone(prompt) for prompt in PROMPTS]


@pytest.mark.parametrize(
    ("threads", "block_size", "chunks"),
    [
        (1, 8, (100,)),
        (2, 16, (1,)),
        (4, 32, (17,)),
        (3, 64, (3, 15, 1, 40)),
        (2, 128, (16, 17)),
        (1, 16, (15,)),
    ],
)
def test_same_bits(*, model, setting, expected, threads, block_size, chunks):
    isa, activations = setting
    paged = PagedModel(
        model,
        CpuBackend(threads, activations, isa=isa),
        block_size=block_size,
        kv_dtype="bfloat16",
        seed=block_size,
    )
    for found, logits in zip(paged.logits(PROMPTS, chunks), expected, strict=True):
        assert np.array_equal(found, logits)


@pytest.mark.parametrize("batch", [2, 7, 64])
def test_same_bits_in_any_company(model, setting, alone, batch):
    isa, activations = setting
    prompts = tiny.prompts(*(1 + 7 * i % 23 for i in range(batch)), seed=batch)
    paged = PagedModel(
        model,
        CpuBackend(2, activations, isa=isa),
        num_rows=batch,
        kv_dtype="bfloat16",
        max_tokens=sum(map(len, prompts)),
        seed=batch,
    )
    found = paged.logits(prompts)
    for i in {0, 1, batch // 2, batch - 1}:
        assert np.array_equal(found[i], alone(prompts[i]))


def test_quantized_activations_make_a_difference(model):
    """Else the two cases above would be one."""
    int8, full = (
        PagedModel(model, CpuBackend(1, activations)).logits(PROMPTS[4:5])[0]
        for activations in ("int8", "float32")
    )
    assert 1e-3 < np.abs(int8 - full).max() < 1.0
