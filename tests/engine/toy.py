"""An engine whose model is a hash: milliseconds per test, and any paging mistake changes the text.

The toy model's "KV" of a token is a hash of the token and of the KV of all tokens it sees, read back through
the block table; there is one such layer per table, with the window of the table's group. The logits are drawn
from the KV of all layers. A block that is missing, stale, shared by mistake, copied too late or given back
too early gives other tokens.
"""

import codecs
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from octavo.attention.plan import StepInputs
from octavo.backends.oracle import largest
from octavo.core.sampling import SamplingParams
from octavo.core.structured import StructuredOutput
from octavo.engine.batch_state import BatchState
from octavo.engine.choice import Detokenizer
from octavo.engine.engine import Engine, ModelLimits
from octavo.engine.generation import Generation
from octavo.engine.grammar import GrammarCompiler
from octavo.engine.runner import Runner
from octavo.engine.sampling.adjustments import apply_mask
from octavo.engine.sampling.state import SamplingState
from octavo.paging.groups import GroupSpec
from octavo.scheduling.drafting import Drafter
from octavo.scheduling.recording import SchedulerSettings

VOCAB = 61
EOS = 60


class ToyArena:
    """Frames that any table may use, whatever its block size; they begin with garbage."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.frames = np.full((num_blocks, block_size), -1, np.int64)

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        for source, destination in pairs:
            self.frames[destination] = self.frames[source]


class ToyModel:
    def __init__(
        self,
        arena: ToyArena,
        groups: Sequence[GroupSpec],
        *,
        hook: Callable[[StepInputs, np.ndarray], None] | None = None,
    ) -> None:
        self.arena = arena
        self.tables = tables_of(groups)
        self.hook = hook
        self.step_sizes: list[int] = []
        self.largest: list[int] = []

    def __call__(self, inputs: StepInputs) -> np.ndarray:
        self.step_sizes.append(inputs.num_tokens)
        logits = []
        wanted = set(inputs.logit_tokens.tolist())
        for i, row in enumerate(inputs.rows):
            for token in range(inputs.query_start[i], inputs.query_start[i + 1]):
                position, token_id = int(inputs.positions[token]), int(inputs.token_ids[token])
                values = [
                    self._run_layer(spec, table[row], position, token_id)
                    for spec, table in zip(self.tables, inputs.block_tables, strict=True)
                ]
                if token in wanted:
                    logits.append(toy_logits(values))
        result = np.array(logits, np.float32).reshape(-1, VOCAB)
        if self.hook is not None:
            self.hook(inputs, result)
        self.largest = largest(result)
        return result

    def _run_layer(self, spec: GroupSpec, table: np.ndarray, position: int, token_id: int) -> int:
        first = 0 if spec.window is None else max(0, position - spec.window + 1)
        size, first_block = spec.block_size, first // spec.block_size
        blocks = table[first_block : position // size + 1]
        assert (blocks > 0).all(), "a token has no slot, or sees one that was given back"
        seen = self.arena.frames[blocks, :size].reshape(-1)[first - first_block * size :][: position - first]
        value = toy_value(seen, token_id)
        self.arena.frames[blocks[-1], position % size] = value
        return value


def tables_of(groups: Sequence[GroupSpec]) -> list[GroupSpec]:
    """The group of each table."""
    return [spec for spec in groups for _ in range(spec.num_tables)]


def toy_value(seen: np.ndarray, token_id: int) -> int:
    return zlib.crc32(np.append(seen, token_id).astype(np.int64).tobytes())


def toy_logits(values: list[int]) -> np.ndarray:
    seed = zlib.crc32(np.array(values, np.int64).tobytes())
    return np.random.Generator(np.random.PCG64(seed)).normal(0, 2, VOCAB).astype(np.float32)


def toy_greedy(
    prompt: list[int],
    num_tokens: int,
    groups: Sequence[GroupSpec] = (GroupSpec(8),),
    *,
    structured: StructuredOutput | None = None,
) -> list[int]:
    """What the engine must generate at temperature 0, computed without any cache.

    It goes on behind the end token, unless a grammar says what may come.
    """
    tables = tables_of(groups)
    matcher = None if structured is None else toy_grammars().compile(structured).result()
    layers: list[list[int]] = [[] for _ in tables]
    tokens = list(prompt)
    for position in range(len(prompt) + num_tokens - 1):
        for spec, layer in zip(tables, layers, strict=True):
            first = 0 if spec.window is None else max(0, position - spec.window + 1)
            layer.append(toy_value(np.array(layer[first:], np.int64), tokens[position]))
        if position + 1 == len(tokens):
            logits = toy_logits([layer[-1] for layer in layers])
            if matcher is not None:
                mask = np.zeros(toy_grammars().num_words, np.uint32)
                matcher.fill_mask(mask)
                apply_mask(logits, mask)
            tokens.append(int(logits.argmax()))
            if matcher is not None:
                matcher.accept(tokens[-1])
                if tokens[-1] == EOS:
                    break
    return tokens[len(prompt) :]


class ToyDetokenizer:
    """Token t is byte t of a text: letters, emoji of four tokens each, what JSON needs."""

    TEXT = ("abcdefghijklmnopqrstuvwxyz .,-" + "😀🚀🌈é" + '{}[]":0123456789').encode()

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(self.TEXT[token_id % len(self.TEXT) :][:1])

    def token_text(self, token_id: int) -> str:
        return ToyTokenizer().token_bytes(token_id).decode("utf-8", "replace")

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class ToyTokenizer:
    bos_token_id = None

    def token_bytes(self, token_id: int) -> bytes:
        text = ToyDetokenizer.TEXT
        return text[token_id % len(text) :][:1]

    visible_bytes = token_bytes

    def is_special(self, token_id: int) -> bool:
        return token_id == EOS

    def encode(self, text: str, **_: bool) -> list[int]:
        return [ToyDetokenizer.TEXT.index(byte) for byte in text.encode()]


@cache
def toy_grammars() -> GrammarCompiler:
    return GrammarCompiler(ToyTokenizer(), vocab_size=VOCAB, end_token_ids=[EOS])  # type: ignore[arg-type]


def toy_text(token_ids: list[int]) -> str:
    text = ToyDetokenizer.TEXT
    return b"".join(text[t % len(text) :][:1] for t in token_ids).decode("utf-8", "replace")


class ToyEngine:
    def __init__(
        self,
        *,
        num_blocks: int = 200,
        block_size: int = 8,
        groups: Sequence[GroupSpec] = (),
        max_num_seqs: int = 16,
        max_step_tokens: int = 64,
        prefix_cache: bool = True,
        context_len: int = 256,
        hook: Callable[[StepInputs, np.ndarray], None] | None = None,
        make_detokenizer: Callable[[], Detokenizer] = ToyDetokenizer,
        drafter: Drafter | None = None,
        record: Path | None = None,
        grammars: bool = False,
        **scheduling: object,
    ) -> None:
        groups = groups or [GroupSpec(block_size)]
        sizes = [spec.block_size for spec in tables_of(groups)]
        settings = SchedulerSettings(
            num_blocks=num_blocks,
            groups=tuple(groups),
            prefix_cache=prefix_cache,
            max_num_seqs=max_num_seqs,
            max_step_tokens=max_step_tokens,
            **scheduling,  # type: ignore[arg-type]
        )
        self.scheduler = settings.build(namespace="toy", record=record, drafter=drafter)
        self.kv = self.scheduler.kv
        self.arena = ToyArena(num_blocks, max(sizes))
        self.model = ToyModel(self.arena, groups, hook=hook)
        state = BatchState(
            num_rows=max_num_seqs,
            table_block_sizes=sizes,
            max_context=context_len,
            sampling=SamplingState(
                max_num_seqs, vocab_size=VOCAB, eos_token_ids=(EOS,), tokenizer=ToyTokenizer()
            ),
        )
        compiler = toy_grammars() if grammars else None
        self.engine = Engine(
            self.scheduler,
            Runner(self.model, arena=self.arena, state=state, grammars=compiler),
            limits=ModelLimits(VOCAB, context_len, "the toy's limit", (EOS,)),
            make_detokenizer=lambda params: make_detokenizer(),
            grammars=compiler,
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
