"""Repetition, frequency and presence penalties: logits lowered for tokens that were there before."""

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from octavo.core.sampling import SamplingParams
from octavo.engine.sampling.ranking import FloatArray

_LARGEST: Final = float(np.finfo(np.float32).max)


class Penalties:
    """Counts of one sequence's tokens, and what follows for its logits.

    In this order, for a token that was seen ``count`` times in the output:

    - repetition: a positive logit is divided by the penalty, a negative one multiplied with it, for tokens of
      the prompt and of the output (Keskar et al., "CTRL", 2019, extended to negative logits);
    - frequency and presence: ``logit - count * frequency - (count > 0) * presence``, for tokens of the output
      (the formula in OpenAI's API documentation).

    Only tokens that were seen are touched, whatever the vocabulary.
    """

    def __init__(
        self, params: SamplingParams, prompt_token_ids: Iterable[int], output_token_ids: Iterable[int]
    ) -> None:
        self._repetition = params.repetition_penalty
        self._frequency = params.frequency_penalty
        self._presence = params.presence_penalty
        seen = dict.fromkeys(prompt_token_ids) if params.repetition_penalty != 1 else {}
        self._place = {token_id: place for place, token_id in enumerate(seen)}
        size = max(64, 2 * len(seen))
        self._ids = np.zeros(size, np.int64)  # the first len(_place) entries are in use
        self._counts = np.zeros(size, np.int64)
        self._ids[: len(seen)] = list(seen)
        for token_id in output_token_ids:
            self.accept(token_id)

    @staticmethod
    def wanted(params: SamplingParams) -> bool:
        """Whether any penalty is on."""
        return bool(params.repetition_penalty != 1 or params.frequency_penalty or params.presence_penalty)

    def accept(self, token_id: int) -> None:
        """Count a token of the output."""
        place = self._place.setdefault(token_id, len(self._place))
        if place == len(self._ids):
            self._ids, self._counts = _doubled(self._ids), _doubled(self._counts)
        self._ids[place] = token_id
        self._counts[place] += 1

    def apply(self, logits: FloatArray) -> None:
        """Lower logits, float32 [V], in place; what is finite stays finite."""
        num_seen = len(self._place)
        ids, counts = self._ids[:num_seen], self._counts[:num_seen]
        values = logits[ids].astype(np.float64)
        if self._repetition != 1:
            with np.errstate(over="ignore"):  # clipped below
                values = np.where(values > 0, values / self._repetition, values * self._repetition)
        values -= counts * self._frequency + (counts > 0) * self._presence
        logits[ids] = np.where(np.isneginf(logits[ids]), -np.inf, np.clip(values, -_LARGEST, _LARGEST))


def _doubled(array: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([array, np.zeros_like(array)])
