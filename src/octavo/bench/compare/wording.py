"""Ratios and differences in words, and what is too little to say."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from octavo.bench.compare.ratios import GOODPUT, METRICS
from octavo.bench.metrics.spread import is_telling
from octavo.bench.report.numbers import figures, percent, seconds

NAMES: Final = {
    "output_tokens_per_s": "output tokens/s",
    "prompt_tokens_per_s": "prompt tokens/s",
    "requests_per_s": "requests/s",
    "ttft_s.p50": "TTFT p50",
    "ttft_s.p99": "TTFT p99",
    "tpot_s.p50": "TPOT p50",
    "tpot_s.p99": "TPOT p99",
    "itl_s.p50": "ITL p50",
    "itl_s.p99": "ITL p99",
    "itl_s.max": "ITL max",
    "e2e_s.p50": "E2E p50",
    "e2e_s.p99": "E2E p99",
    GOODPUT: "kept the objective",
    "goodput.requests_per_s": "goodput, requests/s",
}
TOO_FEW: Final = "too few rounds for an interval"

Found = Mapping[str, Any]


def found_of(side: Mapping[str, Any], metric: str) -> Found | None:
    """How the first compares with a side in a metric: its ratio or difference; None if that is not known."""
    known = side["differences"] if metric == GOODPUT else side["ratios"]
    return (known or {}).get(metric)


def advantage(metric: str, found: Found) -> float:
    """By how much the first is better, to put others in order."""
    value: float = found["difference" if metric == GOODPUT else "ratio"]
    return value


def is_sure(metric: str, found: Found) -> bool:
    """Whether there is an interval, and one that says something."""
    low, high = found["low"], found["high"]
    if low is None:
        return False
    return metric == GOODPUT or is_telling(low, high)


def is_difference(metric: str, found: Found) -> bool:
    """Whether it is sure that the two are not alike."""
    alike = 0.0 if metric == GOODPUT else 1.0
    return is_sure(metric, found) and not found["low"] <= alike <= found["high"]


def value(metric: str, number: float | None) -> str:
    """A metric of one side."""
    if metric == GOODPUT:
        return percent(number)
    return seconds(number) if METRICS.get(metric) == "less" else figures(number)


def amount(metric: str, found: Found) -> str:
    """The ratio or the difference alone: ``"2.60 x"``, ``"+54.0 points"``."""
    if metric == GOODPUT:
        return f"{_points(found['difference'])} points"
    return f"{figures(found['ratio'])} x"


def extent(metric: str, found: Found, rounds: int) -> str:
    """Its interval, and how many rounds it is of if these are not all."""
    show: Callable[[float], str] = _points if metric == GOODPUT else figures
    text = f"{show(found['low'])} to {show(found['high'])}" if is_sure(metric, found) else TOO_FEW
    return text + rounds_note(found, rounds)


def rounds_note(found: Found, rounds: int) -> str:
    """``", 2 of 6 rounds"``, or nothing if all count."""
    count = len(found["rounds"])
    return "" if count == rounds else f", {count} of {rounds} rounds"


def cell(metric: str, found: Found | None, rounds: int) -> str:
    """Of a table."""
    if found is None:
        return "-"
    if is_sure(metric, found):
        return f"{amount(metric, found)} ({extent(metric, found, rounds)})"
    return f"{amount(metric, found)} (-{rounds_note(found, rounds)})"


def _points(fraction: float) -> str:
    return f"{100 * fraction:+.1f}"
