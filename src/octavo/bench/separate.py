"""``octavo bench`` in a process of its own: nothing of an earlier run is left in it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

# If what started it is killed, it must not go on and disturb the next: prctl(PR_SET_PDEATHSIG, SIGKILL).
# The new process says so itself: Ctrl-C amid what Python does between fork and exec would be lost.
_PROGRAM: Final = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
    if os.getppid() != {parent}:
        sys.exit(1)
from octavo.cli import main
main()
"""
_MOST_ERROR: Final = 2000
# What is kept of a report: enough for every plot and table here.
_KEPT: Final = ("command_line", "target", "workload", "summary", "peak_rss_bytes", "warnings", "measured_at")


def measure(arguments: Sequence[str]) -> dict[str, Any]:
    """Run a command that prints a report of ``octavo bench serve`` as JSON; gives the gist of it.

    Its ``error`` is None, or the end of what a command said that gave no report, or, as there is nothing
    measured in it then either, why no request of a report was answered.

    Raises:
        KeyboardInterrupt: Ctrl-C ended it.
    """
    begin = time.monotonic()
    command = [sys.executable, "-c", _PROGRAM.replace("{parent}", str(os.getpid())), *arguments]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        try:
            out, err = process.communicate()
        except BaseException:
            process.kill()
            raise
    if process.returncode == 130:
        raise KeyboardInterrupt  # a terminal's Ctrl-C reaches both
    wall_s = round(time.monotonic() - begin, 3)
    try:
        report = json.loads(out)
        failed = sum(repeat["requests"]["failed"] for repeat in report["repeats"])
        answered = sum(repeat["requests"]["ok"] for repeat in report["repeats"])
        kept = {name: report[name] for name in _KEPT}
        if not answered:
            why = next(iter(report["warnings"]), "there was none")
            return {"wall_s": wall_s, "error": f"no request was answered: {why}"}
    except (ValueError, KeyError, TypeError):
        status = f"status {process.returncode}" if process.returncode else "it gave no report"
        return {"wall_s": wall_s, "error": err.strip()[-_MOST_ERROR:] or status}
    return {"wall_s": wall_s, "error": None, "failed_requests": failed, **kept}


def what_failed(found: Mapping[str, Any]) -> str | None:
    """Of what ``measure`` gave: why there is nothing, or why some of its requests failed; or None."""
    if found["error"]:
        # The rest of what a command said is where in its code it was.
        return str(found["error"]).splitlines()[-1].removeprefix("octavo: ")
    if not found["failed_requests"]:
        return None
    return str(next(iter(found["warnings"]), f"{found['failed_requests']} of its requests failed"))
