"""The real scheduler, block manager, runner and sampler over a toy model."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import EOS, VOCAB, ToyEngine, random_prompts, tokens_of, toy_greedy

from octavo.core.errors import InvalidRequest
from octavo.scheduling.preemption import MAX_PREEMPTIONS

BLOCK = 8


def expected(prompt: list[int], num_tokens: int, *, ignore_eos: bool = True) -> list[int]:
    tokens = toy_greedy(prompt, num_tokens)
    if not ignore_eos and EOS in tokens:
        tokens = tokens[: tokens.index(EOS) + 1]
    return tokens


def test_alone_equals_in_a_batch_equals_no_cache_at_all():
    prompts = random_prompts(16, seed=1)
    toy = ToyEngine()
    together = toy.run(*[toy.submit(p, max_tokens=20, ignore_eos=True) for p in prompts])
    for prompt, tokens in zip(prompts, together, strict=True):
        alone = ToyEngine()
        assert alone.run(alone.submit(prompt, max_tokens=20, ignore_eos=True)) == [tokens]
        assert tokens == expected(prompt, 20)


@pytest.mark.parametrize("budget", [1, 2, 7, 8, 9, 16, 64, 4096])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_chunk_budget_does_not_change_tokens(budget, prefix_cache):
    prompts = random_prompts(6, seed=2, longest=40)
    toy = ToyEngine(max_step_tokens=budget, prefix_cache=prefix_cache)
    outputs = toy.run(*[toy.submit(p, max_tokens=10, ignore_eos=True) for p in prompts])
    assert outputs == [expected(p, 10) for p in prompts]
    assert max(toy.model.step_sizes) <= budget


@pytest.mark.parametrize("block_size", [8, 16, 64])
def test_block_size_does_not_change_tokens(block_size):
    prompts = random_prompts(8, seed=3)
    toy = ToyEngine(block_size=block_size)
    outputs = toy.run(*[toy.submit(p, max_tokens=30, ignore_eos=True) for p in prompts])
    assert outputs == [expected(p, 30) for p in prompts]


@pytest.mark.parametrize("num_blocks", [10, 11, 13, 20])
@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("budget", [5, 64])
def test_small_pool_preempts_and_gives_the_same_tokens(num_blocks, prefix_cache, budget):
    prompts = random_prompts(8, seed=4, longest=30)
    toy = ToyEngine(num_blocks=num_blocks, prefix_cache=prefix_cache, max_step_tokens=budget)
    generations = [toy.submit(p, max_tokens=40, ignore_eos=True) for p in prompts]
    assert toy.run(*generations) == [expected(p, 40) for p in prompts]
    assert toy.scheduler.stats().num_preemptions > 0
    assert all(g.request.num_preemptions <= MAX_PREEMPTIONS for g in generations)


def test_pool_of_exactly_one_sequence():
    prompts = random_prompts(5, seed=5, longest=30)
    longest = max(map(len, prompts)) + 20
    num_blocks = -(-(longest - 1) // BLOCK) + 1
    toy = ToyEngine(num_blocks=num_blocks)
    for _ in range(2):  # the second time, everything cached is somebody else's or one's own
        outputs = toy.run(*[toy.submit(p, max_tokens=20, ignore_eos=True) for p in prompts])
        assert outputs == [expected(p, 20) for p in prompts]


def test_resume_finds_the_blocks_again():
    toy = ToyEngine(num_blocks=12, max_num_seqs=2)
    rng = np.random.default_rng(6)
    first, second = (rng.integers(0, EOS, 24).tolist() for _ in range(2))
    generations = [toy.submit(p, max_tokens=40, ignore_eos=True) for p in (first, second)]
    outputs = toy.run(*generations)
    assert outputs == [expected(first, 40), expected(second, 40)]
    assert toy.scheduler.stats().num_preemptions == 1
    assert generations[1].request.num_preemptions == 1
    assert generations[1].request.num_cached_tokens == 0  # what it finds on resuming is no cached prompt
    # Every token is computed once, plus what the preempted one lost: less than all it had.
    assert sum(toy.model.step_sizes) < 2 * (24 + 39) + 24


@pytest.mark.parametrize("length", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK - 1, 3 * BLOCK])
def test_cold_equals_warm_at_block_edges(length):
    prompt = np.random.default_rng(length).integers(0, EOS, length).tolist()
    toy = ToyEngine()
    cold = toy.submit(prompt, max_tokens=2 * BLOCK, ignore_eos=True)
    toy.run(cold)
    warm = toy.submit(prompt, max_tokens=2 * BLOCK, ignore_eos=True)
    toy.run(warm)
    assert tokens_of(cold) == tokens_of(warm) == expected(prompt, 2 * BLOCK)
    assert (cold.request.num_cached_tokens, warm.request.num_cached_tokens) == (0, length - 1)


def test_prefix_cache_off_reuses_nothing():
    toy = ToyEngine(prefix_cache=False)
    for _ in range(2):
        generation = toy.submit([1] * 40, max_tokens=4)
        toy.run(generation)
        assert generation.request.num_cached_tokens == 0


def test_long_prompt_does_not_stop_running_requests():
    toy = ToyEngine(max_step_tokens=16)
    short = [toy.submit([i], max_tokens=60, ignore_eos=True) for i in range(4)]
    for _ in range(3):
        toy.step()
    long = toy.submit(list(range(50)) * 4, max_tokens=2, ignore_eos=True)
    while not long.finished:
        before = [g.request.num_output_tokens for g in short]
        toy.step()
        assert [g.request.num_output_tokens for g in short] == [b + 1 for b in before]
    assert toy.run(long) == [expected(list(range(50)) * 4, 2)]


def test_more_running_requests_than_budget_starve_no_one():
    toy = ToyEngine(max_num_seqs=16, max_step_tokens=3)
    generations = [
        toy.submit([i, i + 1, i + 2, i + 3, i + 4], max_tokens=12, ignore_eos=True) for i in range(8)
    ]
    finished: list[int] = []
    while toy.engine.has_work:
        toy.step()
        finished += [i for i, g in enumerate(generations) if g.finished and i not in finished]
    assert finished == sorted(finished)
    assert max(toy.model.step_sizes) <= 3


def test_requests_leave_at_different_steps_and_rows_are_reused():
    toy = ToyEngine(max_num_seqs=4)
    prompts = random_prompts(40, seed=7, longest=20)
    generations = [toy.submit(p, max_tokens=1 + i % 7, ignore_eos=True) for i, p in enumerate(prompts)]
    assert toy.run(*generations) == [expected(p, 1 + i % 7) for i, p in enumerate(prompts)]


def test_arrivals_at_random_steps():
    rng = np.random.default_rng(8)
    prompts = random_prompts(32, seed=8, longest=40)
    toy = ToyEngine(num_blocks=60, max_num_seqs=8)
    waiting, generations = list(prompts), []
    while waiting or toy.engine.has_work:
        for _ in range(int(rng.integers(0, 3))):
            if waiting:
                generations.append(toy.submit(waiting.pop(0), max_tokens=15, ignore_eos=True))
        if toy.engine.has_work:
            toy.step()
    assert toy.run(*generations) == [expected(p, 15) for p in prompts]


def test_abort_anywhere_leaves_nothing_behind():
    rng = np.random.default_rng(9)
    prompts = random_prompts(60, seed=9, longest=40)
    toy = ToyEngine(num_blocks=25, max_num_seqs=6)
    generations = [toy.submit(p, max_tokens=25, ignore_eos=True) for p in prompts]
    while toy.engine.has_work:
        toy.step()
        toy.engine.abort(generations[int(rng.integers(len(generations)))])
    toy.run()
    reasons = {g.request.finish_reason for g in generations}
    assert reasons == {"abort", "length"}
    for prompt, generation in zip(prompts, generations, strict=True):
        tokens = tokens_of(generation)
        assert tokens == expected(prompt, len(tokens))


def test_abort_twice_and_after_the_end_is_harmless():
    toy = ToyEngine()
    generation = toy.submit([1, 2, 3], max_tokens=2)
    toy.engine.abort(generation)
    toy.engine.abort(generation)
    assert generation.output().outputs[0].finish_reason == "abort"
    assert toy.run() == []


def test_many_requests_end_and_leak_nothing():
    toy = ToyEngine(num_blocks=40, max_num_seqs=12)
    prompts = random_prompts(300, seed=10, longest=30)
    generations = [toy.submit(p, max_tokens=8) for p in prompts]
    outputs = toy.run(*generations)
    assert outputs == [expected(p, 8, ignore_eos=False) for p in prompts]


def test_context_end_finishes_with_length():
    toy = ToyEngine(context_len=32)
    generation = toy.submit([5] * 31, max_tokens=None, ignore_eos=True)
    other = toy.submit([6] * 3, max_tokens=None, ignore_eos=True)
    toy.run(generation, other)
    assert [len(g.request.token_ids) for g in (generation, other)] == [32, 32]
    assert {g.request.finish_reason for g in (generation, other)} == {"length"}


def test_what_can_never_fit_is_refused_with_the_numbers():
    toy = ToyEngine(num_blocks=5, context_len=100)
    with pytest.raises(
        InvalidRequest, match=r"40 prompt tokens and up to 10 new ones need 7 KV blocks, the pool has 4"
    ):
        toy.submit([1] * 40, max_tokens=10)
    fits = toy.submit([1] * 23, max_tokens=10, ignore_eos=True)
    assert toy.run(fits) == [expected([1] * 23, 10)]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "empty"),
        ([1, VOCAB], f"token id {VOCAB} is outside the vocabulary, 0 to {VOCAB - 1}"),
        ([-1], "token id -1 is outside"),
        ([1] * 256, "the prompt has 256 tokens; at most 255 leave room"),
    ],
)
def test_bad_prompts_are_refused(prompt, message):
    toy = ToyEngine()
    with pytest.raises(InvalidRequest, match=message):
        toy.submit(prompt)
    with pytest.raises(InvalidRequest, match="stop_token_ids: token id 99 is outside"):
        toy.submit([1], stop_token_ids=[99])
    assert toy.run(toy.submit([1], max_tokens=3, ignore_eos=True)) == [expected([1], 3)]


def test_preemption_goes_to_the_latest_and_the_oldest_never_waits():
    toy = ToyEngine(num_blocks=14, max_num_seqs=4)
    generations = [toy.submit([i] * 12, max_tokens=70, ignore_eos=True) for i in range(4)]
    oldest = generations[0]
    while not oldest.finished:
        before = oldest.request.num_output_tokens
        toy.step()
        assert oldest.request.num_output_tokens == before + 1
    assert oldest.request.num_preemptions == 0
    assert toy.run(*generations) == [expected([i] * 12, 70) for i in range(4)]


def test_preempted_requests_keep_their_place_in_the_queue():
    toy = ToyEngine(num_blocks=16, max_num_seqs=5)
    generations = [toy.submit([i] * 8, max_tokens=40, ignore_eos=True) for i in range(12)]
    finished: list[int] = []
    while toy.engine.has_work:
        toy.step()
        finished += [i for i, g in enumerate(generations) if g.finished and i not in finished]
    assert toy.scheduler.stats().num_preemptions > 0
    assert finished == list(range(12))


@pytest.mark.parametrize(("num_blocks", "growth"), [(40, 20), (26, 20), (30, 16)])
def test_preemptions_of_a_request_are_bounded(num_blocks, growth, monkeypatch):
    def most_preempted() -> int:
        toy = ToyEngine(num_blocks=num_blocks)
        counts = [min(8 * (num_blocks - 1) - 4, 10 + growth * (i + i // 11)) for i in range(12)]
        generations = [toy.submit([i] * 4, max_tokens=n, ignore_eos=True) for i, n in enumerate(counts)]
        assert toy.run(*generations) == [expected([i] * 4, n) for i, n in enumerate(counts)]
        return max(g.request.num_preemptions for g in generations)

    assert most_preempted() == MAX_PREEMPTIONS
    monkeypatch.setattr("octavo.scheduling.preemption.MAX_PREEMPTIONS", 1000)
    assert most_preempted() > MAX_PREEMPTIONS  # the scene is one where the bound matters


def test_seeded_sampling_is_the_same_in_any_company_and_after_preemption():
    prompts = random_prompts(8, seed=11, longest=20)
    alone = []
    for i, prompt in enumerate(prompts):
        toy = ToyEngine()
        alone += toy.run(toy.submit(prompt, max_tokens=30, temperature=1.0, seed=i, ignore_eos=True))
    for num_blocks, budget in ((200, 64), (12, 64), (12, 3)):
        toy = ToyEngine(num_blocks=num_blocks, max_step_tokens=budget)
        settings = {"max_tokens": 30, "temperature": 1.0, "ignore_eos": True}
        assert toy.run(*[toy.submit(p, seed=i, **settings) for i, p in enumerate(prompts)]) == alone
    assert alone != [expected(p, 30) for p in prompts]


def test_unseeded_requests_differ():
    toy = ToyEngine()
    outputs = toy.run(
        *[toy.submit([1, 2, 3], max_tokens=20, temperature=1.0, ignore_eos=True) for _ in range(5)]
    )
    assert len({tuple(tokens) for tokens in outputs}) == 5


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    block_size=st.sampled_from([8, 16]),
    spare_blocks=st.integers(0, 30),
    budget=st.integers(1, 80),
    rows=st.integers(1, 9),
    prefix_cache=st.booleans(),
)
def test_any_engine_gives_the_same_tokens(*, seed, block_size, spare_blocks, budget, rows, prefix_cache):
    rng = np.random.default_rng(seed)
    prompts = random_prompts(int(rng.integers(1, 14)), seed=seed, longest=45)
    counts = rng.integers(1, 25, len(prompts)).tolist()
    most = max(len(p) + n - 1 for p, n in zip(prompts, counts, strict=True))
    toy = ToyEngine(
        num_blocks=-(-most // block_size) + 1 + spare_blocks,
        block_size=block_size,
        max_step_tokens=budget,
        max_num_seqs=rows,
        prefix_cache=prefix_cache,
    )
    waiting = list(zip(prompts, counts, strict=True))
    generations = []
    while waiting or toy.engine.has_work:
        while waiting and rng.random() < 0.4:
            prompt, count = waiting.pop(0)
            generations.append(toy.submit(prompt, max_tokens=count, ignore_eos=True))
        if toy.engine.has_work:
            toy.step()
    assert toy.run(*generations) == [expected(p, n) for p, n in zip(prompts, counts, strict=True)]
    assert all(g.request.num_preemptions <= MAX_PREEMPTIONS for g in generations)
