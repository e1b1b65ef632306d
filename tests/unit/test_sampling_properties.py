"""Whatever is asked for together: no error, no token that is ruled out, and the same token again."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_case import Letters, sample, state_for

from octavo.core.sampling import SamplingParams

VOCAB = 100
TEXTS = Letters([chr(ord("a") + t % 26) * (1 + t // 26) for t in range(VOCAB)])
PROMPT, OUTPUT = [1, 2, 30, 5], [6, 6, 7]
ids = st.integers(0, VOCAB - 1)


def fraction(lowest: float) -> st.SearchStrategy[float]:
    return st.floats(lowest, 1, exclude_min=lowest == 0)


def sometimes(strategy: st.SearchStrategy, nothing: object) -> st.SearchStrategy:
    return st.one_of(st.just(nothing), strategy)


parameters = st.fixed_dictionaries(
    {
        "temperature": st.one_of(st.just(0.0), st.floats(0, 1e6), st.floats(0.2, 2)),
        "top_k": sometimes(st.integers(0, 2 * VOCAB), 0),
        "top_p": sometimes(fraction(0), 1.0),
        "min_p": sometimes(st.floats(0, 1), 0.0),
        "typical_p": sometimes(fraction(0), 1.0),
        "repetition_penalty": sometimes(st.floats(0, 1e6, exclude_min=True), 1.0),
        "frequency_penalty": sometimes(st.floats(-2, 2), 0.0),
        "presence_penalty": sometimes(st.floats(-2, 2), 0.0),
        "logit_bias": sometimes(st.dictionaries(ids, st.floats(-100, 100), max_size=5), None),
        "bad_words": sometimes(
            st.lists(st.text("abcdef", min_size=1, max_size=3) | st.lists(ids, min_size=1, max_size=2)), ()
        ),
        "allowed_token_ids": sometimes(st.lists(ids, min_size=1, max_size=40), None),
        "stop_token_ids": st.lists(ids, max_size=4),
        "min_tokens": st.integers(0, 6),
        "logprobs": sometimes(st.integers(0, 20), None),
        "n": st.integers(1, 3),
        "best_of": st.none() | st.integers(3, 64),
        "seed": st.integers(0, 2**64 - 1),
    }
)


@settings(max_examples=150, deadline=None)
@given(
    parameters,
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.5, 3.0, 1e4, 1e37]),
    st.none() | st.sets(ids, min_size=1),
    st.booleans(),
)
def test_no_combination_breaks_or_goes_outside(values, seed, spread, mask, with_holes):
    params = SamplingParams(**values)
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(2, VOCAB)) * spread).astype(np.float32)
    possible = set(range(VOCAB))
    if with_holes:
        logits[:, 50:] = -np.inf
        possible = set(range(50))
    masks = None
    if mask is not None:
        bits = np.zeros(128, np.uint8)
        bits[list(mask)] = 1
        masks = {0: np.packbits(bits, bitorder="little").view(np.uint32)}
        possible &= mask
    if params.allowed_token_ids is not None:
        possible &= set(params.allowed_token_ids)
    ends = {0, *params.stop_token_ids}
    if len(OUTPUT) < params.min_tokens and not (mask is not None and mask <= ends):
        possible -= ends
    before = (*PROMPT, *OUTPUT)
    for word in params.bad_words:
        if isinstance(word, str):
            possible -= {t for t in possible if word.encode() in TEXTS.texts[t]}
        elif before[len(before) - len(word) + 1 :] == word[:-1]:
            possible.discard(word[-1])

    def run(*order: int):
        opened = [params, SamplingParams(temperature=0)]
        state = state_for(
            *opened,
            vocab_size=VOCAB,
            seeds=[params.seed, 0],
            prompt=PROMPT,
            output=OUTPUT,
            eos=[0],
            tokenizer=TEXTS,
        )
        at = list(order)
        given_masks = {at.index(0): masks[0]} if masks else None
        return sample(logits[at], np.array(at), np.full(len(at), 7), state, masks=given_masks)

    result = run(0, 1)
    assert result.token_ids[1] == logits[1].argmax()
    assert set(result.failures) <= {0}
    if result.failures:
        assert "rule out every token" in result.failures[0]
        assert result.token_ids[0] == -1
    else:
        assert result.token_ids[0] in possible
        if params.num_logprobs is not None:
            assert result.logprobs[0][0][0] == result.token_ids[0]
    swapped = run(1, 0)
    assert swapped.token_ids == result.token_ids[::-1]
