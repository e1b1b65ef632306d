"""Penalties, bias and bans: against transformers, OpenAI's formula, and text that must not appear."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_case import Letters, pick, sample, state_for

from octavo.core.sampling import SamplingParams
from octavo.engine.sampling.adjustments import Adjustments
from octavo.engine.sampling.bad_words import Vocabulary

VOCAB = 60


def adjusted(
    logits: np.ndarray,
    params: SamplingParams,
    prompt: list[int],
    output: list[int],
    *,
    stop_ids: tuple[int, ...] = (),
    vocabulary: Vocabulary | None = None,
) -> np.ndarray:
    """Logits after the adjustments; half of the output is accepted, the other half there at the opening."""
    half = len(output) // 2
    adjustments = Adjustments(
        params,
        stop_ids=stop_ids,
        vocabulary=vocabulary,
        prompt_token_ids=prompt,
        output_token_ids=output[:half],
    )
    for token_id in output[half:]:
        adjustments.accept(token_id)
    result = logits.copy()
    adjustments.apply(result, len(prompt) + len(output))
    return result


def tokens_and_logits(seed: int) -> tuple[list[int], list[int], np.ndarray]:
    rng = np.random.default_rng(seed)
    prompt, output = rng.integers(0, VOCAB, 30).tolist(), rng.integers(0, VOCAB // 2, 200).tolist()
    logits = rng.normal(0, 3, VOCAB).astype(np.float32)
    logits[-1] = -np.inf
    return prompt, output[: rng.integers(0, 201)], logits


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.1, 2.0])
def test_repetition_penalty_equals_that_of_transformers(penalty):
    torch = pytest.importorskip("torch")
    from transformers import RepetitionPenaltyLogitsProcessor

    for seed in range(10):
        prompt, output, logits = tokens_and_logits(seed)
        theirs = RepetitionPenaltyLogitsProcessor(penalty)(
            torch.tensor([prompt + output]), torch.tensor(logits)[None]
        )
        ours = adjusted(logits, SamplingParams(repetition_penalty=penalty), prompt, output)
        np.testing.assert_allclose(ours, theirs[0].numpy(), rtol=1e-6)


@pytest.mark.parametrize(("frequency", "presence"), [(0.5, 0), (0, 0.5), (-2, 2), (1.5, -0.3)])
def test_frequency_and_presence_penalties_follow_the_formula(frequency, presence):
    params = SamplingParams(frequency_penalty=frequency, presence_penalty=presence)
    for seed in range(10):
        prompt, output, logits = tokens_and_logits(seed)
        counts = np.bincount(output, minlength=VOCAB)  # of the output alone
        expected = logits.astype(np.float64) - counts * frequency - (counts > 0) * presence
        np.testing.assert_allclose(adjusted(logits, params, prompt, output), expected, rtol=1e-6, atol=1e-6)


def test_all_together_in_order():
    params = SamplingParams(
        logit_bias={3: 5.0, 7: -4.5},
        repetition_penalty=1.3,
        frequency_penalty=0.4,
        presence_penalty=0.2,
        allowed_token_ids=[2, 3, 5, 7],
        bad_words=[[5]],
        min_tokens=4,
    )
    logits = np.linspace(-2, 3, 10, dtype=np.float32)
    expected = logits.astype(np.float64)
    expected[3] += 5
    expected[7] -= 4.5
    for seen in (1, 2, 3, 7):
        expected[seen] = expected[seen] / 1.3 if expected[seen] > 0 else expected[seen] * 1.3
    expected[3] -= 0.4 * 2 + 0.2
    expected[7] -= 0.4 + 0.2
    expected[[0, 1, 4, 5, 6, 8, 9]] = -np.inf
    expected[2] = -np.inf
    result = adjusted(logits, params, [1, 2], [3, 7, 3], stop_ids=(2,))
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_extreme_penalties_and_biases_keep_logits_finite():
    logits = np.array([3e38, -3e38, 1, -np.inf, 0], np.float32)
    for penalty in (5e-324, 1e-300, 1e6):
        params = SamplingParams(repetition_penalty=penalty, logit_bias={0: 100, 1: -100})
        result = adjusted(logits, params, [0, 1, 2, 3, 4], [])
        assert np.isneginf(result).tolist() == [False, False, False, True, False]
        assert not np.isnan(result).any()
        assert not np.isposinf(result).any()


def test_bias_of_100_forces_and_forbids():
    logits = np.random.default_rng(1).normal(0, 3, VOCAB).astype(np.float32)
    best = int(logits.argmax())
    for temperature in (0.0, 1.0):
        assert pick(logits, SamplingParams(temperature=temperature, logit_bias={5: 100})) == 5
        assert pick(logits, SamplingParams(temperature=temperature, logit_bias={best: -100})) != best


def test_penalties_follow_the_tokens_as_they_are_chosen():
    logits = np.array([[1.0, 0.9, 0.8, -9]], np.float32)
    state = state_for(SamplingParams(temperature=0, presence_penalty=0.15), vocab_size=4)
    tokens = [sample(logits, np.zeros(1, np.int32), np.array([i]), state).token_ids[0] for i in range(4)]
    assert tokens == [0, 1, 0, 0]
    state = state_for(SamplingParams(temperature=0, frequency_penalty=0.15), vocab_size=4)
    tokens = [sample(logits, np.zeros(1, np.int32), np.array([i]), state).token_ids[0] for i in range(6)]
    assert tokens == [0, 1, 0, 2, 1, 0]


# min_tokens


@pytest.mark.parametrize(("num_output", "chosen"), [(0, 7), (1, 7), (2, 7), (3, 9), (4, 9)])
@pytest.mark.parametrize("others", [{}, {"logit_bias": {19: -1.0}}])
def test_min_tokens_holds_the_end_back_until_they_are_there(num_output, chosen, others):
    logits = np.zeros(20, np.float32)
    logits[[9, 8, 7]] = 3, 2, 1  # the model's end, the caller's, anything else
    params = SamplingParams(temperature=0, min_tokens=3, stop_token_ids=[8], **others)
    output = [1] * num_output
    assert pick(logits, params, position=4 + num_output, prompt=[1] * 4, output=output, eos=[9]) == chosen
    ignoring = SamplingParams(temperature=0, min_tokens=3, stop_token_ids=[8], ignore_eos=True)
    assert pick(logits, ignoring, position=4 + num_output, prompt=[1] * 4, output=output, eos=[9]) == 9


# Bad words


def test_token_sequences_equal_those_of_transformers():
    torch = pytest.importorskip("torch")
    from transformers import NoBadWordsLogitsProcessor

    rng = np.random.default_rng(3)
    for _ in range(50):
        words = [rng.integers(0, 6, rng.integers(1, 4)).tolist() for _ in range(4)]
        tokens = rng.integers(0, 6, 12).tolist()
        logits = rng.normal(size=8).astype(np.float32)
        theirs = NoBadWordsLogitsProcessor(words)(torch.tensor([tokens]), torch.tensor(logits)[None])
        ours = adjusted(logits, SamplingParams(bad_words=words), tokens[:5], tokens[5:])
        np.testing.assert_array_equal(ours, theirs[0].numpy())


SPELLINGS = Letters(
    ["word", " word", "w", "ord", " w", "wo", "rd", "r", "d", "o", " ", "sword", "words", "<s>"]
)


@pytest.mark.parametrize(
    ("output", "banned"),
    [
        ("", {"word", " word", "sword", "words"}),
        ("w", {"word", " word", "sword", "words", "ord"}),
        (" w", {"word", " word", "sword", "words", "ord"}),
        ("wo", {"word", " word", "sword", "words", "rd"}),
        ("wor", {"word", " word", "sword", "words", "d"}),
    ],
)
def test_a_text_is_banned_in_every_spelling(output, banned):
    texts = [text.decode() for text in SPELLINGS.texts]
    ids = {"": [], "w": [2], " w": [4], "wo": [2, 9], "wor": [2, 9, 7]}[output]
    vocabulary = Vocabulary(SPELLINGS, len(texts))
    for cut in range(len(ids) + 1):  # it may begin in the prompt
        result = adjusted(
            np.zeros(len(texts), np.float32),
            SamplingParams(bad_words=["word"]),
            ids[:cut],
            ids[cut:],
            vocabulary=vocabulary,
        )
        assert {texts[t] for t in np.flatnonzero(np.isneginf(result))} == banned


def test_special_tokens_do_not_hide_a_bad_word_and_may_be_one():
    vocabulary = Vocabulary(SPELLINGS, 20)  # wider than the tokenizer
    result = adjusted(
        np.zeros(20, np.float32), SamplingParams(bad_words=["word"]), [], [2, 13], vocabulary=vocabulary
    )
    assert np.isneginf(result[3])
    assert not np.isneginf(result[13:]).any()
    result = adjusted(
        np.zeros(20, np.float32), SamplingParams(bad_words=["<s>"]), [], [], vocabulary=vocabulary
    )
    assert np.flatnonzero(np.isneginf(result)).tolist() == [13]


PARTS = Letters(["a", "b", "é", "ab", "ba", "aa", " a", " b", "aba", " ", "<s>", "", "bb", "éa"])
PARTS.texts += [b"\xc3", b"\xa9", b"\xc3\xa9a"]  # halves of a character, and a whole one with more
words = st.lists(
    st.text(alphabet="abé ", min_size=1, max_size=4) | st.lists(st.integers(0, 16), min_size=1, max_size=3),
    min_size=1,
    max_size=3,
)


@settings(max_examples=60, deadline=None)
@given(words, st.integers(0, 2**32), st.lists(st.integers(0, 16), max_size=4))
def test_bad_words_never_appear(bad, seed, prompt):
    rng = np.random.default_rng(seed)
    state = state_for(
        SamplingParams(bad_words=bad), vocab_size=len(PARTS.texts), prompt=prompt, tokenizer=PARTS
    )
    tokens = list(prompt)
    for _ in range(25):
        logits = rng.normal(0, 2, (1, len(PARTS.texts))).astype(np.float32)
        result = sample(logits, np.zeros(1, np.int32), np.array([len(tokens)]), state)
        if result.failures:  # nothing is left to say
            break
        tokens += result.token_ids
    text = b"".join(PARTS.visible_bytes(t) for t in tokens)
    prompt_bytes = sum(len(PARTS.visible_bytes(t)) for t in prompt)
    for word in bad:
        if isinstance(word, str):
            assert text.find(word.encode(), max(0, prompt_bytes - len(word.encode()) + 1)) < 0
        else:
            first = max(0, len(prompt) - len(word) + 1)
            ends = range(first + len(word), len(tokens) + 1)
            assert all(tokens[end - len(word) : end] != word for end in ends)


def test_vocabulary_finds_what_a_scan_finds():
    rng = np.random.default_rng(4)
    texts = ["".join(rng.choice(list("abc"), rng.integers(0, 6))) for _ in range(400)]
    vocabulary = Vocabulary(Letters(texts), 420)
    for text in ("a", "ab", "abc", "cba", "aaa", "abcabc", "cc"):
        starting = [t for t, one in enumerate(texts) if one.startswith(text)]
        assert sorted(vocabulary.starting_with(text.encode()).tolist()) == starting
        assert vocabulary.containing(text.encode()).tolist() == [
            t for t, one in enumerate(texts) if text in one
        ]
