"""The numbers by which settings are compared: of a point of a sweep, or of a candidate of a race."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

_MIB: Final = 1 << 20


class Metric(NamedTuple):
    """A number of a point. ``path`` leads to it in the summary; None is the peak memory of the process."""

    name: str
    label: str
    column: str
    path: str | None
    scale: float = 1.0


METRICS: Final = (
    Metric("ttft_ms", "TTFT p50", "TTFT ms", "ttft_s.p50", 1e3),
    Metric("ttft_p99_ms", "TTFT p99", "p99 ms", "ttft_s.p99", 1e3),
    Metric("tpot_ms", "TPOT p50", "TPOT ms", "tpot_s.p50", 1e3),
    Metric("output_tokens_per_s", "output tokens/s", "tok/s out", "output_tokens_per_s"),
    Metric("prompt_tokens_per_s", "prompt tokens/s", "tok/s in", "prompt_tokens_per_s"),
    Metric("peak_rss_mib", "process", "RSS MiB", None, 1 / _MIB),
    Metric("kv_peak_mib", "KV cache", "KV MiB", "memory.peak_bytes", 1 / _MIB),
    Metric("waste_percent", "waste", "waste %", "memory.waste_mean", 100),
    Metric("hit_percent", "hit rate", "hits %", "memory.hit_rate", 100),
    Metric("preemptions", "preemptions", "preempted", "memory.preemptions"),
)


def value_of(point: Mapping[str, Any], metric: Metric) -> float | None:
    """A metric of a point, in its own unit."""
    if metric.path is None:
        peak = point["peak_rss_bytes"]
        return None if peak is None else peak * metric.scale
    found = point["summary"].get(metric.path)
    return None if found is None else found["mean"] * metric.scale


def interval_of(point: Mapping[str, Any], metric: Metric) -> tuple[float, float] | None:
    """Its 95 % interval over repeats, in its own unit; None where there is none, as of one repeat."""
    found = None if metric.path is None else point["summary"].get(metric.path)
    if found is None or found["low"] is None:
        return None
    return found["low"] * metric.scale, found["high"] * metric.scale
