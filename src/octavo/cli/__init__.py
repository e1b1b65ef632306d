"""The ``octavo`` command. Each command has a file of its own; heavy imports wait until one runs."""

import errno
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from octavo.cli import bench, chat, generate, info, models, plan, replay, serve, tune
from octavo.cli.help import Group
from octavo.core.display import printable
from octavo.core.errors import OctavoError

app = typer.Typer(
    name="octavo",
    help="Serve large language models from a paged KV cache.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # of all commands: names of options are whole at any width
    cls=Group,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command()(generate.generate)
app.command()(chat.chat)
app.command()(serve.serve)
app.add_typer(models.app, name="models")
app.command()(plan.plan)
app.command()(info.info)
app.command()(replay.replay)
app.command()(tune.tune)
app.add_typer(bench.app, name="bench")


def _print_version(asked: bool) -> None:
    if asked:
        import octavo

        typer.echo(f"octavo {octavo.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    A known error, or output that cannot be written, is one line on standard error and exit status 1.

    Args:
        arguments: what follows the command's name, or None for those of the process.
    """
    try:
        if sys.stdout is None:
            raise OctavoError("standard output is closed")
        try:
            given = list(sys.argv[1:] if arguments is None else arguments)
            app(args=given, prog_name="octavo", obj=given)  # reports say how they were made
        finally:
            sys.stdout.flush()  # when Python ends, its failure would be no error of ours
    except OctavoError as error:
        print(f"octavo: {printable(str(error))}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        if error.errno != errno.EPIPE:  # whoever read the output has had enough: no need to tell
            print(f"octavo: {error}", file=sys.stderr)
        sys.stdout = None  # what it still holds cannot be written
        sys.exit(1)
