"""Far more work than fits: everything ends, nothing is lost, nothing is left behind."""

import json
from pathlib import Path

import numpy as np
import pytest
from toy import ToyEngine, random_prompts, toy_greedy

from octavo import LLM, SamplingParams


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_five_hundred_requests_in_a_pool_for_three():
    rng = np.random.default_rng(0)
    prompts = random_prompts(500, seed=0, longest=12)
    toy = ToyEngine(num_blocks=28, max_num_seqs=12, max_step_tokens=48, scheduling="priority")
    waiting = list(enumerate(prompts))
    generations = {}
    while waiting or toy.engine.has_work:
        for _ in range(int(rng.integers(0, 6))):
            if waiting:
                i, prompt = waiting.pop(0)
                params = SamplingParams(
                    temperature=0.0,
                    ignore_eos=True,
                    max_tokens=1 + i % 60,
                    n=1 + (i % 11 == 0) * 2,
                    use_beam_search=i % 11 == 0 and i % 2 == 0,
                )
                generation = toy.engine.prepare(prompt, params, priority=i % 3, salt="ab"[i % 7 == 0])
                toy.engine.submit(generation)
                generations[i] = generation
        if generations and rng.random() < 0.1:
            toy.engine.abort(generations[int(rng.choice(list(generations)))])
        if toy.engine.has_work:
            toy.step()  # checks the invariants
    toy.run()
    assert len(generations) == 500
    assert toy.scheduler.stats().num_preemptions > 50
    for i, generation in generations.items():
        output = generation.output()
        assert output.error is None
        if i % 22 and all(o.finish_reason == "length" for o in output.outputs):
            assert {tuple(o.token_ids) for o in output.outputs} == {tuple(toy_greedy(prompts[i], 1 + i % 60))}


def test_memory_stays_flat_over_five_thousand_requests():
    toy = ToyEngine(num_blocks=60, max_num_seqs=16)
    rng = np.random.default_rng(1)
    seen = []
    for count in range(5000):
        prompt = rng.integers(0, 60, 5).tolist()
        toy.submit(prompt, max_tokens=2, n=1 + count % 2, temperature=0.5, stop=["zz"], logprobs=1)
        while toy.scheduler.stats().num_waiting > 8:
            toy.engine.step()
        if count % 1000 == 999:
            seen.append(resident_bytes())
    toy.run()
    assert seen[-1] - seen[1] < 4 << 20


@pytest.mark.parametrize("speculative", [None, "ngram"])
def test_a_real_model_with_grammars_in_a_small_pool(smollm2_path, speculative):
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "ok": {"type": "boolean"}},
        "required": ["n", "ok"],
        "additionalProperties": False,
    }
    prompts = [f"Item {i}: {'word ' * (i % 40)}" for i in range(40)]
    params = [
        SamplingParams(
            max_tokens=60,
            temperature=i % 2 / 2,
            seed=i,
            n=1 + i % 3 // 2,
            structured_outputs={"json_schema": schema} if i % 2 else None,
        )
        for i in range(40)
    ]
    with LLM(smollm2_path, kv_memory="4MiB", max_context=160, speculative=speculative) as llm:
        outputs = llm.generate(prompts, params)
        stats = llm.engine.scheduler.stats()
        assert llm.memory().stats.used_blocks == 0
    assert stats.num_preemptions > 0
    assert all(output.error is None for output in outputs)
    for output in outputs[1::2]:
        for completion in output.outputs:
            if completion.finish_reason == "stop":
                assert set(json.loads(completion.text)) == {"n", "ok"}
    assert sum(o.outputs[0].finish_reason == "stop" for o in outputs[1::2]) > 10
