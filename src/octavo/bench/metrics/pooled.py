"""What plots show: all requests of all complete repeats together, and one repeat as it went."""

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

from octavo.bench.load.generator import LoadResult
from octavo.bench.metrics.spread import percentile
from octavo.bench.metrics.timings import timings_of

_MOST_STEPS: Final = 120


def quantiles(results: Sequence[LoadResult]) -> dict[str, list[float]]:
    """The 0th to the 100th percentile of each latency, 101 values; empty where there is none."""
    chosen = _complete(results)
    timings = [timings_of(r) for result in chosen for r in result.records if r.is_ok]
    values = {
        "ttft_s": [t.ttft_s for t in timings if t.ttft_s is not None],
        "tpot_s": [t.tpot_s for t in timings if t.tpot_s is not None],
        "itl_s": list(chain.from_iterable(t.itl_s for t in timings)),
        "e2e_s": [t.e2e_s for t in timings if t.e2e_s is not None],
    }
    found = {}
    for name, each in values.items():
        ordered = sorted(each)
        found[name] = [percentile(ordered, p) for p in range(101)] if ordered else []
    return found


def timeline(results: Sequence[LoadResult]) -> dict[str, Any] | None:
    """The first complete repeat in up to 120 equal steps: chunks that came, requests under way.

    ``running`` is the mean number of requests that were due and not over.
    """
    chosen = _complete(results)
    if not chosen or not chosen[0].records:
        return None
    result = chosen[0]
    duration = max(result.end_s - result.start_s, 1e-6)
    step_s = max(0.1, duration / _MOST_STEPS)
    count = max(1, math.ceil(duration / step_s))
    tokens, running = [0.0] * count, [0.0] * count
    for record in result.records:
        exchange = record.exchange
        per_chunk = exchange.num_output_tokens / len(exchange.chunk_s) if exchange.chunk_s else 0.0
        for moment in exchange.chunk_s:
            tokens[min(count - 1, int((moment - result.start_s) / step_s))] += per_chunk
        begin, end = record.due_s - result.start_s, exchange.closed_s - result.start_s
        for i in range(max(0, int(begin / step_s)), min(count - 1, int(max(0.0, end) / step_s)) + 1):
            overlap = min(end, (i + 1) * step_s) - max(begin, i * step_s)
            running[i] += max(0.0, overlap) / step_s
    return {
        "step_s": step_s,
        "output_tokens_per_s": [n / step_s for n in tokens],
        "running": running,
    }


def _complete(results: Sequence[LoadResult]) -> Sequence[LoadResult]:
    return [result for result in results if result.is_complete] or results[-1:]
