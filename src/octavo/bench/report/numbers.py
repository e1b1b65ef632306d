"""Numbers as people read them: three figures that count, and a unit."""

from collections.abc import Mapping
from typing import Any

from octavo.bench.metrics.spread import is_telling


def seconds(value: float | None) -> str:
    """``0.0123`` becomes ``"12.3 ms"``."""
    if value is None:
        return "-"
    if abs(value) >= 1:
        return f"{figures(value)} s"
    if abs(value) >= 1e-3:
        return f"{figures(value * 1e3)} ms"
    return f"{figures(value * 1e6)} µs"


def figures(value: float | None) -> str:
    """``1234.5`` becomes ``"1,234"``, ``1.2345`` becomes ``"1.23"``, ``0.51`` becomes ``"0.510"``."""
    if value is None:
        return "-"
    size = abs(float(f"{value:.3g}"))  # 9.999 is shown as 10.0
    if size >= 100 or value == 0:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 1:
        return f"{value:.2f}"
    return f"{value:#.3g}"


def percent(value: float | None) -> str:
    """``0.123`` becomes ``"12.3 %"``."""
    return "-" if value is None else f"{value * 100:.1f} %"


def with_interval(found: Mapping[str, Any] | None, show: Any = figures) -> str:
    """A mean with its interval: ``"12.3 ms (12.0 ms to 12.6 ms)"``."""
    if found is None:
        return "-"
    text: str = show(found["mean"])
    if found["low"] is not None:
        text += f" ({show(found['low'])} to {show(found['high'])})"
    return text


def interval_note(found: Mapping[str, Any] | None, show: Any = figures) -> str:
    """The interval of a rate alone, in words."""
    if found is None or found["low"] is None:
        return ""
    if not is_telling(found["low"], found["high"]):
        return "too few repeats for an interval"
    return f"{show(found['low'])} to {show(found['high'])} (95 %, {found['repeats']} repeats)"
