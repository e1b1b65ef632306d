"""``octavo bench`` in a process of its own: nothing of an earlier run is left in it."""

import ctypes
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

_PR_SET_PDEATHSIG: Final = 1
_MOST_ERROR: Final = 2000
# What is kept of a report: enough for every plot and table here.
_KEPT: Final = ("command_line", "target", "workload", "summary", "peak_rss_bytes", "warnings", "measured_at")


def measure(arguments: Sequence[str]) -> dict[str, Any]:
    """Run a command that prints a report of ``octavo bench serve`` as JSON; gives the gist of it.

    Its ``error`` is None, or the end of what a command that failed said.

    Raises:
        KeyboardInterrupt: Ctrl-C ended it.
    """
    begin = time.monotonic()
    command = [sys.executable, "-m", "octavo", *arguments]
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
    """In the child: if what started it is killed, it must not go on and disturb the next."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
