"""Forks, prefixes in progress, priorities, queue limits, drafts: the real engine over a toy model."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import EOS, ToyEngine, random_prompts, tokens_of, toy_greedy, toy_text

from octavo.core.errors import InvalidRequest, QueueFull
from octavo.core.request import Request
from octavo.scheduling.preemption import MAX_PREEMPTIONS
from octavo.scheduling.waiting import AGEING_STEPS


def random_prompt(length: int, *, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, EOS, length).tolist()


def choices_of(generation) -> list[list[int]]:
    return [c.request.token_ids[c.request.prompt_len :] for c in generation.choices]


# Samples of one prompt


def sampled_alone(prompt: list[int], **params) -> list[list[int]]:
    toy = ToyEngine()
    generation = toy.submit(prompt, **params)
    toy.run(generation)
    return choices_of(generation)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 40])
def test_samples_compute_the_prompt_once(length):
    toy = ToyEngine()
    prompt = random_prompt(length, seed=length)
    generation = toy.submit(prompt, n=4, temperature=1.0, seed=5, max_tokens=12, ignore_eos=True)
    toy.run(generation)
    assert sum(toy.model.step_sizes) == length + 4 * 11
    samples = choices_of(generation)
    assert len({tuple(s) for s in samples}) == 4
    assert samples == sampled_alone(prompt, n=4, temperature=1.0, seed=5, max_tokens=12, ignore_eos=True)


def test_greedy_samples_are_equal_and_right():
    toy = ToyEngine()
    prompt = random_prompt(20, seed=1)
    generation = toy.submit(prompt, n=3, max_tokens=20, ignore_eos=True)
    toy.run(generation)
    assert choices_of(generation) == [toy_greedy(prompt, 20)] * 3


def test_samples_share_the_prompts_blocks():
    toy = ToyEngine()
    generation = toy.submit(random_prompt(30, seed=2), n=5, temperature=1.0, max_tokens=10, ignore_eos=True)
    toy.step()
    assert toy.kv.stats().used_blocks == 4
    toy.step()  # each gets a copy of the last, unfinished block; one keeps the original
    assert toy.kv.stats().used_blocks == 3 + 5
    toy.run(generation)


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_more_samples_than_rows_run_in_waves(rows, prefix_cache):
    prompt = random_prompt(20, seed=3)
    toy = ToyEngine(max_num_seqs=rows, prefix_cache=prefix_cache)
    settings = {"n": 7, "temperature": 0.8, "seed": 9, "max_tokens": 9, "ignore_eos": True}
    generation = toy.submit(prompt, **settings)
    toy.run(generation)
    assert choices_of(generation) == sampled_alone(prompt, **settings)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_fifty_samples_in_a_pool_for_one_and_a_bit(prefix_cache):
    prompt = random_prompt(20, seed=4)
    settings = {"n": 50, "temperature": 0.8, "seed": 9, "max_tokens": 20, "ignore_eos": True}
    toy = ToyEngine(num_blocks=7, prefix_cache=prefix_cache, max_num_seqs=16)
    generation = toy.submit(prompt, **settings)
    toy.run(generation)
    assert choices_of(generation) == sampled_alone(prompt, **settings)
    assert all(c.request.num_preemptions <= MAX_PREEMPTIONS for c in generation.choices)


def test_samples_of_one_token():
    toy = ToyEngine()
    generation = toy.submit([1, 2, 3], n=3, max_tokens=1, ignore_eos=True)
    toy.run(generation)
    assert choices_of(generation) == [toy_greedy([1, 2, 3], 1)] * 3


@pytest.mark.parametrize("num_steps", [0, 1, 2, 5])
def test_abort_of_samples_leaves_nothing(num_steps):
    toy = ToyEngine(max_step_tokens=8)
    generation = toy.submit(random_prompt(20, seed=5), n=4, max_tokens=20, ignore_eos=True)
    other = toy.submit([9, 9], max_tokens=5, ignore_eos=True)
    for _ in range(num_steps):
        toy.step()
    toy.engine.abort(generation)
    assert generation.finished
    assert {c.request.finish_reason for c in generation.choices} == {"abort"}
    toy.run(other)


def test_a_sample_that_stops_does_not_stop_the_others():
    for seed in range(200):
        settings = {"n": 3, "temperature": 1.0, "seed": seed, "max_tokens": 30}
        samples = sampled_alone([seed % 50, 3], **settings)
        if sum(EOS in s for s in samples) == 1:
            break
    toy = ToyEngine()
    generation = toy.submit([seed % 50, 3], **settings)
    toy.run(generation)
    assert choices_of(generation) == samples
    reasons = [c.finish_reason for c in generation.output().outputs]
    assert sorted(reasons) == ["length", "length", "stop"]
    assert [c.index for c in generation.output().outputs] == [0, 1, 2]


# Prefixes in progress


def test_simultaneous_prompts_compute_their_common_prefix_once():
    prefix = random_prompt(64, seed=6)
    prompts = [prefix + random_prompt(5, seed=100 + i) for i in range(12)]
    toy = ToyEngine(max_step_tokens=32, max_num_seqs=12)
    generations = [toy.submit(p, max_tokens=3, ignore_eos=True) for p in prompts]
    assert toy.run(*generations) == [toy_greedy(p, 3) for p in prompts]
    assert sum(toy.model.step_sizes) == 64 + 12 * (5 + 2)
    assert [g.request.num_cached_tokens for g in generations] == [0] + [64] * 11


def test_who_waits_for_a_prefix_holds_up_no_one_else():
    prefix = random_prompt(64, seed=7)
    toy = ToyEngine(max_step_tokens=16)
    first = toy.submit([*prefix, 1], max_tokens=4, ignore_eos=True)
    waiting = toy.submit([*prefix, 2], max_tokens=4, ignore_eos=True)
    other = toy.submit([5, 6], max_tokens=2, ignore_eos=True)
    for _ in range(4):
        toy.step()
    assert first.request.num_computed == 64
    assert waiting.request.num_computed == other.request.num_computed == 0  # the budget went to the first
    toy.step()
    assert other.request.num_output_tokens == 1
    assert toy.run(first, waiting, other) == [
        toy_greedy([*prefix, 1], 4),
        toy_greedy([*prefix, 2], 4),
        toy_greedy([5, 6], 2),
    ]
    assert waiting.request.num_cached_tokens == 64


@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_the_owner_of_a_prefix_in_progress_vanishes(num_steps):
    prefix = random_prompt(64, seed=8)
    toy = ToyEngine(max_step_tokens=16)
    first = toy.submit([*prefix, 1], max_tokens=4)
    waiting = toy.submit([*prefix, 2], max_tokens=4, ignore_eos=True)
    for _ in range(num_steps):
        toy.step()
    toy.engine.abort(first)
    assert toy.run(waiting) == [toy_greedy([*prefix, 2], 4)]
    assert waiting.request.num_cached_tokens == num_steps * 16


def test_salts_wait_for_no_one():
    prompt = random_prompt(64, seed=9)
    toy = ToyEngine(max_step_tokens=256)
    for salt in ("a", "b"):
        generation = toy.engine.prepare(prompt, toy_params(max_tokens=2), salt=salt)
        toy.engine.submit(generation)
    toy.step()
    assert toy.model.step_sizes == [128]
    toy.run()


def toy_params(**params):
    from octavo.core.sampling import SamplingParams

    return SamplingParams(**{"temperature": 0.0, "ignore_eos": True, **params})


# Chunks


def test_chunks_beside_decodes_are_as_small_as_asked():
    toy = ToyEngine(max_step_tokens=64, max_chunk_tokens=5)
    first = toy.submit(random_prompt(40, seed=1), max_tokens=30, ignore_eos=True)
    toy.step()
    assert toy.model.step_sizes == [40]  # nobody decodes yet
    second = toy.submit(random_prompt(23, seed=2), max_tokens=4, ignore_eos=True)
    while second.request.num_output_tokens == 0:
        toy.step()
    assert toy.model.step_sizes[1:] == [6, 6, 6, 6, 4]
    right = [toy_greedy(random_prompt(40, seed=1), 30), toy_greedy(random_prompt(23, seed=2), 4)]
    assert toy.run(first, second) == right


# Priorities


def submit_urgent(toy: ToyEngine, prompt: list[int], priority: int, **params):
    generation = toy.engine.prepare(prompt, toy_params(**params), priority=priority)
    toy.engine.submit(generation)
    return generation


def test_more_urgent_requests_go_first():
    toy = ToyEngine(max_num_seqs=1, scheduling="priority")
    generations = [
        submit_urgent(toy, [i, 1], priority, max_tokens=3) for i, priority in enumerate((2, 0, 1, 0))
    ]
    order = []
    while toy.engine.has_work:
        toy.step()
        order += [i for i, g in enumerate(generations) if g.finished and i not in order]
    assert order == [1, 3, 2, 0]


def test_first_come_first_served_ignores_priority():
    toy = ToyEngine(max_num_seqs=1)
    generations = [submit_urgent(toy, [i], priority, max_tokens=2) for i, priority in enumerate((2, 0))]
    toy.step()
    toy.step()
    assert [g.finished for g in generations] == [True, False]
    toy.run()


@pytest.mark.parametrize("num_blocks", [9, 200])
def test_an_urgent_request_takes_the_place_of_a_running_one(num_blocks):
    """There is one row too few, or the pool is full; who gave way resumes and loses nothing."""
    toy = ToyEngine(num_blocks=num_blocks, max_num_seqs=1 if num_blocks == 200 else 4, scheduling="priority")
    patient = submit_urgent(toy, random_prompt(30, seed=1), 5, max_tokens=30)
    for _ in range(5):
        toy.step()
    urgent = submit_urgent(toy, random_prompt(40, seed=2), 0, max_tokens=20)
    while not urgent.finished:
        toy.step()
    assert patient.request.num_preemptions == 1
    assert not patient.finished
    assert toy.run(patient, urgent) == [
        toy_greedy(random_prompt(30, seed=1), 30),
        toy_greedy(random_prompt(40, seed=2), 20),
    ]


def test_nobody_waits_for_ever():
    toy = ToyEngine(max_num_seqs=1, scheduling="priority")
    patient = submit_urgent(toy, [1], 1, max_tokens=2)
    submit_urgent(toy, [2], 0, max_tokens=2)
    num_steps = 0
    while not patient.finished:
        if toy.scheduler.stats().num_waiting < 3:
            submit_urgent(toy, [3], 0, max_tokens=2)
        toy.step()
        num_steps += 1
        assert num_steps < 2 * AGEING_STEPS
    assert num_steps > AGEING_STEPS / 2
    toy.run()


def test_full_queue_refuses_and_loses_nothing():
    toy = ToyEngine(max_num_seqs=1, max_waiting=3)
    generations = [toy.submit([i], max_tokens=2, ignore_eos=True) for i in range(3)]
    message = "3 sequences are waiting and this request has 1 more; at most 3 may wait"
    with pytest.raises(QueueFull, match=message) as refused:
        toy.submit([9], max_tokens=2)
    assert refused.value.limit == 3
    toy.step()
    generations.append(toy.submit([3], max_tokens=2, ignore_eos=True))
    assert toy.run(*generations) == [toy_greedy([i], 2) for i in range(4)]


def test_every_sample_has_a_place_in_the_queue():
    toy = ToyEngine(max_num_seqs=1, max_waiting=6)
    generations = [toy.submit([1], n=4, max_tokens=2, ignore_eos=True)]
    assert toy.scheduler.stats().num_waiting == 4
    with pytest.raises(QueueFull, match="4 sequences are waiting and this request has 3 more; at most 6"):
        toy.submit([2], n=2, best_of=3, max_tokens=2)
    generations.append(toy.submit([2], n=2, max_tokens=2, ignore_eos=True))
    with pytest.raises(QueueFull, match="6 sequences are waiting and this request has 1 more; at most 6"):
        toy.submit([3], max_tokens=2)
    toy.step()  # one runs; its samples find no row
    assert toy.scheduler.stats().num_waiting == 5
    generations.append(toy.submit([3], max_tokens=2, ignore_eos=True))
    toy.run()
    assert [choices_of(g) for g in generations] == [
        [toy_greedy([i], 2)] * n for i, n in ((1, 4), (2, 2), (3, 1))
    ]


def test_an_empty_queue_takes_more_samples_than_may_wait():
    """No patience would ever help such a request otherwise."""
    toy = ToyEngine(max_waiting=2)
    generation = toy.submit([1], n=5, max_tokens=2, ignore_eos=True)
    with pytest.raises(QueueFull, match="5 sequences are waiting and this request has 1 more; at most 2"):
        toy.submit([2], max_tokens=2)
    toy.run(generation)


# Drafts


class ToyDrafter:
    """Knows the future, but for what ``wrong`` says of a position."""

    def __init__(self, wrong, most: int = 5) -> None:
        self.wrong = wrong
        self.most = most
        self.known: dict[Request, list[int]] = {}

    def propose(self, request: Request, most: int) -> list[int]:
        count = min(most, self.most)
        start = len(request.token_ids)
        if request not in self.known:
            self.known[request] = request.token_ids + toy_greedy(request.token_ids, 100)
        future = self.known[request][start : start + count]
        return [(t + 1) % EOS if self.wrong(start + i) else t for i, t in enumerate(future)]

    def forget(self, request: Request) -> None:
        self.known.pop(request, None)


@pytest.mark.parametrize("every", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize("length", [1, 7, 8, 9])
def test_drafts_change_nothing_but_the_number_of_steps(every, length):
    prompts = [random_prompt(length + i, seed=i) for i in range(4)]
    drafter = ToyDrafter(lambda position: position % every == every - 1)
    toy = ToyEngine(drafter=drafter)
    generations = [toy.submit(p, max_tokens=30, ignore_eos=True) for p in prompts]
    assert toy.run(*generations) == [toy_greedy(p, 30) for p in prompts]
    stats = toy.scheduler.stats()
    assert stats.num_drafts_accepted == sum(g.request.num_drafts_accepted for g in generations)
    if every == 1:
        assert stats.num_drafts_accepted == 0
        assert stats.num_drafts > 0
    if every == 1000:
        assert stats.num_drafts_accepted == stats.num_drafts
        assert stats.num_steps < 12


def test_sampling_with_drafts_gives_the_same_tokens():
    prompts = random_prompts(6, seed=11, longest=30)
    settings = {"temperature": 0.9, "max_tokens": 25, "seed": 3, "ignore_eos": True}
    plain = ToyEngine()
    right = plain.run(*[plain.submit(p, **settings) for p in prompts])
    toy = ToyEngine(drafter=ToyDrafter(lambda position: position % 3 == 0))
    assert toy.run(*[toy.submit(p, **settings) for p in prompts]) == right


def test_a_stop_text_inside_accepted_drafts_ends_it_there():
    for seed in range(2000):
        prompt = random_prompt(5, seed=seed)
        tokens = toy_greedy(prompt, 30)
        if EOS not in tokens and toy_text(tokens[:12]).isascii():
            break
    else:
        raise AssertionError("no such prompt")
    text = toy_text(tokens[:12])
    stop = text[6:9]
    assert text.index(stop) == 6
    outputs = []
    for drafter in (None, ToyDrafter(lambda position: False, most=8)):
        toy = ToyEngine(drafter=drafter)
        generation = toy.submit(prompt, max_tokens=30, stop=[stop])
        toy.run(generation)
        outputs.append(generation.output().outputs[0])
    assert outputs[0] == outputs[1]
    assert outputs[0].token_ids == tokens[:9]
    assert outputs[0].finish_reason == "stop"


def test_eos_inside_drafts():
    for seed in range(500):
        tokens = toy_greedy([seed % 50, seed // 50], 30)
        if EOS in tokens[3:20]:
            break
    toy = ToyEngine(drafter=ToyDrafter(lambda position: False, most=8))
    generation = toy.submit([seed % 50, seed // 50], max_tokens=30)
    toy.run(generation)
    assert tokens_of(generation) == tokens[: tokens.index(EOS) + 1]


# Everything at once


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    num_blocks=st.integers(13, 60),
    budget=st.integers(1, 80),
    rows=st.integers(1, 9),
    prefix_cache=st.booleans(),
    policy=st.sampled_from(["fcfs", "priority"]),
    drafts=st.booleans(),
)
def test_overload(*, seed, num_blocks, budget, rows, prefix_cache, policy, drafts):
    rng = np.random.default_rng(seed)
    prompts = random_prompts(int(rng.integers(1, 12)), seed=seed, longest=50)
    drafter = ToyDrafter(lambda position: position % 4 == 0) if drafts else None
    toy = ToyEngine(
        num_blocks=num_blocks,
        max_step_tokens=budget,
        max_num_seqs=rows,
        prefix_cache=prefix_cache,
        scheduling=policy,
        drafter=drafter,
    )
    waiting = [
        (p, int(rng.integers(1, 25)), int(rng.integers(1, 4)), int(rng.integers(0, 3))) for p in prompts
    ]
    right, generations = [], []
    while waiting or toy.engine.has_work:
        while waiting and rng.random() < 0.4:
            prompt, count, n, priority = waiting.pop(0)
            generation = submit_urgent(toy, prompt, priority, max_tokens=count, n=n)
            generations.append(generation)
            right.append([toy_greedy(prompt, count)] * n)
        if generations and rng.random() < 0.05:
            toy.engine.abort(generations[int(rng.integers(len(generations)))])
        if toy.engine.has_work:
            toy.step()
    toy.run()
    for generation, expected in zip(generations, right, strict=True):
        for choice, tokens in zip(generation.choices, expected, strict=True):
            got = choice.request.token_ids[choice.request.prompt_len :]
            assert got == tokens or (choice.request.finish_reason == "abort" and tokens[: len(got)] == got)
            assert choice.request.finish_reason in ("length", "abort")


def test_beams_that_could_never_fit_together_are_refused():
    toy = ToyEngine(num_blocks=12)
    generation = toy.engine.prepare([1] * 20, toy_params(max_tokens=20))
    generation.request.beam_width = 8
    with pytest.raises(InvalidRequest, match="8 beams of up to 40 tokens need 26 KV blocks, the pool has 11"):
        toy.engine.submit(generation)


# What one request's faults must not do


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_samples_of_a_scored_prompt(n, logprobs):
    toy = ToyEngine(max_step_tokens=4)
    for length in (1, 2, 3, 4, 7):
        prompt = random_prompt(length, seed=length)
        generation = toy.submit(
            prompt, n=n, prompt_logprobs=0, logprobs=logprobs, max_tokens=4, ignore_eos=True
        )
        toy.run(generation)
        assert choices_of(generation) == [toy_greedy(prompt, 4)] * n
        scores = generation.output().prompt_logprobs
        assert scores is not None
        assert [list(entry or {})[:1] for entry in scores] == [[], *([t] for t in prompt[1:])]


def test_a_salt_that_is_no_text_is_refused():
    toy = ToyEngine()
    with pytest.raises(InvalidRequest, match=r"cache_salt=.*surrogates not allowed"):
        toy.engine.prepare([1], toy_params(), salt="\ud800")
    assert toy.run(toy.submit([1], max_tokens=3, ignore_eos=True)) == [toy_greedy([1], 3)]


def test_a_listener_that_fails_hurts_no_one():
    def explode(is_over: bool) -> None:
        raise RuntimeError("nobody listens")

    toy = ToyEngine()
    bad, good = (toy.submit([i], max_tokens=4, ignore_eos=True) for i in range(2))
    bad.on_change = explode
    assert toy.run(bad, good) == [toy_greedy([i], 4) for i in range(2)]
