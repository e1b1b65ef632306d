"""The most memory that a process has had."""

import os
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")


def peak_rss_bytes(pid: int | None = None) -> int | None:
    """Of a process and of those that it started, summed; None is this process alone.

    The peaks of several processes need not have been at the same time, and pages that they share count in
    each: for a server of several processes it is an upper bound. None if it cannot be known.
    """
    if pid is None:
        return _peak_of(os.getpid())
    found = [peak for each in _tree(pid) if (peak := _peak_of(each)) is not None]
    return sum(found) if found else None


def _peak_of(pid: int) -> int | None:
    try:
        lines = (_PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def _tree(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue  # it has ended
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found
