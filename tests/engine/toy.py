"""An engine whose model is a hash: milliseconds per test, and any paging mistake changes the text.

The toy model keeps the token ids themselves as its "KV". The logits for a position are drawn from a hash of
all tokens up to it, read back through the block tables; a block that is missing, stale, shared by mistake or
copied too late gives other tokens.
"""

import codecs
import zlib
from collections.abc import Callable

import numpy as np

from octavo.attention.plan import StepInputs
from octavo.core.sampling import SamplingParams
from octavo.engine.batch_state import BatchState
from octavo.engine.engine import Engine, ModelLimits
from octavo.engine.generation import Generation
from octavo.engine.runner import Runner
from octavo.engine.scheduler import Scheduler
from octavo.paging.groups import GroupSpec
from octavo.paging.manager import KVManager

VOCAB = 61
EOS = 60


class ToyArena:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.tokens = np.full((num_blocks, block_size), -1, np.int64)

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        for source, destination in pairs:
            self.tokens[destination] = self.tokens[source]


class ToyModel:
    def __init__(
        self, arena: ToyArena, *, hook: Callable[[StepInputs, np.ndarray], None] | None = None
    ) -> None:
        self.arena = arena
        self.hook = hook
        self.step_sizes: list[int] = []

    def __call__(self, inputs: StepInputs) -> np.ndarray:
        block_size = self.arena.tokens.shape[1]
        table = inputs.block_tables[0]
        self.step_sizes.append(inputs.num_tokens)
        logits = []
        wanted = set(inputs.logit_tokens.tolist())
        for i, row in enumerate(inputs.rows):
            start, stop = inputs.query_start[i], inputs.query_start[i + 1]
            positions = inputs.positions[start:stop]
            blocks = table[row, positions // block_size]
            assert (blocks > 0).all(), "a token has no slot"
            self.arena.tokens[blocks, positions % block_size] = inputs.token_ids[start:stop]
            if stop - 1 in wanted:
                length = positions[-1] + 1
                seen = self.arena.tokens[table[row, : -(-length // block_size)]].reshape(-1)[:length]
                logits.append(toy_logits(seen))
        result = np.array(logits, np.float32).reshape(-1, VOCAB)
        if self.hook is not None:
            self.hook(inputs, result)
        return result


def toy_logits(token_ids: np.ndarray) -> np.ndarray:
    seed = zlib.crc32(np.asarray(token_ids, np.int64).tobytes())
    return np.random.Generator(np.random.PCG64(seed)).normal(0, 2, VOCAB).astype(np.float32)


def toy_greedy(prompt: list[int], num_tokens: int) -> list[int]:
    """What the engine must generate at temperature 0, computed without any cache."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(int(toy_logits(np.array(tokens)).argmax()))
    return tokens[len(prompt) :]


class ToyDetokenizer:
    """Token t is byte t of a text, repeated: letters, and emoji of four tokens each."""

    TEXT = ("abcdefghijklmnopqrstuvwxyz .,-" + "😀🚀🌈é").encode()

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(self.TEXT[token_id % len(self.TEXT) :][:1])

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


def toy_text(token_ids: list[int]) -> str:
    text = ToyDetokenizer.TEXT
    return b"".join(text[t % len(text) :][:1] for t in token_ids).decode("utf-8", "replace")


class ToyEngine:
    def __init__(
        self,
        *,
        num_blocks: int = 200,
        block_size: int = 8,
        max_num_seqs: int = 16,
        max_step_tokens: int = 64,
        prefix_cache: bool = True,
        context_len: int = 256,
        hook: Callable[[StepInputs, np.ndarray], None] | None = None,
        make_detokenizer: Callable[[], ToyDetokenizer] = ToyDetokenizer,
    ) -> None:
        self.kv = KVManager(
            num_blocks=num_blocks, groups=[GroupSpec(block_size)], prefix_cache=prefix_cache, namespace="toy"
        )
        self.arena = ToyArena(num_blocks, block_size)
        self.model = ToyModel(self.arena, hook=hook)
        self.scheduler = Scheduler(self.kv, max_num_seqs=max_num_seqs, max_step_tokens=max_step_tokens)
        state = BatchState(num_rows=max_num_seqs, table_block_sizes=[block_size], max_context=context_len)
        self.engine = Engine(
            self.scheduler,
            Runner(self.model, arena=self.arena, state=state),
            limits=ModelLimits(VOCAB, context_len, "the toy's limit", (EOS,)),
            make_detokenizer=make_detokenizer,
        )

    def submit(self, prompt: list[int], **params: object) -> Generation:
        generation = self.engine.prepare(prompt, SamplingParams(**{"temperature": 0.0, **params}))  # type: ignore[arg-type]
        self.engine.submit(generation)
        return generation

    def run(self, *generations: Generation, max_steps: int = 20_000) -> list[list[int]]:
        """Step until all is done, checking the invariants after every step; the output tokens."""
        while self.engine.has_work:
            self.step()
            max_steps -= 1
            assert max_steps > 0, "no end in sight"
        self.engine.check_invariants()
        assert self.kv.num_free_blocks == self.kv.pool.num_blocks - 1
        return [tokens_of(g) for g in generations]

    def step(self) -> int:
        num_tokens = self.engine.step()
        assert num_tokens > 0, "a step that computes nothing"
        self.engine.check_invariants()
        return num_tokens


def tokens_of(generation: Generation) -> list[int]:
    request = generation.request
    return request.token_ids[request.prompt_len :]


def random_prompts(count: int, *, seed: int, longest: int = 60) -> list[list[int]]:
    """Prompts of random lengths; about half begin like an earlier one."""
    rng = np.random.default_rng(seed)
    prompts: list[list[int]] = []
    for _ in range(count):
        prompt = rng.integers(0, EOS, rng.integers(1, longest + 1)).tolist()
        if prompts and rng.random() < 0.5:
            other = prompts[rng.integers(len(prompts))]
            cut = rng.integers(0, min(len(prompt), len(other)) + 1)
            prompt[:cut] = other[:cut]
        prompts.append(prompt)
    return prompts
