"""``octavo bench``: measure the engine, a part of it, or any server that speaks OpenAI's API."""

import typer

from octavo.cli.bench import compare, parts, serve

app = typer.Typer(help="Measure the engine, a part of it, or a server.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Measure the engine, a part of it, or any server that speaks OpenAI's API."""


app.command()(serve.serve)
app.command()(compare.compare)
for _part in (parts.scenes, parts.step, parts.kernels, parts.paging):
    app.command()(_part)
