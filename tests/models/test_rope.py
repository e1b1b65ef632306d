import math

import numpy as np
import pytest
import tiny
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from octavo.models.hf_config import spec_from_config
from octavo.models.rope import attention_factor, inverse_frequencies, rope_tables
from octavo.models.spec import RopeSpec

YARN = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096}
PARAMETERS = [
    {"rope_type": "linear", "factor": 3.0},
    {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    YARN,
    {**YARN, "attention_factor": 0.75},
    {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5},
    {**YARN, "mscale": 0.707},
    {**YARN, "beta_fast": 16.0, "beta_slow": 2.0},
    {**YARN, "truncate": False},
    {**YARN, "beta_fast": 4.0, "beta_slow": 4.0, "truncate": False},
    {**YARN, "factor": 1.0},
    {**YARN, "original_max_position_embeddings": 16},
]


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
@pytest.mark.parametrize(("theta", "head_dim"), [(10000.0, 64), (500000.0, 128)])
def test_scaled_frequencies_equal_transformers(parameters, theta, head_dim):
    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=65536,
        rope_parameters={**parameters, "rope_theta": theta},
        architectures=["LlamaForCausalLM"],
    )
    expected, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"))
    rope = spec_from_config(config.to_dict()).rope
    np.testing.assert_allclose(inverse_frequencies(rope), expected.numpy(), rtol=2e-6)
    assert attention_factor(rope) == pytest.approx(factor, rel=1e-12)
    cos, sin = rope_tables(rope, 50)
    angles = np.outer(np.arange(50), expected.double().numpy())
    assert cos.dtype == sin.dtype == np.float32
    np.testing.assert_allclose(cos, np.cos(angles) * factor, atol=1e-4)
    np.testing.assert_allclose(sin, np.sin(angles) * factor, atol=1e-4)


def test_plain_frequencies():
    np.testing.assert_allclose(inverse_frequencies(RopeSpec(10000.0, 8)), [1.0, 0.1, 0.01, 0.001], rtol=1e-14)
    reference = tiny.make("llama").model.rotary_emb.inv_freq
    np.testing.assert_allclose(inverse_frequencies(RopeSpec(10000.0, 16)), reference, rtol=1e-6)


def test_divisors_divide_frequencies():
    rope = RopeSpec(10000.0, 8, freq_divisors=(1.0, 2.0, 4.0, 8.0))
    np.testing.assert_allclose(inverse_frequencies(rope), [1.0, 0.05, 0.0025, 0.000125], rtol=1e-14)


def test_tables_are_exact_far_out():
    """Angles are taken in float64: at position 100,000 float32 would be off in the third digit."""
    cos, sin = rope_tables(RopeSpec(10000.0, 4), 100_001)
    assert cos.shape == sin.shape == (100_001, 2)
    assert cos[100_000, 0] == np.float32(math.cos(100_000))
    assert sin[100_000, 1] == np.float32(math.sin(1000.0))
