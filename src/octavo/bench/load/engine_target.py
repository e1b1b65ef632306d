"""An engine in this process, without a server around it."""

import time
from collections.abc import Callable
from typing import Any

from octavo.bench.load.exchange import REFUSED, Exchange
from octavo.bench.load.rss import peak_rss_bytes
from octavo.bench.load.target import MemoryFacts
from octavo.bench.workloads.item import Prompt, prompt_as_json
from octavo.core.errors import OctavoError
from octavo.core.sampling import SamplingParams
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.engine import Engine
from octavo.engine.generation import Generation
from octavo.engine.llm import LLM
from octavo.engine.observing import StepReport
from octavo.engine.precision import precision_of


class EngineTarget:
    """Sends requests to an ``AsyncEngine``. Its event loop and its load generator share one process.

    Args:
        name: of the model, for reports.
        start_s: what loading it took.
        ignore_eos: go on to the wanted length after the model's end tokens.
    """

    def __init__(self, llm: LLM, *, name: str, start_s: float = 0.0, ignore_eos: bool = True) -> None:
        self._llm = llm
        self._name = name
        self._start_s = start_s
        self._ignore_eos = ignore_eos
        self._engine = AsyncEngine(llm)

    async def open(self) -> None:
        """Start the engine's thread."""
        self._engine.start()

    async def close(self) -> None:
        """Stop the engine's thread."""
        await self._engine.shutdown(drain=False)

    async def send(self, prompt: Prompt, max_tokens: int, exchange: Exchange) -> None:
        """Stream the continuation of a prompt."""
        exchange.sent_s = time.perf_counter()
        try:
            told = prompt_as_json(prompt)
            if isinstance(prompt, tuple):
                told = self._llm.encode_chat(told)  # type: ignore[arg-type]  # messages
            params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=self._ignore_eos)
            stream = await self._engine.stream(told, params)  # type: ignore[arg-type]
            async for delta in stream:
                now = time.perf_counter()
                if delta.text:
                    exchange.text.append(delta.text)
                if delta.token_ids:
                    exchange.chunk_s.append(now)
                    exchange.chunk_tokens.append(len(delta.token_ids))
                if delta.finish_reason is not None:
                    exchange.finish_s, exchange.finish_reason = now, delta.finish_reason
                    exchange.finish_had_output = bool(delta.token_ids)
            request = stream.generation.request
            exchange.prompt_tokens = request.prompt_len
            exchange.output_tokens = sum(exchange.chunk_tokens)
            exchange.cached_tokens = request.num_cached_tokens
        except OctavoError as error:
            exchange.fail(REFUSED, str(error))
        exchange.closed_s = time.perf_counter()

    async def memory(self) -> MemoryFacts | None:
        """Between two steps."""
        try:
            return await self._engine.inspect(lambda engine: facts_of(engine, self._llm.capacity.block_bytes))
        except OctavoError:
            return None

    def watch(self, see: Callable[[MemoryFacts], None] | None) -> bool:
        """After every step, in the engine's thread."""
        engine = self._llm.engine
        engine.observer = None if see is None else _StepWatch(engine, self._llm.capacity.block_bytes, see)
        return True

    def describe(self) -> dict[str, Any]:
        """For reports."""
        return {**describe_llm(self._llm, self._name, self._start_s), "ignore_eos": self._ignore_eos}

    def peak_rss_bytes(self) -> int | None:
        """Of this process, the load generator and its records included."""
        return peak_rss_bytes()


class _StepWatch:
    """Observes an engine."""

    def __init__(self, engine: Engine, block_bytes: int, see: Callable[[MemoryFacts], None]) -> None:
        self._engine = engine
        self._block_bytes = block_bytes
        self._see = see

    def arrived(self, generation: Generation) -> None:
        """Nothing."""

    def stepped(self, report: StepReport) -> None:
        """A step is done."""
        self._see(facts_of(self._engine, self._block_bytes))

    def finished(self, generation: Generation) -> None:
        """Nothing."""


def facts_of(engine: Engine, block_bytes: int) -> MemoryFacts:
    """What an engine's pool is used for now."""
    scheduler = engine.scheduler
    paging, scheduling = scheduler.kv.stats(), scheduler.stats()
    return MemoryFacts(
        used_blocks=paging.used_blocks,
        total_blocks=paging.total_blocks,
        block_bytes=block_bytes,
        waste=paging.waste,
        peak_blocks=scheduling.peak_blocks,
        num_preemptions=scheduling.num_preemptions,
        query_tokens=paging.query_tokens,
        hit_tokens=paging.hit_tokens,
    )


def describe_llm(llm: LLM, name: str, start_s: float) -> dict[str, Any]:
    """What an engine in this process is, for reports."""
    config, capacity = llm.config, llm.capacity
    return {
        "kind": "engine",
        "model": name,
        "is_local": True,
        "file": llm.path.name,
        "precision": precision_of(llm),
        "weight_bytes": llm.weight_bytes,
        "start_s": round(start_s, 3),
        "block_size": config.block_sizes,
        "kv_dtype": "bfloat16" if config.kv_dtype == "auto" else config.kv_dtype,
        "kv_pool_bytes": capacity.num_bytes,
        "kv_pool_tokens": capacity.num_tokens,
        "context_len": capacity.context_len,
        "max_num_seqs": config.max_num_seqs,
        "max_step_tokens": config.max_step_tokens,
        "max_chunk_tokens": config.max_chunk_tokens,
        "prefix_cache": config.prefix_cache,
        "speculative": config.speculative,
    }
