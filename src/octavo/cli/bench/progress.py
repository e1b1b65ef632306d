"""How far an experiment is, on standard error, if a person watches."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from octavo.bench.experiment import Progress as ExperimentProgress
    from octavo.bench.load.generator import Record

_REFRESH_S: Final = 0.2


class Silent:
    """For no one."""

    def begin(self, name: str, num_requests: int) -> None:
        """Nothing."""

    def done(self, record: "Record") -> None:
        """Nothing."""


class _Bar:
    def __init__(self, bar: "Progress") -> None:
        self._bar = bar
        self._task: TaskID | None = None
        self._begin_s = self._shown_s = 0.0
        self._done = self._failed = 0

    def begin(self, name: str, num_requests: int) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(name, total=num_requests, told="")
        self._begin_s = time.monotonic()
        self._done = self._failed = 0

    def done(self, record: "Record") -> None:
        self._done += 1
        self._failed += not record.is_ok
        now = time.monotonic()
        if self._task is None or now - self._shown_s < _REFRESH_S:
            return
        self._shown_s = now
        # Tokens are counted when all is over: what came is not interpreted before.
        told = f"{self._done / max(now - self._begin_s, 1e-3):,.1f} requests/s"
        if self._failed:
            told += f", {self._failed} failed"
        self._bar.update(self._task, completed=self._done, told=told)


@contextmanager
def experiment_bar() -> "Iterator[ExperimentProgress]":
    """Shows parts, requests, how many per second, and failures as far as they are known."""
    with _drawn(counts=True) as bar:
        yield Silent() if bar is None else _Bar(bar)


@contextmanager
def long_bar(name: str, total: float, *, counts: bool) -> Iterator[Callable[[float, str], None]]:
    """Gives what says how much of a total is done, and what runs now.

    Args:
        counts: whether the total is a number of things, worth showing.
    """
    with _drawn(counts=counts) as bar:
        if bar is None:
            yield lambda done, told: None
            return
        task = bar.add_task(name, total=total, told="")
        yield lambda done, told: bar.update(task, completed=done, told=told)


@contextmanager
def _drawn(*, counts: bool) -> "Iterator[Progress | None]":
    """None if nobody watches."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        *((MofNCompleteColumn(),) if counts else ()),
        TextColumn("{task.fields[told]}"),
        TimeElapsedColumn(),
    )
    # Drawn twice a second: it shares the processor with what it watches.
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=2) as bar:
        yield bar
