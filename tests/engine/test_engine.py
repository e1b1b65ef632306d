"""From tokens to outputs: reasons, stop texts, streams, failures."""

import sys
import threading

import numpy as np
import pytest
from toy import EOS, ToyDetokenizer, ToyEngine, tokens_of, toy_greedy, toy_text

from octavo.core.errors import EngineFailed


def prompt_with(condition, *, num_tokens: int = 40) -> tuple[list[int], list[int]]:
    """A prompt whose greedy tokens fulfil a condition, and those tokens."""
    for seed in range(2000):
        prompt = [seed % 50, seed // 50, 7]
        tokens = toy_greedy(prompt, num_tokens)
        if condition(tokens):
            return prompt, tokens
    raise AssertionError("no such prompt")


def test_eos_stops_and_is_no_text():
    prompt, tokens = prompt_with(lambda t: EOS in t[5:20])
    end = tokens.index(EOS)
    toy = ToyEngine()
    generation = toy.submit(prompt, max_tokens=40)
    toy.run(generation)
    completion = generation.output().outputs[0]
    assert (completion.finish_reason, completion.token_ids) == ("stop", tokens[: end + 1])
    assert completion.text == toy_text(tokens[:end])
    ignoring = toy.submit(prompt, max_tokens=40, ignore_eos=True)
    toy.run(ignoring)
    assert ignoring.output().outputs[0].token_ids == tokens
    assert ignoring.output().outputs[0].finish_reason == "length"


def test_stop_token_ids():
    prompt, tokens = prompt_with(lambda t: len(set(t[:8])) == 8 and EOS not in t)
    toy = ToyEngine()
    generation = toy.submit(prompt, stop_token_ids=[tokens[7]], ignore_eos=True)
    toy.run(generation)
    assert generation.output().outputs[0].token_ids == tokens[:8]
    assert generation.output().outputs[0].text == toy_text(tokens[:7])


def test_stop_text_over_token_borders_is_cut_and_never_streamed():
    prompt, tokens = prompt_with(lambda t: EOS not in t and toy_text(t[:20]).isascii())
    text = toy_text(tokens)
    stop = text[10:14]
    cut = text.index(stop)
    toy = ToyEngine()
    generation = toy.submit(prompt, max_tokens=40, stop=[stop, "never there"])
    streamed = ""
    while not generation.finished:
        toy.step()
        streamed += generation.take_text()
        assert text[:cut].startswith(streamed)
    completion = generation.output().outputs[0]
    assert completion.text == streamed == text[:cut]
    assert completion.finish_reason == "stop"
    assert completion.token_ids == tokens[: cut + 4]
    toy.run()


def test_beginning_of_a_stop_text_comes_out_in_the_end():
    prompt, tokens = prompt_with(lambda t: toy_text(t[:12]).isascii() and EOS not in t[:12])
    text = toy_text(tokens[:12])
    toy = ToyEngine()
    generation = toy.submit(prompt, max_tokens=12, stop=[text[-3:] + "!!"])
    toy.run(generation)
    assert generation.output().outputs[0].text == text
    assert generation.output().outputs[0].finish_reason == "length"


def test_streamed_emoji_are_whole():
    emoji = "a😀b🚀".encode()
    ids = [ToyDetokenizer.TEXT.index(emoji[i : i + 1]) for i in range(len(emoji))]
    # Four-byte characters begin with the same bytes; find ids by their place in the text.
    start = ToyDetokenizer.TEXT.index("😀".encode())
    ids = [0, *range(start, start + 4), 1, *range(start + 4, start + 8)]

    def force(inputs, logits):
        position = int(inputs.positions[inputs.logit_tokens[0]]) + 1 - 1
        logits[:] = 0
        logits[0, ids[position]] = 9

    toy = ToyEngine(hook=force)
    generation = toy.submit([3], max_tokens=len(ids))
    pieces = []
    while not generation.finished:
        toy.step()
        pieces.append(generation.take_text())
    assert "".join(pieces) == "a😀b🚀" == generation.text
    assert not any("\ufffd" in piece for piece in pieces)
    assert pieces.count("") == 6


def test_output_cut_inside_a_character_ends_before_it():
    start = ToyDetokenizer.TEXT.index("😀".encode())

    def force(inputs, logits):
        logits[:] = 0
        logits[0, start + int(inputs.positions[-1])] = 9

    for settings, reason, num_tokens in (
        ({"max_tokens": 7}, "length", 7),
        ({"max_tokens": 9, "stop_token_ids": [start + 6]}, "stop", 7),
    ):
        toy = ToyEngine(hook=force)
        generation = toy.submit([3], **settings)
        pieces = []
        while not generation.finished:
            toy.step()
            pieces.append(generation.take_text())
        completion = generation.output().outputs[0]
        assert completion.finish_reason == reason
        assert completion.token_ids == list(range(start, start + num_tokens))
        assert completion.text == "".join(pieces) == "😀"


def test_bytes_that_are_no_character_are_shown_as_such():
    start = ToyDetokenizer.TEXT.index("😀".encode())

    def force(inputs, logits):
        logits[:] = 0
        logits[0, [start, start + 1, 0][int(inputs.positions[-1])]] = 9

    toy = ToyEngine(hook=force)
    generation = toy.submit([3], max_tokens=3)
    toy.run(generation)
    assert generation.text == "\ufffda"


EXTREMES = [
    {"top_k": 2**31 - 1},
    {"max_tokens": 10**21},
    {"seed": 2**64 - 1},
    {"temperature": 1e6},
    {"temperature": 5e-324},
    {"temperature": 1e-40},
    {"top_p": 5e-324},
    {"top_k": 2**31 - 1, "top_p": 5e-324, "min_p": 1.0},
    {"min_p": 1},
    {"min_p": 5e-324},
    {"stop_token_ids": np.arange(3).tolist()},
    {"top_k": np.int64(5), "top_p": np.float32(0.5), "seed": np.uint64(2**64 - 1), "max_tokens": np.int8(5)},
]


@pytest.mark.parametrize("settings", EXTREMES, ids=str)
def test_no_setting_breaks_a_step(settings):
    toy = ToyEngine(context_len=24)
    neighbour = toy.submit([1] * 4, max_tokens=6, ignore_eos=True)
    generation = toy.submit([2] * 4, **{"temperature": 1.0, "max_tokens": 6, **settings})
    toy.run(generation, neighbour)
    assert generation.output().error is None
    assert tokens_of(neighbour) == toy_greedy([1] * 4, 6)


def test_a_row_that_cannot_be_opened_fails_its_request_only():
    toy = ToyEngine(max_step_tokens=8, max_num_seqs=2)
    prompts = [[i] * 20 for i in range(4)]
    generations = [toy.submit(p, max_tokens=6, ignore_eos=True) for p in prompts]
    object.__setattr__(generations[1].request.params, "temperature", "hot")
    toy.run(*generations)
    for i, generation in enumerate(generations):
        output = generation.output()
        if i == 1:
            assert output.outputs[0].finish_reason == "error"
            assert "sampling parameters could not be used" in str(output.error)
            assert output.outputs[0].token_ids == []
        else:
            assert output.error is None
            assert tokens_of(generation) == toy_greedy(prompts[i], 6)


def test_threads_take_turns():
    toy = ToyEngine(max_num_seqs=8)
    found = {}

    def serve(number: int) -> None:
        prompt = [number] * 5
        for _ in range(5):
            generation = toy.submit(prompt, max_tokens=12, ignore_eos=True)
            while not generation.finished:
                toy.engine.step()
            toy.engine.memory()
            found.setdefault(number, []).append(tokens_of(generation))

    threads = [threading.Thread(target=serve, args=(i,)) for i in range(6)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert found == {i: [toy_greedy([i] * 5, 12)] * 5 for i in range(6)}
    toy.engine.check_invariants()


def test_a_dropped_request_ends_before_the_next_step():
    toy = ToyEngine()
    generations = [toy.submit([i] * 4, max_tokens=9, ignore_eos=True) for i in range(2)]
    toy.step()
    step = toy.model.hook = lambda inputs, logits: toy.engine.drop(generations[0])  # as a finalizer may
    assert step is not None
    toy.step()
    toy.model.hook = None
    assert list(toy.engine.memory().requests) == [generations[1].request.request_id]
    assert generations[0].output().outputs[0].finish_reason == "abort"
    toy.run(generations[1])
    assert tokens_of(generations[1]) == toy_greedy([1] * 4, 9)


def test_unusable_logits_fail_one_request_only():
    def poison(inputs, logits):
        for i, token in enumerate(inputs.logit_tokens):
            row = int(np.searchsorted(inputs.query_start, token, side="right")) - 1
            if (
                inputs.context_len[row] + inputs.query_start[row + 1] - inputs.query_start[row] == 13
                and row == 1
            ):
                logits[i, 5] = np.nan

    toy = ToyEngine(hook=poison)
    generations = [toy.submit([i] * 10, max_tokens=8, ignore_eos=True) for i in range(3)]
    toy.run(*generations)
    outputs = [g.output() for g in generations]
    assert [o.outputs[0].finish_reason for o in outputs] == ["length", "error", "length"]
    assert outputs[1].error == "the model gave no usable logits at position 13: largest is nan"
    assert outputs[1].outputs[0].token_ids == toy_greedy([1] * 10, 3)
    for i in (0, 2):
        assert outputs[i].error is None
        assert outputs[i].outputs[0].token_ids == toy_greedy([i] * 10, 8)


def test_broken_detokenizer_fails_its_own_request_only():
    made = []

    class Fragile(ToyDetokenizer):
        def __init__(self) -> None:
            super().__init__()
            self.number = len(made)
            made.append(self)

        def push(self, token_id: int) -> str:
            if self.number == 1:
                raise ValueError("bad bytes")
            return super().push(token_id)

    toy = ToyEngine(make_detokenizer=Fragile)
    generations = [toy.submit([i] * 4, max_tokens=6, ignore_eos=True) for i in range(3)]
    toy.run(*generations)
    outputs = [g.output() for g in generations]
    assert [o.outputs[0].finish_reason for o in outputs] == ["length", "error", "length"]
    assert "bad bytes" in str(outputs[1].error)
    assert tokens_of(generations[2]) == toy_greedy([2] * 4, 6)


def test_a_broken_step_fails_everything_and_stays_down():
    def explode(inputs, logits):
        if inputs.context_len[0] > 6:
            raise MemoryError("no room")

    toy = ToyEngine(hook=explode)
    generations = [toy.submit([i] * 4, max_tokens=9) for i in range(2)]
    with pytest.raises(EngineFailed, match="no room"):
        toy.run(*generations)
    for generation in generations:
        assert generation.finished
        assert generation.output().outputs[0].finish_reason == "error"
        assert "no room" in str(generation.output().error)
    with pytest.raises(EngineFailed, match="down since a step failed"):
        toy.submit([1])
    with pytest.raises(EngineFailed):
        toy.engine.step()


def test_metrics_are_in_order():
    toy = ToyEngine()
    generation = toy.submit([1, 2], max_tokens=5, ignore_eos=True)
    with pytest.raises(RuntimeError, match="not finished"):
        generation.output()
    toy.run(generation)
    metrics = generation.output().metrics
    assert metrics.first_token_s is not None
    assert metrics.arrival_s <= metrics.first_token_s <= metrics.finished_s
    assert metrics.ttft_s == metrics.first_token_s - metrics.arrival_s
