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
_EQUAL: Final = 0.01  # an interval of a ratio within this of 1 is of what nobody will notice
_MOST_DIGITS: Final = 6  # after the point, to tell an end of an interval from 1

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


def verdict(metric: str, found: Found) -> str:
    """``"equal within 1 %"``, ``"no difference shown"``, ``"better"`` or ``"worse"``; "" if unsure."""
    if not is_sure(metric, found):
        return ""
    if metric != GOODPUT and found["low"] >= 1 - _EQUAL and found["high"] <= 1 + _EQUAL:
        return f"equal within {100 * _EQUAL:g} %"
    if not is_difference(metric, found):
        return "no difference shown"
    return "better" if advantage(metric, found) > (0.0 if metric == GOODPUT else 1.0) else "worse"


def value(metric: str, number: float | None) -> str:
    """A metric of one side."""
    if metric == GOODPUT:
        return percent(number)
    return seconds(number) if METRICS.get(metric) == "less" else figures(number)


def amount(metric: str, found: Found) -> str:
    """The ratio or the difference alone: ``"2.60 x"``, ``"+54.0 points"``."""
    if metric == GOODPUT:
        return f"{_points(found['difference'])} points"
    return f"{_factor(found['ratio'])} x"


def extent(metric: str, found: Found, rounds: int) -> str:
    """Its interval, and how many rounds it is of if these are not all."""
    show: Callable[[float], str] = _points if metric == GOODPUT else _factor
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
        worse = ", worse" if verdict(metric, found) == "worse" else ""
        return f"{amount(metric, found)} ({extent(metric, found, rounds)}){worse}"
    return f"{amount(metric, found)} (-{rounds_note(found, rounds)})"


def _points(fraction: float) -> str:
    return _away_from(0.0, 100 * fraction, f"{100 * fraction:+.1f}", "+")


def _factor(ratio: float) -> str:
    return _away_from(1.0, ratio, figures(ratio), "")


def _away_from(alike: float, number: float, text: str, sign: str) -> str:
    """The text; with more digits if it looks like the number that stands for no difference and is another."""
    if not abs(number - alike) < 0.05:
        return text
    longer = (f"{number:{sign}.{digits}f}" for digits in range(3, _MOST_DIGITS + 1))
    return text if float(text) != alike else next((t for t in longer if float(t) != alike), text)
