"""Log-probabilities as the model gives them: log-softmax of its raw logits, before temperature, penalties,
bans and filters.

Legend: S rows, V vocabulary.
"""

import math
from collections.abc import Sequence

import numpy as np

from octavo.core.request import RankedToken, TokenLogprobs
from octavo.engine.sampling.ranking import FloatArray, rank_of, top_ids


def token_logprobs(logits: FloatArray, token_ids: Sequence[int], num_logprobs: int) -> list[TokenLogprobs]:
    """How likely each row's token was, and which would have been likelier.

    For a prompt, row i holds the logits at one of its tokens and ``token_ids[i]`` is the next token, wherever
    chunks of the prompt begin and end; the first token has no entry, for nothing predicts it.

    Args:
        logits: float32 [S, V].
        token_ids: S ids within the vocabulary.
        num_logprobs: of so many of the likeliest tokens, ranked by falling logit, then rising id.

    Returns:
        S entries, in each the row's own token first, then the likeliest ones without it. Sums are taken in
        float64; of a row with a NaN all log-probabilities are NaN.
    """
    return [_of_row(row, token_id, num_logprobs) for row, token_id in zip(logits, token_ids, strict=True)]


def _of_row(logits: FloatArray, token_id: int, num_logprobs: int) -> TokenLogprobs:
    largest = logits.max()
    with np.errstate(invalid="ignore"):  # of a row without a finite logit
        shifted = np.exp(logits - largest)
    log_total = float(largest) + math.log(float(shifted.sum(dtype=np.float64)))
    entries: list[RankedToken] = [(token_id, float(logits[token_id]) - log_total, rank_of(logits, token_id))]
    if num_logprobs:
        best = top_ids(logits, num_logprobs)
        entries += [
            (other, logit - log_total, rank)
            for rank, (other, logit) in enumerate(
                zip(best.tolist(), logits[best].tolist(), strict=True), start=1
            )
            if other != token_id
        ]
    return tuple(entries)


def likeliest(logits: FloatArray, count: int) -> list[tuple[int, float]]:
    """The ``count`` likeliest tokens of float32 [V] with their log-probabilities, best first, then by id."""
    largest = logits.max()
    log_total = float(largest) + math.log(float(np.exp(logits - largest).sum(dtype=np.float64)))
    ids = top_ids(logits, min(count, len(logits)))
    return [
        (token_id, logit - log_total)
        for token_id, logit in zip(ids.tolist(), logits[ids].tolist(), strict=True)
    ]
