"""``octavo models``: fetch models, list them, look into one."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli import options
from octavo.cli.completion import complete_model
from octavo.cli.help import Group
from octavo.core.config import BlockSizes
from octavo.core.display import printable

if TYPE_CHECKING:
    from rich.text import Text

    from octavo.models.loading import LoadedModel
    from octavo.weights.progress import Progress

app = typer.Typer(help="Fetch, list and describe models.", no_args_is_help=True, cls=Group)

Name = Annotated[
    str,
    typer.Argument(
        help="Short name, directory, .gguf file, or Hugging Face repository id.",
        show_default=False,
        autocompletion=complete_model,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def pull(model: Name, config: options.Config = None) -> None:
    """Fetch a model now, so that later runs need no network, or mend it. Prints where it lies."""
    from octavo.engine.progress import fetch_bar
    from octavo.weights.progress import ignore_progress
    from octavo.weights.sources import resolve

    with fetch_bar() as bar, _leaving_on_sigterm(bar or ignore_progress) as progress:
        path = resolve(model, progress=progress, verify=True)
    print(path)


@contextmanager
def _leaving_on_sigterm(progress: "Progress") -> Iterator["Progress"]:
    """Turn SIGTERM into SystemExit, so that what a fetch has begun is removed.

    The Progress that is given raises it too: threads that download learn of the signal in no other way.
    """
    ended = False

    def leave(signum: int, frame: FrameType | None) -> None:
        nonlocal ended
        if not ended:  # the second signal must not break off the removal
            ended = True
            raise SystemExit(128 + signum)

    def report(label: str, done_bytes: int, total_bytes: int | None) -> None:
        if ended:
            raise SystemExit(128 + signal.SIGTERM)
        progress(label, done_bytes, total_bytes)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield report
    finally:
        signal.signal(signal.SIGTERM, previous)


@app.command(name="list")
def list_models(as_json: AsJson = False, config: options.Config = None) -> None:
    """List the models on this machine, and the short names that can be fetched."""
    from octavo.core.units import format_bytes
    from octavo.weights.sources import list_cached, short_names

    cached, names = list_cached(), short_names()
    if as_json:
        local = [{"name": m.name, "path": str(m.path), "num_bytes": m.num_bytes} for m in cached]
        print(json.dumps({"local": local, "short_names": names}))
        return
    from rich.console import Console
    from rich.table import Column, Table

    here = {names.get(m.name) for m in cached}  # an alias is here if its model is
    table = Table("name", "size", Column("where, or what", overflow="fold"), box=None)
    for model in cached:
        table.add_row(_cell(model.name), format_bytes(model.num_bytes), _cell(str(model.path)))
    for name, description in names.items():
        if description not in here:
            table.add_row(name, "to fetch", description)
    Console(highlight=False).print(table)


@app.command()
def info(
    model: Name,
    block_size: options.BlockSize = "16",
    as_json: AsJson = False,
    config: options.Config = None,
) -> None:
    """Describe a model: what it is, its weights by encoding, its KV bytes per token."""
    from octavo.engine.progress import fetch_bar
    from octavo.models.loading import load_model
    from octavo.weights.sources import resolve

    with fetch_bar() as progress:
        path = resolve(model, progress=progress)
    found = describe(load_model(path), options.parse_block_size(block_size))
    if as_json:
        print(json.dumps(found))
        return
    _show(found)


def describe(loaded: "LoadedModel", block_sizes: BlockSizes = 16) -> dict[str, Any]:
    """What ``octavo models info`` shows."""
    from octavo.engine.capacity import plan_layers
    from octavo.paging.groups import format_layers
    from octavo.storage.layout import DTYPE_BYTES

    spec = loaded.spec
    encodings: dict[str, dict[str, int]] = {}
    for stored in loaded.checkpoint.stored.values():
        entry = encodings.setdefault(stored.type_name, {"num_tensors": 0, "num_bytes": 0})
        entry["num_tensors"] += 1
        entry["num_bytes"] += stored.num_bytes
    plans = {dtype: plan_layers(spec, block_sizes, dtype) for dtype in DTYPE_BYTES}
    windows = {spec.window(layer) for layer in range(spec.num_layers)}
    return {
        "path": str(loaded.checkpoint.path),
        "format": loaded.checkpoint.kind,
        "family": spec.family,
        "num_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_heads": spec.num_heads,
        "num_kv_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        "context_len": spec.context_len,
        "sliding_windows": sorted(w for w in windows if w is not None),
        "rope": {"theta": spec.rope.theta, "scaling": spec.rope.scaling, "factor": spec.rope.factor},
        "tied_embeddings": spec.tied_embeddings,
        "eos_token_ids": list(spec.eos_token_ids),
        "encodings": encodings,
        "weight_bytes": sum(entry["num_bytes"] for entry in encodings.values()),
        "kv_bytes_per_token": {dtype: round(plan.bytes_per_token) for dtype, plan in plans.items()},
        "kv_block_bytes": plans["bfloat16"].frame_bytes,
        "kv_padding": plans["bfloat16"].padding,
        "kv_groups": [
            {**asdict(group), "layers": format_layers(group.layers)} for group in plans["bfloat16"].groups
        ],
    }


def _cell(text: str) -> "Text":
    """Text of unknown origin for a table: neither the terminal nor rich takes any of it for a command."""
    from rich.text import Text

    return Text(printable(text))


def _show(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    from octavo.core.units import format_bytes

    table = Table(Column(), Column(overflow="fold"), show_header=False, box=None)
    table.add_row("File", _cell(f"{found['path']} ({found['format']})"))
    table.add_row("Family", _cell(found["family"]))
    table.add_row(
        "Shape",
        f"{found['num_layers']} layers, hidden {found['hidden_size']}, MLP {found['intermediate_size']}, "
        f"{found['num_heads']} heads over {found['num_kv_heads']} KV heads of {found['head_dim']}",
    )
    windows = ", ".join(map(str, found["sliding_windows"]))
    table.add_row(
        "Context", f"{found['context_len']:,} tokens" + (f", sliding window {windows}" if windows else "")
    )
    table.add_row("Vocabulary", f"{found['vocab_size']:,}" + (", tied" if found["tied_embeddings"] else ""))
    weights = ", ".join(
        f"{name} {format_bytes(entry['num_bytes'])} in {entry['num_tensors']} tensors"
        for name, entry in sorted(found["encodings"].items(), key=lambda item: -item[1]["num_bytes"])
    )
    table.add_row("Weights", _cell(f"{format_bytes(found['weight_bytes'])}: {weights}"))
    kv = ", ".join(f"{format_bytes(size)} as {dtype}" for dtype, size in found["kv_bytes_per_token"].items())
    table.add_row("KV per token", kv)
    groups = [
        f"{g['block_size']} tokens"
        + (f" in layers {g['layers']}" if len(found["kv_groups"]) > 1 else "")
        + (f", window {g['window']}" if g["window"] else "")
        + (f", {g['num_tables']} tables" if g["num_tables"] > 1 else "")
        for g in found["kv_groups"]
    ]
    padding = f"{format_bytes(found['kv_block_bytes'])} each, {found['kv_padding']:.1%} padding"
    table.add_row("KV blocks", f"{'; '.join(groups)}; {padding}")
    Console(highlight=False).print(table)
