"""``octavo bench``: measure a part of the engine."""

import typer

app = typer.Typer(help="Measure a part of the engine.", no_args_is_help=True)
