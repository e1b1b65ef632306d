"""The whole line on the real model: what must not change an answer, changes no token."""

import math
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from octavo import LLM, RequestOutput, SamplingParams
from octavo.core.errors import InvalidConfig, InvalidRequest, ModelNotFound, NotYetSupported, OctavoError
from octavo.scheduling.step import StepResult

PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "def fibonacci(n):",
    "The three primary colours are",
    "Water boils at",
    "A haiku about autumn:",
    "1, 1, 2, 3, 5, 8,",
    "Q: What is the largest planet?\nA:",
    "The quick brown fox",
    "To be, or not to be,",
    "Dear Sir or Madam,",
    "import numpy as np\n",
    "Zürich liegt in der",
    "😀😀😀",
    "In 1969, the first humans",
    "The capital of France is Paris. The capital of Spain is",
]
GREEDY = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    assert all(o.error is None for o in outputs)
    return [o.outputs[0].token_ids for o in outputs]


@pytest.fixture(scope="module")
def llm(smollm2_path):
    with LLM(smollm2_path, kv_memory="512MiB") as llm:
        yield llm


@pytest.fixture(scope="module")
def batch(smollm2_path) -> list[list[int]]:
    """The 16 prompts' greedy tokens from a fresh engine, all prompts in one batch."""
    with LLM(smollm2_path, kv_memory="512MiB") as llm:
        return tokens(llm.generate(PROMPTS, GREEDY))


def test_answers_make_sense(llm):
    params = SamplingParams(max_tokens=8, temperature=0)
    conversation = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    output = llm.chat(conversation, SamplingParams(max_tokens=30, temperature=0))[0]
    assert "Paris" in output.outputs[0].text
    assert output.outputs[0].finish_reason == "stop"
    assert output.outputs[0].token_ids[-1] in llm.spec.eos_token_ids
    assert " Paris" in llm.generate("The capital of France is", params)[0].outputs[0].text


def test_alone_equals_in_a_batch_of_16(llm, batch):
    assert [tokens(llm.generate(p, GREEDY))[0] for p in PROMPTS] == batch
    assert len({tuple(t) for t in batch}) == 16


@pytest.mark.parametrize(
    "settings",
    [
        {"block_size": 8},
        {"block_size": 64},
        {"prefix_cache": False},
        {"max_step_tokens": 5},
        {"max_num_seqs": 3},
        {"threads": 1},
    ],
    ids=str,
)
def test_settings_that_must_not_change_tokens(smollm2_path, batch, settings):
    with LLM(smollm2_path, kv_memory="256MiB", **settings) as llm:
        first = llm.generate(PROMPTS, GREEDY)
        assert tokens(first) == batch
        warm = llm.generate(PROMPTS, GREEDY)
        assert tokens(warm) == batch
        cached = [o.num_cached_tokens for o in warm]
        if settings.get("prefix_cache", True) and settings.get("block_size") != 64:  # no block of 64 is full
            assert cached == [len(o.prompt_token_ids) - 1 for o in warm]
        else:
            assert cached == [0] * 16


def test_small_pool_preempts_and_gives_the_same_tokens(smollm2_path, batch):
    with LLM(smollm2_path, kv_memory="3MiB", block_size=8) as llm:
        assert llm.capacity.num_tokens < 140
        outputs = llm.generate(PROMPTS, GREEDY)
        assert tokens(outputs) == batch
        assert llm.engine.scheduler.stats().num_preemptions > 0
        assert sum(o.metrics.num_preemptions for o in outputs) == llm.engine.scheduler.stats().num_preemptions


def test_prompt_at_block_edges_cold_and_warm(llm):
    text = llm.tokenizer.encode(
        "It was the best of times, it was the worst of times, it was the age of wisdom. " * 4
    )
    for length in (1, 15, 16, 17, 31, 32, 33, 64):
        prompt = text[-length:]  # no two begin alike
        params = SamplingParams(max_tokens=4, temperature=0)
        cold, warm = (llm.generate(prompt, params)[0] for _ in range(2))
        assert tokens([cold]) == tokens([warm])
        assert warm.num_cached_tokens == length - 1


def test_full_precision_runs(smollm2_path):
    with LLM(smollm2_path, activations="float32", kv_dtype="float32", kv_memory="64MiB") as llm:
        output = llm.generate("The capital of France is", GREEDY)[0]
        assert "Paris" in output.outputs[0].text


def test_seeded_samples_do_not_depend_on_company(llm):
    params = [SamplingParams(max_tokens=12, temperature=0.9, top_p=0.95, seed=i) for i in range(6)]
    together = tokens(llm.generate(["Once upon a time"] * 6, params))
    assert [tokens(llm.generate("Once upon a time", p))[0] for p in params] == together
    assert len({tuple(t) for t in together}) == 6


def test_unseeded_samples_differ(llm):
    params = SamplingParams(max_tokens=12, temperature=1.0)
    outputs = tokens(llm.generate(["Once upon a time"] * 4, params))
    assert len({tuple(t) for t in outputs}) == 4


def test_output_carries_what_was_asked(llm):
    outputs = llm.generate(["Hello there", llm.tokenizer.encode("Hello there")], GREEDY)
    text, ids = outputs
    assert text.prompt == "Hello there"
    assert ids.prompt is None
    assert text.prompt_token_ids == ids.prompt_token_ids == llm.tokenizer.encode("Hello there")
    assert tokens([text]) == tokens([ids])
    assert text.outputs[0].text == llm.tokenizer.decode(text.outputs[0].token_ids)
    assert text.metrics.ttft_s is not None
    assert text.metrics.ttft_s > 0
    assert text.request_id != ids.request_id


def test_chat_is_generate_on_the_template(llm):
    messages = [{"role": "user", "content": "Hi!"}]
    ids = llm.encode_chat(messages)
    assert llm.tokenizer.decode(ids, skip_special=False).startswith("<|im_start|>system")
    both = llm.chat([messages, messages], GREEDY)
    assert [o.prompt_token_ids for o in both] == [ids, ids]
    assert tokens(both) == tokens(llm.generate([ids, ids], GREEDY))


def test_stream_gives_the_same_text_in_pieces(llm):
    expected = llm.generate("Once upon a time", GREEDY)[0].outputs[0].text
    stream = llm.stream("Once upon a time", GREEDY)
    pieces = list(stream)
    assert len(pieces) > 5
    assert "".join(pieces) == expected == stream.output.outputs[0].text


def test_streams_and_batches_can_be_interleaved(llm):
    expected = tokens(llm.generate(PROMPTS[:3], GREEDY))
    first = llm.stream(PROMPTS[0], GREEDY)
    next(first)
    assert tokens(llm.generate(PROMPTS[1:3], GREEDY)) == expected[1:]
    list(first)
    assert tokens([first.output]) == expected[:1]


def test_stream_closed_early_frees_its_blocks(llm):
    with llm.stream("Once upon a time", GREEDY) as stream:
        next(stream)
    assert stream.output.outputs[0].finish_reason == "abort"
    assert list(stream) == []
    assert not llm.engine.has_work
    llm.engine.check_invariants()


def test_stop_text_is_cut_out(llm):
    text = llm.generate("Once upon a time", GREEDY)[0].outputs[0].text
    stop = text[15:22]
    params = SamplingParams(max_tokens=20, temperature=0, stop=stop)
    pieces = list(llm.stream("Once upon a time", params))
    assert "".join(pieces) == text[: text.index(stop)]
    assert llm.generate("Once upon a time", params)[0].outputs[0].finish_reason == "stop"


def test_context_end(smollm2_path):
    with LLM(smollm2_path, max_context=24, max_num_seqs=2) as llm:
        assert llm.capacity.num_blocks == 4
        output = llm.generate(
            "Once upon a time", SamplingParams(max_tokens=None, temperature=0, ignore_eos=True)
        )[0]
        assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == 24
        assert output.outputs[0].finish_reason == "length"
        with pytest.raises(InvalidRequest, match="the prompt has 24 tokens; at most 23 leave room"):
            llm.generate([[1] * 24])


@pytest.mark.parametrize(
    ("prompts", "params", "message"),
    [
        ("", None, "prompt 0: the prompt is empty"),
        ([], None, "the list is empty"),
        (["fine", ""], None, "prompt 1: the prompt is empty"),
        ([[1, 2], []], None, "prompt 1: the prompt is empty"),
        ([[1], [49152]], None, "prompt 1: prompt: token id 49152 is outside the vocabulary, 0 to 49151"),
        ([[-1]], None, "prompt 0: prompt: token id -1"),
        ([[1] * 9000], None, "prompt 0: the prompt has 9000 tokens; at most 8191 leave room"),
        ([[1, "a"]], None, "a token id must be an integer, not 'a'"),
        ([[1, True]], None, "not True"),
        ([1, 2.5], None, "not 2.5"),
        (["a", 5], None, "prompt 1: a prompt must be a text or a list of token ids, not int"),
        (b"abc", None, "a prompt must be a text or a list of token ids, not bytes"),
        ([b"abc"], None, "prompt 0: a prompt must be a text or a list of token ids, not bytes"),
        ([bytearray(b"abc")], None, "not bytearray"),
        (np.array([1.5, 2.0]), None, "a token id must be an integer, not 1.5"),
        ([np.array([True])], None, "not True"),
        ([np.array([[1, 2]])], None, "a token id must be an integer, not [1, 2]"),
        ([np.array([], int)], None, "the prompt is empty"),
        (np.array(3), None, "prompts must be"),
        ([[10**5000]], None, "is outside the vocabulary"),
        (5, None, "prompts must be a text, a list of token ids, or a list of those, not int"),
        ({"prompt": "a"}, None, "not dict"),
        (["a", "b"], [GREEDY], "2 prompts, 1 given"),
        (["a"], "greedy", "one per prompt"),
        (["a"], {"temperature": 0}, "one per prompt"),
        (["a"], [{"temperature": 0}], "prompt 0: sampling_params must be SamplingParams, not dict"),
        (["a"], SamplingParams(stop_token_ids=[60000]), "stop_token_ids: token id 60000"),
        (
            ["a"],
            SamplingParams(logit_bias={49152: 1}),
            "logit_bias: token id 49152 is outside the vocabulary",
        ),
    ],
)
def test_bad_requests_are_refused_before_anything_runs(llm, prompts, params, message):
    with pytest.raises(InvalidRequest) as error:
        llm.generate(prompts, params)
    assert message in str(error.value)
    assert not llm.engine.has_work


def test_numpy_token_ids_are_token_ids(llm):
    ids = llm.tokenizer.encode("Once upon a time")
    expected = tokens(llm.generate(ids, GREEDY))
    array = np.array(ids)
    for prompts in (array, [array], array[None], [list(array)], array.astype(np.uint16)):
        assert tokens(llm.generate(prompts, GREEDY)) == expected
    assert tokens(llm.generate([array.astype(np.int32), ids], GREEDY)) == expected * 2
    with llm.stream(array, GREEDY) as stream:
        list(stream)
    assert tokens([stream.output]) == expected


def test_a_stream_that_is_lost_ends_its_request(llm):
    stream = llm.stream("Once upon a time", GREEDY)
    next(stream)
    assert list(llm.memory().requests) == [stream.request_id]
    del stream
    assert llm.memory().requests == {}
    assert not llm.engine.has_work
    for piece in llm.stream("Once upon a time", GREEDY):
        assert piece
        break
    llm.generate("a", GREEDY)
    assert llm.memory().stats.used_blocks == 0
    llm.engine.check_invariants()


def test_two_threads_may_use_one_llm(llm, batch):
    found = {}

    def generate(half: int) -> None:
        found[half] = tokens(llm.generate(PROMPTS[half::2][:4], GREEDY, progress=False))

    def stream() -> None:
        streams = [llm.stream(prompt, GREEDY) for prompt in PROMPTS[8:10]]
        texts = ["".join(s) for s in streams]
        assert texts == [s.output.outputs[0].text for s in streams]
        found["stream"] = tokens([s.output for s in streams])

    threads = [threading.Thread(target=generate, args=(half,)) for half in range(2)]
    threads.append(threading.Thread(target=stream))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: batch[0:8:2], 1: batch[1:8:2], "stream": batch[8:10]}
    llm.engine.check_invariants()


def test_default_parameters_and_one_per_prompt(llm):
    assert len(llm.generate("Hi")[0].outputs[0].token_ids) <= 64
    params = [SamplingParams(max_tokens=n, temperature=0, ignore_eos=True) for n in (1, 2, 3)]
    assert [len(t) for t in tokens(llm.generate(["a", "b", "c"], params))] == [1, 2, 3]


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        (
            {"kv_memory": "1KiB"},
            InvalidConfig,
            "kv_memory is 1.0 KiB (1024 bytes), but a single block takes 737280",
        ),
        ({"kv_memory": "lots"}, InvalidConfig, "kv_memory='lots'"),
        ({"max_context": 10_000}, InvalidConfig, "the model's limit is 8192"),
        ({"block_size": 10}, InvalidConfig, "block_size=10"),
        ({"block_size": {"0-9": 16}}, InvalidConfig, "layers 10-29 have none"),
        ({"kv_dtype": "int4"}, NotYetSupported, "kv_dtype='int4'"),
        ({"kv_memory": 0}, InvalidConfig, "kv_memory=0: must be at least 1 byte"),
        ({"kv_memory": "9" * 400 + "GiB"}, InvalidConfig, "kv_memory='999"),
        ({"max_context": 1}, InvalidConfig, "max_context=1: must be an integer, at least 2"),
        ({"max_context": 10**12}, InvalidConfig, "max_context=1000000000000: the model's limit is 8192"),
        ({"threads": 100_000}, InvalidConfig, "threads=100000: must be from 1 to "),
        ({"threads": 99_999_999_999}, InvalidConfig, "threads=99999999999: must be from 1 to "),
        ({"tensor_parallel_size": 2}, NotYetSupported, "tensor_parallel_size=2"),
        ({"speculative": 4}, InvalidConfig, "speculative=4: choose one of ngram"),
        ({"speculative": "eagle"}, NotYetSupported, "speculative='eagle'"),
        ({"scheduling": "sjf"}, InvalidConfig, "scheduling='sjf': choose one of fcfs, priority"),
        ({"max_drafts": 33}, InvalidConfig, "max_drafts=33: must be at most 32"),
        ({"quantization": "awq"}, NotYetSupported, "quantization='awq'"),
        ({"blocksize": 16}, TypeError, "unexpected keyword argument 'blocksize'"),
    ],
    ids=str,
)
def test_bad_settings_are_refused_by_name(smollm2_path, settings, kind, message):
    with pytest.raises(kind) as error:
        LLM(smollm2_path, **settings)
    assert message in str(error.value)


def test_unknown_model():
    with pytest.raises(ModelNotFound, match="no model 'nothing-like-this'"):
        LLM("nothing-like-this")


def test_closed(smollm2_path):
    llm = LLM(smollm2_path, kv_memory="8MiB")
    llm.close()
    llm.close()
    with pytest.raises(OctavoError, match="closed"):
        llm.generate("Hi")


def test_capacity_counts_true_bytes(smollm2_path):
    # int8 has the scales of 16 tokens in 64 bytes: 4 more bytes for each 64 of a head.
    for dtype, width in (("bfloat16", 2), ("float16", 2), ("float32", 4), ("int8", 68 / 64)):
        with LLM(smollm2_path, kv_memory="32MiB", kv_dtype=dtype) as llm:
            per_token = 2 * width * llm.spec.num_layers * llm.spec.num_kv_heads * llm.spec.head_dim
            assert llm.capacity.block_bytes == 16 * per_token
            assert llm.capacity.num_frames == math.floor((32 << 20) / (16 * per_token))


def test_bad_words_hold_in_every_spelling(llm):
    prompt = "The capital of France is"
    params = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    free = llm.generate(prompt, SamplingParams(**params))[0].outputs[0].text
    assert "Paris" in free
    for words in (["Paris"], [" Paris"], ["aris", "the"]):
        text = llm.generate(prompt, SamplingParams(**params, bad_words=words))[0].outputs[0].text
        assert not any(word in text for word in words)


def test_log_probabilities_are_those_of_the_model(llm):
    """The likeliest tokens are what greedy requests choose, one by one, when the better ones are banned."""
    ids = llm.tokenizer.encode("Once upon a")
    params = {"max_tokens": 1, "temperature": 0}
    entry = llm.generate(ids, SamplingParams(**params, logprobs=5))[0].outputs[0].logprobs[0]
    assert [found.rank for found in entry.values()] == [1, 2, 3, 4, 5]
    logprobs = [found.logprob for found in entry.values()]
    assert logprobs == sorted(logprobs, reverse=True)
    banned: list[int] = []
    for token_id, found in entry.items():
        settings = SamplingParams(**params, bad_words=[[b] for b in banned], logprobs=0)
        completion = llm.generate(ids, settings)[0].outputs[0]
        assert completion.token_ids == [token_id]
        assert completion.logprobs == [{token_id: found}]
        assert found.decoded_token == llm.tokenizer.decode([token_id], skip_special=False, continuation=True)
        banned.append(token_id)


def test_special_tokens_are_text_if_asked_for(llm):
    end = llm.engine.limits.eos_token_ids[0]
    settings = {"max_tokens": 2, "temperature": 0, "ignore_eos": True, "allowed_token_ids": [end]}
    shown = llm.tokenizer.token_bytes(end).decode()
    for skip, expected in ((True, ""), (False, shown * 2)):
        output = llm.generate("Hi", SamplingParams(**settings, skip_special_tokens=skip))[0]
        assert output.outputs[0].token_ids == [end, end]
        assert output.outputs[0].text == expected


def test_stream_of_a_failing_request_says_so(llm, monkeypatch):
    def fail(logits, largest, rows, positions, state, **_):
        return StepResult([-1] * len(rows), dict.fromkeys(range(len(rows)), "no logits"))

    stream = llm.stream("Once upon a time", GREEDY)
    next(stream)
    monkeypatch.setattr("octavo.engine.runner.sampler", SimpleNamespace(sample=fail))
    with pytest.raises(OctavoError, match="the request failed: no logits"):
        list(stream)
    assert list(stream) == []
    assert stream.output.outputs[0].finish_reason == "error"
    llm.engine.check_invariants()
