"""What memory this machine has, as far as this process may use it."""

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def total_memory() -> int:
    """Bytes of memory this process may use at most: the machine's, or its control group's limit."""
    total = _meminfo("MemTotal")
    limit = _read(_CGROUP / "memory.max").strip()
    return min(total, int(limit)) if limit.isdigit() else total


def available_memory() -> int:
    """Bytes that can be allocated without swapping, within the control group's limit."""
    available = _meminfo("MemAvailable")
    limit = _read(_CGROUP / "memory.max").strip()
    used = _read(_CGROUP / "memory.current").strip()
    if limit.isdigit() and used.isdigit():
        available = min(available, max(0, int(limit) - int(used)))
    return available


def _meminfo(key: str) -> int:
    for line in _read(_MEMINFO).splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
