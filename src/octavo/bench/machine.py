"""What a report was measured on."""

import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import octavo

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_CPUINFO = Path("/proc/cpuinfo")

# Where the system does not tell: small enough to be there, large enough to matter.
_USUAL_CACHE_BYTES = {2: 1 << 20, 3: 32 << 20}


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine and how it is used.

    Attributes:
        cpu: the processor's own name for itself.
        cores: cores of the machine that the system shows.
        threads: workers of the native team.
        isa: instruction set of the kernels.
        l2_bytes, l3_bytes: sizes of one core's second and third level cache; the third may be shared with
            other cores, and on a virtual machine with strangers.
    """

    cpu: str
    cores: int
    threads: int
    isa: str
    l2_bytes: int
    l3_bytes: int
    octavo: str
    python: str
    system: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.cpu}, {self.threads} of {self.cores} cores, {self.isa}"


def describe(threads: int, isa: str) -> Machine:
    """This machine, with a team of ``threads`` workers that run the kernels of ``isa``."""
    return Machine(
        cpu=_cpu_name(),
        cores=_num_cores(),
        threads=threads,
        isa=isa,
        l2_bytes=_cache_bytes(2),
        l3_bytes=_cache_bytes(3),
        octavo=octavo.__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
    )


def _cpu_name() -> str:
    fields = dict(line.split(":", 1) for line in _read(_CPUINFO).splitlines() if ":" in line)
    values = {key.strip(): value.strip() for key, value in fields.items()}
    if name := values.get("model name"):
        # Some virtual machines hide the model's number from the name, but not from the fields beside it.
        model = "/".join(values.get(key, "?") for key in ("cpu family", "model", "stepping"))
        return f"{name} (family/model/stepping {model})"
    if part := values.get("CPU part"):
        return f"Arm implementer {values.get('CPU implementer', '?')} part {part}"
    return platform.processor() or platform.machine()


def _num_cores() -> int:
    return max(1, sum(line.startswith("processor") for line in _read(_CPUINFO).splitlines()))


def _cache_bytes(level: int) -> int:
    for cache in sorted(_CACHES.glob("index*")):
        if _read(cache / "level").strip() == str(level):
            size = _read(cache / "size").strip()
            if size.endswith("K") and size[:-1].isdigit():
                return int(size[:-1]) << 10
    return _USUAL_CACHE_BYTES[level]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
