"""The report of one stream over lengths of prompts."""

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.bench.report.facts import ceilings_fact, machine_fact, model_fact
from octavo.bench.report.numbers import figures, seconds, with_interval
from octavo.bench.report.parts import Chart, Document, Series, Sheet, Tile
from octavo.bench.report.serve import footer
from octavo.core.display import counted
from octavo.core.units import format_bytes


def document(report: Mapping[str, Any]) -> Document:
    """Of a report of ``octavo bench latency``."""
    points = [point for point in report["points"] if point["summary"]["ttft_s.p50"]]
    facts = [("Model", model_fact(report)), ("Machine", machine_fact(report))]
    if ceilings := ceilings_fact(report):
        facts.append(("At most", ceilings))
    settings = report["settings"]
    facts.append(
        (
            "Workload",
            f"one request at a time, random prompts, {counted(settings['output_len'], 'token')} out; "
            f"{counted(settings['repeats'], 'repeat')} of "
            f"{counted(settings['requests'], 'request')} at each length",
        )
    )
    return Document(
        title="octavo bench latency",
        headline=_headline(report, points),
        tiles=_tiles(report, points),
        facts=facts,
        command=report["command_line"],
        warnings=report["warnings"],
        charts=_charts(points) if points else [],
        sheets=[_sheet(points)] if points else [],
        footer=footer(report),
    )


def _headline(report: Mapping[str, Any], points: Sequence[Mapping[str, Any]]) -> str:
    model = report["target"]["model"]
    if not points:
        return f"{model}: " + ("no request was answered" if _has_repeats(report) else "nothing was measured")
    parts = [
        f"{seconds(point['summary']['ttft_s.p50']['mean'])} after a prompt of {point['prompt_len']:,}"
        for point in _ends(points)
    ]
    return f"{model}, one stream: the first token comes " + " and ".join(parts)


def _has_repeats(report: Mapping[str, Any]) -> bool:
    return any(point["repeats"] for point in report["points"])


def _tiles(report: Mapping[str, Any], points: Sequence[Mapping[str, Any]]) -> list[Tile]:
    tiles = []
    for point in _ends(points):
        summary, length = point["summary"], f"prompt of {point['prompt_len']:,}"
        tiles.append(Tile(f"First token, {length}", seconds(summary["ttft_s.p50"]["mean"]), "median"))
        if tpot := summary["tpot_s.p50"]:
            rate = f"{_rate(tpot)} tokens/s"
            tiles.append(Tile(f"Each token, {length}", seconds(tpot["mean"]), rate))
    if report["peak_rss_bytes"]:
        tiles.append(Tile("Peak memory", format_bytes(report["peak_rss_bytes"]), "of the process"))
    return tiles


def _rate(per_token: Mapping[str, Any] | None) -> str:
    mean = 0.0 if per_token is None else per_token["mean"]
    return figures(1 / mean) if mean > 0 else "-"


def _ends(points: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    return points if len(points) < 2 else [points[0], points[-1]]


def _charts(points: Sequence[Mapping[str, Any]]) -> list[Chart]:
    found = []
    for name, title in (("ttft_s", "Time to first token"), ("tpot_s", "Time per output token")):
        chosen = [point for point in points if point["summary"][f"{name}.p50"]]
        if not chosen:
            continue
        values = [point["summary"][f"{name}.p50"] for point in chosen]
        has_band = all(value["low"] is not None for value in values)
        series = Series(
            name[:4].upper(),
            [point["prompt_len"] for point in chosen],
            [value["mean"] * 1e3 for value in values],
            [max(0.0, value["low"] * 1e3) for value in values] if has_band else None,
            [value["high"] * 1e3 for value in values] if has_band else None,
        )
        found.append(
            Chart(
                name=name[:4],
                title=f"{title} by length of the prompt",
                caption="Medians; the band is the 95 % confidence interval over repeats.",
                x_label="prompt tokens",
                y_label="milliseconds",
                series=[series],
                log_x=len(chosen) > 2,
            )
        )
    return found


def _sheet(points: Sequence[Mapping[str, Any]]) -> Sheet:
    columns = [
        "prompt tokens",
        "TTFT (95 %)",
        "prompt tokens/s",
        "TPOT (95 %)",
        "output tokens/s",
        "TTFT p99",
    ]
    rows = []
    for point in points:
        summary = point["summary"]
        ttft, tpot = summary["ttft_s.p50"], summary["tpot_s.p50"]
        rows.append(
            [
                f"{point['prompt_len']:,}",
                with_interval(ttft, seconds),
                figures(point["prompt_len"] / ttft["mean"]),
                with_interval(tpot, seconds),
                _rate(tpot),
                seconds(summary["ttft_s.p99"]["mean"]),
            ]
        )
    return Sheet("By length of the prompt", columns, rows)
