"""``octavo bench paging``, ``kernels``, ``step`` and ``scenes``: parts of the engine by themselves."""

from typing import Annotated

import typer

from octavo.cli import options
from octavo.cli.bench.delivering import Output, deliver

Quick = Annotated[bool, typer.Option("--quick", help="Few repetitions, to see that it works.")]


def paging(
    as_json: options.AsJson = False,
    quick: Quick = False,
    output: Output = None,
    config: options.Config = None,
) -> None:
    """Measure what the memory policy costs: one step of decoding sequences, and single operations."""
    from octavo.bench.parts.paging import render, run

    report = run(quick=quick)
    if not deliver(report, as_json, output):
        print(render(report))


def kernels(
    *,
    quick: Quick = False,
    only: Annotated[
        list[str] | None,
        typer.Option(help="linear, decode, prefill or elementwise; may be given several times."),
    ] = None,
    threads: options.Threads = None,
    as_json: options.AsJson = False,
    output: Output = None,
    config: options.Config = None,
) -> None:
    """Check every kernel against float64, then measure it against what this machine can do.

    Exit status 1 if a kernel's result is wrong.
    """
    from rich.console import Console

    from octavo.bench.parts.kernels import render, run

    with Console(stderr=True).status("Measuring the machine") as status:
        report = run(quick=quick, only=only or (), threads=threads, progress=status.update)
    if not deliver(report, as_json, output):
        render(report)
    if not report["correct"]:
        raise typer.Exit(1)


def step(
    model: options.Model = options.DEFAULT_MODEL,
    *,
    batch: Annotated[int, typer.Option(min=1, help="Sequences that decode together.")] = 1,
    context: Annotated[int, typer.Option(min=0, help="Tokens of each, about.")] = 128,
    prefill: Annotated[
        int | None,
        typer.Option(min=1, help="Measure chunks of so many prompt tokens instead, one at a time."),
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Time every operation, and Python.")] = False,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Steps of which the median is taken. Default: 64, or 8 of prefill."),
    ] = None,
    kv_dtype: options.KVDtype = "auto",
    block_size: options.BlockSize = "16",
    threads: options.Threads = None,
    as_json: options.AsJson = False,
    output: Output = None,
    config: options.Config = None,
) -> None:
    """Measure a step of a model against what this machine can do."""
    from octavo.bench.parts.step import render, run

    report = run(
        model,
        batch=batch,
        context_len=context,
        prefill=prefill,
        profile=profile,
        num_steps=steps,
        kv_dtype=kv_dtype,  # type: ignore[arg-type]  # checked by EngineConfig
        block_size=options.parse_block_size(block_size),
        threads=threads,
    )
    if not deliver(report, as_json, output):
        render(report)


def scenes(
    model: options.Model = options.DEFAULT_MODEL,
    *,
    only: Annotated[
        list[str] | None, typer.Option(help="a, b, c or d; may be given several times. Default: all.")
    ] = None,
    quick: Quick = False,
    kv_dtype: options.KVDtype = "auto",
    block_size: options.BlockSize = "16",
    threads: options.Threads = None,
    as_json: options.AsJson = False,
    output: Output = None,
    config: options.Config = None,
) -> None:
    """Measure four ways of using a model, end to end: one stream, a prompt, 16 at once, a shared prefix."""
    from octavo.bench.parts.scenes import render, run

    report = run(
        model,
        only=only or (),
        quick=quick,
        kv_dtype=kv_dtype,  # type: ignore[arg-type]  # checked by EngineConfig
        block_size=options.parse_block_size(block_size),
        threads=threads,
    )
    if not deliver(report, as_json, output):
        render(report)
