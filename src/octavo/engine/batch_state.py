"""What the runner keeps per row between steps: block tables and sampling settings, one array per quantity.

Kernels take the whole arrays and a list of rows, so nothing is rebuilt per step: the scheduler's differences
are written in, that is all. Legend: R rows.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from octavo.scheduling.step import RowOpen, StepPlan


class BatchState:
    """Struct of arrays over permanent rows.

    Attributes:
        block_tables: one int32 [R, blocks of max_context tokens] array per KV table; entry [row, i] is the
            frame of logical block i, or 0, the null block.
        temperature: float32 [R]; 0 is greedy.
        top_p, min_p: float64 [R].
        top_k: int32 [R]; 0 is off.
        seed: uint64 [R].
        faults: why a row's settings could not be taken, by row; it is greedy until its request has failed.
    """

    def __init__(self, *, num_rows: int, table_block_sizes: Sequence[int], max_context: int) -> None:
        self.block_tables: tuple[npt.NDArray[np.int32], ...] = tuple(
            np.zeros((num_rows, -(-max_context // size)), np.int32) for size in table_block_sizes
        )
        self.temperature = np.zeros(num_rows, np.float32)
        self.top_k = np.zeros(num_rows, np.int32)
        self.top_p = np.ones(num_rows)
        self.min_p = np.zeros(num_rows)
        self.seed = np.zeros(num_rows, np.uint64)
        self.faults: dict[int, str] = {}
        self.num_candidates: dict[int, int] = {}

    def apply(self, plan: StepPlan) -> None:
        """Write a step's differences: rows closed, rows opened, changed block table entries."""
        for row in plan.closed_rows:
            for table in self.block_tables:
                table[row] = 0
            self.temperature[row] = 0
            self.faults.pop(row, None)
            self.num_candidates.pop(row, None)
        for opened in plan.opened_rows:
            try:
                self._open(opened)
            except Exception as error:  # one request's settings are no other request's trouble
                self.temperature[opened.row] = 0
                self.faults[opened.row] = f"its sampling parameters could not be used: {error!r}"
        for update in plan.block_updates:
            self.block_tables[update.table][update.row, update.place] = update.block_id

    def _open(self, opened: RowOpen) -> None:
        row, params = opened.row, opened.params
        self.top_k[row] = params.top_k
        self.top_p[row] = params.top_p
        self.min_p[row] = params.min_p
        self.seed[row] = opened.seed + opened.sample_index
        if opened.num_candidates:
            self.num_candidates[row] = opened.num_candidates
        self.temperature[row] = params.temperature
