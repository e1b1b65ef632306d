"""Sampling parameters through the whole engine: tokens, texts and log-probabilities of requests."""

import numpy as np
import pytest
from test_engine import prompt_with
from toy import EOS, VOCAB, ToyEngine, ToyTokenizer, tokens_of, toy_greedy, toy_text

from octavo.core.errors import InvalidRequest
from octavo.core.request import CompletionOutput

SETTINGS = [
    {"temperature": 1.0, "top_k": 20, "typical_p": 0.9},
    {"temperature": 0.7, "repetition_penalty": 1.3, "frequency_penalty": 0.3},
    {"presence_penalty": 1.5},
    {"logit_bias": {4: 3.0}, "logprobs": 2},
    {"temperature": 1.0, "bad_words": ["a", "he", [5, 6]], "min_tokens": 10},
    {"allowed_token_ids": list(range(20)), "temperature": 2.0, "logprobs": 0},
]


def run_one(toy: ToyEngine, prompt: list[int], **settings: object) -> CompletionOutput:
    generation = toy.submit(prompt, **settings)
    toy.run(generation)
    assert generation.output().error is None
    return generation.output().outputs[0]


@pytest.mark.parametrize("num_tokens", [9, 10, 11])
def test_min_tokens_is_reached_before_the_end_may_come(num_tokens):
    prompt, tokens = prompt_with(lambda t: t.index(EOS) == 10 if EOS in t else False)
    completion = run_one(ToyEngine(), prompt, max_tokens=30, min_tokens=num_tokens)
    if num_tokens <= 10:  # the end may be chosen once there are so many tokens
        assert completion.token_ids == tokens[:11]
    else:
        assert len(completion.token_ids) > 11
        assert completion.token_ids[:10] == tokens[:10]
        assert EOS not in completion.token_ids[:11]


@pytest.mark.parametrize("min_tokens", [3, 4, 5])
def test_a_stop_text_before_min_tokens_is_text(min_tokens):
    prompt, tokens = prompt_with(lambda t: EOS not in t and toy_text(t).isascii(), num_tokens=12)
    text = toy_text(tokens)
    stop = text[1:4]
    assert text.count(stop) == 1
    completion = run_one(ToyEngine(), prompt, max_tokens=12, min_tokens=min_tokens, stop=stop)
    if min_tokens <= 4:  # token 4 completes it
        assert (completion.text, completion.finish_reason) == (text[:1], "stop")
        assert completion.token_ids == tokens[:4]
    else:
        assert (completion.text, completion.finish_reason) == (text, "length")


def test_the_stop_stays_in_the_output_if_asked_for():
    prompt, tokens = prompt_with(lambda t: EOS not in t and toy_text(t[:20]).isascii())
    text = toy_text(tokens)
    stop = text[10:14]
    end = text.index(stop) + 4
    settings = {"max_tokens": 40, "include_stop_str_in_output": True}
    completion = run_one(ToyEngine(), prompt, stop=[stop], **settings)
    assert (completion.text, completion.finish_reason) == (text[:end], "stop")
    assert completion.token_ids == tokens[:end]
    last = next(i for i in range(5, 40) if tokens[i] not in tokens[:i])
    completion = run_one(ToyEngine(), prompt, stop_token_ids=[tokens[last]], **settings)
    assert completion.text == toy_text(tokens[: last + 1])


def test_bad_words_never_appear_in_the_text():
    for seed in range(8):
        prompt = [seed, 3, 9]
        free = run_one(ToyEngine(), prompt, max_tokens=30, ignore_eos=True)
        word = next(pair for i in range(5, 29) if (pair := free.text[i : i + 2]).isascii())
        completion = run_one(ToyEngine(), prompt, max_tokens=30, ignore_eos=True, bad_words=[word])
        assert word in free.text
        assert word not in completion.text
        assert len(completion.token_ids) == 30


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_company_chunks_and_preemption_change_nothing(settings):
    prompts = [[i, 7, 9, 2 * i] * (i + 1) for i in range(6)]
    settings = {"ignore_eos": True, "max_tokens": 24, **settings}
    alone = [run_one(ToyEngine(), p, seed=i, **settings) for i, p in enumerate(prompts)]
    toy = ToyEngine(num_blocks=14, max_step_tokens=16)
    generations = [toy.submit(p, seed=i, **settings) for i, p in enumerate(prompts)]
    toy.run(*generations)
    assert toy.scheduler.stats().num_preemptions > 0
    assert [g.output().outputs[0] for g in generations] == alone


def test_log_probabilities_accompany_the_tokens():
    prompt = [5, 6, 7]
    tokens = toy_greedy(prompt, 12)
    for wanted in (0, 3):
        completion = run_one(ToyEngine(), prompt, max_tokens=12, ignore_eos=True, logprobs=wanted)
        assert completion.token_ids == tokens
        assert completion.logprobs is not None
        assert len(completion.logprobs) == 12
        for token_id, entry in zip(tokens, completion.logprobs, strict=True):
            assert next(iter(entry)) == token_id
            assert len(entry) == max(1, wanted)
            assert entry[token_id].rank == 1  # greedy
            text = ToyTokenizer().token_bytes(token_id).decode(errors="replace")
            assert entry[token_id].decoded_token == text
        total = sum(entry[t].logprob for t, entry in zip(tokens, completion.logprobs, strict=True))
        assert completion.cumulative_logprob == pytest.approx(total)
        assert completion.cumulative_logprob < 0
    completion = run_one(ToyEngine(), prompt, max_tokens=12)
    assert (completion.logprobs, completion.cumulative_logprob) == (None, None)


def test_unseeded_requests_differ_and_seeded_ones_do_not():
    free = [run_one(ToyEngine(), [1, 2], temperature=1.0, ignore_eos=True).token_ids for _ in range(5)]
    assert len({tuple(tokens) for tokens in free}) == 5
    toy = ToyEngine()
    together = [toy.submit([1, 2], temperature=1.0, ignore_eos=True) for _ in range(5)]
    toy.run(*together)
    assert len({tuple(tokens_of(g)) for g in together}) == 5
    seeded = [run_one(ToyEngine(), [1, 2], temperature=1.0, seed=3).token_ids for _ in range(3)]
    assert seeded[0] == seeded[1] == seeded[2]


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"stop_token_ids": [VOCAB]}, "stop_token_ids"),
        ({"allowed_token_ids": [0, VOCAB]}, "allowed_token_ids"),
        ({"logit_bias": {VOCAB: 1.0}}, "logit_bias"),
        ({"bad_words": ["x", [1, VOCAB]]}, "bad_words"),
        ({"logit_bias": {10**30: 1.0}}, "logit_bias"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(settings, name):
    toy = ToyEngine()
    with pytest.raises(
        InvalidRequest, match=f"{name}: token id .* is outside the vocabulary, 0 to 60"
    ) as error:
        toy.submit([1], **settings)
    assert error.value.param == name
    assert run_one(toy, [1], max_tokens=5).token_ids == toy_greedy([1], 5)


def test_settings_that_leave_no_token_end_their_request_only():
    toy = ToyEngine()
    stuck = toy.submit([1, 2], allowed_token_ids=[7], bad_words=[[7, 7]], max_tokens=9)
    fine = toy.submit([3, 4], max_tokens=6, ignore_eos=True)
    toy.run(stuck, fine)
    output = stuck.output()
    assert output.outputs[0].token_ids == [7]
    assert output.error == "its sampling parameters or its grammar rule out every token at position 3"
    assert tokens_of(fine) == toy_greedy([3, 4], 6)


def test_a_greedy_request_does_not_move_with_the_seed():
    outputs = [run_one(ToyEngine(), [4, 4], seed=seed, max_tokens=8).token_ids for seed in (0, 1, 2**64 - 1)]
    assert outputs == [toy_greedy([4, 4], 8)] * 3
    assert np.array(outputs).shape == (3, 8)
