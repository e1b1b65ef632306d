"""The engine under asyncio: streams, aborts, drains and failures, over a toy model."""

import asyncio
import threading
import time
from collections.abc import Coroutine
from typing import Any

import pytest
from toy import ToyEngine, random_prompts, toy_greedy, toy_text

from octavo.core.errors import EngineFailed, InvalidRequest, OctavoError, QueueFull
from octavo.core.sampling import SamplingParams
from octavo.engine.async_engine import AsyncEngine, EngineDraining


class ToyLLM:
    def __init__(self, toy: ToyEngine) -> None:
        self.toy = toy
        self.engine = toy.engine

    def prepare(self, prompt, params, *, cache_salt="", priority=0):
        return self.engine.prepare(prompt, params, salt=cache_salt, priority=priority)


def greedy(max_tokens: int, **params) -> SamplingParams:
    return SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=max_tokens, **params)


class Held:
    """A hook of the model that keeps a step from its end until ``let_go``.

    Args:
        after: steps that end by themselves.
    """

    def __init__(self, after: int = 0) -> None:
        self._left = after
        self._is_in_step = threading.Event()
        self._goes_on = threading.Event()

    def __call__(self, inputs: Any, logits: Any) -> None:
        self._left -= 1
        if self._left < 0:
            self._is_in_step.set()
            assert self._goes_on.wait(60), "nobody let go of this step"

    async def step(self) -> None:
        """Until that step is there."""
        assert await asyncio.to_thread(self._is_in_step.wait, 60)

    def let_go(self) -> None:
        """Of this step and all that come."""
        self._goes_on.set()


def run(toy: ToyEngine, use: Any, *, slow_s: float = 0.0) -> None:
    """Run ``use(engine)`` and see that nothing is left behind."""
    if slow_s:
        toy.model.hook = lambda inputs, logits: time.sleep(slow_s)

    async def whole() -> None:
        async with AsyncEngine(ToyLLM(toy)) as engine:
            await asyncio.wait_for(use(engine), 60)

    asyncio.run(whole())
    toy.engine.check_invariants()
    assert not toy.engine.has_work
    assert toy.kv.num_free_blocks == toy.kv.pool.num_blocks - 1


def test_streams_join_to_the_right_text():
    prompts = random_prompts(20, seed=1)

    async def stream(engine: AsyncEngine, prompt: list[int]) -> None:
        stream = await engine.stream(prompt, greedy(15))
        deltas = [d async for d in stream]
        assert [t for d in deltas for t in d.token_ids] == toy_greedy(prompt, 15)
        assert "".join(d.text for d in deltas) == stream.output.outputs[0].text
        assert [d.finish_reason for d in deltas] == [None] * (len(deltas) - 1) + ["length"]

    async def use(engine: AsyncEngine) -> None:
        await asyncio.gather(*(stream(engine, p) for p in prompts))

    run(ToyEngine(), use)


def test_samples_and_logprobs_come_in_deltas():
    async def use(engine: AsyncEngine) -> None:
        params = SamplingParams(n=3, seed=4, max_tokens=9, ignore_eos=True, logprobs=2)
        stream = await engine.stream([1, 2, 3], params)
        tokens: list[list[int]] = [[], [], []]
        async for delta in stream:
            tokens[delta.index] += delta.token_ids
            assert [entry[0][0] for entry in delta.logprobs] == delta.token_ids
        assert tokens == [o.token_ids for o in stream.output.outputs]
        assert len({tuple(t) for t in tokens}) == 3

    run(ToyEngine(), use)


def test_a_stop_text_takes_no_token_back_that_was_streamed():
    tokens = toy_greedy([8, 9], 30)
    text = toy_text(tokens)

    async def use(engine: AsyncEngine) -> None:
        stream = await engine.stream([8, 9], greedy(30, stop=[text[4:6]]))
        streamed = [t async for d in stream for t in d.token_ids]
        assert streamed == stream.output.outputs[0].token_ids

    run(ToyEngine(), use)


def test_beams_come_in_the_end():
    async def use(engine: AsyncEngine) -> None:
        params = SamplingParams(n=3, use_beam_search=True, max_tokens=6)
        stream = await engine.stream([1, 2, 3], params)
        deltas = [d async for d in stream]
        assert [d.index for d in deltas] == [0, 1, 2]
        assert [d.token_ids for d in deltas] == [o.token_ids for o in stream.output.outputs]

    run(ToyEngine(), use)


@pytest.mark.parametrize("num_seen", [1, 3])
def test_fifty_clients_that_vanish(num_seen):
    async def vanish(engine: AsyncEngine, i: int) -> int:
        count = 0
        async for _ in await engine.stream([i % 50, 3, 4], greedy(200)):
            count += 1
            if count == num_seen:
                break
        return count

    async def use(engine: AsyncEngine) -> None:
        assert await asyncio.gather(*(vanish(engine, i) for i in range(50))) == [num_seen] * 50
        output = await engine.generate([5, 6], greedy(10))
        assert output.outputs[0].token_ids == toy_greedy([5, 6], 10)

    run(ToyEngine(num_blocks=1000), use)


def test_a_cancelled_task_ends_its_request():
    held = Held(after=2)
    toy = ToyEngine(hook=held)

    async def use(engine: AsyncEngine) -> None:
        task = asyncio.create_task(engine.generate([1, 2], greedy(200)))
        await held.step()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        held.let_go()
        await engine.drain()

    run(toy, use)
    assert len(toy.model.step_sizes) == 3


def test_the_event_loop_never_waits_for_a_step():
    """If it did, nobody would let go of the step."""
    held = Held()

    async def use(engine: AsyncEngine) -> None:
        busy = asyncio.create_task(engine.generate([1, 2], greedy(5)))
        await held.step()
        others = [asyncio.create_task(engine.generate([i], greedy(2))) for i in range(5)]
        looking = asyncio.create_task(engine.inspect(lambda inner: inner.has_work))
        await asyncio.sleep(0)  # each has left what it wants
        others.pop().cancel()
        await asyncio.sleep(0)
        assert not any(task.done() for task in (busy, looking, *others))
        held.let_go()
        await asyncio.gather(busy, *others)
        assert await looking

    run(ToyEngine(hook=held), use)


def test_drain_finishes_what_was_taken_and_takes_nothing_new():
    async def use(engine: AsyncEngine) -> None:
        tasks = [asyncio.create_task(engine.generate([i], greedy(20))) for i in range(6)]
        await asyncio.sleep(0)  # each has left its request
        await engine.drain()
        outputs = await asyncio.gather(*tasks)
        assert [o.outputs[0].token_ids for o in outputs] == [toy_greedy([i], 20) for i in range(6)]
        with pytest.raises(EngineDraining):
            await engine.stream([1], greedy(1))

    run(ToyEngine(), use, slow_s=0.002)


def test_shutdown_without_drain_ends_all_streams():
    held = Held(after=5)

    async def use(engine: AsyncEngine) -> None:
        tasks = [asyncio.create_task(engine.generate([i], greedy(200))) for i in range(3)]
        await held.step()
        ending = asyncio.create_task(engine.shutdown(drain=False))
        await asyncio.sleep(0)  # the engine is told
        held.let_go()
        await ending
        outputs = await asyncio.gather(*tasks)
        assert {o.outputs[0].finish_reason for o in outputs} == {"abort"}
        for i, output in enumerate(outputs):
            tokens = output.outputs[0].token_ids
            assert tokens == toy_greedy([i], 200)[: len(tokens)]

    run(ToyEngine(hook=held), use)


def test_refusals_are_the_callers_alone():
    async def use(engine: AsyncEngine) -> None:
        good = asyncio.create_task(engine.generate([1], greedy(30)))
        with pytest.raises(InvalidRequest, match="token id 99"):
            await engine.stream([99], greedy(1))
        with pytest.raises(InvalidRequest, match="KV blocks"):
            await engine.stream([1] * 100, greedy(100))
        assert (await good).outputs[0].token_ids == toy_greedy([1], 30)

    run(ToyEngine(num_blocks=20), use)


def test_full_queue():
    async def use(engine: AsyncEngine) -> None:
        tasks = [asyncio.create_task(engine.generate([i], greedy(20))) for i in range(12)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [r for r in results if isinstance(r, QueueFull)]
        assert refused
        assert all("4 sequences are waiting" in str(r) for r in refused)
        served = [r for r in results if not isinstance(r, BaseException)]
        assert len(served) + len(refused) == 12
        assert len(served) >= 4

    run(ToyEngine(max_num_seqs=1, max_waiting=4), use, slow_s=0.01)


def test_a_broken_step_tells_all_and_stays_down():
    def explode(inputs: Any, logits: Any) -> None:
        if inputs.positions.max() > 5:
            raise RuntimeError("the model fell over")

    toy = ToyEngine(hook=explode)

    async def fail(stream: Coroutine) -> None:
        with pytest.raises(OctavoError, match="the model fell over"):
            async for _ in await stream:
                pass

    async def whole() -> None:
        async with AsyncEngine(ToyLLM(toy)) as engine:
            await asyncio.wait_for(
                asyncio.gather(*(fail(engine.stream([i], greedy(20))) for i in range(3))), 60
            )
            with pytest.raises(EngineFailed, match="the model fell over"):
                await engine.stream([1], greedy(1))

    asyncio.run(whole())


@pytest.mark.parametrize("beams", [False, True])
def test_who_goes_away_before_the_engine_looks_leaves_nothing(beams):
    held = Held()
    toy = ToyEngine(hook=held)

    async def use(engine: AsyncEngine) -> None:
        busy = asyncio.create_task(engine.generate([1], greedy(20)))
        await held.step()
        params = SamplingParams(use_beam_search=True, n=2, max_tokens=100) if beams else greedy(200)
        tasks = [asyncio.create_task(engine.generate([i], params)) for i in range(5)]
        await asyncio.sleep(0)  # each has left its request
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        held.let_go()
        assert (await busy).outputs[0].token_ids == toy_greedy([1], 20)
        await engine.drain()

    run(toy, use)
    assert toy.model.step_sizes == [1] * 20  # those of the one that stayed


def test_a_stream_that_is_lost_ends_its_request():
    held = Held()
    toy = ToyEngine(hook=held)

    async def use(engine: AsyncEngine) -> None:
        stream = await engine.stream([1], greedy(200))
        await held.step()
        del stream
        held.let_go()
        await engine.drain()

    run(toy, use)
    assert toy.model.step_sizes == [1]
