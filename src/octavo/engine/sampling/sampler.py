"""From logits to tokens. Legend: S rows of logits, N tokens wanted, V vocabulary.

A token depends on its own logits, its sequence so far, settings, seed, sample index and position only. What
a row asks for is done in this order: logit_bias; repetition, frequency and presence penalty; tokens ruled out
by allowed_token_ids, bad_words, min_tokens and a mask; temperature; top_k, top_p, min_p, typical_p; the draw.
Log-probabilities are those of the raw logits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.core.request import TokenLogprobs
from octavo.engine.sampling.adjustments import BitMask, apply_mask
from octavo.engine.sampling.filters import draw
from octavo.engine.sampling.logprobs import token_logprobs
from octavo.engine.sampling.random_numbers import uniform
from octavo.engine.sampling.ranking import FloatArray
from octavo.engine.sampling.state import SamplingState

IntArray = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class Sampled:
    """What was chosen.

    Attributes:
        token_ids: N tokens; -1 where there is none: it failed, or an earlier one of its row did not equal its
            draft.
        failures: why a token failed, by index into ``token_ids``.
        logprobs: by index into ``token_ids``, of rows that ask for them.
    """

    token_ids: list[int]
    failures: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)


def sample(
    logits: FloatArray,
    rows: IntArray,
    positions: IntArray,
    state: SamplingState,
    *,
    sources: IntArray | None = None,
    drafts: Sequence[int] | None = None,
    masks: Mapping[int, BitMask] | None = None,
) -> Sampled:
    """Choose N tokens and let ``state`` know them, so that each call is for new tokens.

    Args:
        logits: float32 [S, V]; not changed.
        rows: [N], the permanent row that each token is for.
        positions: [N], where in its sequence each token will stand.
        state: settings of the rows.
        sources: [N], which row of ``logits`` each token is chosen from; None takes them in order (N = S).
            Several tokens may come from one row, such as the first ones of several samples of a prompt.
        drafts: N tokens, or None. With drafts a row may have several tokens in this call, in the order of
            their positions: the logits of each assume that those before it equal their drafts, and after the
            first that does not, the row gets no more. After the last of a row comes any id, such as -1.
            Without drafts each row has one token.
        masks: packed bits of the tokens allowed, by index into ``rows``, for those that a grammar restrains:
            uint32 [at least V / 32], token t is bit t % 32 of word t // 32.
    """
    best = logits.argmax(axis=1)  # the lowest id among equals; a NaN counts as the largest
    best_logits = logits[np.arange(len(best)), best]
    if sources is not None:
        best, best_logits = best[sources], best_logits[sources]
    special = state.is_special[rows] | ~np.isfinite(best_logits)
    result = Sampled(best.tolist())
    if drafts is None:
        todo: Sequence[int] = np.flatnonzero(special).tolist()
        if masks:
            todo = sorted({*todo, *masks})
    else:
        todo = range(len(rows))
    if not todo:
        return result
    ended: set[int] = set()  # rows that get no more tokens
    # One row at a time: its whole vocabulary stays in the cache, and no other row can touch its result.
    for i in todo:
        row = int(rows[i])
        if row in ended:
            result.token_ids[i] = -1
            continue
        mask = masks.get(i) if masks else None
        if special[i] or mask is not None:
            row_logits = logits[i if sources is None else sources[i]]
            token_id, problem = _choose(
                row_logits,
                result.token_ids[i],
                row=row,
                position=int(positions[i]),
                state=state,
                mask=mask,
            )
            result.token_ids[i] = token_id
            if problem is not None:
                result.failures[i] = problem
                ended.add(row)
                continue
            state.accept(row, token_id)
            if row in state.num_logprobs:
                [result.logprobs[i]] = token_logprobs(row_logits[None], [token_id], state.num_logprobs[row])
        if drafts is not None and result.token_ids[i] != drafts[i]:
            ended.add(row)
    return result


def _choose(
    logits: FloatArray,
    best: int,
    *,
    row: int,
    position: int,
    state: SamplingState,
    mask: BitMask | None,
) -> tuple[int, str | None]:
    """A token, or -1 and the reason why there is none. ``best`` is the token of the largest logit."""
    if row in state.faults:
        return -1, state.faults[row]
    if not np.isfinite(logits[best]):
        return -1, f"the model gave no usable logits at position {position}: largest is {logits[best]}"
    adjustments = state.adjustments.get(row)
    if adjustments is not None and not adjustments.changes(position):
        adjustments = None
    if adjustments is not None or mask is not None:
        logits = logits.copy()
        if adjustments is not None:
            adjustments.apply(logits, position, mask)
        if mask is not None:
            apply_mask(logits, mask)
        best = int(logits.argmax())
        if logits[best] == -np.inf:
            return -1, f"its sampling parameters or its grammar rule out every token at position {position}"
    filters = state.filters.get(row)
    if filters is not None:
        best = draw(logits, float(logits[best]), filters, uniform(state.streams[row], position))
    return best, None
