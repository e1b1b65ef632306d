"""Progress bars on standard error, for people only: nothing is written where no terminal reads it."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from octavo.engine.generation import Generation
from octavo.weights.progress import Progress as FetchProgress

_REFRESH_S: Final = 0.1


@contextmanager
def progress_bar(generations: Sequence[Generation], *, show: bool) -> Iterator[Callable[[], None]]:
    """Gives a function to call after every step."""
    if not (show and _is_watched()):
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

        shown_s = 0.0

        def update() -> None:
            nonlocal shown_s
            if time.monotonic() - shown_s < _REFRESH_S:
                return
            shown_s = time.monotonic()
            num_tokens = sum(g.num_output_tokens for g in generations)
            elapsed = bar.tasks[0].elapsed
            rate = f"{num_tokens / elapsed:.0f} tokens/s" if elapsed else ""
            bar.update(task, completed=sum(g.finished for g in generations), rate=rate)

        yield update


@contextmanager
def fetch_bar() -> Iterator[FetchProgress | None]:
    """Shows how far the download of a model has come."""
    if not _is_watched():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, int] = {}

        def report(label: str, done_bytes: int, total_bytes: int | None) -> None:
            if label not in tasks:
                tasks[label] = bar.add_task(label)
            bar.update(tasks[label], completed=done_bytes, total=total_bytes)  # type: ignore[arg-type]

        yield report


def _is_watched() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
