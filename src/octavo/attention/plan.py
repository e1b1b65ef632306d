"""What one step's attention has to do: which rows, which of their tokens are new, how far back they see.

Built once per step, read by every layer. Legend: R rows in the step, T step tokens.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]


class StepInputs(NamedTuple):
    """Arrays of one step, shared by all operations of the forward pass.

    Tokens are grouped by row: step tokens ``query_start[i] : query_start[i + 1]`` belong to ``rows[i]`` and
    stand at consecutive positions ``context_len[i], context_len[i] + 1, ...``.

    Attributes:
        token_ids: int32 [T].
        positions: int32 [T], absolute position of each token in its sequence.
        rows: int32 [R], permanent row (index into the block tables) of each sequence in the step.
        query_start: int32 [R + 1], prefix sums of the tokens per row.
        context_len: int32 [R], tokens of the row whose KV was written before this step.
        logit_tokens: int32 [S], indices of the step tokens whose logits are wanted, ascending.
        block_tables: one int32 [max rows, max blocks of that table] array per table of the KV layout;
            entry [row, i] is the frame that holds logical block i. Slot of a position:
            ``table[row, position // P] * P + position % P``.
    """

    token_ids: IntArray
    positions: IntArray
    rows: IntArray
    query_start: IntArray
    context_len: IntArray
    logit_tokens: IntArray
    block_tables: tuple[IntArray, ...]

    @property
    def num_tokens(self) -> int:
        """T, the number of tokens computed in this step."""
        return len(self.token_ids)

    @staticmethod
    def decode(
        rows: list[int], context_len: list[int], token_ids: list[int], block_tables: tuple[IntArray, ...]
    ) -> "StepInputs":
        """Lay out the usual step: one new token for each row, and its logits wanted. Same as ``build``."""
        positions = np.array(context_len, np.int32)
        query_start, logit_tokens = _one_token_each(len(rows))
        return StepInputs(
            np.array(token_ids, np.int32),
            positions,
            np.array(rows, np.int32),
            query_start,
            positions,
            logit_tokens,
            block_tables,
        )

    @staticmethod
    def build(
        work: list[tuple[int, int, list[int], int]], block_tables: tuple[IntArray, ...]
    ) -> "StepInputs":
        """Lay out a step from ``(row, context_len, new token ids, logits wanted of the last so many)``."""
        counts = np.fromiter((len(w[2]) for w in work), np.int32, len(work))
        query_start = np.zeros(len(work) + 1, np.int32)
        np.cumsum(counts, out=query_start[1:])
        context_len = np.fromiter((w[1] for w in work), np.int32, len(work))
        token_ids = np.fromiter((t for w in work for t in w[2]), np.int32, int(query_start[-1]))
        offsets = np.repeat(context_len - query_start[:-1], counts)
        wants = np.fromiter((w[3] for w in work), np.int32, len(work))
        if wants.max(initial=0) <= 1:
            logit_tokens = (query_start[1:] - 1)[wants > 0]
        else:
            ends = np.cumsum(wants, dtype=np.int32)
            first = query_start[1:] - ends  # of each row's logits, less those of the rows before it
            logit_tokens = np.arange(ends[-1], dtype=np.int32) + np.repeat(first, wants)
        return StepInputs(
            token_ids=token_ids,
            positions=(np.arange(len(token_ids), dtype=np.int32) + offsets).astype(np.int32),
            rows=np.fromiter((w[0] for w in work), np.int32, len(work)),
            query_start=query_start,
            context_len=context_len,
            logit_tokens=logit_tokens,
            block_tables=block_tables,
        )


@lru_cache
def _one_token_each(num_rows: int) -> tuple[IntArray, IntArray]:
    """``query_start`` and ``logit_tokens`` of a step with one token for each row."""
    query_start = np.arange(num_rows + 1, dtype=np.int32)
    query_start.setflags(write=False)
    return query_start, query_start[:-1]
