"""How fast this machine can read and multiply at most, with the threads that run the kernels.

Every report measures these in the same run as what it reports, and says what fraction was reached: absolute
numbers mean little on a machine that others use too.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from octavo import _native
from octavo.backends.cpu import CpuBackend
from octavo.bench.machine import Machine, describe
from octavo.engine.machine import available_memory
from octavo.storage.arena import HUGE_PAGE_BYTES, map_huge

Arithmetic = Literal["int8", "bfloat16", "float32"]
Level = Literal["L2", "L3", "DRAM"]
ARITHMETICS: tuple[Arithmetic, ...] = ("int8", "bfloat16", "float32")

_READ_BYTES = 32 << 20  # per reading: about a millisecond
_MULTIPLY_S = 2e-3
_MIN_DRAM_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class ReadRate:
    """Reading a working set that lies in one level of the memory: in caches if it fits, else beyond."""

    level: Level
    working_set_bytes: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Rates are medians of tries of a few milliseconds each.

    Attributes:
        machine: where.
        reads: one rate per level, the nearest first. In L2 every core reads its own share.
        int8_per_s: multiplications and additions of 8-bit integers; where the instruction set has no dot
            product of them, what the kernels use in its place.
        bfloat16_per_s, float32_per_s: the same of products of bfloat16 pairs and of float32.
        loop_s: a loop without work; every operation is at least one, and ends when all workers are done.
    """

    machine: Machine
    reads: tuple[ReadRate, ...]
    int8_per_s: float
    bfloat16_per_s: float
    float32_per_s: float
    loop_s: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON: rates in GB/s and in 10^9 operations per second, the loop in microseconds."""
        return {
            "read": [
                {
                    "level": read.level,
                    "working_set_bytes": read.working_set_bytes,
                    "gb_s": round(read.bytes_per_s / 1e9, 2),
                }
                for read in self.reads
            ],
            "int8_gop_s": round(self.int8_per_s / 1e9, 1),
            "bfloat16_gflop_s": round(self.bfloat16_per_s / 1e9, 1),
            "float32_gflop_s": round(self.float32_per_s / 1e9, 1),
            "loop_us": round(self.loop_s * 1e6, 3),
        }

    def peak(self, arithmetic: Arithmetic) -> float:
        """Operations per second; bfloat16 operands may also be widened and multiplied as float32."""
        if arithmetic == "bfloat16":
            return max(self.bfloat16_per_s, self.float32_per_s)
        return self.int8_per_s if arithmetic == "int8" else self.float32_per_s


class Meter:
    """Measures ceilings whenever asked, so that a kernel and its ceiling can take turns.

    Args:
        backend: whose team and instruction set.
        max_working_set: the most that ``read`` will be asked for; beyond a quarter of the free memory it is
            cut.
    """

    def __init__(self, backend: CpuBackend, *, max_working_set: int | None = None) -> None:
        self.backend = backend
        self.machine = describe(backend.threads, backend.isa)
        size = self.beyond_caches_bytes if max_working_set is None else max_working_set
        self._data = filled(min(size, available_memory() // 4))
        self._next = 0
        self._rounds: dict[Arithmetic, int] = {}

    @property
    def beyond_caches_bytes(self) -> int:
        """A working set that caches cannot hold: reading it in turns finds next to nothing of it there."""
        return max(_MIN_DRAM_BYTES, 2 * self.machine.l3_bytes)

    @property
    def max_working_set(self) -> int:
        """The largest working set that ``read`` can measure."""
        return len(self._data)

    def level_of(self, working_set: int) -> Level:
        """Where a working set that is read in turns comes from."""
        machine = self.machine
        if working_set <= machine.l2_bytes * machine.threads:
            return "L2"
        return "L3" if working_set < machine.l3_bytes else "DRAM"

    def warm_up(self, working_set: int) -> None:
        """Read a working set a few times: caches keep what is read again, and only that."""
        if self.level_of(working_set) != "DRAM":
            for _ in range(3 * max(1, working_set // _READ_BYTES)):
                self.read(working_set)

    def read(self, working_set: int) -> float:
        """Bytes per second of one reading of about a millisecond.

        Successive readings go round the working set. The rate is that of the level which it fits in.
        """
        team, isa = self.backend.team, self.backend.isa
        working_set = min(working_set, self.max_working_set)
        if self.level_of(working_set) == "L2":
            data = self._data[:working_set]
            passes = max(1, _READ_BYTES // len(data))
            return len(data) * passes / _native.read_memory(team, isa, data, passes, True)
        size = min(working_set, _READ_BYTES)
        first = self._next if self._next + size <= working_set else 0
        self._next = first + size
        data = self._data[first : first + size]
        passes = max(1, _READ_BYTES // size)
        return size * passes / _native.read_memory(team, isa, data, passes, False)

    def multiply(self, arithmetic: Arithmetic) -> float:
        """Operations per second of one try of about two milliseconds."""
        if arithmetic not in self._rounds:
            rounds = 100
            _, seconds = self._multiply(arithmetic, rounds)
            self._rounds[arithmetic] = max(1, int(rounds * _MULTIPLY_S / seconds))
        operations, seconds = self._multiply(arithmetic, self._rounds[arithmetic])
        return operations / seconds

    def peak(self, arithmetic: Arithmetic) -> float:
        """As ``multiply``, with the faster of the two ways to multiply bfloat16."""
        if arithmetic == "bfloat16":
            return max(self.multiply("bfloat16"), self.multiply("float32"))
        return self.multiply(arithmetic)

    def measure(self, *, repeats: int = 9) -> Ceilings:
        """All ceilings, each the median of ``repeats`` tries."""

        def median(measure: Callable[[], float]) -> float:
            measure()
            return statistics.median(measure() for _ in range(repeats))

        reads = []
        for working_set in self._working_sets():
            self.warm_up(working_set)
            rate = median(lambda size=working_set: self.read(size))  # type: ignore[misc]
            reads.append(ReadRate(self.level_of(working_set), working_set, rate))
        int8, bfloat16, float32 = (median(lambda a=a: self.multiply(a)) for a in ARITHMETICS)  # type: ignore[misc]
        loop_s = median(lambda: _native.run_empty_loops(self.backend.team, 1000)) / 1000
        return Ceilings(self.machine, tuple(reads), int8, bfloat16, float32, loop_s)

    def _working_sets(self) -> list[int]:
        """One in the middle of each level, as far as they are there and differ."""
        machine = self.machine
        all_l2 = machine.l2_bytes * machine.threads
        sizes = [all_l2 // 2]
        in_l3 = 4 * all_l2
        if 2 * in_l3 <= machine.l3_bytes:
            sizes.append(max(in_l3, machine.l3_bytes // 8))
        sizes.append(self.beyond_caches_bytes)
        return [size for size in sizes if size <= self.max_working_set] or [self.max_working_set]

    def _multiply(self, arithmetic: Arithmetic, rounds: int) -> tuple[int, float]:
        return _native.multiply(self.backend.team, self.backend.isa, arithmetic, rounds)


def filled(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Bytes on huge pages, each page with content of its own: pages of zeros are all the same one."""
    num_bytes = max(HUGE_PAGE_BYTES, num_bytes // 4096 * 4096)
    data = map_huge(num_bytes)
    data.view(np.int64)[:] = np.arange(1, num_bytes // 8 + 1)
    return data
