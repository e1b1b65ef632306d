"""Carries out a step's plan: the only place where policy's ids meet arrays, bytes and kernels."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from octavo.attention.plan import StepInputs
from octavo.core.request import TokenLogprobs
from octavo.engine.batch_state import BatchState
from octavo.engine.grammar import GrammarCompiler
from octavo.engine.grammar_masks import GrammarMasks
from octavo.engine.sampling import sampler
from octavo.engine.sampling.logprobs import likeliest, token_logprobs
from octavo.scheduling.step import RowWork, StepPlan, StepResult

IntArray = npt.NDArray[np.int32]
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
        grammars: made the grammars that rows may have.

    Attributes:
        program: as given; a measurement may put itself in its place.
    """

    def __init__(
        self,
        program: Program,
        *,
        arena: BlockStore,
        state: BatchState,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self.program = program
        self._masks = None if grammars is None else GrammarMasks(grammars, state)
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
        work, tables = plan.work, state.block_tables
        plain = all(len(w.token_ids) == 1 and w.sample and not w.forks and not w.score for w in work)
        if plain:  # the usual step; it costs a tenth of what laying out any step does
            inputs = StepInputs.decode(
                [w.row for w in work], [w.start for w in work], [w.token_ids[0] for w in work], tables
            )
        else:
            inputs = StepInputs.build([(w.row, w.start, w.token_ids, w.num_logits) for w in work], tables)
        masks = self._masks.begin(work) if state.grammars and self._masks is not None else None
        logits = self.program(inputs)
        if not len(inputs.logit_tokens):
            return StepResult([])
        prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
        at: IntArray | None = None
        if plain:
            rows, positions = inputs.rows, inputs.positions + 1
        else:
            prompt_logprobs = self._score(work, logits)
            at, rows, positions = _places(work)
            if not len(rows):
                return StepResult([], prompt_logprobs=prompt_logprobs)
        drafts = _drafts(work) if at is not None else None
        allowed = None if masks is None else masks.result()
        chosen = sampler.sample(
            logits, rows, positions, state.sampling, sources=at, drafts=drafts, masks=allowed
        )
        if allowed and self._masks is not None:
            self._masks.accept(rows.tolist(), chosen, drafts)
        candidates = {}
        if state.num_candidates:
            for i, row in enumerate(rows.tolist()):
                if row in state.num_candidates and i not in chosen.failures:
                    row_logits = logits[i if at is None else at[i]]
                    candidates[i] = likeliest(row_logits, state.num_candidates[row])
        return StepResult(chosen.token_ids, chosen.failures, chosen.logprobs, candidates, prompt_logprobs)

    def _score(
        self, work: Sequence[RowWork], logits: npt.NDArray[np.float32]
    ) -> dict[int, list[TokenLogprobs]]:
        """How likely the tokens of prompts were, where that is wanted."""
        scores: dict[int, list[TokenLogprobs]] = {}
        first = 0
        for index, w in enumerate(work):
            if w.score:
                following = w.token_ids[1:]
                if w.next_token_id is not None:
                    following.append(w.next_token_id)
                num_logprobs = self._state.num_prompt_logprobs[w.row]
                scores[index] = token_logprobs(
                    logits[first : first + len(following)], following, num_logprobs
                )
            first += w.num_logits
        return scores


def _places(work: Sequence[RowWork]) -> tuple[IntArray | None, IntArray, IntArray]:
    """Where tokens are chosen: index among the step's logits (None: one after the other), row, position."""
    if not any(w.num_drafts or w.forks or w.score for w in work):
        plain = [w for w in work if w.sample]
        rows = np.fromiter((w.row for w in plain), np.int32, len(plain))
        positions = np.fromiter((w.start + len(w.token_ids) for w in plain), np.int32, len(plain))
        return None, rows, positions
    at, rows_, positions_ = [], [], []
    first = 0
    for w in work:
        if w.sample:
            known = first + w.num_logits - 1 - w.num_drafts  # the last known token's logits
            position = w.start + len(w.token_ids) - w.num_drafts
            for i in range(1 + w.num_drafts):
                at.append(known + i)
                rows_.append(w.row)
                positions_.append(position + i)
            for row in w.forks:
                at.append(known)
                rows_.append(row)
                positions_.append(position)
        first += w.num_logits
    return np.array(at, np.int32), np.array(rows_, np.int32), np.array(positions_, np.int32)


def _drafts(work: Sequence[RowWork]) -> list[int]:
    """The draft that each chosen token is compared with; -1 behind the last."""
    drafts: list[int] = []
    for w in work:
        if w.sample:
            drafts += w.token_ids[len(w.token_ids) - w.num_drafts :]
            drafts += [-1] * (1 + len(w.forks))
    return drafts
