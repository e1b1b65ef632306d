"""From a model's name to a running engine: the one place that knows every part."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.backends.base import Backend
from octavo.core.config import EngineConfig
from octavo.core.errors import InvalidConfig
from octavo.engine.batch_state import BatchState
from octavo.engine.capacity import KVCapacity, plan_capacity, plan_layers
from octavo.engine.engine import Engine, ModelLimits
from octavo.engine.grammar import GrammarCompiler
from octavo.engine.machine import available_memory
from octavo.engine.progress import fetch_bar
from octavo.engine.runner import Runner
from octavo.engine.sampling.state import SamplingState
from octavo.models.decoder import Decoder
from octavo.models.loading import load_model
from octavo.models.spec import DecoderSpec
from octavo.scheduling.recording import SchedulerSettings
from octavo.storage.arena import Arena
from octavo.storage.layout import KVLayout, StorageDtype
from octavo.text.chat_template import ChatTemplate
from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.loading import load_text
from octavo.text.tokenizer import Tokenizer
from octavo.weights.sources import resolve


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """An engine and what surrounds it.

    Attributes:
        path: the model's file, or its directory.
        weight_bytes, weight_types: of its tensors, as the files hold them.
    """

    engine: Engine
    backend: Backend[Any, Any]
    arena: Arena
    spec: DecoderSpec
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    grammars: GrammarCompiler
    capacity: KVCapacity
    path: Path
    weight_bytes: int
    weight_types: str


def build_engine(model: str, config: EngineConfig) -> BuiltEngine:
    """Find, load and prepare ``model``.

    Raises:
        ModelNotFound, CorruptModel, UnsupportedModel: the model cannot be had or run.
        InvalidConfig: the settings do not fit the model or this machine.
    """
    with fetch_bar() as progress:
        path = resolve(model, progress=progress)
    loaded = load_model(path)
    spec = loaded.spec
    tokenizer, chat_template = load_text(loaded.checkpoint)
    eos_token_ids = tuple({*spec.eos_token_ids, *tokenizer.eos_token_ids})
    dtype: StorageDtype = "bfloat16" if config.kv_dtype == "auto" else config.kv_dtype
    plan = plan_layers(spec, config.block_sizes, dtype)
    layout = KVLayout.grouped(
        plan.placement,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        frame_bytes=plan.frame_bytes,
        dtype=dtype,
    )
    backend = _make_backend(config)
    decoder = Decoder(spec, loaded.weights, backend)
    capacity = plan_capacity(
        config,
        plan=plan,
        model_context=spec.context_len,
        available_bytes=available_memory(),
    )
    arena = Arena(layout, capacity.num_frames)
    try:
        program = backend.compile(
            decoder.forward,
            arena=arena,
            attention=decoder.attention_shape(capacity.context_len),
            max_tokens=config.max_step_tokens,
        )
        state = BatchState(
            num_rows=config.max_num_seqs,
            table_block_sizes=layout.table_block_sizes,
            max_context=capacity.context_len,
            sampling=SamplingState(
                config.max_num_seqs,
                vocab_size=spec.vocab_size,
                eos_token_ids=eos_token_ids,
                tokenizer=tokenizer,
            ),
        )
    except MemoryError as error:
        raise InvalidConfig(
            f"no memory for steps of max_step_tokens={config.max_step_tokens} tokens over "
            f"max_num_seqs={config.max_num_seqs} rows: lower them"
        ) from error
    grammars = GrammarCompiler(
        tokenizer,
        vocab_size=spec.vocab_size,
        end_token_ids=eos_token_ids,
        num_threads=config.threads or len(os.sched_getaffinity(0)),
    )
    scheduler = SchedulerSettings(
        num_blocks=capacity.num_frames,
        groups=tuple(plan.specs),
        prefix_cache=config.prefix_cache,
        max_num_seqs=config.max_num_seqs,
        max_step_tokens=config.max_step_tokens,
        max_chunk_tokens=config.max_chunk_tokens,
        scheduling=config.scheduling,
        max_waiting=config.max_waiting,
        speculative=config.speculative,
        max_drafts=config.max_drafts,
    ).build(
        namespace=f"{loaded.checkpoint.path}/{layout.name}/{config.activations}",
        record=None if config.record is None else Path(config.record),
    )
    engine = Engine(
        scheduler,
        Runner(program, arena=arena, state=state, grammars=grammars),
        limits=ModelLimits(
            vocab_size=spec.vocab_size,
            context_len=capacity.context_len,
            context_reason=capacity.context_reason,
            eos_token_ids=eos_token_ids,
        ),
        grammars=grammars,
        make_detokenizer=lambda params: IncrementalDetokenizer(
            tokenizer, params.skip_special_tokens, continuation=True
        ),
    )
    return BuiltEngine(
        engine,
        backend,
        arena,
        spec,
        tokenizer,
        chat_template,
        grammars,
        capacity,
        path=loaded.checkpoint.path,
        weight_bytes=loaded.checkpoint.num_bytes,
        weight_types=loaded.checkpoint.weight_types,
    )


def _make_backend(config: EngineConfig) -> Backend[Any, Any]:
    if config.backend == "oracle":
        from octavo.backends.oracle import OracleBackend

        return OracleBackend()
    from octavo.backends.cpu import CpuBackend

    return CpuBackend(threads=config.threads, activations=config.activations)
