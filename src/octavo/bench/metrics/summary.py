"""What one run says, and what several runs say together."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from octavo.bench.load.exchange import TIMEOUT
from octavo.bench.load.generator import LoadResult, Record
from octavo.bench.metrics.reading import is_tpot_late, num_late_gaps
from octavo.bench.metrics.slo import Slo
from octavo.bench.metrics.spread import greatest, interval, spread
from octavo.bench.metrics.timings import Timings, timings_of
from octavo.bench.metrics.traffic import due_per_s, most_in_flight

LATENCIES: Final = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
_STATISTICS: Final = ("mean", "p50", "p90", "p95", "p99", "max")
# Numbers of a run whose mean over the repeats is of interest, with the interval.
_SCALARS: Final = (
    ("duration_s",),
    ("requests_due_per_s",),
    ("requests_per_s",),
    ("prompt_tokens_per_s",),
    ("output_tokens_per_s",),
    ("goodput", "requests_per_s"),
    ("goodput", "fraction"),
    ("memory", "peak_blocks"),
    ("memory", "peak_bytes"),
    ("memory", "waste_mean"),
    ("memory", "waste_max"),
    ("memory", "preemptions"),
    ("memory", "hit_rate"),
    *((name, statistic) for name in LATENCIES for statistic in _STATISTICS),
    *(("at_least", name, statistic) for name in ("ttft_s", "e2e_s") for statistic in _STATISTICS),
)
_FRACTIONS: Final = frozenset({"goodput.fraction", "memory.waste_mean", "memory.hit_rate"})
_PEAKS: Final = frozenset({"memory.peak_blocks", "memory.peak_bytes", "memory.waste_max"})


def summarize(result: LoadResult, slo: Slo | None) -> dict[str, Any]:
    """One run. Latencies and tokens are of the requests that were answered in full; the others are counted.

    ``requests.failed`` counts all others that were sent, ``failures`` says why. Goodput is of the answered
    requests that keep the objective, as a fraction of all that were due. Those that timed out are the slowest
    of all: ``at_least`` has latencies with them, as long as they were waited for.
    """
    good = [record for record in result.records if record.is_ok]
    timings = [timings_of(record) for record in good]
    duration_s = max(result.end_s - result.start_s, 1e-9)
    prompt_tokens = _sum([r.exchange.prompt_tokens for r in good])
    output_tokens = sum(t.num_tokens for t in timings)
    num_chunks = sum(t.num_chunks for t in timings)
    total = len(result.records) + result.num_not_sent
    return {
        "complete": result.is_complete,
        "duration_s": duration_s,
        "requests": {
            "total": total,
            "ok": len(good),
            "failed": len(result.records) - len(good),
            "not_sent": result.num_not_sent,
        },
        "failures": _failures(result.records),
        "ttft_s": spread([t.ttft_s for t in timings if t.ttft_s is not None]),
        "tpot_s": spread([t.tpot_s for t in timings if t.tpot_s is not None]),
        "itl_s": spread([gap for t in timings for gap in t.itl_s]),
        "e2e_s": spread([t.e2e_s for t in timings if t.e2e_s is not None]),
        "at_least": _at_least(result.records, timings),
        "lateness_s": spread([t.lateness_s for t in timings]),
        "requests_due_per_s": due_per_s(result.records),
        "most_in_flight": most_in_flight(result.records),
        "requests_per_s": len(good) / duration_s,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "cached_tokens": _sum([r.exchange.cached_tokens for r in good]),
        "prompt_tokens_per_s": None if prompt_tokens is None else prompt_tokens / duration_s,
        "output_tokens_per_s": output_tokens / duration_s,
        "goodput": None if slo is None else _goodput(timings, slo, total, duration_s),
        "counts": {
            "tokens_per_chunk": output_tokens / num_chunks if num_chunks else None,
            "without_usage": sum(r.exchange.output_tokens is None for r in good),
            "chunks_differ": sum(t.misses_tokens for t in timings),
            "tpot_unknown": sum(t.hides_tpot for t in timings),
            "tpot_read_late": sum(is_tpot_late(r.exchange, result.stalls) for r in good),
            "gaps_read_late": sum(num_late_gaps(r.exchange, result.stalls) for r in good),
            "resent": sum(r.exchange.was_resent for r in result.records),
            "shorter_than_asked": sum(
                r.exchange.output_tokens is not None and t.num_tokens < r.item.max_tokens
                for r, t in zip(good, timings, strict=True)
            ),
            "longer_than_asked": sum(
                t.num_tokens > r.item.max_tokens for r, t in zip(good, timings, strict=True)
            ),
        },
    }


def combine(repeats: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any] | None]:
    """Means over the complete repeats, with 95 % intervals, by names such as ``"ttft_s.p50"``.

    None is what not all of them have. Of what is the greatest of its kind in a repeat (``"ttft_s.max"``), the
    greatest of all. If none is complete, the last one alone. A repeat without any answer has no rates and
    times, but it kept nothing of an objective, and what it waited for is in ``at_least``.
    """
    complete = [repeat for repeat in repeats if repeat["complete"]] or list(repeats[-1:])
    answered = [repeat for repeat in complete if repeat["requests"]["ok"]] or complete
    waited = [repeat for repeat in complete if repeat["requests"]["ok"] or repeat["at_least"]]
    if any(repeat["at_least"] for repeat in waited):  # where nothing timed out the latencies are whole
        waited = [{**repeat, "at_least": repeat["at_least"] or repeat} for repeat in waited]
    of_part = {"goodput": complete, "at_least": waited}
    found: dict[str, dict[str, Any] | None] = {}
    for path in _SCALARS:
        name, chosen = ".".join(path), of_part.get(path[0], answered)
        values = [value for repeat in chosen if (value := _at(repeat, path)) is not None]
        found[name] = over_repeats(name, values) if values and len(values) == len(chosen) else None
    return found


def over_repeats(name: str, values: Sequence[float]) -> dict[str, float | int | None]:
    """One number of all repeats: mean and interval, or the greatest of what is a maximum itself."""
    if name.endswith(".max") or name in _PEAKS:
        return greatest(values)
    return interval(values, least=0.0, most=1.0 if name in _FRACTIONS else math.inf)


def request_as_dict(record: Record, start_s: float) -> dict[str, Any]:
    """One request, for ``--per-request``: moments are seconds after the start of its repeat."""
    exchange, item = record.exchange, record.item
    timings = timings_of(record) if record.is_ok else None
    return {
        "index": item.index,
        "session": item.session,
        "turn": item.turn,
        "due_s": record.due_s - start_s,
        "sent_s": None if exchange.sent_s is None else exchange.sent_s - start_s,
        "chunk_s": [moment - start_s for moment in exchange.chunk_s],
        "end_s": exchange.closed_s - start_s,
        "ttft_s": None if timings is None else timings.ttft_s,
        "tpot_s": None if timings is None else timings.tpot_s,
        "e2e_s": None if timings is None else timings.e2e_s,
        "prompt_tokens": exchange.prompt_tokens,
        "cached_tokens": exchange.cached_tokens,
        "output_tokens": exchange.num_output_tokens,
        "max_tokens": item.max_tokens,
        "finish_reason": exchange.finish_reason,
        "failure": exchange.failure,
        "detail": exchange.detail or None,
    }


def _sum(counts: Sequence[int | None]) -> int | None:
    """None if one is not known."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _at_least(records: Sequence[Record], timings: Sequence[Timings]) -> dict[str, Any] | None:
    """None if no request timed out."""
    late = [record for record in records if record.exchange.failure == TIMEOUT]
    if not late:
        return None
    ttft_s = [(r.exchange.chunk_s or [r.exchange.closed_s])[0] - r.due_s for r in late]
    e2e_s = [r.exchange.closed_s - r.due_s for r in late]
    return {
        "ttft_s": spread([*ttft_s, *(t.ttft_s for t in timings if t.ttft_s is not None)]),
        "e2e_s": spread([*e2e_s, *(t.e2e_s for t in timings if t.e2e_s is not None)]),
    }


def _failures(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """By reason, the most frequent first, with one example of each."""
    counts = Counter(r.exchange.failure for r in records if r.exchange.failure is not None)
    examples = {r.exchange.failure: r.exchange.detail for r in reversed(records) if r.exchange.failure}
    return {reason: {"count": n, "example": examples[reason]} for reason, n in counts.most_common()}


def _goodput(timings: Sequence[Timings], slo: Slo, total: int, duration_s: float) -> dict[str, Any]:
    kept = sum(slo.is_kept(t) for t in timings)
    return {"kept": kept, "fraction": kept / total if total else None, "requests_per_s": kept / duration_s}


def _at(values: Mapping[str, Any], path: Sequence[str]) -> float | None:
    found: Any = values
    for name in path:
        if not isinstance(found, Mapping):
            return None
        found = found.get(name)
    return found if isinstance(found, (int, float)) else None
