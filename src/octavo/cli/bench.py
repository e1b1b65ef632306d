"""``octavo bench``: measure a part of the engine."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from octavo.cli import options

app = typer.Typer(help="Measure a part of the engine.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quick = Annotated[bool, typer.Option("--quick", help="Few repetitions, to see that it works.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write the JSON object to this file.")]


@app.callback()
def _group() -> None:
    """Measure a part of the engine."""


@app.command()
def paging(as_json: AsJson = False, quick: Quick = False, output: Output = None) -> None:
    """Measure what the memory policy costs: one step of decoding sequences, and single operations."""
    from octavo.bench.paging import render, run

    report = run(quick=quick)
    if not _deliver(report, as_json, output):
        print(render(report))


@app.command()
def step(
    model: options.Model = options.DEFAULT_MODEL,
    *,
    batch: Annotated[int, typer.Option(min=1, help="Sequences that decode together.")] = 1,
    context: Annotated[int, typer.Option(min=1, help="Tokens of each, about.")] = 128,
    profile: Annotated[bool, typer.Option("--profile", help="Time every operation, and Python.")] = False,
    steps: Annotated[int, typer.Option(min=1, help="Steps of which the median is taken.")] = 64,
    block_size: options.BlockSize = 16,
    threads: options.Threads = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Measure a decoding step of a model against what this machine can do."""
    from octavo.bench.step import render, run

    report = run(
        model,
        batch=batch,
        context_len=context,
        profile=profile,
        num_steps=steps,
        block_size=block_size,
        threads=threads,
    )
    if not _deliver(report, as_json, output):
        render(report)


def _deliver(report: dict[str, Any], as_json: bool, output: Path | None) -> bool:
    """Write and print the report as JSON where that was asked for; whether it was printed."""
    if output is not None:
        output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(report))
    return as_json
