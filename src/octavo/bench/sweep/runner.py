"""Measures the points that are not measured yet."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from octavo.bench.separate import measure
from octavo.bench.sweep.grid import Point, arguments
from octavo.bench.sweep.journal import Journal


def run_points(
    points: Sequence[Point],
    settings: Mapping[str, Any],
    journal: Journal,
    *,
    on_point: Callable[[Point], None],
) -> None:
    """Measure each in a process of its own, as the greatest memory of a process never falls.

    What fails is written down with its error, and tried again when the sweep is run again.

    Raises:
        KeyboardInterrupt: what is measured is in the journal.
    """
    for point in points:
        on_point(point)
        if not journal.has(point):
            journal.add({"point": point, **measure(arguments(point, settings))})
