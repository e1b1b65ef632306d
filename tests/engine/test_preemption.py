"""Who loses blocks and how often: plain requests, samples and searches in pools too small for all."""

from bisect import bisect_left

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import ToyEngine, random_prompts, tokens_of, toy_greedy

from octavo.core.errors import InvalidRequest
from octavo.core.sampling import SamplingParams
from octavo.engine.generation import Generation
from octavo.paging.groups import GroupSpec
from octavo.scheduling.admission import Admission
from octavo.scheduling.preemption import MAX_PREEMPTIONS

GROUPS = {
    "one": (GroupSpec(8),),
    "two": (GroupSpec(8, num_tables=2), GroupSpec(16)),
    "window": (GroupSpec(8), GroupSpec(8, window=12)),
    "only windows": (GroupSpec(16, window=20),),
}


def random_requests(seed: int) -> list[tuple[list[int], dict, int]]:
    """Prompts, parameters, priorities: a third are searches, a third have samples."""
    rng = np.random.default_rng(seed)
    requests = []
    for i, prompt in enumerate(random_prompts(int(rng.integers(2, 12)), seed=seed, longest=40)):
        params = {"max_tokens": int(rng.integers(1, 40)), "temperature": 0.0}
        params["ignore_eos"] = bool(rng.integers(2))
        kind = rng.integers(3)
        if kind == 1:
            params |= {"n": int(rng.integers(2, 7)), "use_beam_search": True}
        elif kind == 2:
            params |= {"n": int(rng.integers(2, 5)), "temperature": 0.9, "seed": i}
        requests.append((prompt, params, int(rng.integers(3))))
    return requests


def submit(toy: ToyEngine, prompt: list[int], params: dict, priority: int = 0) -> Generation:
    generation = toy.engine.prepare(prompt, SamplingParams(**params), priority=priority)
    toy.engine.submit(generation)
    return generation


def completions(generation: Generation) -> list[list[int]]:
    return [output.token_ids for output in generation.output().outputs]


def most_preemptions(generation: Generation) -> int:
    """Of one sequence, or of a search, whose beams are preempted together."""
    if generation.request.beam_width:
        return generation.output().metrics.num_preemptions
    return max(choice.request.num_preemptions for choice in generation.choices)


@settings(max_examples=150)
@given(
    seed=st.integers(0, 10**6),
    groups=st.sampled_from(sorted(GROUPS)),
    size=st.floats(1.0, 2.5),
    rows=st.integers(1, 9),
    budget=st.integers(1, 60),
    prefix_cache=st.booleans(),
    policy=st.sampled_from(["fcfs", "priority"]),
    speculative=st.sampled_from([None, "ngram"]),
)
def test_every_request_ends_after_few_preemptions(
    *, seed, groups, size, rows, budget, prefix_cache, policy, speculative
):
    rng = np.random.default_rng(seed)
    options = {"groups": GROUPS[groups], "prefix_cache": prefix_cache}
    requests, right = random_requests(seed), []
    for prompt, params, _ in requests:
        alone = ToyEngine(num_blocks=300, max_num_seqs=8, **options)
        generation = submit(alone, prompt, params)
        alone.run(generation)
        right.append(completions(generation))
    sizes = range(2, 500)  # the smallest pool that takes all of them, one at a time
    least = sizes[bisect_left(sizes, True, key=lambda n: all(fits(n, *r[:2], options) for r in requests))]
    toy = ToyEngine(
        num_blocks=1 + int((least - 1) * size),
        max_num_seqs=rows,
        max_step_tokens=budget,
        scheduling=policy,
        speculative=speculative,
        **options,
    )
    waiting, generations = list(requests), []
    while waiting or toy.engine.has_work:
        while waiting and rng.random() < 0.5:
            generations.append(submit(toy, *waiting.pop(0)))
        if generations and rng.random() < 0.01:
            toy.engine.abort(generations[int(rng.integers(len(generations)))])
        if toy.engine.has_work:
            toy.step()  # checks the invariants
    toy.run()  # nothing is left
    for generation, expected in zip(generations, right, strict=True):
        output = generation.output()
        assert output.error is None
        assert most_preemptions(generation) <= MAX_PREEMPTIONS
        if all(o.finish_reason != "abort" for o in output.outputs):
            assert completions(generation) == expected
    counted = sum(g.output().metrics.num_preemptions for g in generations)
    assert counted == toy.scheduler.stats().num_preemptions


FIRST = [list(range(50)), list(range(50, 0, -1))]
SEARCH = {"n": 4, "use_beam_search": True, "max_tokens": 60, "ignore_eos": True}


def first_and_search(toy: ToyEngine) -> tuple[list[Generation], Generation]:
    """Two that grow, and a search behind them that has to give way."""
    first = [toy.submit(prompt, max_tokens=80, ignore_eos=True) for prompt in FIRST]
    return first, submit(toy, [4, 5, 6], SEARCH)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_search_gives_way_whole_and_comes_back_whole(prefix_cache):
    toy = ToyEngine(num_blocks=34, prefix_cache=prefix_cache, max_step_tokens=256)
    first, search = first_and_search(toy)
    while not toy.scheduler.stats().num_preemptions:
        toy.step()
    assert (toy.scheduler.stats().num_running, toy.scheduler.stats().num_waiting) == (2, 4)
    while toy.scheduler.stats().num_running == 2:
        toy.step()
    assert toy.run(*first) == [toy_greedy(prompt, 80) for prompt in FIRST]
    assert [g.output().metrics.num_preemptions for g in (*first, search)] == [0, 0, 1]
    alone = ToyEngine()
    right = submit(alone, [4, 5, 6], SEARCH)
    alone.run(right)
    assert completions(search) == completions(right)


def test_a_search_whose_first_beam_fails_on_coming_back():
    preempted = False

    def poison(inputs, logits):
        for i, token in enumerate(inputs.logit_tokens):
            row = int(np.searchsorted(inputs.query_start, token, side="right")) - 1
            if preempted and inputs.query_start[row + 1] - inputs.query_start[row] > 1:
                logits[i] = np.nan

    toy = ToyEngine(num_blocks=34, max_step_tokens=256, prefix_cache=False, hook=poison)
    first, search = first_and_search(toy)
    while not toy.scheduler.stats().num_preemptions:
        toy.step()
    preempted = True
    assert toy.run(*first, search)[:2] == [toy_greedy(prompt, 80) for prompt in FIRST]
    assert "no usable logits" in search.output().error
    assert not toy.engine.has_work


@pytest.mark.parametrize("num_steps", range(1, 12, 2))
def test_a_search_that_gave_way_is_aborted(num_steps):
    toy = ToyEngine(num_blocks=34, max_step_tokens=3)
    first, search = first_and_search(toy)
    while not toy.scheduler.stats().num_preemptions:
        toy.step()
    for _ in range(num_steps * 9):  # it waits, its first beam is back, all are back
        toy.step()
    toy.engine.abort(search)
    assert {o.finish_reason for o in search.output().outputs} == {"abort"}
    assert search.output().metrics.num_preemptions == 1
    assert toy.run(*first) == [toy_greedy(prompt, 80) for prompt in FIRST]


def test_an_urgent_request_takes_the_place_of_a_search():
    toy = ToyEngine(max_num_seqs=3, scheduling="priority")
    params = {"n": 6, "use_beam_search": True, "max_tokens": 20, "ignore_eos": True}
    search = submit(toy, [4, 5, 6], params, priority=2)
    for _ in range(6):
        toy.step()
    urgent = submit(toy, [9], {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True})
    for _ in range(8):
        toy.step()
    assert urgent.finished
    assert not search.finished
    toy.run()
    assert search.output().metrics.num_preemptions == 1
    assert tokens_of(urgent) == toy_greedy([9], 8)


def test_a_mistake_in_the_accounts_stops_no_one(monkeypatch):
    monkeypatch.setattr(Admission, "blocks_spoken_for", lambda *_: 0)
    toy = ToyEngine(num_blocks=12)
    prompts = [[i] * 4 for i in range(12)]
    generations = [toy.submit(p, max_tokens=60, ignore_eos=True) for p in prompts]
    search = submit(toy, [9], {"n": 2, "use_beam_search": True, "max_tokens": 30, "ignore_eos": True})
    assert toy.run(*generations) == [toy_greedy(p, 60) for p in prompts]
    assert search.finished
    assert max(map(most_preemptions, generations)) > MAX_PREEMPTIONS  # the scene needs what it is about


def fits(num_blocks: int, prompt: list[int], params: dict, options: dict) -> bool:
    try:
        submit(ToyEngine(num_blocks=num_blocks, **options), prompt, params)
    except InvalidRequest:
        return False
    return True
