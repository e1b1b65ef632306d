"""What the runner keeps per row between steps: block tables, and what the sampler keeps.

Kernels take the whole arrays and a list of rows, so nothing is rebuilt per step: the scheduler's differences
are written in, that is all. Legend: R rows.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from octavo.engine.sampling.state import SamplingState
from octavo.engine.step import StepPlan


class BatchState:
    """Permanent rows.

    Attributes:
        block_tables: one int32 [R, blocks of max_context tokens] array per KV table; entry [row, i] is the
            frame of logical block i, or 0, the null block.
        sampling: the sampler's settings of the same rows.
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

    def apply(self, plan: StepPlan) -> None:
        """Write a step's differences: rows closed, rows opened, changed block table entries."""
        for row in plan.closed_rows:
            for table in self.block_tables:
                table[row] = 0
            self.sampling.close(row)
        for opened in plan.opened_rows:
            self.sampling.open(
                opened.row,
                opened.params,
                seed=opened.seed,
                sample_index=opened.sample_index,
                prompt_token_ids=opened.token_ids[: opened.prompt_len],
                output_token_ids=opened.token_ids[opened.prompt_len :],
            )
        for update in plan.block_updates:
            self.block_tables[update.table][update.row, update.index] = update.block_id
