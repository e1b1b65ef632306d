"""What a model will take of a machine's memory, from its header alone: the numbers that ``LLM`` then has."""

import os
from bisect import bisect_right
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast

from octavo.backends.base import Backend
from octavo.backends.recorder import Value, Weight
from octavo.backends.sizing import SizingBackend
from octavo.core.config import EngineConfig
from octavo.core.errors import InvalidConfig, shown
from octavo.core.units import format_bytes
from octavo.engine.capacity import KVCapacity, plan_capacity, plan_layers
from octavo.engine.machine import available_memory
from octavo.models.decoder import Decoder
from octavo.models.loading import LoadedModel, load_hollow_model
from octavo.models.spec import DecoderSpec
from octavo.paging.groups import GroupPlan, most_frames
from octavo.storage.layout import DTYPE_BYTES, StorageDtype

# Python, its libraries and a vocabulary, about: a server with SmolLM2 has 110 MiB of them.
RUNTIME_BYTES: Final = 128 << 20


@dataclass(frozen=True, slots=True)
class FixedMemory:
    """Bytes that a model takes whatever its KV pool.

    Attributes:
        file_bytes: all weights in the file, for comparison: it is mapped, and what is not read again is no
            longer held.
        weight_bytes: packed copies of the linear layers, norms and biases.
        embedding_bytes: the embedding table, read where the file holds it.
        scratch_bytes: activations of a step, logits, block tables and rotary tables.
        runtime_bytes: Python, libraries and vocabulary, about.
    """

    file_bytes: int
    weight_bytes: int
    embedding_bytes: int
    scratch_bytes: int
    runtime_bytes: int = RUNTIME_BYTES

    @property
    def num_bytes(self) -> int:
        """The sum, but for ``file_bytes``."""
        return self.weight_bytes + self.embedding_bytes + self.scratch_bytes + self.runtime_bytes


@dataclass(frozen=True, slots=True)
class Demand:
    """What must fit at once: so many sequences of so many tokens.

    Attributes:
        is_asked: somebody asked for it; otherwise it is only counted.
    """

    num_sequences: int
    context_len: int
    is_asked: bool

    def num_frames(self, layers: GroupPlan) -> int:
        """Blocks of the pool that it takes, the null block included."""
        return self.num_sequences * most_frames(layers.specs, self.context_len) + 1

    def __str__(self) -> str:
        plural = "s" if self.num_sequences > 1 else ""
        return f"{self.num_sequences:,} sequence{plural} of {self.context_len:,} tokens"


@dataclass(frozen=True, slots=True)
class DtypePlan:
    """The KV pool with one element type.

    Attributes:
        capacity: what ``LLM.capacity`` will be, or None if the pool is too small to begin with.
        needed_bytes: the smallest pool that holds what is demanded.
        longest: tokens of a sequence, so that as many as demanded fit; 0 is none.
    """

    layers: GroupPlan
    capacity: KVCapacity | None
    needed_bytes: int
    longest: int

    def fits(self, demand: Demand) -> bool:
        """Whether the pool holds what is demanded, or anything if nothing is."""
        return self.capacity is not None and (not demand.is_asked or self.longest >= demand.context_len)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """A model on a budget.

    Attributes:
        budget_bytes: memory for everything: what is free, or what was given.
        pool_bytes: what of it the KV pool may take.
        pool_source: where that number comes from.
        chosen: the element type that would be used.
        problem: why the model cannot run as asked, and what to do; "" if it can.
    """

    path: Path
    spec: DecoderSpec
    fixed: FixedMemory
    budget_bytes: int
    pool_bytes: int
    pool_source: str
    demand: Demand
    dtypes: dict[StorageDtype, DtypePlan]
    chosen: StorageDtype
    problem: str


def plan_memory(
    path: Path, config: EngineConfig, *, memory_bytes: int | None = None, num_sequences: int | None = None
) -> MemoryPlan:
    """Plan a model's memory without loading it.

    Args:
        path: a ``.gguf`` file or a directory, as ``weights.sources.resolve`` gives it.
        config: the settings that ``LLM`` would have.
        memory_bytes: budget for everything, or None for what is free on this machine.
        num_sequences: how many of ``config.max_context`` tokens, or the model's limit, must fit at once;
            None asks for one if ``max_context`` is given, and for none otherwise.

    Raises:
        ModelNotFound, CorruptModel, UnsupportedModel: as if it were loaded.
        InvalidConfig: ``max_context`` beyond the model, or block sizes that do not suit it.
    """
    loaded = load_hollow_model(path)
    spec = loaded.spec
    if config.max_context is not None and config.max_context > spec.context_len:
        raise InvalidConfig(
            f"max_context={shown(config.max_context)}: the model's limit is {spec.context_len} tokens"
        )
    demand = Demand(
        num_sequences or 1,
        config.max_context or spec.context_len,
        is_asked=num_sequences is not None or config.max_context is not None,
    )
    fixed = _fixed_memory(loaded, config, demand.context_len)
    budget = available_memory() if memory_bytes is None else memory_bytes
    pool, source = config.kv_memory_bytes, "kv_memory"
    if pool is None and memory_bytes is not None:
        pool, source = max(0, budget - fixed.num_bytes), "what the budget leaves"
    dtypes: dict[StorageDtype, DtypePlan] = {
        dtype: _plan_dtype(
            spec, config, dtype, demand, pool_bytes=pool, available_bytes=budget - fixed.weight_bytes
        )
        for dtype in DTYPE_BYTES
    }
    chosen: StorageDtype = "bfloat16" if config.kv_dtype == "auto" else config.kv_dtype
    if pool is None:
        capacity = dtypes[chosen].capacity
        pool, source = (0 if capacity is None else capacity.num_bytes), "a share of the free memory"
    plan = MemoryPlan(
        path=loaded.checkpoint.path,
        spec=spec,
        fixed=fixed,
        budget_bytes=budget,
        pool_bytes=pool,
        pool_source=source,
        demand=demand,
        dtypes=dtypes,
        chosen=chosen,
        problem="",
    )
    return replace(plan, problem=_problem(plan))


def _fixed_memory(loaded: LoadedModel, config: EngineConfig, context_len: int) -> FixedMemory:
    spec = loaded.spec
    backend = SizingBackend(config.activations)
    # All of a backend but `compile`, which is for those who have the bytes.
    decoder = Decoder(spec, loaded.weights, cast("Backend[Value, Weight]", backend))
    step_bytes = backend.scratch_bytes(
        decoder.forward,
        q_width=spec.num_heads * spec.head_dim,
        max_tokens=config.max_step_tokens,
        threads=config.threads or len(os.sched_getaffinity(0)),
    )
    layers = plan_layers(spec, config.block_sizes, "bfloat16")
    blocks_per_row = sum(g.num_tables * -(-context_len // g.block_size) for g in layers.groups)
    return FixedMemory(
        file_bytes=loaded.checkpoint.num_bytes,
        weight_bytes=backend.linear_bytes + backend.vector_bytes,
        embedding_bytes=backend.embedding_bytes,
        scratch_bytes=step_bytes
        + 4 * config.max_num_seqs * (spec.vocab_size + blocks_per_row)
        + 4 * context_len * spec.rope.rotary_dim,
    )


def _plan_dtype(
    spec: DecoderSpec,
    config: EngineConfig,
    dtype: StorageDtype,
    demand: Demand,
    *,
    pool_bytes: int | None,
    available_bytes: int,
) -> DtypePlan:
    layers = plan_layers(spec, config.block_sizes, dtype)
    try:
        if pool_bytes == 0:
            raise InvalidConfig("no memory is left for a pool")
        capacity = plan_capacity(
            replace(config, kv_memory_bytes=pool_bytes),
            plan=layers,
            model_context=spec.context_len,
            available_bytes=max(0, available_bytes),
        )
    except InvalidConfig:  # too small; said in full, with what to do, for the whole plan
        capacity = None
    num_frames = (pool_bytes or 0) // layers.frame_bytes if capacity is None else capacity.num_frames
    longest = bisect_right(
        range(1, spec.context_len + 1),
        num_frames,
        key=lambda length: replace(demand, context_len=length).num_frames(layers),
    )
    return DtypePlan(layers, capacity, demand.num_frames(layers) * layers.frame_bytes, longest)


def _problem(plan: MemoryPlan) -> str:
    """What does not fit, in bytes needed and had, and what would help."""
    fixed, demand, chosen = plan.fixed, plan.demand, plan.dtypes[plan.chosen]
    least = (most_frames(chosen.layers.specs, 1) + 1) * chosen.layers.frame_bytes
    needed = chosen.needed_bytes if demand.is_asked else least
    goal = str(demand) if demand.is_asked else "a single block"
    total = fixed.num_bytes + (plan.pool_bytes or needed)
    if total > plan.budget_bytes:
        ways = ["more memory", "a model file with fewer bits per weight"]
        if plan.budget_bytes - fixed.num_bytes >= needed:
            ways.insert(1, f"kv_memory of at most {format_bytes(plan.budget_bytes - fixed.num_bytes)}")
        return (
            f"the model and {'its KV pool' if plan.pool_bytes else goal}: {total} bytes needed "
            f"({format_bytes(total)}), {plan.budget_bytes} had ({format_bytes(plan.budget_bytes)}). "
            f"What would do: {_either(ways)}"
        )
    if not chosen.fits(demand):
        ways = [f"a KV pool of {format_bytes(needed)} ({format_bytes(fixed.num_bytes + needed)} in all)"]
        if plan.dtypes["int8"].fits(demand):
            ways.append("kv_dtype=int8")
        if demand.is_asked and chosen.longest > 1:
            ways.append(f"at most {chosen.longest:,} tokens in each sequence")
        return (
            f"{goal} as {plan.chosen}: {needed} bytes of KV needed ({format_bytes(needed)}), "
            f"{plan.pool_bytes} had ({format_bytes(plan.pool_bytes)}, {plan.pool_source}). "
            f"What would do: {_either(ways)}"
        )
    return ""


def _either(ways: list[str]) -> str:
    return ways[0] if len(ways) == 1 else f"{', '.join(ways[:-1])} or {ways[-1]}"
