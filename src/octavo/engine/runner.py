"""Carries out a step's plan: the only place where policy's ids meet arrays, bytes and kernels."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from octavo.attention.plan import StepInputs
from octavo.backends.base import Program
from octavo.core.request import TokenLogprobs
from octavo.engine.batch_state import BatchState
from octavo.engine.grammar import GrammarCompiler
from octavo.engine.grammar_masks import GrammarMasks
from octavo.engine.sampling import sampler
from octavo.engine.sampling.logprobs import likeliest, token_logprobs
from octavo.scheduling.step import RowWork, StepPlan, StepResult


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
        if plan.is_plain:  # the usual step; it costs a tenth of what laying out any step does
            rows, starts = [w.row for w in work], [w.start for w in work]
            inputs = StepInputs.decode(rows, starts, [w.token_ids[0] for w in work], tables)
        else:
            inputs = StepInputs.build([(w.row, w.start, w.token_ids, w.num_logits) for w in work], tables)
        masks = self._masks.begin(work) if state.grammars and self._masks is not None else None
        logits = self.program(inputs)
        if not len(logits):
            return StepResult([])
        prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
        sources: list[int] | None = None
        drafts: list[int] | None = None
        if plan.is_plain:
            positions = [start + 1 for start in starts]
        else:
            prompt_logprobs = self._score(work, logits)
            sources, rows, positions = _places(work)
            drafts = _drafts(work)
            if not rows:
                return StepResult([], prompt_logprobs=prompt_logprobs)
        allowed = None if masks is None else masks.result()
        chosen = sampler.sample(
            logits,
            self.program.largest,
            rows,
            positions,
            state.sampling,
            sources=sources,
            drafts=drafts,
            masks=allowed,
        )
        if allowed and self._masks is not None:
            failures = self._masks.accept(rows, chosen)
            chosen = chosen._replace(failures={**chosen.failures, **failures})
        if state.num_candidates:
            candidates = {}
            for i, row in enumerate(rows):
                if row in state.num_candidates and i not in chosen.failures:
                    row_logits = logits[i if sources is None else sources[i]]
                    candidates[i] = likeliest(row_logits, state.num_candidates[row])
            chosen = chosen._replace(candidates=candidates)
        return chosen._replace(prompt_logprobs=prompt_logprobs) if prompt_logprobs else chosen

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


def _places(work: Sequence[RowWork]) -> tuple[list[int] | None, list[int], list[int]]:
    """Where tokens are chosen: index among the step's logits (None: one after the other), row, position."""
    if not any(w.num_drafts or w.forks or w.score for w in work):
        chosen = [w for w in work if w.sample]
        return None, [w.row for w in chosen], [w.start + len(w.token_ids) for w in chosen]
    sources: list[int] = []
    rows: list[int] = []
    positions: list[int] = []
    first = 0
    for w in work:
        if w.sample:
            known = first + w.num_logits - 1 - w.num_drafts  # the last known token's logits
            position = w.start + len(w.token_ids) - w.num_drafts
            sources += range(known, known + 1 + w.num_drafts)
            rows += [w.row] * (1 + w.num_drafts)
            positions += range(position, position + 1 + w.num_drafts)
            sources += [known] * len(w.forks)
            rows += w.forks
            positions += [position] * len(w.forks)
        first += w.num_logits
    return sources, rows, positions


def _drafts(work: Sequence[RowWork]) -> list[int] | None:
    """The draft that each chosen token is compared with; -1 behind the last. None if there are no drafts."""
    if not any(w.num_drafts for w in work):
        return None
    drafts: list[int] = []
    for w in work:
        if w.sample:
            drafts += w.token_ids[len(w.token_ids) - w.num_drafts :]
            drafts += [-1] * (1 + len(w.forks))
    return drafts
