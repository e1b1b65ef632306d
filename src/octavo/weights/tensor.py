"""One weight tensor as its file holds it: encoded bytes, mapped, not copied."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Encoding = Literal["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"]

# (values per block, bytes per block); the layouts are GGML's.
BLOCK_OF: dict[str, tuple[int, int]] = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q8_0": (32, 34),  # float16 scale d, 32 x int8 q:        w = d * q
    "Q4_0": (32, 18),  # float16 d, 16 bytes of nibbles:      w = d * (q - 8)
    "Q4_1": (32, 20),  # float16 d, float16 m, 16 bytes:      w = d * q + m
}


@dataclass(frozen=True, slots=True)
class WeightTensor:
    """A matrix [N outputs, K inputs] or a vector [N] in one of the encodings that kernels read directly.

    Attributes:
        data: uint8 [N, bytes of one row]; for a vector [1, bytes]. Usually a read-only memory map.
            In the 4-bit encodings byte i of a block holds value i (low nibble) and value i + 16 (high).
    """

    name: str
    encoding: Encoding
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]

    @property
    def num_bytes(self) -> int:
        """Bytes of the encoded tensor."""
        return int(self.data.nbytes)
