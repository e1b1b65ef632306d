"""The report of a sweep."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from octavo.bench.metrics.of_settings import METRICS, interval_of, value_of
from octavo.bench.report.facts import ceilings_fact, machine_fact
from octavo.bench.report.numbers import figures, percent, seconds
from octavo.bench.report.parts import Chart, Document, Series, Sheet, Tile
from octavo.bench.report.serve import footer
from octavo.bench.sweep.grid import AXES, AXIS, shown
from octavo.core.display import counted
from octavo.core.units import format_bytes

_MIB: Final = 1 << 20


_METRIC: Final = {metric.name: metric for metric in METRICS}
# Name, title, unit, metric.
_PLOTS: Final = (
    ("ttft", "Time to first token", "milliseconds", "ttft_ms"),
    ("tpot", "Time per output token", "milliseconds", "tpot_ms"),
    ("throughput", "Throughput", "output tokens/s", "output_tokens_per_s"),
    ("memory", "Peak memory of the process", "MiB", "peak_rss_mib"),
    ("kv", "Most KV cache in use", "MiB", "kv_peak_mib"),
    ("waste", "KV slots that no token filled", "percent", "waste_percent"),
)
# Whose values have lines of their own, the first of these that moves: it matters most.
_LINES: Final = ("concurrency", "context", "kv_dtype", "block_size", "shared_prefix", "max_step_tokens")
_MOST_LINES: Final = 6
# Metrics whose 95 % intervals are in the files of tables.
_WITH_INTERVAL: Final = ("output_tokens_per_s", "ttft_ms", "tpot_ms")


def document(report: Mapping[str, Any]) -> Document:
    """Of a report of ``octavo bench sweep``."""
    points = [point for point in report["points"] if point.get("error") is None]
    moved = [axis.name for axis in AXES if len({point["point"][axis.name] for point in points}) > 1]
    settings = report["settings"]
    fixed = [axis.name for axis in AXES if axis.name not in moved]
    facts = [("Model", _model(report, points)), ("Machine", machine_fact({**report, "target": {}}))]
    if ceilings := ceilings_fact(report):
        facts.append(("At most", ceilings))
    facts.append(("Moved", ", ".join(f"{AXIS[n].label} {_range(points, n)}" for n in moved) or "nothing"))
    if points:
        facts.append(("Fixed", shown(points[0]["point"], fixed)))
    facts.append(
        (
            "Workload",
            f"closed loop, {counted(settings['requests_per_user'], 'request')} per user, "
            f"{counted(settings['output_len'], 'token')} out, {counted(settings['repeats'], 'repeat')}; "
            "each point in a process of its own",
        )
    )
    return Document(
        title="octavo bench sweep",
        headline=_headline(report, points, moved),
        tiles=_tiles(points, moved),
        facts=facts,
        command=report["command_line"],
        warnings=report["warnings"],
        charts=[chart for name in moved for chart in _charts(points, name, moved)],
        sheets=[table(points, moved), *(by_axis(points, name, moved) for name in moved if len(moved) > 1)],
        footer=footer(report),
    )


def table(points: Sequence[Mapping[str, Any]], moved: Sequence[str]) -> Sheet:
    """All points."""
    names = list(moved) or [AXES[0].name]
    columns = [*(AXIS[name].column for name in names), *(metric.column for metric in METRICS)]
    rows = [[*(str(point["point"][name]) for name in names), *_figures(point)] for point in points]
    raw = [_raw(point, names) for point in points]
    note = "Means over the repeats of each point."
    return Sheet("All points", columns, rows, note, raw, _raw_columns(names))


def by_axis(points: Sequence[Mapping[str, Any]], name: str, moved: Sequence[str]) -> Sheet:
    """How the metrics move with one axis, the others at their first values."""
    chosen = _slice(points, name, moved)
    rows = [[str(point["point"][name]), *_figures(point)] for point in chosen]
    others = [other for other in moved if other != name]
    note = f"With {shown(chosen[0]['point'], others)} alone." if others else ""
    columns = [AXIS[name].column, *(metric.column for metric in METRICS)]
    raw = [_raw(point, [name, *others]) for point in chosen]
    return Sheet(f"By {AXIS[name].label}", columns, rows, note, raw, _raw_columns([name, *others]))


def _figures(point: Mapping[str, Any]) -> list[str]:
    return [figures(value_of(point, metric)) for metric in METRICS]


def _raw(point: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    """A row for a file: the settings that are named, the metrics, and how sure they are."""
    ends = [end for name in _WITH_INTERVAL for end in interval_of(point, _METRIC[name]) or (None, None)]
    repeats = max((found["repeats"] for found in point["summary"].values() if found), default=0)
    values = [value_of(point, metric) for metric in METRICS]
    return [*(point["point"][name] for name in names), *values, *ends, repeats, point["failed_requests"]]


def _raw_columns(names: Sequence[str]) -> list[str]:
    ends = [f"{name}_{end}" for name in _WITH_INTERVAL for end in ("low", "high")]
    return [*names, *(metric.name for metric in METRICS), *ends, "repeats", "failed_requests"]


def write_csv(made: Document, directory: Path) -> None:
    """Write the tables: ``points.csv``, and ``by_AXIS.csv`` for each axis that moved."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, sheet in enumerate(made.sheets):
        name = "points" if number == 0 else f"by_{sheet.raw_columns[0]}"
        with (directory / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(sheet.raw_columns)
            writer.writerows(sheet.raw or sheet.rows)


def _charts(points: Sequence[Mapping[str, Any]], name: str, moved: Sequence[str]) -> list[Chart]:
    """How each metric moves with one axis: a line for each value of another, the rest at its first values."""
    lines = next((other for other in _LINES if other in moved and other != name), None)
    slices = {"": _slice(points, name, moved)}
    if lines is not None:
        phrase = AXIS[lines].phrase
        ways = dict.fromkeys(point["point"][lines] for point in points)
        slices = {phrase.format(way): _slice(points, name, moved, {lines: way}) for way in ways}
        slices = {label: chosen for label, chosen in slices.items() if len(chosen) > 1}
    values = sorted({point["point"][name] for point in points}, key=_order)
    is_number = all(isinstance(value, int) for value in values)
    rest = [other for other in moved if other not in (name, lines)]
    caption = f"With {shown(points[0]['point'], rest)}." if rest else ""
    found = []
    for kind, title, unit, metric_name in _PLOTS:
        series = []
        for label, chosen in list(slices.items())[:_MOST_LINES]:
            pairs = [(p["point"][name], value_of(p, _METRIC[metric_name])) for p in chosen]
            places = [x if is_number else values.index(x) for x, y in pairs if y is not None]
            if places:
                series.append(Series(label, places, [y for _, y in pairs if y is not None]))
        if series:
            found.append(
                Chart(
                    name=f"{name}_{kind}",
                    title=f"{title} by {AXIS[name].label}",
                    caption=caption,
                    x_label=AXIS[name].label,
                    y_label=unit,
                    series=series,
                    x_ticks=() if is_number else [str(value) for value in values],
                    log_x=is_number and min(values) > 0 and max(values) >= 4 * min(values),
                )
            )
    return found


def _slice(
    points: Sequence[Mapping[str, Any]],
    name: str,
    moved: Sequence[str],
    fixed: Mapping[str, object] | None = None,
) -> Sequence[Mapping[str, Any]]:
    """Points along an axis with the others as ``fixed`` or as in the first point, in rising order."""
    wanted = {**{other: points[0]["point"][other] for other in moved}, **(fixed or {})}
    found = [p for p in points if all(p["point"][n] == wanted[n] for n in moved if n != name)]
    return sorted(found, key=lambda point: _order(point["point"][name]))


def _order(value: object) -> tuple[int, str]:
    """Numbers by size, names by the alphabet."""
    return (value, "") if isinstance(value, int) else (0, str(value))


def _range(points: Sequence[Mapping[str, Any]], name: str) -> str:
    values = dict.fromkeys(point["point"][name] for point in points)
    return "/".join(map(str, values))


def _headline(report: Mapping[str, Any], points: Sequence[Mapping[str, Any]], moved: Sequence[str]) -> str:
    model = Path(report["settings"]["model"]).name
    best = _best(points, "output_tokens_per_s", max)
    if best is None:
        failed = len(report["points"])
        which = "its only point" if failed == 1 else f"all {failed} points"
        return f"{model}: {which} failed" if failed else f"{model}: no point was measured"
    where = f" with {shown(best['point'], moved)}" if moved else ""
    rate = value_of(best, _METRIC["output_tokens_per_s"])
    told = f"{model} gives up to {figures(rate)} output tokens/s{where}"
    if len(points) == 1:
        return told
    if interval_of(best, _METRIC["output_tokens_per_s"]) is None:
        return f"{told}; without intervals, others may be as good"
    number = _rivals(points, best, "output_tokens_per_s")
    if not number:
        return told
    return f"{told}; {counted(number, 'other point')} may be as good: the intervals overlap"


def _tiles(points: Sequence[Mapping[str, Any]], moved: Sequence[str]) -> list[Tile]:
    tiles = []
    for name, label, choose, show in (
        ("output_tokens_per_s", "Most output tokens per second", max, figures),
        ("ttft_ms", "Least time to first token", min, _ms),
        ("tpot_ms", "Least time per output token", min, _ms),
        ("peak_rss_mib", "Least peak memory", min, _mib),
        ("waste_percent", "Least waste of KV slots", min, _percent),
    ):
        best = _best(points, name, choose)
        if best is not None:
            value = value_of(best, _METRIC[name])
            doubt = "; others may be as good" if _rivals(points, best, name) else ""
            tiles.append(Tile(label, show(value), shown(best["point"], moved) + doubt))
    return tiles


def _best(points: Sequence[Mapping[str, Any]], name: str, choose: Any) -> Mapping[str, Any] | None:
    having = [point for point in points if value_of(point, _METRIC[name]) is not None]
    found: Mapping[str, Any] | None = choose(
        having, key=lambda point: value_of(point, _METRIC[name]), default=None
    )
    return found


def _rivals(points: Sequence[Mapping[str, Any]], best: Mapping[str, Any], name: str) -> int:
    """How many others have an interval that overlaps that of the best."""
    ours = interval_of(best, _METRIC[name])
    theirs = [interval_of(point, _METRIC[name]) for point in points if point is not best]
    if ours is None:
        return 0
    return sum(found is not None and found[0] <= ours[1] and ours[0] <= found[1] for found in theirs)


def _model(report: Mapping[str, Any], points: Sequence[Mapping[str, Any]]) -> str:
    name = Path(report["settings"]["model"]).name
    if not points:
        return name
    target = points[0]["target"]
    weights = target["precision"].partition(" weights")[0]
    return f"{name}: {target['file']}, {weights} weights, {format_bytes(target['weight_bytes'])}, in process"


def _ms(value: float | None) -> str:
    return seconds(None if value is None else value / 1e3)


def _mib(value: float | None) -> str:
    return "-" if value is None else format_bytes(value * _MIB)


def _percent(value: float | None) -> str:
    return percent(None if value is None else value / 100)
