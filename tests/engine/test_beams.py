"""Beam search through the real engine over a toy model, against a search without any cache."""

from contextlib import suppress

import numpy as np
import pytest
from toy import EOS, VOCAB, ToyDetokenizer, ToyEngine, random_prompts, toy_greedy, toy_logits, toy_value

from octavo.core.errors import EngineFailed, InvalidRequest
from octavo.core.sampling import SamplingParams
from octavo.engine.beam import BeamParams, BeamSearch
from octavo.scheduling.preemption import MAX_PREEMPTIONS


def toy_logprobs(tokens: list[int]) -> np.ndarray:
    layer: list[int] = []
    for token in tokens:
        layer.append(toy_value(np.array(layer, np.int64), token))
    logits = toy_logits([layer[-1]])
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum(dtype=np.float64))


def searched(prompt: list[int], *, width: int, max_tokens: int, stop_ids=(EOS,), **params) -> list:
    search = BeamSearch(BeamParams(width=width, **params), stop_ids=stop_ids, max_tokens=max_tokens)
    beams = [list(prompt)]
    while search.num_live:
        logprobs = np.stack([toy_logprobs(beam) for beam in beams]).astype(np.float32)
        step = search.advance(np.tile(np.arange(VOCAB), (len(beams), 1)), logprobs)
        beams = [[*beams[p], t] for p, t in zip(step.parents, step.token_ids, strict=True)]
    return search.hypotheses


def submit(toy: ToyEngine, prompt: list[int], **params):
    generation = toy.engine.prepare(prompt, SamplingParams(use_beam_search=True, **params))
    toy.engine.submit(generation)
    return generation


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("ignore_eos", [True, False])
def test_equals_a_search_without_cache(width, ignore_eos):
    for prompt in random_prompts(4, seed=width, longest=30):
        toy = ToyEngine()
        generation = submit(toy, prompt, n=width, max_tokens=12, ignore_eos=ignore_eos)
        toy.run(generation)
        right = searched(prompt, width=width, max_tokens=12, stop_ids=() if ignore_eos else (EOS,))
        outputs = generation.output().outputs
        assert [o.token_ids for o in outputs] == [h.token_ids for h in right]
        assert [o.finish_reason for o in outputs] == [h.finish_reason for h in right]
        assert [o.cumulative_logprob for o in outputs] == pytest.approx(
            [h.cumulative_logprob for h in right], abs=1e-4
        )


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 2.0])
def test_settings_reach_the_search(early_stopping, length_penalty):
    settings = {"early_stopping": early_stopping, "length_penalty": length_penalty}
    prompt = [7, 3]
    toy = ToyEngine()
    generation = submit(toy, prompt, n=2, best_of=4, max_tokens=20, **settings)
    toy.run(generation)
    right = searched(prompt, width=4, max_tokens=20, **settings)[:2]
    assert [o.token_ids for o in generation.output().outputs] == [h.token_ids for h in right]


@pytest.mark.parametrize("rows", [1, 3, 5, 8])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_more_beams_than_rows(rows, prefix_cache):
    prompt = random_prompts(1, seed=3)[0]
    toy = ToyEngine(max_num_seqs=rows, prefix_cache=prefix_cache)
    generation = submit(toy, prompt, n=6, max_tokens=10)
    toy.run(generation)
    right = searched(prompt, width=6, max_tokens=10)
    assert [o.token_ids for o in generation.output().outputs] == [h.token_ids for h in right]


@pytest.mark.parametrize("rows", [2, 3])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_beams_without_a_row_keep_their_blocks(rows, prefix_cache):
    prompt = list(range(20))
    toy = ToyEngine(max_num_seqs=rows, prefix_cache=prefix_cache)
    generation = submit(toy, prompt, n=8, max_tokens=12, ignore_eos=True)
    toy.run(generation)
    right = searched(prompt, width=8, max_tokens=12, stop_ids=())
    assert [o.token_ids for o in generation.output().outputs] == [h.token_ids for h in right]
    assert sum(toy.model.step_sizes) == 20 + 11 * 8  # nothing is computed twice
    assert max(toy.model.step_sizes[1:]) <= rows
    assert generation.output().metrics.num_preemptions == 0
    assert toy.scheduler.stats().num_preemptions == 0


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_beams_leave_rows_to_others(rows):
    """A search never takes the row of a request that has something to compute."""
    toy = ToyEngine(max_num_seqs=rows)
    search = submit(toy, [7, 3], n=8, max_tokens=12, ignore_eos=True)
    others = [toy.submit([i], max_tokens=20, ignore_eos=True) for i in range(rows - 1)]
    while not others[0].request.num_output_tokens:
        toy.step()
    while not others[0].finished:
        before = others[0].request.num_output_tokens
        toy.step()
        assert others[0].request.num_output_tokens == before + 1
    assert toy.run(*others) == [toy_greedy([i], 20) for i in range(rows - 1)]
    right = searched([7, 3], width=8, max_tokens=12, stop_ids=())
    assert [o.token_ids for o in search.output().outputs] == [h.token_ids for h in right]


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("prompt_len", [7, 8, 9, 20])
@pytest.mark.parametrize("max_tokens", [2, 9, 12])
def test_a_pool_that_just_holds_a_search(prefix_cache, prompt_len, max_tokens):
    """With a block less it is refused with the numbers; with these it runs, in the company of others too."""
    width, size = 4, 8
    most = -(-(prompt_len + max_tokens - 1) // size)
    shared = prompt_len // size if prefix_cache else 0
    needed = shared + width * (most - shared)
    prompt = list(range(prompt_len))
    params = {"n": width, "max_tokens": max_tokens, "ignore_eos": True}
    toy = ToyEngine(num_blocks=needed, prefix_cache=prefix_cache)
    message = (
        f"{width} beams of up to {prompt_len + max_tokens} tokens need {needed} KV blocks, "
        f"the pool has {needed - 1}"
        if needed > most
        else f"need {needed} KV blocks, the pool has {needed - 1}"
    )
    with pytest.raises(InvalidRequest, match=message):
        submit(toy, prompt, **params)
    toy = ToyEngine(num_blocks=needed + 1, prefix_cache=prefix_cache)
    generations = [submit(toy, prompt[::-1], **params) for _ in range(3)]
    others = [toy.submit([i, 1], max_tokens=min(9, 8 * needed - 2), ignore_eos=True) for i in range(3)]
    toy.run(*generations)
    right = searched(prompt[::-1], width=width, max_tokens=max_tokens, stop_ids=())
    for generation in generations:
        assert [o.token_ids for o in generation.output().outputs] == [h.token_ids for h in right]
    metrics = [g.output().metrics.num_preemptions for g in (*generations, *others)]
    assert max(metrics) <= MAX_PREEMPTIONS
    assert sum(metrics) == toy.scheduler.stats().num_preemptions


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("budget", [2, 5, 64])
def test_beams_in_company_in_a_small_pool(prefix_cache, budget):
    prompts = random_prompts(6, seed=4, longest=20)
    toy = ToyEngine(num_blocks=24, max_num_seqs=7, prefix_cache=prefix_cache, max_step_tokens=budget)
    generations = [submit(toy, p, n=3, max_tokens=28, ignore_eos=True) for p in prompts]
    toy.run(*generations)
    for prompt, generation in zip(prompts, generations, strict=True):
        right = searched(prompt, width=3, max_tokens=28, stop_ids=())
        assert [o.token_ids for o in generation.output().outputs] == [h.token_ids for h in right]
    preemptions = [g.output().metrics.num_preemptions for g in generations]
    assert sum(preemptions) == toy.scheduler.stats().num_preemptions
    assert max(preemptions) <= MAX_PREEMPTIONS


def test_no_prompt_is_computed_again():
    toy = ToyEngine()
    prompt = list(range(40))
    generation = submit(toy, prompt, n=8, max_tokens=10, ignore_eos=True)
    toy.run(generation)
    assert sum(toy.model.step_sizes) == 40 + 9 * 8


@pytest.mark.parametrize("num_steps", [0, 1, 2, 5])
def test_abort_leaves_nothing(num_steps):
    toy = ToyEngine(max_num_seqs=3)
    generation = submit(toy, [1, 2, 3], n=4, max_tokens=20)
    other = submit(toy, [4, 5], n=2, max_tokens=5)
    for _ in range(num_steps):
        toy.step()
    toy.engine.abort(generation)
    assert generation.finished
    assert {o.finish_reason for o in generation.output().outputs} == {"abort"}
    toy.run(other)


def test_unusable_logits_fail_that_search_alone():
    def poison(inputs, logits):
        if inputs.token_ids[0] == 9:
            logits[0] = np.nan

    toy = ToyEngine(hook=poison)
    bad, good = submit(toy, [9], n=3, max_tokens=5), submit(toy, [4, 5], n=2, max_tokens=5)
    toy.run(bad, good)
    assert "no usable logits" in bad.output().error
    right = searched([4, 5], width=2, max_tokens=5)
    assert [o.token_ids for o in good.output().outputs] == [h.token_ids for h in right]


@pytest.mark.parametrize("num_bad", [1, 2, 3])
def test_unusable_logits_of_several_beams_at_once(num_bad):
    def poison(inputs, logits):
        bad = [i for i, token in enumerate(inputs.logit_tokens) if inputs.positions[token] == 6]
        logits[bad[:num_bad]] = np.nan

    toy = ToyEngine(hook=poison)
    search = submit(toy, [1, 2], n=3, max_tokens=12, ignore_eos=True)
    other = toy.submit([3], max_tokens=6, ignore_eos=True)
    assert toy.run(search, other)[1] == toy_greedy([3], 6)
    assert "no usable logits" in search.output().error
    assert not toy.engine.has_work


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n": 33}, "n=33: must be at most 32 with use_beam_search"),
        ({"n": 2, "stop": ["x"]}, "stop=.*left out with use_beam_search"),
        ({"n": 2, "logit_bias": {1: 2.0}}, "logit_bias=.*left out"),
        ({"n": 2, "logprobs": 1}, "logprobs=1: must be left out"),
        ({"n": 2, "length_penalty": 6}, "length_penalty=6: must be a number from -5 to 5"),
        ({"n": 2, "early_stopping": "soon"}, "early_stopping='soon': must be True, False or \"never\""),
    ],
)
def test_bad_parameters_are_refused(params, message):
    with pytest.raises(InvalidRequest, match=message):
        SamplingParams(use_beam_search=True, **params)


class BrokenDetokenizer(ToyDetokenizer):
    def push(self, token_id: int) -> str:
        raise RuntimeError("no text of this")


def test_a_fault_in_a_searchs_text_is_its_own():
    kinds = [ToyDetokenizer, *[BrokenDetokenizer] * 9]  # for the good one, then for the search
    toy = ToyEngine(make_detokenizer=lambda: kinds.pop(0)())
    good = toy.submit([3], max_tokens=9, ignore_eos=True)
    bad = submit(toy, [1, 2], n=2, max_tokens=4)
    assert toy.run(good) == [toy_greedy([3], 9)]
    assert "no text of this" in bad.output().error
    assert bad.finished


def test_a_broken_step_ends_searches_too():
    def explode(inputs, logits):
        if inputs.positions.max() > 6:
            raise RuntimeError("the model fell over")

    toy = ToyEngine(hook=explode)
    generation = submit(toy, [1, 2], n=3, max_tokens=20)
    while not generation.finished:
        with suppress(EngineFailed):
            toy.engine.step()
    assert not toy.engine.has_work
    assert "the model fell over" in generation.output().error


def test_ending_a_search_that_was_refused_does_nothing():
    toy = ToyEngine(num_blocks=9)
    generation = toy.engine.prepare([1] * 20, SamplingParams(use_beam_search=True, n=8, max_tokens=20))
    with pytest.raises(InvalidRequest, match="8 beams"):
        toy.engine.submit(generation)
    toy.engine.abort(generation)
    toy.engine.drop(generation)
    assert not toy.engine.has_work
    toy.run()


def test_a_fault_while_beams_are_replaced_leaves_none_behind(monkeypatch):
    toy = ToyEngine()
    generation = submit(toy, [1, 2], n=4, max_tokens=9, ignore_eos=True)
    good = toy.submit([3], max_tokens=9, ignore_eos=True)
    for _ in range(3):
        toy.step()

    def fail(request, token_id):
        raise RuntimeError("no room for this token")

    monkeypatch.setattr(toy.scheduler, "extend", fail)
    assert toy.run(good) == [toy_greedy([3], 9)]
    assert "no room for this token" in generation.output().error
