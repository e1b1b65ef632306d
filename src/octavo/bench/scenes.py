"""Four ways of using a model, as they are measured of the library alone and of engines side by side."""

from dataclasses import dataclass
from typing import Final

import numpy as np


@dataclass(frozen=True, slots=True)
class Scene:
    """Requests that come at once.

    Attributes:
        shared_len, own_len: tokens of the prompt's beginning that all have in common, and of the rest.
        output_len: tokens that each generates.
        counts_prompt: the rate is of prompt tokens, not of output tokens.
    """

    name: str
    description: str
    num_requests: int
    shared_len: int
    own_len: int
    output_len: int
    counts_prompt: bool = False

    @property
    def num_counted(self) -> int:
        """Tokens that the rate counts."""
        return self.num_requests * (self.own_len if self.counts_prompt else self.output_len)

    def prompts(self, rng: np.random.Generator, vocab_size: int) -> list[list[int]]:
        """New prompts, so that no run finds another's in the cache."""
        shared = rng.integers(0, vocab_size, self.shared_len).tolist()
        own = rng.integers(0, vocab_size, (self.num_requests, self.own_len)).tolist()
        return [shared + part for part in own]


SCENES: Final = (
    Scene("a", "one stream, 128 in, 256 out", 1, 0, 128, 256),
    Scene("b", "prefill of 1,024 tokens", 1, 0, 1024, 1, counts_prompt=True),
    Scene("c", "16 at once, 256 in, 128 out each", 16, 0, 256, 128),
    Scene("d", "32 at once, 1,024 shared and 64 own in, 64 out each", 32, 1024, 64, 64),
)
