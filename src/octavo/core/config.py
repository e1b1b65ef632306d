"""Engine settings: one frozen value, checked once, never written to again."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from octavo.core.errors import InvalidConfig, NotYetSupported

KVDtype = Literal["auto", "bfloat16", "float32"]
Activations = Literal["auto", "int8", "float32"]
BackendName = Literal["cpu", "oracle"]
BlockSizes = int | Mapping[str, int]  # one for all layers, or by range: {"0-9": 64, "10-29": 16}

MIN_BLOCK_SIZE = 8
MAX_BLOCK_SIZE = 128

_PLANNED_KV_DTYPES = ("int8", "int4", "float16", "fp8")
_PLANNED_BACKENDS = ("cuda",)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How the engine lays out its memory and bounds its work.

    Attributes:
        block_size: tokens per KV block, a multiple of 8 in 8..128: one number, or a mapping of ranges
            of layers like ``{"0-9": 64, "10,11-29": 16}``, which is kept as pairs.
        kv_memory_bytes: bytes of the KV pool, or None to choose from what the machine has free.
        kv_dtype: element type of K and V; "auto" is bfloat16.
        activations: how linear layers see their input. "auto" quantizes it to int8 per 32 values where
            the weights are int4 or int8 and keeps float32 elsewhere; "float32" never quantizes.
        prefix_cache: reuse the blocks of equal prompt prefixes.
        max_num_seqs: sequences that may run at once (rows).
        max_step_tokens: token budget of one step, over all sequences.
        max_context: longest sequence in tokens, or None for the model's own limit.
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
    max_context: int | None = None
    threads: int | None = None
    backend: BackendName = "cpu"

    def __post_init__(self) -> None:
        object.__setattr__(self, "block_size", _normalise_block_size(self.block_size))
        for name in ("max_num_seqs", "max_step_tokens"):
            self._check_positive(name)
        for name in ("kv_memory_bytes", "max_context", "threads"):
            if getattr(self, name) is not None:
                self._check_positive(name)
        self._check_choice("kv_dtype", get_args(KVDtype), _PLANNED_KV_DTYPES)
        self._check_choice("activations", get_args(Activations), ())
        self._check_choice("backend", get_args(BackendName), _PLANNED_BACKENDS)
        if not isinstance(self.prefix_cache, bool):
            raise InvalidConfig(f"prefix_cache={self.prefix_cache!r}: must be True or False")

    @property
    def block_sizes(self) -> int | dict[str, int]:
        """``block_size`` as one number, or by range of layers."""
        size = self.block_size
        return size if isinstance(size, int) else dict(size)

    def _check_positive(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InvalidConfig(f"{name}={value!r}: must be an integer, at least 1")

    def _check_choice(self, name: str, choices: tuple[str, ...], planned: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if value in choices:
            return
        message = f"{name}={value!r}: choose one of {', '.join(choices)}"
        raise (NotYetSupported if value in planned else InvalidConfig)(message)


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
        raise InvalidConfig(f"{name}={size!r}: must be an integer")
    if size % 8 or not MIN_BLOCK_SIZE <= size <= MAX_BLOCK_SIZE:
        raise InvalidConfig(
            f"{name}={size}: must be a multiple of 8 from {MIN_BLOCK_SIZE} to {MAX_BLOCK_SIZE}"
        )
    return size
