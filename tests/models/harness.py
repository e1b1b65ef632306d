"""Runs a decoder over token lists through a paged cache with hand-made, shuffled block tables.

No scheduler and no block manager: what a test sees here is the model, the backend and the layout alone.
"""

from collections.abc import Iterable, Sequence
from itertools import chain, cycle, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.attention.plan import StepInputs
from octavo.backends.base import Backend
from octavo.models.decoder import Decoder
from octavo.models.loading import LoadedModel
from octavo.storage.arena import Arena
from octavo.storage.layout import KVLayout, StorageDtype

FloatArray = npt.NDArray[np.float32]


class PagedModel:
    """A model, a backend, and one row of the block table per sequence, all rows filled with frames.

    Frames are handed out in random order and hold finite garbage, so that neither contiguity nor zeroed
    memory can hide a mistake.
    """

    def __init__(
        self,
        model: LoadedModel,
        backend: Backend[Any, Any],
        *,
        num_rows: int = 8,
        max_len: int = 128,
        block_size: int = 16,
        kv_dtype: StorageDtype = "float32",
        max_tokens: int = 512,
        seed: int = 0,
    ) -> None:
        spec = model.spec
        decoder = Decoder(spec, model.weights, backend)
        layout = KVLayout.uniform(
            num_layers=spec.num_layers,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            block_size=block_size,
            dtype=kv_dtype,
        )
        blocks_per_row = -(-max_len // block_size)
        num_blocks = num_rows * blocks_per_row
        arena = Arena(layout, num_blocks + 1)
        arena.data[:] = 0x44  # 785 in float32, 784 in bfloat16
        frames = np.random.default_rng(seed).permutation(np.arange(1, num_blocks + 1, dtype=np.int32))
        self.table = frames.reshape(num_rows, blocks_per_row)
        self.context_len = [0] * num_rows
        self._max_tokens = max_tokens
        self._run = backend.compile(
            decoder.forward,
            arena=arena,
            attention=decoder.attention_shape(max_len),
            max_tokens=max_tokens,
        )

    def step(self, work: dict[int, list[int]], *, every_token: bool = False) -> FloatArray:
        """Compute the next tokens of some rows; logits of each row's last token, or of all tokens."""
        items = [(row, self.context_len[row], tokens, True) for row, tokens in work.items()]
        inputs = StepInputs.build(items, (self.table,))
        if every_token:
            inputs = inputs._replace(logit_tokens=np.arange(inputs.num_tokens, dtype=np.int32))
        assert inputs.num_tokens <= self._max_tokens
        logits = self._run(inputs).copy()
        for row, tokens in work.items():
            self.context_len[row] += len(tokens)
        return logits

    def logits(self, prompts: Sequence[list[int]], chunks: Iterable[int] = (512,)) -> list[FloatArray]:
        """Logits [n, vocab] of every token of each prompt, all side by side; row i goes on with prompt i.

        Each row takes its next tokens in chunks of the given sizes, over and over; row i starts with the
        i-th size, so that long and short chunks meet in one step.
        """
        sizes = list(chunks)
        parts: list[list[FloatArray]] = [[] for _ in prompts]
        pending = {row: _cut(tokens, sizes, row) for row, tokens in enumerate(prompts)}
        while pending := {row: left for row, left in pending.items() if left}:
            work = {row: left.pop(0) for row, left in pending.items()}
            logits = self.step(work, every_token=True)
            ends = np.cumsum([len(tokens) for tokens in work.values()])
            for row, part in zip(work, np.split(logits, ends[:-1]), strict=True):
                parts[row].append(part)
        return [np.concatenate(p) for p in parts]

    def greedy(self, prompts: Sequence[list[int]], num_tokens: int) -> list[list[int]]:
        """The ``num_tokens`` most likely tokens after each prompt, all prompts side by side."""
        work = dict(enumerate(prompts))
        outputs: list[list[int]] = [[] for _ in prompts]
        for _ in range(num_tokens):
            chosen = np.argmax(self.step(work), axis=-1)
            work = {row: [int(token)] for row, token in zip(work, chosen, strict=True)}
            for row, tokens in work.items():
                outputs[row] += tokens
        return outputs


def _cut(tokens: list[int], sizes: list[int], first: int) -> list[list[int]]:
    endless = islice(chain.from_iterable(cycle([sizes])), first, None)
    parts, start = [], 0
    while start < len(tokens):
        size = next(endless)
        parts.append(tokens[start : start + size])
        start += size
    return parts
