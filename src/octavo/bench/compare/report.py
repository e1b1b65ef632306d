"""The report of a comparison: tables, plots, and the sentence that says who is faster."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from octavo.bench.compare.ratios import METRICS, metric_of
from octavo.bench.report.facts import ceilings_fact, workload_fact
from octavo.bench.report.numbers import figures, seconds
from octavo.bench.report.parts import Chart, Document, Series, Sheet, Tile
from octavo.core.units import format_bytes

_NAMES: Final = {
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
    "goodput.requests_per_s": "goodput/s",
}
_TELLING: Final = (
    "output_tokens_per_s",
    "prompt_tokens_per_s",
    "ttft_s.p50",
    "tpot_s.p50",
    "itl_s.p99",
    "itl_s.max",
    "e2e_s.p99",
)
_MOST_LINES: Final = 6  # that a plot can tell apart


def document(report: Mapping[str, Any]) -> Document:
    """Of a report of ``octavo bench compare``."""
    comparisons = report["comparisons"]
    facts = [("Machine", _machine(report))]
    if report["ceilings"] is not None and (ceilings := ceilings_fact(report)):
        facts.append(("At most", f"{ceilings} (medians of {report['ceilings']['measurements']}, same run)"))
    if report.get("model"):
        facts.append(("Model", report["model"]))
    facts += map(_task_fact, comparisons)
    facts.append(("Rounds", _rounds_fact(report)))
    facts += [(name, contestant_fact(comparisons, name)) for name in _names(comparisons)]
    sheets = [rate_sheet(comparisons), ratio_sheet(comparisons)]
    for each in comparisons:
        sheets += [metric_sheet(each), metric_ratio_sheet(each)]
    return Document(
        title=f"octavo bench {report['command']}",
        headline=_headline(comparisons),
        tiles=_tiles(comparisons),
        facts=facts,
        command=report["command_line"],
        warnings=report["warnings"],
        charts=[chart for each in comparisons if (chart := _chart(each)) is not None],
        sheets=[sheet for sheet in sheets if sheet.rows],
        footer=(
            f"Octavo {report['octavo']}, Python {report['machine']['python']}, "
            f"{report['machine']['system']}, {report['measured_at']}. Intervals are 95 % confidence "
            "intervals by Student's t: of the mean over rounds, and of the ratio within a round (on its "
            f"logarithm). Schema {report['schema_version']}."
        ),
    )


def rate_sheet(comparisons: Sequence[Mapping[str, Any]]) -> Sheet:
    """Tokens per second: a row for each contestant, a column for each task."""
    columns = ["", *(_column(each) for each in comparisons), "start", "peak memory"]
    rows, raw = [], []
    for name in _names(comparisons):
        sides = [_side(each, name) for each in comparisons]
        values = [_mean(side, each["rate"]) for side, each in zip(sides, comparisons, strict=True)]
        starts = [start for side in sides if side for start in side["starts_s"]]
        peaks = [side["peak_rss_bytes"] for side in sides if side and side["peak_rss_bytes"]]
        shown_peak = "-"
        if peaks:
            low, high = format_bytes(min(peaks)), format_bytes(max(peaks))
            shown_peak = low if low == high else f"{low} to {high}"
        start = min(starts, default=None)
        rows.append([name, *map(figures, values), seconds(start), shown_peak])
        raw.append([name, *values, start, max(peaks, default=None)])
    note = "Means over the rounds. Start: until the first answer. Memory: peaks of all its processes, summed."
    return Sheet("Tokens per second", columns, rows, note, raw)


def ratio_sheet(comparisons: Sequence[Mapping[str, Any]]) -> Sheet:
    """How many times faster the first is than each other."""
    first = comparisons[0]["sides"][0]["name"] if comparisons and comparisons[0]["sides"] else ""
    rows, raw = [], []
    for name in _names(comparisons):
        row: list[str] = [name]
        numbers: list[object] = [name]
        for each in comparisons:
            side = _side(each, name)
            found = None if side is None else side.get("ratios", {}).get(each["rate"])
            row.append(_times(found))
            numbers.append("" if found is None else found["ratio"])
        if any(cell != "-" for cell in row[1:]):
            rows.append(row)
            raw.append(numbers)
    note = "Above 1: the first is faster; below 1: slower. Pairs of runs in the same round, 95 % intervals."
    return Sheet(f"{first} is so many times as fast as", ["", *map(_column, comparisons)], rows, note, raw)


def contestant_fact(comparisons: Sequence[Mapping[str, Any]], name: str) -> str:
    """Version, precision, settings, and how it was made equal."""
    tasks = [(each["task"], side) for each in comparisons if (side := _side(each, name))]
    first = tasks[0][1]
    chosen = [(task, side["settings"].split(", ")) for task, side in tasks]
    common = [part for part in chosen[0][1] if all(part in parts for _, parts in chosen)]
    settings = ", ".join(common)
    by_rest: dict[str, list[str]] = {}
    for task, parts in chosen:
        by_rest.setdefault(", ".join(part for part in parts if part not in common), []).append(task)
    for rest, where in by_rest.items():
        if rest:
            settings += f", {rest} ({', '.join(where)})"
    version = first["version"] or first["told"].get("server") or "version not told"
    parts = [version, first["precision"] or "precision not told", settings.strip(", "), first["note"]]
    return "; ".join(part for part in parts if part)


def metric_sheet(comparison: Mapping[str, Any]) -> Sheet:
    """All metrics of a task."""
    metrics = [m for m in METRICS if any(m in side["means"] for side in comparison["sides"])]
    rows, raw = [], []
    for side in comparison["sides"]:
        means = [_mean(side, metric) for metric in metrics]
        rows.append([side["name"], *(_shown(m, mean) for m, mean in zip(metrics, means, strict=True))])
        raw.append([side["name"], *means])
    columns = ["", *(_NAMES[metric] for metric in metrics)]
    title = _title(comparison) or "All metrics"
    return Sheet(title, columns, rows if metrics else [], "Means over the rounds.", raw, ["name", *metrics])


def metric_ratio_sheet(comparison: Mapping[str, Any]) -> Sheet:
    """How many times better the first is, by the metrics that say most."""
    first, *others = comparison["sides"]
    metrics = [m for m in _TELLING if any(m in side["ratios"] for side in others)]
    rows, raw = [], []
    for side in others:
        found = [side["ratios"].get(metric) for metric in metrics]
        if any(found):
            rows.append([side["name"], *map(_times, found)])
            raw.append([side["name"], *(None if each is None else each["ratio"] for each in found)])
    where = f"Scene {comparison['task']}: " if comparison["task"] else ""
    title = f"{where}{first['name']} is so many times better than"
    columns = ["", *(_NAMES[metric] for metric in metrics)]
    return Sheet(title, columns, rows, "More of a rate, or less of a time.", raw, ["name", *metrics])


def _headline(comparisons: Sequence[Mapping[str, Any]]) -> str:
    """Against the fastest other in each task: a win over the slowest says little."""
    parts = []
    first = ""
    for each in comparisons:
        first = each["sides"][0]["name"]
        known = [side for side in each["sides"][1:] if each["rate"] in side.get("ratios", {})]
        rivals = [side for side in known if not _is_ours(side)] or known
        if not rivals:
            continue
        ratios = {side["name"]: side["ratios"][each["rate"]]["ratio"] for side in rivals}
        fastest = min(ratios, key=lambda name, ratios=ratios: ratios[name])  # type: ignore[misc]
        where = f" in scene {each['task']}" if each["task"] else ""
        parts.append(f"{figures(ratios[fastest])} times as fast as {fastest}{where}")
    if not parts:
        return "No rates could be compared; the warnings say why"
    return f"{first}, beside the fastest other: " + ", ".join(parts)


def _tiles(comparisons: Sequence[Mapping[str, Any]]) -> list[Tile]:
    tiles = []
    for each in comparisons:
        first = each["sides"][0]
        mean = _mean(first, each["rate"])
        others = [
            (value, side["name"])
            for side in each["sides"][1:]
            if not _is_ours(side) and (value := _mean(side, each["rate"])) is not None
        ]
        note = f"{_NAMES[each['rate']]}"
        if others:
            value, name = max(others)
            note += f"; next {figures(value)}, {name}"
        tiles.append(Tile(_title(each) or first["name"], figures(mean), note))
    return tiles


def _chart(comparison: Mapping[str, Any]) -> Chart | None:
    rate = comparison["rate"]
    first, *others = comparison["sides"]
    others.sort(key=lambda side: _mean(side, rate) or 0.0, reverse=True)
    series = []
    for side in (first, *others[: _MOST_LINES - 1]):
        points = [(i, v) for i, each in enumerate(side["rounds"]) if (v := metric_of(each, rate))]
        if points:
            series.append(Series(side["name"], [x for x, _ in points], [y for _, y in points]))
    if not series:
        return None
    rest = len(others) - _MOST_LINES + 1
    left_out = f" The {rest} slowest are left out." if rest > 0 else ""
    return Chart(
        name=f"rounds{'-' if comparison['task'] else ''}{comparison['task']}",
        title=_title(comparison) or "Rates in each round",
        caption=f"Each round on its own: what moves all lines alike is the machine.{left_out}",
        x_label="round",
        y_label=_NAMES[rate],
        series=series,
        x_ticks=[str(i + 1) for i in range(max(len(side["rounds"]) for side in comparison["sides"]))],
    )


def _task_fact(comparison: Mapping[str, Any]) -> tuple[str, str]:
    if comparison["task"]:
        return f"Scene {comparison['task']}", comparison["description"]
    return "Workload", workload_fact(comparison["workload"])


def _rounds_fact(report: Mapping[str, Any]) -> str:
    """How many, what each gets, and who had which turn."""
    text = f"{report['settings']['rounds']}; in each, all have new requests in turn"
    if not report["comparisons"]:
        return text
    first = report["comparisons"][0]
    own = first["workload"]["contents"] == "own"
    text += ", of the same lengths, with contents of their own" if own else ", the same for all"
    if not first["order"]:
        return text
    names = [side["name"] for side in first["sides"]]
    orders = [" ".join(str(names.index(name) + 1) for name in turns) for turns in first["order"]]
    return f"{text}; order, by rows of the tables: {', '.join(orders)}"


def _shown(metric: str, value: float | None) -> str:
    return figures(value) if METRICS[metric] == "more" else seconds(value)


def _machine(report: Mapping[str, Any]) -> str:
    machine = report["machine"]
    return f"{machine['cpu']}, {machine['threads']} of {machine['cores']} cores, {machine['isa']}"


def _title(comparison: Mapping[str, Any]) -> str:
    task = comparison["task"]
    return f"Scene {task}: {comparison['description']}" if task else str(comparison["description"])


def _column(comparison: Mapping[str, Any]) -> str:
    rate = _NAMES[comparison["rate"]]
    return f"{comparison['task']}, {rate}" if comparison["task"] else rate


def _names(comparisons: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(side["name"] for each in comparisons for side in each["sides"]))


def _side(comparison: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    return next((side for side in comparison["sides"] if side["name"] == name), None)


def _mean(side: Mapping[str, Any] | None, metric: str) -> float | None:
    if side is None:
        return None
    found: float | None = (side["means"].get(metric) or {}).get("mean")
    return found


def _times(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "-"
    text = f"{figures(found['ratio'])} x"
    if found["low"] is not None:
        text += f" ({figures(found['low'])} to {figures(found['high'])})"
    return text


def _is_ours(side: Mapping[str, Any]) -> bool:
    return str(side["name"]).startswith("octavo ")
