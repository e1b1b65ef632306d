"""The report of a load experiment."""

from collections.abc import Mapping
from typing import Any, Final

from octavo.bench.metrics.reading import too_many_late
from octavo.bench.metrics.summary import LATENCIES
from octavo.bench.metrics.warnings import num_failed
from octavo.bench.report.facts import ceilings_fact, machine_fact, model_fact, objective_fact, workload_fact
from octavo.bench.report.numbers import figures, interval_note, percent, seconds
from octavo.bench.report.parts import Chart, Document, Series, Sheet, Tile
from octavo.core.display import counted
from octavo.core.units import format_bytes

NAMES: Final = {
    "ttft_s": "TTFT, time to first token",
    "tpot_s": "TPOT, time per output token",
    "itl_s": "ITL, gap between chunks",
    "e2e_s": "E2E, whole answer",
}
_SAME: Final = 0.01  # rates so near each other are one
_STATISTICS: Final = ("mean", "p50", "p90", "p95", "p99", "max")


def document(report: Mapping[str, Any]) -> Document:
    """Of a report of ``octavo bench serve`` or ``throughput``."""
    summary = report["summary"]
    rate = summary.get("output_tokens_per_s")
    model = report["target"]["model"]
    headline = f"{model}: " + ("no request was answered" if report["repeats"] else "nothing was measured")
    if rate is not None and rate["mean"] > 0:
        headline = f"{model} gives {figures(rate['mean'])} output tokens/s"
        if ttft := summary.get("ttft_s.p50"):
            headline += f", the first after {seconds(ttft['mean'])}"
        tpot = summary.get("tpot_s.p50")
        if tpot and not too_many_late(report["repeats"], "tpot_s"):
            headline += f", then one each {seconds(tpot['mean'])}"
        headline += f" ({_how(report)})"
        if failed := num_failed(report["repeats"]):
            total = sum(repeat["requests"]["total"] for repeat in report["repeats"])
            headline += f"; {failed:,} of {total:,} requests failed"
    facts = [("Model", model_fact(report)), ("Machine", machine_fact(report))]
    if ceilings := ceilings_fact(report):
        facts.append(("At most", ceilings))
    facts.append(("Workload", f"{workload_fact(report['workload'])}; {_how(report)}"))
    facts.append(("Runs", _runs(report)))
    return Document(
        title=f"octavo bench {report['command']}",
        headline=headline,
        tiles=_tiles(report),
        facts=facts,
        command=report["command_line"],
        warnings=report["warnings"],
        charts=charts(report),
        sheets=[sheet for sheet in (latency_sheet(report), repeat_sheet(report)) if sheet.rows],
        footer=footer(report),
    )


def footer(report: Mapping[str, Any]) -> str:
    """When, with which version, and how intervals are made."""
    return (
        f"Octavo {report['octavo']}, Python {report['machine']['python']}, {report['machine']['system']}, "
        f"{report['measured_at']}. Latencies count from the moment at which a request was due. Intervals are "
        "95 % confidence intervals of the mean over repeats, by Student's t. "
        f"Schema {report['schema_version']}."
    )


def charts(report: Mapping[str, Any]) -> list[Chart]:
    """How latencies are distributed, and how the first repeat went."""
    found = []
    for name, title in (("ttft_s", "Waiting for the first token"), ("tpot_s", "Time per output token")):
        values = report["quantiles"][name]
        if not values:
            continue
        series = [Series(name[:4].upper(), [v * 1e3 for v in values], list(range(101)))]
        if name == "tpot_s" and (gaps := report["quantiles"]["itl_s"]):
            # The last percent of the gaps is often many times the rest: it would press all else to the left.
            series.append(Series("ITL, up to p99", [v * 1e3 for v in gaps[:100]], list(range(100))))
        found.append(
            Chart(
                name=name[:4],
                title=title,
                caption="Share of the requests, or of the gaps, that took at most so long; all repeats.",
                x_label="milliseconds",
                y_label="percent",
                series=series,
                marks=False,
            )
        )
    if line := report["timeline"]:
        moments = [(i + 0.5) * line["step_s"] for i in range(len(line["running"]))]
        found.append(
            Chart(
                name="timeline",
                title="The first repeat as it went",
                caption="Output tokens per second, and requests that were due and not over.",
                x_label="seconds",
                y_label="tokens/s",
                right_label="requests",
                series=[
                    Series("tokens/s", moments, line["output_tokens_per_s"]),
                    Series("requests under way", moments, line["running"], right=True),
                ],
                marks=False,
            )
        )
    return found


def latency_sheet(report: Mapping[str, Any]) -> Sheet:
    """Percentiles: means over the repeats; maxima of all."""
    summary = report["summary"]
    rows, raw = [], []
    for name in LATENCIES:
        values = [(summary.get(f"{name}.{s}") or {}).get("mean") for s in _STATISTICS]
        if values[0] is not None:
            rows.append([NAMES[name], *map(seconds, values)])
            raw.append([name, *values])
    for name in ("ttft_s", "e2e_s"):
        values = [(summary.get(f"at_least.{name}.{s}") or {}).get("mean") for s in _STATISTICS]
        if values[0] is not None:
            rows.append([f"{NAMES[name]}, at least, with those that timed out", *map(seconds, values)])
            raw.append([f"at_least.{name}", *values])
    return Sheet(
        "Latencies",
        ["", *_STATISTICS],
        rows,
        "Means over the complete repeats with answers; max is the greatest of all.",
        raw,
    )


def repeat_sheet(report: Mapping[str, Any]) -> Sheet:
    """One row for each repeat."""
    columns = ["repeat", "answered", "failed", "seconds", "output tokens/s", "prompt tokens/s", "TTFT p50"]
    columns += ["TPOT p50"]
    with_slo = any(repeat["goodput"] for repeat in report["repeats"])
    with_memory = any(repeat["memory"] for repeat in report["repeats"])
    columns += ["within SLO"] if with_slo else []
    columns += ["KV peak", "waste", "preemptions", "hit rate"] if with_memory else []
    rows = []
    for number, repeat in enumerate(report["repeats"], 1):
        requests = repeat["requests"]
        row = [
            f"{number}{_what_of(repeat)}",
            f"{requests['ok']} of {requests['total']}",
            str(requests["failed"]),
            figures(repeat["duration_s"]),
            figures(repeat["output_tokens_per_s"]),
            figures(repeat["prompt_tokens_per_s"]),
            seconds((repeat["ttft_s"] or {}).get("p50")),
            seconds((repeat["tpot_s"] or {}).get("p50")),
        ]
        if with_slo:
            row.append(percent((repeat["goodput"] or {}).get("fraction")))
        if with_memory:
            memory = repeat["memory"] or {}
            peak = memory.get("peak_bytes")
            row += [
                "-" if peak is None else format_bytes(peak),
                percent(memory.get("waste_mean")),
                str(memory.get("preemptions", "-")),
                percent(memory.get("hit_rate")),
            ]
        rows.append(row)
    return Sheet("Repeats", columns, rows)


def _what_of(repeat: Mapping[str, Any]) -> str:
    """Why a repeat is not in the means."""
    if not repeat["complete"]:
        return " (interrupted)"
    return "" if repeat["requests"]["ok"] else " (no answer)"


def _tiles(report: Mapping[str, Any]) -> list[Tile]:
    summary = report["summary"]
    tiles = []
    if rate := summary.get("output_tokens_per_s"):
        tiles.append(Tile("Output tokens per second", figures(rate["mean"]), interval_note(rate)))
    for name, label in (("ttft_s", "Time to first token"), ("tpot_s", "Time per output token")):
        found = summary.get(f"{name}.p50")
        if found and not (name == "tpot_s" and too_many_late(report["repeats"], name)):
            tail = summary[f"{name}.p99"]
            note = f"median; p99 {seconds(tail['mean'])}, most {seconds(summary[f'{name}.max']['mean'])}"
            tiles.append(Tile(label, seconds(found["mean"]), note))
    if good := summary.get("goodput.fraction"):
        told = objective_fact(report["settings"]["slo"])
        tiles.append(Tile("Well served", percent(good["mean"]), told))
    elif rate := summary.get("prompt_tokens_per_s"):
        tiles.append(Tile("Prompt tokens per second", figures(rate["mean"]), interval_note(rate)))
    if report["peak_rss_bytes"]:
        peak = summary.get("memory.peak_bytes")
        note = f"of the process; KV cache used: {format_bytes(peak['mean'])}" if peak else "of the process"
        tiles.append(Tile("Peak memory", format_bytes(report["peak_rss_bytes"]), note))
    return tiles


def _how(report: Mapping[str, Any]) -> str:
    """How requests came, and what came of that where it is not the same."""
    workload = report["workload"]
    kind = workload["arrivals"]
    most = max((repeat["most_in_flight"] for repeat in report["repeats"]), default=None)
    if kind == "closed":
        users = workload["concurrency"]
        if most is not None and most < users:
            return f"{counted(users, 'user')}, at most {most} at once"
        return "one user at a time" if users == 1 else f"{users} users at once"
    if kind == "at-once":
        return "all requests at once" + ("" if most is None else f", at most {most} under way")
    if kind == "trace":
        return "arrivals as in the trace" + ("" if most is None else f", at most {most} at once")
    law = "Poisson" if kind == "poisson" else f"{workload['burstiness']:g} times as bursty as Poisson"
    came = (report["summary"].get("requests_due_per_s") or {}).get("mean")
    if came is None or abs(came / workload["rate"] - 1) <= _SAME:
        return f"{workload['rate']:g} requests/s, {law}"
    return f"{figures(came)} requests/s, drawn for {workload['rate']:g}, {law}"


def _runs(report: Mapping[str, Any]) -> str:
    complete = sum(repeat["complete"] for repeat in report["repeats"])
    total = sum(repeat["requests"]["total"] for repeat in report["repeats"])
    ok = sum(repeat["requests"]["ok"] for repeat in report["repeats"])
    warm_up = report["settings"]["warm_up"]
    return (
        f"{counted(complete, 'complete repeat')} after {counted(warm_up, 'request')} of warm-up; "
        f"{ok:,} of {counted(total, 'request')} answered"
    )
