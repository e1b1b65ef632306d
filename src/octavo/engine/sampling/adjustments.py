"""What changes one row's logits before temperature and filters: bias, penalties, and tokens ruled out."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from octavo.core.sampling import SamplingParams
from octavo.engine.sampling.bad_words import BadWords, Vocabulary
from octavo.engine.sampling.penalties import Penalties
from octavo.engine.sampling.ranking import FloatArray, IdArray

BitMask = npt.NDArray[np.uint32]


class Adjustments:
    """One row's, from its opening to its closing; they follow its tokens.

    The order is logit_bias, the penalties, then what is ruled out: all but allowed_token_ids, what would
    complete one of bad_words, and ``stop_ids`` while the output has fewer than min_tokens, unless a grammar
    allows nothing else.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        stop_ids: Collection[int],
        vocabulary: Vocabulary | None,
        prompt_token_ids: Sequence[int],
        output_token_ids: Sequence[int],
    ) -> None:
        bias = params.logit_bias or {}
        self._bias_ids = np.fromiter(bias, np.int64, len(bias))
        self._bias = np.fromiter(bias.values(), np.float32, len(bias))
        self._allowed = None if params.allowed_token_ids is None else np.array(params.allowed_token_ids)
        self._stop_ids = np.fromiter(stop_ids, np.int64, len(stop_ids))
        self._is_lasting = Adjustments.wanted(replace(params, min_tokens=0))
        self._min_position = len(prompt_token_ids) + params.min_tokens
        self._penalties: Penalties | None = None
        if Penalties.wanted(params):
            self._penalties = Penalties(params, prompt_token_ids, output_token_ids)
        self._bad_words: BadWords | None = None
        if params.bad_words:
            self._bad_words = BadWords(params.bad_words, vocabulary, [*prompt_token_ids, *output_token_ids])

    @staticmethod
    def wanted(params: SamplingParams) -> bool:
        """Whether these parameters change any logits."""
        return bool(
            params.logit_bias
            or params.min_tokens
            or params.bad_words
            or params.allowed_token_ids is not None
            or Penalties.wanted(params)
        )

    def accept(self, token_id: int) -> None:
        """Take in the token that was chosen."""
        if self._penalties is not None:
            self._penalties.accept(token_id)
        if self._bad_words is not None:
            self._bad_words.accept(token_id)

    def changes(self, position: int) -> bool:
        """Whether ``apply`` would do anything for the token to come at ``position``."""
        return self._is_lasting or position < self._min_position

    def apply(self, logits: FloatArray, position: int, mask: BitMask | None = None) -> None:
        """Change the logits, float32 [V], of the token to come at ``position``, in place.

        ``mask`` is what a grammar allows there, as for ``apply_mask``; it is not applied here.
        """
        logits[self._bias_ids] += self._bias
        if self._penalties is not None:
            self._penalties.apply(logits)
        if self._allowed is not None:
            kept = logits[self._allowed]
            logits.fill(-np.inf)
            logits[self._allowed] = kept
        if self._bad_words is not None:
            for ids in self._bad_words.banned():
                logits[ids] = -np.inf
        if position < self._min_position and not (mask is not None and allows_only(mask, self._stop_ids)):
            logits[self._stop_ids] = -np.inf


def apply_mask(logits: FloatArray, mask: BitMask) -> None:
    """Rule out, in place, every token of float32 [V] whose bit is not set.

    ``mask`` is uint32 [at least V / 32]: token t is bit t % 32 of word t // 32, the lowest bit first.
    """
    bits = np.unpackbits(mask.astype("<u4", copy=False).view(np.uint8), bitorder="little")
    logits[bits[: len(logits)] == 0] = -np.inf


def allows_only(mask: BitMask, token_ids: IdArray) -> bool:
    """Whether a mask, as for ``apply_mask``, has no bits but those of these tokens."""
    others = mask.copy()
    np.bitwise_and.at(others, token_ids // 32, ~(np.uint32(1) << (token_ids % 32).astype(np.uint32)))
    return not others.any()
