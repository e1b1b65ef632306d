"""Engine settings: one frozen value, checked once, never written to again."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from octavo.core.errors import InvalidConfig, NotYetSupported, shown

KVDtype = Literal["auto", "bfloat16", "float16", "float32", "int8"]
Activations = Literal["auto", "int8", "float32"]
BackendName = Literal["cpu", "oracle"]
Scheduling = Literal["fcfs", "priority"]
Speculative = Literal["ngram"]
BlockSizes = int | Mapping[str, int]  # one for all layers, or by range: {"0-9": 64, "10-29": 16}

MIN_BLOCK_SIZE = 8
MAX_BLOCK_SIZE = 128
MAX_NUM_SEQS = 65_536
MAX_STEP_TOKENS = 65_536

_PLANNED_KV_DTYPES = ("int4", "fp8")
_PLANNED_BACKENDS = ("cuda",)
_PLANNED_SPECULATION = ("draft", "eagle", "medusa")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How the engine lays out its memory and bounds its work.

    Attributes:
        block_size: tokens per KV block, a multiple of 8 in 8..128: one number, or a mapping of ranges
            of layers like ``{"0-9": 64, "10,11-29": 16}``, which is kept as pairs.
        kv_memory_bytes: bytes of the KV pool, or None to choose from what the machine has free.
        kv_dtype: element type of K and V; "auto" is bfloat16, float16 is finer but ends at 65504, "int8" has
            a scale per token and head.
        activations: how linear layers see their input. "int8" quantizes it to int8 per 32 values where
            the weights are int4 or int8 and keeps float32 elsewhere; "auto" also rounds it to bfloat16 where
            the weights are, if the processor multiplies pairs of them; "float32" keeps it everywhere.
        prefix_cache: reuse the blocks of equal prompt prefixes.
        max_num_seqs: rows, which is sequences computed in one step at most; up to 65,536.
        max_step_tokens: token budget of one step, over all sequences, at most 65,536.
        max_chunk_tokens: what of it may go to prompts while others decode, or None for all of it: the fewer,
            the shorter the gaps between tokens of those, and the later a prompt's first token.
        scheduling: whose turn it is: "fcfs", first come first served, or "priority", the lower the sooner.
        max_waiting: sequences that may wait, each of a request's n samples counted; a request that would make
            them more is refused, unless nobody waits. None is no limit.
        speculative: "ngram" guesses tokens from what a sequence said before and verifies several per step.
        max_drafts: tokens guessed at once at most, 1 to 32.
        record: file for every decision of the scheduler, or None.
        max_context: longest sequence in tokens, at least 2, or None for the model's own limit.
        threads: worker threads of the native kernels, or None for the cores this process may use.
        backend: which implementation of the operations runs the model.

    Raises:
        InvalidConfig: a value of the wrong type or out of range.
        NotYetSupported: a value whose implementation has not arrived.
    """

    block_size: BlockSizes | tuple[tuple[str, int], ...] = 16
    kv_memory_bytes: int | None = None
    kv_dtype: KVDtype = "auto"
    activations: Activations = "auto"
    prefix_cache: bool = True
    max_num_seqs: int = 64
    max_step_tokens: int = 512
    max_chunk_tokens: int | None = None
    scheduling: Scheduling = "fcfs"
    max_waiting: int | None = None
    speculative: Speculative | None = None
    max_drafts: int = 8
    record: str | None = None
    max_context: int | None = None
    threads: int | None = None
    backend: BackendName = "cpu"

    def __post_init__(self) -> None:
        object.__setattr__(self, "block_size", _normalise_block_size(self.block_size))
        self._check_int("max_num_seqs", most=MAX_NUM_SEQS)
        self._check_int("max_step_tokens", most=MAX_STEP_TOKENS)
        self._check_int("max_drafts", most=32)
        for name in ("kv_memory_bytes", "max_context", "threads", "max_waiting", "max_chunk_tokens"):
            if getattr(self, name) is not None:
                # A context holds a token of the prompt and a new one. What the machine and the model can
                # do is not known here: both are checked where they are.
                self._check_int(name, least=2 if name == "max_context" else 1, most=2**63 - 1)
        self._check_choice("kv_dtype", get_args(KVDtype), _PLANNED_KV_DTYPES)
        self._check_choice("activations", get_args(Activations), ())
        self._check_choice("backend", get_args(BackendName), _PLANNED_BACKENDS)
        self._check_choice("scheduling", get_args(Scheduling), ())
        if self.speculative is not None:
            self._check_choice("speculative", get_args(Speculative), _PLANNED_SPECULATION)
        if not isinstance(self.prefix_cache, bool):
            raise InvalidConfig(f"prefix_cache={shown(self.prefix_cache)}: must be True or False")

    @property
    def block_sizes(self) -> int | dict[str, int]:
        """``block_size`` as one number, or by range of layers."""
        size = self.block_size
        return size if isinstance(size, int) else dict(size)

    def _check_int(self, name: str, *, least: int = 1, most: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InvalidConfig(f"{name}={shown(value)}: must be an integer, at least {least}")
        if value > most:
            raise InvalidConfig(f"{name}={shown(value)}: must be at most {most}")

    def _check_choice(self, name: str, choices: tuple[str, ...], planned: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if isinstance(value, str) and value in choices:
            return
        message = f"{name}={shown(value)}: choose one of {', '.join(choices)}"
        is_planned = isinstance(value, str) and value in planned
        raise (NotYetSupported if is_planned else InvalidConfig)(message)


def _normalise_block_size(option: object) -> int | tuple[tuple[str, int], ...]:
    """A number, or pairs of layers and number. Which layers there are is for the model to say."""
    if isinstance(option, Mapping):
        option = tuple(option.items())
    if not isinstance(option, tuple):
        return _checked_block_size("block_size", option)
    if not option:
        raise InvalidConfig("block_size names no layers: give one number, or one for each range of layers")
    return tuple(
        (str(layers), _checked_block_size(f"block_size[{layers!r}]", size)) for layers, size in option
    )


def _checked_block_size(name: str, size: object) -> int:
    if not isinstance(size, int) or isinstance(size, bool):
        raise InvalidConfig(f"{name}={shown(size)}: must be an integer")
    if size % 8 or not MIN_BLOCK_SIZE <= size <= MAX_BLOCK_SIZE:
        raise InvalidConfig(
            f"{name}={shown(size)}: must be a multiple of 8 from {MIN_BLOCK_SIZE} to {MAX_BLOCK_SIZE}"
        )
    return size
