"""Frames of the memory feed: they add up to the census, and say what ran and what was done."""

import json

import numpy as np
import pytest
from feed_case import GROUPS, FeedReader, arranged, assert_same, census_rows
from toy import ToyEngine, random_prompts

from octavo.engine.block_map import look
from octavo.server.memory.activity import MAX_STEPS_TOLD, Activity, StepRecord, merged
from octavo.server.memory.feed import FeedState, timed_look
from octavo.server.registry import RequestRegistry

ENDLESS = {"ignore_eos": True}


def state_of(toy: ToyEngine, **options) -> FeedState:
    activity = Activity()
    toy.engine.observer = activity
    return FeedState(toy.kv.pool.num_blocks, activity=activity, registry=RequestRegistry(), **options)


def busy(toy: ToyEngine, seed: int):
    """Steps of an engine with samples, beams, aborts and a pool too small for all."""
    rng = np.random.default_rng(seed)
    live = []
    for prompt in random_prompts(30, seed=seed, longest=50):
        params = {"max_tokens": int(rng.integers(1, 40)), **ENDLESS}
        kind = rng.random()
        if kind < 0.2:
            params |= {"n": 3, "temperature": 1.0, "seed": 1}
        elif kind < 0.3:
            params |= {"n": 2, "use_beam_search": True}
        live.append(toy.submit(prompt, **params))
        for _ in range(int(rng.integers(0, 6))):
            if toy.engine.has_work:
                toy.step()
                yield
        if rng.random() < 0.2:
            toy.engine.abort(live[int(rng.integers(len(live)))])
            yield
    while toy.engine.has_work:
        toy.step()
        yield


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("seed", range(3))
def test_frames_add_up_to_the_census(groups, seed):
    toy = ToyEngine(groups=groups, num_blocks=90, max_num_seqs=6)
    state, every, seldom, late = state_of(toy), FeedReader(), FeedReader(), FeedReader()
    seen_by_seldom, at, states = 0, 1000.0, set()
    for moment in busy(toy, seed):
        assert moment is None
        at += 1
        state.update(timed_look(toy.engine), at)
        truth = census_rows(toy)
        every.apply(state.frame)
        assert_same(every.rows, truth)
        states |= set(truth.states[1:].tolist())
        if state.number % 7 == 1:  # one that misses frames
            seldom.apply(state.frame_since(seen_by_seldom))
            seen_by_seldom = state.number
            assert_same(seldom.rows, truth)
    assert states == {0, 1, 2, 3}
    assert [f["full"] for f in every.frames] == [True] + [False] * (len(every.frames) - 1)
    for frame in state.history.frames():
        late.apply(frame)
    assert_same(late.rows, census_rows(toy))
    times = [frame["t"] for frame in late.frames]
    assert times == sorted(times)
    assert times[-1] == at


def test_ages_say_since_when_a_block_is_as_it_is():
    toy = ToyEngine(num_blocks=40)
    state = state_of(toy)
    since = np.full(40, 100.0)
    before = None
    for step, _ in enumerate(busy(toy, 5)):
        at = 100.0 + step
        state.update(timed_look(toy.engine), at)
        now = census_rows(toy)
        if before is not None:
            since[now.differing(before)] = at
        before = now
    reader = FeedReader()
    reader.apply(state.frame_since(-1))
    np.testing.assert_allclose(reader.ages, (at - since)[1:])


def test_a_copy_in_flight_is_pinned():
    toy = ToyEngine(num_blocks=40, block_size=8)
    toy.submit([1, 2, 3], n=2, temperature=1.0, seed=1, max_tokens=9, **ENDLESS)
    toy.step()
    plan = toy.scheduler.schedule()
    assert plan.copies
    rows = arranged(toy, look(toy.engine))
    assert {i for pair in plan.copies for i in pair} == set(np.flatnonzero(rows.states == 4).tolist())
    toy.scheduler.commit(toy.engine.runner.run(plan))
    assert not (arranged(toy, look(toy.engine)).states == 4).any()


def test_requests_of_a_frame():
    toy = ToyEngine(num_blocks=200, max_num_seqs=2)
    state = state_of(toy)
    common = list(range(16))
    one = toy.submit([*common, 20], max_tokens=30, **ENDLESS)
    toy.step()
    two = toy.submit([*common, 21], max_tokens=30, **ENDLESS)
    toy.step()
    three = toy.submit([*common, 22], max_tokens=30, n=2, temperature=1.0, **ENDLESS)
    toy.step()
    state.update(timed_look(toy.engine), 1.0)
    frame = json.loads(state.frame)
    ids = [g.request.request_id for g in (one, two, three)]
    assert [r["request_id"] for r in frame["requests"]] == [*ids, ids[2] + 1]
    assert [r["state"] for r in frame["requests"]] == ["running", "running", "waiting", "waiting"]
    assert frame["num_requests"] == 4
    assert [r["num_shared_blocks"] for r in frame["requests"]] == [2, 2, 0, 0]
    assert [r["num_blocks"] for r in frame["requests"]] == [3, 3, 0, 0]
    assert frame["requests"][1]["num_cached_tokens"] == 16
    assert all(r["age_s"] >= 0 for r in frame["requests"])
    stats = toy.kv.stats()
    assert frame["stats"]["shared_blocks"] == stats.shared_blocks == 2
    assert frame["stats"]["waste"] == pytest.approx(stats.waste, abs=1e-6)


def test_no_more_than_256_requests_and_all_are_counted():
    toy = ToyEngine(num_blocks=2000, max_num_seqs=16)
    state = state_of(toy)
    for i in range(400):
        toy.submit([i % 50, 1], max_tokens=5, **ENDLESS)
    toy.step()
    state.update(timed_look(toy.engine), 1.0)
    frame = json.loads(state.frame)
    assert len(frame["requests"]) == 256
    assert frame["num_requests"] == 400


def test_steps_and_rates():
    toy = ToyEngine()
    state = state_of(toy)
    state.update(timed_look(toy.engine), 1.0)
    toy.submit(list(range(10)), max_tokens=100, **ENDLESS)
    toy.submit(list(range(20, 25)), max_tokens=100, **ENDLESS)
    for _ in range(50):
        toy.step()
    state.update(timed_look(toy.engine), 2.0)
    frame = json.loads(state.frame)
    steps = np.array([step[2:] for step in frame["steps"]])
    assert steps.sum(axis=0).tolist() == [100, 15, 98, 0]
    assert frame["stats"]["ttft_s"] > 0
    assert frame["stats"]["tokens_per_s"] / frame["stats"]["prompt_tokens_per_s"] == pytest.approx(
        100 / 15, rel=1e-3
    )
    for _ in range(10):
        toy.step()
    state.update(timed_look(toy.engine), 3.0)
    assert len(json.loads(state.frame)["steps"]) == 10
    assert json.loads(state.frame)["stats"]["ttft_s"] is None
    # Who missed a frame is told of all steps in between.
    both = json.loads(state.frame_since(1))
    assert np.array([step[2:] for step in both["steps"]]).sum(axis=0).tolist() == [120, 15, 118, 0]
    assert both["stats"]["ttft_s"] == frame["stats"]["ttft_s"]


@pytest.mark.parametrize("count", [1, 63, 64, 65, 1000])
def test_many_steps_are_merged(count):
    steps = [StepRecord(float(i), 0.5, 3, i, 2, 1) for i in range(count)]
    told = merged(steps)
    assert len(told) <= MAX_STEPS_TOLD
    assert sum(s.num_prompt_tokens for s in told) == sum(range(count))
    assert sum(s.duration_s for s in told) == 0.5 * count
    assert {s.num_rows for s in told} == {3}
    assert told[-1].finished_s == count - 1
