"""What a checkpoint says of itself."""

from pathlib import Path

import numpy as np

from octavo.weights.checkpoint import Checkpoint, LazyTensors, StoredTensor
from octavo.weights.tensor import WeightTensor


def unread(name: str, stored: StoredTensor) -> WeightTensor:
    raise AssertionError(name)


def of(**sizes: tuple[str, int]) -> Checkpoint:
    stored = {
        name: StoredTensor(type_name, (num_bytes,), np.zeros(num_bytes, np.uint8))
        for name, (type_name, num_bytes) in sizes.items()
    }
    return Checkpoint(
        path=Path("m.gguf"), kind="gguf", metadata={}, tensors=LazyTensors({}, unread), stored=stored
    )


def test_types_of_most_bytes_by_hand() -> None:
    assert of(a=("Q4_1", 50), b=("Q8_0", 40), c=("Q4_1", 5), d=("F32", 5)).weight_types == "Q4_1/Q8_0"
    assert of(a=("Q8_0", 10), b=("BF16", 90)).weight_types == "BF16/Q8_0"  # a tenth is enough
    assert of(a=("F32", 1)).weight_types == "F32"
    assert of().weight_types == ""
