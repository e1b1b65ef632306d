"""The runtime on real weights: beams against transformers, structured output, samples, drafts, scores."""

import json

import numpy as np
import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.core.errors import InvalidRequest
from octavo.core.structured import StructuredOutput

GREEDY = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
REPETITIVE = (
    "apples: 1 kg, pears: 2 kg, plums: 3 kg, apples: 1 kg, pears: 2 kg, plums: 3 kg, apples: 1 kg, pears:"
)


@pytest.fixture(scope="module")
def llm(smollm2_path):
    with LLM(smollm2_path, kv_memory="512MiB") as llm:
        yield llm


# Beams


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral"])
@pytest.mark.parametrize("width", [2, 4, 8])
@pytest.mark.parametrize(("penalty", "early"), [(1.0, False), (0.0, True), (2.0, "never")])
def test_beams_equal_transformers(tiny_directory, name, width, penalty, early):
    model, path = tiny_directory(name)
    prompts = [np.random.default_rng(width + n).integers(3, 97, n).tolist() for n in (3, 17)]
    params = SamplingParams(
        use_beam_search=True, n=width, length_penalty=penalty, early_stopping=early, max_tokens=12
    )
    with LLM(path, activations="float32", kv_dtype="float32", kv_memory="64MiB") as llm:
        outputs = llm.generate(prompts, params)
        assert llm.memory().stats.used_blocks == 0
    for prompt, output in zip(prompts, outputs, strict=True):
        found = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            num_beams=width,
            num_return_sequences=width,
            length_penalty=penalty,
            early_stopping=early,
            max_new_tokens=12,
            do_sample=False,
            pad_token_id=1,
            eos_token_id=2,
            return_dict_in_generate=True,
            output_scores=True,
        )
        sequences = [row[len(prompt) :].tolist() for row in found.sequences]
        for completion, sequence, score in zip(
            output.outputs, sequences, found.sequences_scores.tolist(), strict=True
        ):
            length = len(completion.token_ids)
            assert completion.token_ids == sequence[:length]
            assert set(sequence[length:]) <= {1}
            assert completion.cumulative_logprob is not None
            assert completion.cumulative_logprob / length**penalty == pytest.approx(score, abs=1e-4)


def test_more_beams_than_rows(smollm2_path, llm):
    params = SamplingParams(use_beam_search=True, n=8, max_tokens=16)
    prompts = ["The capital of France is", "Once upon a time"]
    right = [o.outputs for o in llm.generate(prompts, params)]
    with LLM(smollm2_path, kv_memory="256MiB", max_num_seqs=3) as narrow:
        outputs = narrow.generate(prompts, params)
        assert narrow.engine.scheduler.stats().num_preemptions == 0
        assert narrow.memory().stats.used_blocks == 0
    assert [o.outputs for o in outputs] == right


# Structured output

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def check_person(text: str) -> None:
    person = json.loads(text)
    assert set(person) == {"name", "age", "tags"}
    assert isinstance(person["name"], str)
    assert len(person["name"]) <= 12
    assert 0 <= person["age"] <= 150
    assert set(person["tags"]) <= {"a", "b"}
    assert len(person["tags"]) <= 3


def test_sixty_four_schemas_at_once(llm):
    prompts = [f"Person number {i} as JSON:" for i in range(64)]
    params = [
        SamplingParams(
            max_tokens=120, temperature=i % 3 / 2, seed=i, structured_outputs={"json_schema": PERSON}
        )
        for i in range(64)
    ]
    for output in llm.generate(prompts, params):
        assert output.error is None
        assert output.outputs[0].finish_reason == "stop"
        check_person(output.outputs[0].text)


def test_structured_and_free_requests_side_by_side(llm):
    digits = StructuredOutput(regex=r"[0-9]{3}-[0-9]{4}")
    colours = StructuredOutput(choice=["red", "green", "greenish blue"])
    params = [
        SamplingParams(max_tokens=30, temperature=0, structured_outputs=digits),
        GREEDY,
        SamplingParams(max_tokens=30, temperature=1, seed=1, n=4, structured_outputs=colours),
    ]
    phone, free, colour = llm.generate(["Call", "The capital of France is", "My colour:"], params)
    assert len(phone.outputs[0].text) == 8
    assert phone.outputs[0].text[3] == "-"
    assert phone.outputs[0].text.replace("-", "").isdecimal()
    assert free.outputs == llm.generate("The capital of France is", GREEDY)[0].outputs
    assert {o.text for o in colour.outputs} <= {"red", "green", "greenish blue"}
    assert {o.finish_reason for o in colour.outputs} == {"stop"}


@pytest.mark.parametrize("speculative", [None, "ngram"])
@pytest.mark.parametrize("ends", [{}, {"stop_token_ids": [17], "ignore_eos": True}])
def test_a_grammar_that_is_finished_outweighs_min_tokens(smollm2_path, llm, speculative, ends):
    """Nothing may follow but the end, so it comes; while more may follow, the end waits."""
    whole = StructuredOutput(choice=["one two three", "one two four"])
    open_ = StructuredOutput(regex="(one two three ?)+")
    prompts = ["one two three, one two three, one two"] * 2
    params = [
        SamplingParams(min_tokens=30, n=2, temperature=0.5, seed=1, structured_outputs=whole, **ends),
        SamplingParams(min_tokens=30, temperature=0, structured_outputs=open_, **ends),
    ]
    with LLM(smollm2_path, kv_memory="128MiB", speculative=speculative) as drafting:
        finished, longer = drafting.generate(prompts, params)
    assert finished.error is None
    assert {o.text for o in finished.outputs} <= set(whole.choice or ())
    assert {o.finish_reason for o in finished.outputs} == {"stop"}
    assert longer.error is None
    assert len(longer.outputs[0].token_ids) >= 30


def test_a_bad_schema_is_refused_and_harms_no_one(llm):
    bad = SamplingParams(structured_outputs={"json_schema": {"type": "no such type"}})
    with pytest.raises(InvalidRequest, match="json_schema") as refused:
        llm.generate(["x", "y"], [GREEDY, bad])
    assert refused.value.param == "json_schema"
    assert llm.generate("x", GREEDY)[0].error is None


def test_structured_output_with_drafts_and_stream(smollm2_path, llm):
    params = SamplingParams(max_tokens=120, temperature=0, structured_outputs={"json_schema": PERSON})
    right = llm.generate(REPETITIVE, params)[0].outputs[0]
    check_person(right.text)
    with LLM(smollm2_path, kv_memory="256MiB", speculative="ngram") as drafting:
        stream = drafting.stream(REPETITIVE, params)
        assert "".join(stream) == right.text
        assert stream.output.outputs[0] == right


# Drafts, samples, company


def test_drafts_change_no_token_and_save_steps(smollm2_path, llm):
    prompts = [REPETITIVE, "The capital of France is", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3, 4, 5,"]
    params = [SamplingParams(max_tokens=40, temperature=t, seed=5, ignore_eos=True) for t in (0.0, 0.7, 0.0)]
    right = [o.outputs[0].token_ids for o in llm.generate(prompts, params)]
    with LLM(smollm2_path, kv_memory="256MiB", speculative="ngram") as drafting:
        assert [o.outputs[0].token_ids for o in drafting.generate(prompts, params)] == right
        stats = drafting.engine.scheduler.stats()
    assert stats.num_drafts_accepted > 20


def test_samples_are_the_same_in_any_company(llm):
    params = SamplingParams(n=4, temperature=0.9, seed=7, max_tokens=16, ignore_eos=True)
    alone = llm.generate("Once upon a time", params)[0].outputs
    assert len({tuple(o.token_ids) for o in alone}) == 4
    others = ["The quick brown", "Dear Sir", "Once upon a time there", "Zürich"]
    company = llm.generate([*others, "Once upon a time"], [GREEDY] * 4 + [params])[-1].outputs
    assert company == alone
    unseeded = SamplingParams(temperature=0.9, max_tokens=16, ignore_eos=True)
    texts = {llm.generate("Once upon a time", unseeded)[0].outputs[0].text for _ in range(4)}
    assert len(texts) > 1


def test_best_of_gives_the_likeliest(llm):
    every = SamplingParams(n=6, temperature=1.2, seed=3, max_tokens=10, ignore_eos=True, logprobs=0)
    best = SamplingParams(n=2, best_of=6, temperature=1.2, seed=3, max_tokens=10, ignore_eos=True)
    ranked = sorted(
        llm.generate("The weather", every)[0].outputs, key=lambda o: -(o.cumulative_logprob or 0.0)
    )
    found = llm.generate("The weather", best)[0].outputs
    assert [o.token_ids for o in found] == [o.token_ids for o in ranked[:2]]
    assert [o.logprobs for o in found] == [None, None]


@pytest.mark.parametrize("max_step_tokens", [7, 16, 512])
def test_prompts_are_scored_without_holes(smollm2_path, max_step_tokens):
    text = "The capital of France is Paris, and the capital of Italy is Rome."
    params = SamplingParams(max_tokens=3, temperature=0, prompt_logprobs=2, logprobs=2)
    with LLM(smollm2_path, kv_memory="128MiB", max_step_tokens=max_step_tokens) as llm:
        first, second = (llm.generate(text, params)[0] for _ in range(2))  # the second time it is cached
        many = llm.generate([text] * 3, params)
    assert first.prompt_logprobs == second.prompt_logprobs
    assert all(o.prompt_logprobs == first.prompt_logprobs for o in many)
    assert first.prompt_logprobs is not None
    assert first.prompt_logprobs[0] is None
    assert len(first.prompt_logprobs) == len(first.prompt_token_ids)
    for token_id, entry in zip(first.prompt_token_ids[1:], first.prompt_logprobs[1:], strict=True):
        assert entry is not None
        assert token_id in entry
        assert 2 <= len(entry) <= 3
    assert first.outputs == second.outputs


def test_in_flight_prefix_is_computed_once(smollm2_path):
    shared = "word " * 200
    prompts = [shared + f"number {i}" for i in range(8)]
    with LLM(smollm2_path, kv_memory="256MiB", max_step_tokens=64) as llm:
        outputs = llm.generate(prompts, SamplingParams(max_tokens=2, temperature=0, ignore_eos=True))
        shared_len = len(llm.tokenizer.encode(shared))
    cached = [o.num_cached_tokens for o in outputs]
    assert cached[0] == 0
    assert all(n >= shared_len // 16 * 16 for n in cached[1:])
