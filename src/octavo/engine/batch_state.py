"""What the runner keeps per row between steps: block tables, and what the sampler keeps.

Kernels take the whole arrays and a list of rows, so nothing is rebuilt per step: the scheduler's differences
are written in, that is all. Legend: R rows.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.engine.sampling.state import SamplingState
from octavo.scheduling.step import StepPlan


class BatchState:
    """Permanent rows.

    Attributes:
        block_tables: one int32 [R, blocks of max_context tokens] array per KV table; entry [row, i] is the
            frame of logical block i, or 0, the null block.
        sampling: the sampler's settings of the same rows.
        num_candidates: likely tokens wanted, by row, for beams.
        num_prompt_logprobs: likely tokens wanted beside each of the prompt, by row, where that is asked.
        grammars: what allows a row's tokens, by row, for those that have one.
    """

    def __init__(
        self,
        *,
        num_rows: int,
        table_block_sizes: Sequence[int],
        max_context: int,
        sampling: SamplingState,
    ) -> None:
        self.block_tables: tuple[npt.NDArray[np.int32], ...] = tuple(
            np.zeros((num_rows, -(-max_context // size)), np.int32) for size in table_block_sizes
        )
        self.sampling = sampling
        self.num_candidates: dict[int, int] = {}
        self.num_prompt_logprobs: dict[int, int] = {}
        self.grammars: dict[int, Any] = {}

    def apply(self, plan: StepPlan) -> None:
        """Write a step's differences: rows closed, rows opened, changed block table entries."""
        for row in plan.closed_rows:
            for table in self.block_tables:
                table[row] = 0
            self.sampling.close(row)
            self._forget(row)
        for opened in plan.opened_rows:
            self._forget(opened.row)
            self.sampling.open(
                opened.row,
                opened.params,
                seed=opened.seed,
                sample_index=opened.sample_index,
                prompt_token_ids=opened.prompt_token_ids,
                output_token_ids=opened.output_token_ids,
            )
            if opened.num_candidates:
                self.num_candidates[opened.row] = opened.num_candidates
            if opened.params.prompt_logprobs is not None:
                self.num_prompt_logprobs[opened.row] = opened.params.prompt_logprobs
            if opened.grammar is not None:
                self.grammars[opened.row] = opened.grammar
        for update in plan.block_updates:
            self.block_tables[update.table][update.row, update.place] = update.block_id

    def _forget(self, row: int) -> None:
        for by_row in (self.num_candidates, self.num_prompt_logprobs, self.grammars):
            by_row.pop(row, None)
