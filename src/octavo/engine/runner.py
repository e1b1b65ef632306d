"""Carries out a step's plan: the only place where policy's ids meet arrays, bytes and kernels."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from octavo.attention.plan import StepInputs
from octavo.engine.batch_state import BatchState
from octavo.engine.sampling import sampler
from octavo.engine.step import StepPlan, StepResult

Program = Callable[[StepInputs], npt.NDArray[np.float32]]


class BlockStore(Protocol):
    """What the runner needs of a KV arena beside handing it to the backend."""

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy whole frames, ``(source, destination)`` each, in order."""
        ...


class Runner:
    """Owns the rows and runs steps on them.

    Args:
        program: from a step's inputs to the logits of the tokens that want them, float32 [S, vocab].
        arena: where ``program`` keeps the KV that the block tables of ``state`` point into.

    Attributes:
        program: as given; a measurement may put itself in its place.
    """

    def __init__(self, program: Program, *, arena: BlockStore, state: BatchState) -> None:
        self.program = program
        self._arena = arena
        self._state = state

    def run(self, plan: StepPlan) -> StepResult:
        """Apply the plan's differences, copy blocks, compute, sample."""
        state = self._state
        state.apply(plan)
        if plan.copies:
            self._arena.copy_blocks(plan.copies)
        if not plan.work:
            return StepResult([])
        work = [(w.row, w.start, w.token_ids, w.sample) for w in plan.work]
        inputs = StepInputs.build(work, state.block_tables)
        logits = self.program(inputs)
        if not len(inputs.logit_tokens):
            return StepResult([])
        sampled = inputs.rows[np.searchsorted(inputs.query_start, inputs.logit_tokens, side="right") - 1]
        positions = inputs.positions[inputs.logit_tokens] + 1
        chosen = sampler.sample(logits, sampled, positions, state.sampling)
        return StepResult(chosen.token_ids, chosen.failures, chosen.logprobs)
