"""What grammars allow in one step, found while the model computes."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from octavo.engine.batch_state import BatchState
from octavo.engine.grammar import GrammarCompiler, GrammarFailed, GrammarMatcher, Mask
from octavo.scheduling.step import RowWork, StepResult

Masks = dict[int, Mask]


class GrammarMasks:
    """Fills the masks of a step in a thread of its own, then lets the grammars know what was chosen.

    A place is the index of a token to be chosen, as the step's results are numbered.
    """

    def __init__(self, compiler: GrammarCompiler, state: BatchState) -> None:
        self._compiler = compiler
        self._state = state
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")
        self._failures: dict[int, str] = {}

    def begin(self, work: Sequence[RowWork]) -> Future[Masks] | None:
        """Start on the masks of all places that a grammar restrains; None if there are none."""
        grammars = self._state.grammars
        plain: list[tuple[int, GrammarMatcher]] = []
        drafted: list[tuple[int, GrammarMatcher, list[int]]] = []
        place = 0
        for w in work:
            if not w.sample:
                continue
            if w.row in grammars:
                if w.num_drafts:
                    drafted.append((place, grammars[w.row], w.token_ids[len(w.token_ids) - w.num_drafts :]))
                else:
                    plain.append((place, grammars[w.row]))
            first = place + 1 + w.num_drafts
            plain += [(first + i, grammars[row]) for i, row in enumerate(w.forks) if row in grammars]
            place += w.num_chosen
        if not plain and not drafted:
            return None
        return self._thread.submit(self._fill, plain, drafted)

    def accept(self, rows: Sequence[int], chosen: StepResult) -> dict[int, str]:
        """Let each row's grammar follow what was chosen for it; why those fail that cannot, by place."""
        grammars = self._state.grammars
        failures: dict[int, str] = {}
        for place, row in enumerate(rows):
            if row not in grammars or place in chosen.failures or chosen.token_ids[place] < 0:
                continue
            try:
                if place in self._failures:
                    raise GrammarFailed(self._failures[place])
                grammars[row].accept(chosen.token_ids[place])
            except GrammarFailed as error:
                failures[place] = str(error)
        self._failures.clear()
        return failures

    def _fill(
        self,
        plain: list[tuple[int, GrammarMatcher]],
        drafted: list[tuple[int, GrammarMatcher, list[int]]],
    ) -> Masks:
        num_words = self._compiler.num_words
        masks = np.empty((len(plain), num_words), np.uint32)
        failures = self._compiler.fill_masks([matcher for _, matcher in plain], masks)
        filled: Masks = {}
        for index, (place, _) in enumerate(plain):
            if index in failures:
                self._failures[place] = failures[index]
                masks[index] = ~np.uint32(0)  # it fails when its token is there
            filled[place] = masks[index]
        for place, matcher, tokens in drafted:
            self._fill_ahead(place, matcher, tokens, filled)
        return filled

    def _fill_ahead(self, place: int, matcher: GrammarMatcher, tokens: list[int], filled: Masks) -> None:
        """Masks at a token and behind each of its drafts, as far as those are allowed."""
        num_accepted = 0
        try:
            for at in range(len(tokens) + 1):
                mask = filled[place + at] = np.full(self._compiler.num_words, ~np.uint32(0))
                matcher.fill_mask(mask)
                if at == len(tokens) or not matcher.count_acceptable(tokens[at : at + 1]):
                    return  # a draft that the mask rules out is not chosen, and nothing behind it matters
                matcher.accept(tokens[at])
                num_accepted += 1
        except GrammarFailed as error:
            self._failures[place + num_accepted] = str(error)
        finally:
            matcher.rollback(num_accepted)
