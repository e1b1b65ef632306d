"""``octavo bench``: measure the engine, a part of it, or any server that speaks OpenAI's API."""

import typer

from octavo.cli.bench import compare, latency, parts, serve, sweep, throughput
from octavo.cli.help import Group

app = typer.Typer(help="Measure the engine, a part of it, or a server.", no_args_is_help=True, cls=Group)


@app.callback()
def _group() -> None:
    """Measure the engine, a part of it, or any server that speaks OpenAI's API."""


for _command in (serve.serve, latency.latency, throughput.throughput, sweep.sweep):
    app.command()(_command)
app.command(cls=compare.InRounds)(compare.compare)
for _part in (parts.scenes, parts.step, parts.kernels, parts.paging):
    app.command()(_part)
