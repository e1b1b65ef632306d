"""``octavo info``: what this machine offers."""

import json
import platform
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from octavo.cli import options
from octavo.cli.native import available_isas, native_isa, usable_cores


def info(as_json: options.AsJson = False, config: options.Config = None) -> None:
    """Show version, instruction sets, cores, memory, and how fast memory is read."""
    found = collect()
    if as_json:
        print(json.dumps(found))
        return
    from rich.console import Console
    from rich.table import Table

    from octavo.core.units import format_bytes

    table = Table(show_header=False, box=None)
    isa = found["isa"] or "none: the native extension is not built"
    others = [name for name in found["available_isas"] if name != found["isa"]]
    table.add_row("Octavo", found["version"])
    table.add_row("Instruction set", isa + (f" (also here: {', '.join(others)})" if others else ""))
    table.add_row("CPU", found["machine"])
    table.add_row("Cores", str(found["cores"]))
    free, total = found["memory_available_bytes"], found["memory_total_bytes"]
    table.add_row("Memory", f"{format_bytes(free)} free of {format_bytes(total)}")
    table.add_row("Memory bandwidth", f"about {found['bandwidth_gb_s']:.0f} GB/s, reading")
    Console(highlight=False).print(table)


def collect() -> dict[str, Any]:
    """Everything ``octavo info`` shows; takes well under a second."""
    import octavo
    from octavo.engine.machine import available_memory, total_memory

    cores = usable_cores()
    return {
        "version": octavo.__version__,
        "isa": native_isa(),
        "available_isas": available_isas(),
        "machine": platform.machine(),
        "cores": cores,
        "memory_total_bytes": total_memory(),
        "memory_available_bytes": available_memory(),
        "bandwidth_gb_s": round(measure_bandwidth(cores), 1),
    }


def measure_bandwidth(threads: int, *, num_bytes: int = 128 << 20, repeats: int = 3) -> float:
    """Best rate, in GB/s, at which ``threads`` threads read a buffer larger than most caches."""
    import numpy as np

    parts = np.array_split(np.ones(num_bytes // 8, np.int64), threads)
    best_s = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(repeats):
            start = time.perf_counter()
            list(pool.map(np.bitwise_or.reduce, parts))  # touches every byte and does nearly nothing else
            best_s = min(best_s, time.perf_counter() - start)
    return num_bytes / best_s / 1e9
