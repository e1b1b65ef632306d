"""A progress bar on standard error, for people only: nothing is written where no terminal reads it."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from octavo.engine.generation import Generation


@contextmanager
def progress_bar(generations: Sequence[Generation], *, show: bool) -> Iterator[Callable[[], None]]:
    """Gives a function to call after every step."""
    if not show or sys.stderr is None or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("Generating", total=len(generations), rate="")

        def update() -> None:
            num_tokens = sum(g.request.num_output_tokens for g in generations)
            elapsed = bar.tasks[0].elapsed
            rate = f"{num_tokens / elapsed:.0f} tokens/s" if elapsed else ""
            bar.update(task, completed=sum(g.finished for g in generations), rate=rate)

        yield update
