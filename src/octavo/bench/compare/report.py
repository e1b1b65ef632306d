"""The report of a comparison: facts, a table for each task, plots."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from octavo.bench.compare.judging import is_open, who_kept_up
from octavo.bench.compare.ratios import GOODPUT, METRICS, is_whole, metric_of
from octavo.bench.compare.verdict import has_ratio, headline, mean_of, tiles
from octavo.bench.compare.wording import NAMES, cell, found_of, value
from octavo.bench.load.arrivals import ArrivalPlan
from octavo.bench.report.facts import ceilings_fact, objective_fact, processor_fact, workload_fact
from octavo.bench.report.numbers import figures, seconds
from octavo.bench.report.parts import Chart, Document, Series, Sheet
from octavo.core.units import format_bytes

_MOST_LINES: Final = 6  # that a plot can tell apart


def document(report: Mapping[str, Any]) -> Document:
    """Of a report of ``octavo bench compare``."""
    comparisons, rounds = report["comparisons"], report["settings"]["rounds"]
    return Document(
        title=f"octavo bench {report['command']}",
        headline=headline(comparisons, rounds, interrupted=report["interrupted"]),
        tiles=tiles(comparisons, rounds),
        facts=_facts(report),
        command=report["command_line"],
        warnings=report["warnings"],
        sheets=[sheet for sheet in _sheets(comparisons, rounds) if sheet.rows],
        more_charts=[chart for each in comparisons if (chart := _chart(each)) is not None],
        footer=(
            f"Octavo {report['octavo']}, Python {report['machine']['python']}, "
            f"{report['machine']['system']}, {report['measured_at']}. Latencies count from the moment "
            "at which a request was due. Intervals are 95 % confidence intervals of what two have in one "
            "round, by Student's t (of a ratio, on its logarithm). "
            f"Schema {report['schema_version']}."
        ),
    )


def contestant_fact(comparisons: Sequence[Mapping[str, Any]], name: str) -> str:
    """Where it is, version, precision, settings, how it was made equal, start and memory."""
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
    parts = [
        first["url"] or "",
        f"model {first['told']['model']}" if first["url"] and "model" in first["told"] else "",
        first["version"] or first["told"].get("server") or "",
        first["precision"] or first["told"].get("precision") or _untold(first),
        settings.strip(", "),
        first["note"],
        *_cost([side for _, side in tasks]),
    ]
    return "; ".join(part for part in parts if part)


def _untold(side: Mapping[str, Any]) -> str:
    if not side["ran_before"]:
        return "precision not told"
    return f"precision not told (--label {side['name']}=TEXT names it)"


def _cost(sides: Sequence[Mapping[str, Any]]) -> list[str]:
    """What it takes beside time."""
    starts = [start for side in sides for start in side["starts_s"]]
    peaks = [side["peak_rss_bytes"] for side in sides if side["peak_rss_bytes"]]
    found = []
    if starts:
        found.append(f"first answer {seconds(min(starts))} after the start")
    if peaks:
        low, high = format_bytes(min(peaks)), format_bytes(max(peaks))
        found.append(f"peak memory {low}" + ("" if low == high else f" to {high}"))
    return found


def _facts(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    comparisons = report["comparisons"]
    facts = [fact for each in comparisons for fact in _task_facts(each)]
    if limits := report["settings"]["slo"]:
        facts.append(("Objective", objective_fact(limits)))
    if report.get("model"):
        facts.append(("Model", report["model"]))
    facts += [(name, contestant_fact(comparisons, name)) for name in _names(comparisons)]
    facts.append(("Rounds", _rounds_fact(report)))
    facts.append(("Machine", processor_fact(report["machine"])))
    if report["ceilings"] is not None and (ceilings := ceilings_fact(report)):
        facts.append(("At most", f"{ceilings} (medians of {report['ceilings']['measurements']}, same run)"))
    return facts


def _task_facts(comparison: Mapping[str, Any]) -> list[tuple[str, str]]:
    if comparison["task"]:
        return [(f"Scene {comparison['task']}", comparison["description"])]
    workload = comparison["workload"]
    options = ("rate", "burstiness", "concurrency")
    plan = ArrivalPlan(kind=workload["arrivals"], **{n: workload[n] for n in options if n in workload})
    facts = [("Workload", f"{workload_fact(workload)}; {plan}")]
    return [*facts, ("Kept up", _kept_up(comparison))] if is_open(workload["arrivals"]) else facts


def _kept_up(comparison: Mapping[str, Any]) -> str:
    """Who did, and that rates then say nothing of the engines."""
    sides = comparison["sides"]
    did, did_not = (who_kept_up(sides, did=each) for each in (True, False))
    if not (did or did_not):
        return "not known: no round was complete"
    rates = [each["requests_due_per_s"] for side in sides for each in side["rounds"] if is_whole(each)]
    rate, drawn_for = max(filter(None, rates), default=None), comparison["workload"].get("rate")
    came = f"with {figures(rate)} requests/s"
    if rate and drawn_for and figures(rate) != figures(drawn_for):
        came += f", drawn for {drawn_for:g}"
    if did_not:
        others = f"; {' and '.join(did)} did" if did else ""
        return f"{' and '.join(did_not)} did not, {came}{others}. tokens/s of who did follow the arrivals"
    who = ("both" if len(sides) == 2 else "all") if len(did) == len(sides) else " and ".join(did)
    return f"{who} did, {came}: tokens/s follow the arrivals, not the engine, so latencies are compared"


def _rounds_fact(report: Mapping[str, Any]) -> str:
    """How many, and what each gets."""
    own = any(each["workload"]["contents"] == "own" for each in report["comparisons"])
    same = "requests of the same lengths, with contents of their own" if own else "the same requests"
    return f"{report['settings']['rounds']}; in each, one after the other gets {same}"


def _sheets(comparisons: Sequence[Mapping[str, Any]], rounds: int) -> list[Sheet]:
    found = [task_sheet(each, rounds) for each in comparisons]
    return [scenes_sheet(comparisons, rounds), *found] if len(comparisons) > 1 else found


def task_sheet(comparison: Mapping[str, Any], rounds: int) -> Sheet:
    """A row for each metric; a column for each contestant, and how the first compares with it."""
    first, *others = comparison["sides"]
    judged = comparison["judged_by"]
    known = [m for m in (*judged, *NAMES) if any(m in side["means"] for side in comparison["sides"])]
    rows = []
    for metric in dict.fromkeys(known):
        row = [NAMES[metric], value(metric, mean_of(comparison, first, metric))]
        for side in others:
            found = found_of(side, metric) if has_ratio(comparison, metric) else None
            row += [value(metric, mean_of(comparison, side, metric)), cell(metric, found, rounds)]
        rows.append(row)
    columns = ["", first["name"]]
    for side in others:
        columns += [side["name"], f"against {side['name']}"]
    title = (
        f"Scene {comparison['task']}: {comparison['description']}" if comparison["task"] else "All metrics"
    )
    return Sheet(title, columns, rows, _note(first["name"]) if others else "Means over the rounds.")


def scenes_sheet(comparisons: Sequence[Mapping[str, Any]], rounds: int) -> Sheet:
    """What decides each scene: a row for each contestant."""
    first = comparisons[0]["sides"][0]["name"] if comparisons and comparisons[0]["sides"] else ""
    columns, rows = [""], [[name] for name in _names(comparisons)]
    for each in comparisons:
        metric = each["judged_by"][0]
        columns += [f"{each['task']}, {NAMES[metric]}", "against it"]
        for row in rows:
            side = _side(each, row[0])
            found = None if side is None else found_of(side, metric)
            row += [
                value(metric, None if side is None else mean_of(each, side, metric)),
                "" if row[0] == first else cell(metric, found, rounds),
            ]
    return Sheet("All scenes", columns, rows, _note(first))


def _note(first: str) -> str:
    return (
        f"Means over the rounds compared. Above 1 x {first} is better (more of a rate, less of a time), "
        "below worse; in brackets the 95 % interval. -: cannot be compared; (-): no interval that "
        "says anything."
    )


def _chart(comparison: Mapping[str, Any]) -> Chart | None:
    """The metric that decides, in each round; nothing if there is one round only."""
    metric = next(m for m in comparison["judged_by"] if m != GOODPUT)
    first, *others = comparison["sides"]
    is_time = METRICS[metric] == "less"
    others.sort(key=lambda side: mean_of(comparison, side, metric) or 0.0, reverse=not is_time)
    series, scale = [], 1e3 if is_time else 1.0
    for side in (first, *others[: _MOST_LINES - 1]):
        points = [(i, v * scale) for i, each in enumerate(side["rounds"]) if (v := metric_of(each, metric))]
        if points:
            series.append(Series(side["name"], [x for x, _ in points], [y for _, y in points]))
    most = max((len(side["rounds"]) for side in comparison["sides"]), default=0)
    if not series or most < 2:
        return None
    rest = len(others) - _MOST_LINES + 1
    left_out = f" The {rest} slowest are left out." if rest > 0 else ""
    task = comparison["task"]
    return Chart(
        name=f"rounds{'-' if task else ''}{task}",
        title=f"Scene {task}: {comparison['description']}" if task else f"{NAMES[metric]} in each round",
        caption=f"Each round on its own: what moves all lines alike is the machine.{left_out}",
        x_label="round",
        y_label=NAMES[metric] + (", ms" if is_time else ""),
        series=series,
        x_ticks=[str(i + 1) for i in range(most)],
    )


def _names(comparisons: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(side["name"] for each in comparisons for side in each["sides"]))


def _side(comparison: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    return next((side for side in comparison["sides"] if side["name"] == name), None)
