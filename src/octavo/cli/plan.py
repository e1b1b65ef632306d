"""``octavo plan``: what a model takes of the memory, before it is loaded."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli import options
from octavo.cli.completion import complete_model
from octavo.core.config import EngineConfig
from octavo.core.display import printable
from octavo.core.errors import OctavoError

if TYPE_CHECKING:
    from octavo.engine.planning import MemoryPlan

_LENGTHS = (1024, 4096, 16384)  # tokens of a sequence, for which it is told how many fit


def plan(
    model: Annotated[
        str,
        typer.Argument(
            help="Short name, directory, .gguf file, or Hugging Face repository id.",
            show_default=False,
            autocompletion=complete_model,
        ),
    ],
    *,
    context: Annotated[
        int | None,
        typer.Option(
            "--context",
            "--max-context",
            help="Tokens of a sequence; one must fit. Default: the model's limit, of which none must.",
        ),
    ] = None,
    sequences: Annotated[
        int | None, typer.Option(min=1, help="So many sequences of that length must fit at once.")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Budget for everything, e.g. 8GiB. Default: the free memory of this machine."),
    ] = None,
    kv_memory: options.KVMemory = None,
    kv_dtype: options.KVDtype = "auto",
    block_size: options.BlockSize = "16",
    activations: options.Activations = "auto",
    threads: options.Threads = None,
    max_num_seqs: options.MaxNumSeqs = 64,
    max_step_tokens: options.MaxStepTokens = 512,
    as_json: options.AsJson = False,
    config: options.Config = None,
) -> None:
    """Say what a model takes of the memory, and how much fits, without loading it.

    Exit status 1 if it cannot run, or if what --context and --sequences ask for does not fit.
    """
    settings = EngineConfig(
        block_size=options.parse_block_size(block_size),
        kv_memory_bytes=options.parse_size("kv_memory", kv_memory),
        kv_dtype=kv_dtype,  # type: ignore[arg-type]  # checked by EngineConfig
        activations=activations,  # type: ignore[arg-type]
        max_num_seqs=max_num_seqs,
        max_step_tokens=max_step_tokens,
        max_context=context,
        threads=threads,
    )
    memory_bytes = options.parse_size("memory", memory)
    from octavo.engine.planning import plan_memory
    from octavo.engine.progress import fetch_bar
    from octavo.weights.sources import resolve

    with fetch_bar() as progress:
        path = resolve(model, progress=progress)
    found = plan_memory(path, settings, memory_bytes=memory_bytes, num_sequences=sequences)
    if as_json:
        print(json.dumps(describe(found)))
    else:
        _show(found, own_budget=memory is not None)
    if found.problem:
        raise OctavoError(f"does not fit: {found.problem}")


def describe(plan: "MemoryPlan") -> dict[str, Any]:
    """What ``octavo plan --json`` prints."""
    lengths = _lengths(plan)
    return {
        "path": str(plan.path),
        "family": plan.spec.family,
        "context_len": plan.spec.context_len,
        "budget_bytes": plan.budget_bytes,
        "fixed": {**asdict(plan.fixed), "num_bytes": plan.fixed.num_bytes},
        "pool_bytes": plan.pool_bytes,
        "kv_dtype": plan.chosen,
        "demand": asdict(plan.demand),
        "kv_dtypes": {
            dtype: {
                "bytes_per_token": round(found.layers.bytes_per_token),
                "block_bytes": found.layers.frame_bytes,
                "num_blocks": 0 if found.capacity is None else found.capacity.num_blocks,
                "num_tokens": 0 if found.capacity is None else found.capacity.num_tokens,
                "pool_bytes": 0 if found.capacity is None else found.capacity.num_bytes,
                "context_len": 0 if found.capacity is None else found.capacity.context_len,
                "num_sequences": {
                    length: 0 if found.capacity is None else found.capacity.num_sequences(length)
                    for length in lengths
                },
                "needed_bytes": found.needed_bytes,
                "fits": found.fits(plan.demand),
            }
            for dtype, found in plan.dtypes.items()
        },
        "problem": plan.problem,
    }


def _lengths(plan: "MemoryPlan") -> list[int]:
    """Lengths of sequences to be told of: a few usual ones, and that which is asked for."""
    usual = [length for length in _LENGTHS if length < plan.spec.context_len]
    return sorted({*usual, plan.demand.context_len})


def _show(plan: "MemoryPlan", *, own_budget: bool) -> None:
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    from octavo.core.units import format_bytes

    console = Console(highlight=False, soft_wrap=True)
    fixed, spec = plan.fixed, plan.spec
    total = fixed.num_bytes + plan.pool_bytes
    rows = Table(Column(), Column(justify="right"), Column(overflow="fold"), show_header=False, box=None)
    rows.add_row(
        "Weights", format_bytes(fixed.weight_bytes), f"packed; {format_bytes(fixed.file_bytes)} in the file"
    )
    rows.add_row("Embedding", format_bytes(fixed.embedding_bytes), "read in the file")
    rows.add_row("Steps", format_bytes(fixed.scratch_bytes), "activations, logits, tables")
    rows.add_row("Runtime", format_bytes(fixed.runtime_bytes), "Python, libraries, vocabulary, about")
    rows.add_row("KV pool", format_bytes(plan.pool_bytes), f"{plan.chosen}, from {plan.pool_source}")
    of = "of the budget" if own_budget else "free on this machine"
    rows.add_row("Together", format_bytes(total), f"{format_bytes(plan.budget_bytes)} {of}")
    lengths = _lengths(plan)
    right = [Column(f"x {length:,}", justify="right") for length in lengths]
    names = ("B/token", "block", "pool", "tokens")
    table = Table("KV as", *(Column(name, justify="right") for name in names), *right, box=None)
    for dtype, found in plan.dtypes.items():
        capacity = found.capacity
        counts = ["-"] * (2 + len(lengths))
        if capacity is not None:
            sequences = [f"{capacity.num_sequences(length):,}" for length in lengths]
            counts = [format_bytes(capacity.num_bytes), f"{capacity.num_tokens:,}", *sequences]
        table.add_row(
            dtype,
            f"{round(found.layers.bytes_per_token):,}",
            format_bytes(found.layers.frame_bytes),
            *counts,
            style="bold" if dtype == plan.chosen else None,
        )
    name = printable(str(plan.path))
    console.print(
        Text(f"{name}: {spec.family}, {spec.num_layers} layers, up to {spec.context_len:,} tokens\n")
    )
    console.print(rows)
    console.print()
    console.print(table)
    console.print(
        Text(
            "tokens: as many fit; x N: sequences of N tokens that fit at once and share nothing", style="dim"
        )
    )
