"""Every kernel: first checked against the oracle's answer, then timed against what the machine can do."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

from octavo.backends.cpu import CpuBackend
from octavo.bench.ceilings import Meter
from octavo.bench.parts.attention_cases import decode_cases, prefill_cases
from octavo.bench.parts.elementwise_cases import elementwise_cases
from octavo.bench.parts.kernel_case import MODELS, SMOLLM2, Case
from octavo.bench.parts.linear_cases import linear_cases
from octavo.bench.tables import print_ceilings, print_table
from octavo.core.errors import InvalidConfig

KERNELS: Final = ("linear", "decode", "prefill", "elementwise")

_REPEATS, _QUICK_REPEATS = 15, 3
_QUICK_WORKING_SET = 4 << 20


def run(
    *,
    quick: bool = False,
    only: Sequence[str] = (),
    threads: int | None = None,
    progress: Callable[[str], None] = lambda name: None,
) -> dict[str, Any]:
    """Check and time the kernels.

    Args:
        quick: few small cases, few repetitions: to see that it works.
        only: some of ``KERNELS``; empty is all.
        progress: told the name of each case before it is measured.

    Returns:
        ``machine``, ``ceilings`` and ``cases``: see ``_measure``. ``correct`` says whether all were.

    Raises:
        InvalidConfig: a name in ``only`` is not one of ``KERNELS``.
    """
    for name in only:
        if name not in KERNELS:
            raise InvalidConfig(f"kernel {name!r}: choose among {', '.join(KERNELS)}")
    backend = CpuBackend(threads)
    meter = Meter(backend, max_working_set=_QUICK_WORKING_SET if quick else None)
    repeats = _QUICK_REPEATS if quick else _REPEATS
    ceilings = meter.measure(repeats=repeats)
    results = []
    for case in _cases(backend, meter.max_working_set, only or KERNELS, quick):
        progress(case.name)
        results.append(_measure(case, meter, repeats))
    return {
        "command": "kernels",
        "quick": quick,
        "machine": meter.machine.as_dict(),
        "ceilings": ceilings.as_dict(),
        "correct": all(result["correct"] for result in results),
        "cases": results,
    }


def render(report: dict[str, Any]) -> None:
    """Print the report for people."""
    print_ceilings(report)
    for kernel in dict.fromkeys(case["kernel"] for case in report["cases"]):
        print_table(
            kernel,
            ["case", "us", "GB/s", "from", "of it", "GOP/s", "of peak", "error"],
            [
                [
                    case["name"],
                    f"{case['median_us']:,.1f}",
                    f"{case['gb_s']:.1f}",
                    case["level"],
                    f"{case['fraction_of_read']:.0%}",
                    f"{case['gop_s']:,.0f}" if case["operations"] else "",
                    f"{case['fraction_of_peak']:.0%}" if case["operations"] else "",
                    f"{case['error']:.0e}" if case["correct"] else f"{case['error']:.1e} WRONG",
                ]
                for case in report["cases"]
                if case["kernel"] == kernel
            ],
        )


def _cases(backend: CpuBackend, working_set: int, only: Sequence[str], quick: bool) -> Iterator[Case]:
    if not quick:
        groups = {
            "linear": linear_cases(backend, MODELS, working_set=working_set),
            "decode": decode_cases(backend, MODELS, working_set=working_set),
            "prefill": prefill_cases(backend, MODELS),
            "elementwise": elementwise_cases(backend, MODELS),
        }
    else:
        one = (SMOLLM2,)
        groups = {
            "linear": linear_cases(backend, one, rows=(1, 4), layers=("output",), working_set=working_set),
            "decode": decode_cases(
                backend, one, sizes=((1, 256),), block_sizes=(16,), working_set=working_set
            ),
            "prefill": prefill_cases(backend, one, sizes=((32, 64),), block_sizes=(16,)),
            "elementwise": elementwise_cases(backend, one, tokens=(1,)),
        }
    return chain.from_iterable(groups[name] for name in KERNELS if name in only)


def _measure(case: Case, meter: Meter, repeats: int) -> dict[str, Any]:
    """One case. It and its ceilings take turns, so that what slows the machine slows them alike.

    ``fraction_of_read`` compares all bytes that the operation moves with reading a working set of the same
    size, ``fraction_of_peak`` its multiplications and additions with the same arithmetic on registers;
    ``fraction`` is the larger of the two, and ``bound`` says which it is. ``correct`` tells whether the
    error, relative to the oracle's answer, is within the tolerance.
    """
    error = case.check()
    case.run()
    meter.warm_up(case.working_set)
    times, reads, peaks = [], [], []
    for _ in range(repeats):
        times.append(case.run())
        reads.append(meter.read(case.working_set))
        if case.operations:
            peaks.append(meter.peak(case.arithmetic))
    seconds = statistics.median(times)
    tenths = statistics.quantiles(times, n=10, method="inclusive")
    num_bytes = case.streamed_bytes or case.activation_bytes
    read_rate = statistics.median(reads)
    fractions = {"read": num_bytes / seconds / read_rate}
    if case.operations:
        fractions[case.arithmetic] = case.operations / seconds / statistics.median(peaks)
    bound = max(fractions, key=lambda name: fractions[name])
    return {
        "kernel": case.kernel,
        "name": case.name,
        **case.parameters,
        "error": float(f"{error:.3g}"),
        "tolerance": case.tolerance,
        "correct": error <= case.tolerance,
        "median_us": round(seconds * 1e6, 3),
        "p10_us": round(tenths[0] * 1e6, 3),
        "p90_us": round(tenths[-1] * 1e6, 3),
        "bytes": num_bytes,
        "operations": case.operations,
        "arithmetic": case.arithmetic,
        "gb_s": round(num_bytes / seconds / 1e9, 2),
        "gop_s": round(case.operations / seconds / 1e9, 1),
        "working_set_bytes": case.working_set,
        "level": meter.level_of(case.working_set),
        "read_gb_s": round(read_rate / 1e9, 2),
        "fraction_of_read": round(fractions["read"], 4),
        "fraction_of_peak": round(fractions.get(case.arithmetic, 0.0), 4),
        "bound": bound,
        "fraction": round(fractions[bound], 4),
    }
