"""Measures the points that are not measured yet."""

import ctypes
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from octavo.bench.sweep.grid import Point, arguments
from octavo.bench.sweep.journal import Journal

_PR_SET_PDEATHSIG: Final = 1
_MOST_ERROR: Final = 2000
# What a point keeps of its report: enough for every plot and table here.
_KEPT: Final = ("command_line", "target", "workload", "summary", "peak_rss_bytes", "warnings", "measured_at")


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
            journal.add({"point": point, **_measure(point, settings)})


def _measure(point: Point, settings: Mapping[str, Any]) -> dict[str, Any]:
    begin = time.monotonic()
    command = [sys.executable, "-m", "octavo", *arguments(point, settings)]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_die_with_parent,  # noqa: PLW1509  # one system call, no locks
    ) as process:
        try:
            out, err = process.communicate()
        except BaseException:
            process.kill()
            raise
    if process.returncode == 130:
        raise KeyboardInterrupt  # a terminal's Ctrl-C reaches both
    wall_s = round(time.monotonic() - begin, 3)
    if process.returncode:
        return {"wall_s": wall_s, "error": err.strip()[-_MOST_ERROR:] or f"status {process.returncode}"}
    report = json.loads(out)
    failed = sum(repeat["requests"]["failed"] for repeat in report["repeats"])
    kept = {name: report[name] for name in _KEPT}
    return {"wall_s": wall_s, "error": None, "failed_requests": failed, **kept}


# Looked up here: between fork and exec a library must not be loaded.
_LIBC: Final = ctypes.CDLL(None)


def _die_with_parent() -> None:
    """In the child: if the sweep is killed, its point must not go on and disturb the next sweep."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
