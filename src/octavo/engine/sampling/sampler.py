"""From logits to tokens. Legend: S rows of logits, N tokens wanted, V vocabulary.

A token depends on its own logits, its sequence so far, settings, seed, sample index and position only. What
a row asks for is done in this order: logit_bias; repetition, frequency and presence penalty; tokens ruled out
by allowed_token_ids, bad_words, min_tokens and a mask; temperature; top_k, top_p, min_p, typical_p; the draw.
Log-probabilities are those of the raw logits.
"""

from collections.abc import Mapping, Sequence
from math import isfinite

import numpy as np

from octavo.core.request import TokenLogprobs
from octavo.engine.sampling.adjustments import BitMask, apply_mask
from octavo.engine.sampling.filters import draw
from octavo.engine.sampling.logprobs import token_logprobs
from octavo.engine.sampling.random_numbers import uniform
from octavo.engine.sampling.ranking import FloatArray
from octavo.engine.sampling.state import SamplingState
from octavo.scheduling.step import StepResult


def sample(
    logits: FloatArray,
    largest: Sequence[int],
    rows: Sequence[int],
    positions: Sequence[int],
    state: SamplingState,
    *,
    sources: Sequence[int] | None = None,
    drafts: Sequence[int] | None = None,
    masks: Mapping[int, BitMask] | None = None,
) -> StepResult:
    """Choose N tokens and let ``state`` know them, so that each call is for new tokens.

    Args:
        logits: float32 [S, V]; not changed.
        largest: S, the token of the largest of each row of ``logits``, the lowest id among equals; -1 if some
            of them are not finite.
        rows: N, the permanent row that each token is for.
        positions: N, where in its sequence each token will stand.
        state: settings of the rows.
        sources: N, which row of ``logits`` each token is chosen from; None takes them in order (N = S).
            Several tokens may come from one row, such as the first ones of several samples of a prompt.
        drafts: N tokens, or None. With drafts a row may have several tokens in this call, in the order of
            their positions: the logits of each assume that those before it equal their drafts, and after the
            first that does not, the row gets no more. After the last of a row comes any id, such as -1.
            Without drafts each row has one token.
        masks: packed bits of the tokens allowed, by index into ``rows``, for those that a grammar restrains:
            uint32 [at least V / 32], token t is bit t % 32 of word t // 32.

    Returns:
        The tokens; -1 where there is none: it failed, or an earlier one of its row did not equal its draft.
        Why tokens failed, and the log-probabilities of rows that ask for them.
    """
    token_ids = [largest[source] for source in sources] if sources is not None else list(largest)
    special = state.special
    is_special = [token_id < 0 or row in special for token_id, row in zip(token_ids, rows, strict=True)]
    if drafts is None and not masks and True not in is_special:
        return StepResult(token_ids)
    if sources is None:
        sources = range(len(token_ids))
    failures: dict[int, str] = {}
    logprobs: dict[int, TokenLogprobs] = {}
    ended: set[int] = set()  # rows that get no more tokens
    # One row at a time: its whole vocabulary stays in the cache, and no other row can touch its result.
    for i in range(len(token_ids)):
        row = int(rows[i])
        if row in ended:
            token_ids[i] = -1
            continue
        mask = masks.get(i) if masks else None
        if is_special[i] or mask is not None:
            row_logits = logits[sources[i]]
            token_id, problem = _choose(
                row_logits,
                token_ids[i],
                row=row,
                position=int(positions[i]),
                state=state,
                mask=mask,
            )
            token_ids[i] = token_id
            if problem is not None:
                failures[i] = problem
                ended.add(row)
                continue
            state.accept(row, token_id)
            if row in state.num_logprobs:
                [logprobs[i]] = token_logprobs(row_logits[None], [token_id], state.num_logprobs[row])
        if drafts is not None and token_ids[i] != drafts[i]:
            ended.add(row)
    return StepResult(token_ids, failures, logprobs)


def _choose(
    logits: FloatArray,
    best: int,
    *,
    row: int,
    position: int,
    state: SamplingState,
    mask: BitMask | None,
) -> tuple[int, str | None]:
    """A token, or -1 and the reason why there is none. ``best``: that of the largest logit, -1 if unknown."""
    if row in state.faults:
        return -1, state.faults[row]
    if best < 0:
        best = int(logits.argmax())  # a NaN counts as the largest
    if not isfinite(logits[best]):
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
