"""Far more work than fits: everything ends, nothing is lost, nothing is left behind."""

import gc
import json
import re
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from toy import ToyEngine, random_prompts, toy_greedy

from octavo import LLM, SamplingParams
from octavo.core.request import Request
from octavo.core.structured import StructuredOutput
from octavo.engine.beam_generation import BeamGeneration
from octavo.engine.choice import Choice
from octavo.engine.generation import Generation
from octavo.engine.grammar import GrammarMatcher
from octavo.paging.sequence import Sequence
from octavo.scheduling.preemption import MAX_PREEMPTIONS
from octavo.scheduling.running import Running


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


NUMBER = {"type": "integer", "minimum": 0, "maximum": 99}
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "array", "items": NUMBER, "minItems": 5}, "ok": {"type": "boolean"}},
    "required": ["n", "ok"],
    "additionalProperties": False,
}
CHOICES = ["yes", "no", "not yet", "nobody knows when that will ever be"]
REGEX = r"[a-f]{20,30}(-[0-9]{3}){3,9}"
GRAMMARS = (
    None,
    StructuredOutput(choice=CHOICES),
    StructuredOutput(regex=REGEX),
    StructuredOutput(json_schema=SCHEMA),
    None,
)


def check_language(structured: StructuredOutput, text: str) -> None:
    """Whether a whole output is what was asked for, by others than the library that saw to it."""
    if structured.choice is not None:
        assert text in CHOICES
    elif structured.regex is not None:
        assert re.fullmatch(REGEX, text)
    else:
        value = json.loads(text)
        assert list(value) == ["n", "ok"]
        assert len(value["n"]) >= 5
        assert set(value["n"]) <= set(range(100))
        assert isinstance(value["ok"], bool)


@pytest.mark.parametrize("speculative", [None, "ngram"])
def test_five_hundred_requests_in_a_pool_for_three(speculative):
    """Samples, searches, grammars, priorities, salts, aborts; three in five have a grammar."""
    rng = np.random.default_rng(0)
    prompts = random_prompts(500, seed=0, longest=12)
    toy = ToyEngine(
        num_blocks=28,
        max_num_seqs=12,
        max_step_tokens=48,
        scheduling="priority",
        speculative=speculative,
        grammars=True,
    )
    waiting = list(enumerate(prompts))
    generations = {}
    while waiting or toy.engine.has_work:
        for _ in range(int(rng.integers(0, 6))):
            if waiting:
                i, prompt = waiting.pop(0)
                is_search = i % 22 == 0
                params = SamplingParams(
                    temperature=0.0,
                    ignore_eos=True,
                    max_tokens=1 + i % 60,
                    n=1 + (i % 11 == 0) * 2,
                    use_beam_search=is_search,
                    structured_outputs=None if is_search else GRAMMARS[i % 5],
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
    num_whole = 0
    for i, generation in generations.items():
        output, structured = generation.output(), generation.request.params.structured_outputs
        assert output.error is None
        assert output.metrics.num_preemptions <= MAX_PREEMPTIONS * len(generation.choices)
        if i % 22 == 0:
            continue
        right = toy_greedy(prompts[i], 1 + i % 60, structured=structured)
        for completion in output.outputs:
            is_aborted = completion.finish_reason == "abort"
            assert completion.token_ids == (right[: len(completion.token_ids)] if is_aborted else right)
            if structured is not None and completion.finish_reason == "stop":
                check_language(structured, completion.text)
                num_whole += 1
    assert num_whole > 100


def num_alive() -> int:
    """Objects of the kinds of which each request has one or more."""
    gc.collect()
    kinds = {Request, Generation, BeamGeneration, Choice, Running, Sequence, GrammarMatcher}
    return sum(type(thing) in kinds for thing in gc.get_objects())


def test_memory_stays_flat_over_five_thousand_requests():
    """Of every kind, ended in every way. A kilobyte kept of each would show."""
    toy = ToyEngine(num_blocks=60, max_num_seqs=16, grammars=True, speculative="ngram", scheduling="priority")
    rng = np.random.default_rng(1)
    kinds = (
        {"n": 2, "logprobs": 1, "stop": ["zz"]},
        {"use_beam_search": True, "n": 3},
        {"structured_outputs": {"choice": CHOICES}},
        {"prompt_logprobs": 1, "repetition_penalty": 1.1, "bad_words": ["x"]},
        {"best_of": 2, "min_tokens": 2},
    )
    seen, generations = [], deque(maxlen=8)
    before = num_alive()
    for count in range(5000):
        prompt = rng.integers(0, 60, 5).tolist()
        params = SamplingParams(max_tokens=2, temperature=0.5, **kinds[count % 5])
        generation = toy.engine.prepare(prompt, params, priority=count % 3, salt=str(count % 7))
        toy.engine.submit(generation)
        generations.append(generation)
        if count % 10 == 9:
            toy.engine.abort(generations[int(rng.integers(8))])
        while toy.scheduler.stats().num_waiting > 8:
            toy.engine.step()
        if count % 1000 == 999:
            seen.append(resident_bytes())
    toy.run()
    generations.clear()
    del generation
    assert num_alive() <= before + 2  # the only compiled grammar, and its copy in the cache
    assert seen[-1] - seen[1] < 2 << 20


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
