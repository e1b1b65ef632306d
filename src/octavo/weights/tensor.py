"""One weight tensor as its file holds it: encoded bytes, mapped, not copied."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Encoding = Literal[
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"
]

# (values per block, bytes per block); the layouts are GGML's.
BLOCK_OF: dict[str, tuple[int, int]] = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q8_0": (32, 34),  # float16 scale d, 32 x int8 q:        w = d * q
    "Q4_0": (32, 18),  # float16 d, 16 bytes of nibbles:      w = d * (q - 8)
    "Q4_1": (32, 20),  # float16 d, float16 m, 16 bytes:      w = d * q + m
    "Q5_0": (32, 22),  # the same two with 4 bytes of fifth bits: w = d * (q - 16)
    "Q5_1": (32, 24),  #                                          w = d * q + m
    # Superblocks: small integers s (and m) for each 16 or 32 values, times a float16 d (and e) for all.
    "Q2_K": (256, 84),  # for 16:  w = d * s * q - e * m
    "Q3_K": (256, 110),  # for 16: w = d * s * (q - 4)
    "Q4_K": (256, 144),  # for 32: w = d * s * q - e * m
    "Q5_K": (256, 176),  # for 32: w = d * s * q - e * m
    "Q6_K": (256, 210),  # for 16: w = d * s * (q - 32)
}


@dataclass(frozen=True, slots=True)
class WeightTensor:
    """A matrix [N outputs, K inputs] or a vector [N] in one of the encodings that kernels read directly.

    Attributes:
        data: uint8 [N, bytes of one row]; for a vector [1, bytes]. Usually a read-only memory map.
            In Q4_0 and Q4_1 byte i of a block holds value i (low nibble) and value i + 16 (high).
    """

    name: str
    encoding: Encoding
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]

    @property
    def num_bytes(self) -> int:
        """Bytes of the encoded tensor."""
        return int(self.data.nbytes)
