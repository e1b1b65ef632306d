"""``octavo bench``: measure a part of the engine."""

import json
from typing import Annotated

import typer

app = typer.Typer(help="Measure a part of the engine.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Measure a part of the engine."""


@app.command()
def paging(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Few repetitions, to see that it works.")] = False,
) -> None:
    """Measure what the memory policy costs: one step of decoding sequences, and single operations."""
    from octavo.bench.paging import render, run

    report = run(quick=quick)
    print(json.dumps(report) if as_json else render(report))
