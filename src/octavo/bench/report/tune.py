"""The report of ``octavo tune``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from octavo.bench.metrics.of_settings import METRICS
from octavo.bench.report.facts import ceilings_fact, machine_fact, workload_fact
from octavo.bench.report.numbers import figures
from octavo.bench.report.parts import Chart, Document, Series, Sheet, Tile
from octavo.bench.tuning.candidates import ALL, TUNED, Candidate
from octavo.core.display import counted

_METRIC: Final = {metric.name: metric for metric in METRICS}
# Name, title, left axis, right axis or none, metrics on each. All of these move with the block size; of those
# that move with the budgets alone there is the first.
_PLOTS: Final = (
    ("times", "Latency", "TTFT p50, milliseconds", "TPOT p50, milliseconds", "ttft_ms", "tpot_ms"),
    ("memory", "Most KV cache in use, and slots that no token filled", "MiB", "percent", "kv_peak_mib",
     "waste_percent"),
    ("hits", "Prompt tokens that the prefix cache had", "percent", "", "hit_percent", None),
)  # fmt: skip


def document(report: Mapping[str, Any]) -> Document:
    """Of a report of ``octavo tune``."""
    moved = [axis.name for axis in TUNED if len({each[axis.name] for each in _all_settings(report)}) > 1]
    moved = moved or [TUNED[0].name]
    drawn = moved if report["candidates"] else []
    facts = [("Model", _model(report)), ("Machine", machine_fact({**report, "target": {}}))]
    if ceilings := ceilings_fact(report):
        facts.append(("At most", ceilings))
    if report["workload"] is not None:
        facts.append(("Workload", workload_fact(report["workload"])))
    facts.append(("Better is", better_is(report)))
    facts.append(("Measured", measured(report)))
    scores = [_score_chart(report, name) for name in drawn]
    others = [chart for name in drawn for chart in _other_charts(report, name)]
    return Document(
        title="octavo tune",
        headline=headline(report),
        tiles=_tiles(report),
        facts=facts,
        command=report["command_line"],
        warnings=report["warnings"],
        charts=scores,
        more_charts=others,
        sheets=[_ratio_table(report, moved), _metric_table(report, moved)],
        footer=(
            f"Octavo {report['octavo']}, Python {report['machine']['python']}, "
            f"{report['machine']['system']}, {report['measured_at']}. Ratios are geometric means over "
            "rounds, with 95 % confidence intervals by Student's t on the logarithm. "
            f"Schema {report['schema_version']}."
        ),
    )


def headline(report: Mapping[str, Any]) -> str:
    """The recommendation in a sentence."""
    model = Path(report["settings"]["model"]).name
    verdict = report["verdict"]
    recommended = Candidate.from_dict(verdict["recommended"])
    base = Candidate.from_dict(report["baseline"])
    match verdict["outcome"]:
        case "better":
            return f"{model}: use {recommended}: {times(verdict['gain'])} as good as {base}"
        case "as good":
            chosen = Candidate.from_dict(verdict["chosen"])
            return (
                f"{model}: keep {base}; the best of the rest, {chosen}, is {times(verdict['gain'])} as good"
            )
        case "none better":
            return f"{model}: keep {base}; nothing that was tried comes near it"
        case "failed":
            return f"{model}: keep {base}; the best of the rest could not be measured to the end"
    return f"{model}: not settled yet; keep {base} until it is"


def better_is(report: Mapping[str, Any]) -> str:
    """What was asked for."""
    objective = report["objective"]
    slo = ", ".join(
        f"{name.removesuffix('_s')} up to {value:g} s" for name, value in objective["slo"].items()
    )
    return str(objective["means"]) + (f" ({slo})" if slo else "")


def measured(report: Mapping[str, Any]) -> str:
    """How much, and how."""
    rounds, confirming = len(report["rounds"]), report["confirming_rounds"]
    tried = max(0, len(report["candidates"]) - 1)
    how = (
        f"{counted(tried, 'candidate')} in {counted(rounds, 'round')} "
        f"({report['spent_s'] / 60:.1f} minutes), "
        "each with the baseline and with new requests, every run a new process"
    )
    if not confirming:
        return how
    decide = "decides" if confirming == 1 else "decide"
    return f"{how}; {confirming} of these rounds, in which only the best of the race ran, {decide}"


def times(found: Mapping[str, Any] | None) -> str:
    """``"1.07 times (1.03 to 1.12)"``."""
    return "-" if found is None else f"{_ratio(found)[0]} times" + _in_brackets(found)


def _ratio(found: Mapping[str, Any]) -> tuple[str, str]:
    """The ratio and its interval; "" if it has none."""
    if found["low"] is None:
        return f"{found['ratio']:.3f}", ""
    return f"{found['ratio']:.3f}", f"{found['low']:.3f} to {found['high']:.3f}"


def _in_brackets(found: Mapping[str, Any]) -> str:
    text = _ratio(found)[1]
    return f" ({text})" if text else ""


def _all_settings(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [report["baseline"], *(each["candidate"] for each in report["candidates"])]


def _model(report: Mapping[str, Any]) -> str:
    target = report["target"]
    name = Path(report["settings"]["model"]).name
    return name if target is None else f"{name}: {target['file']}, {target['precision']}, in process"


def _tiles(report: Mapping[str, Any]) -> list[Tile]:
    verdict = report["verdict"]
    use, base = verdict["recommended"], report["baseline"]
    tiles = []
    for axis in TUNED:
        if axis.name == "max_chunk_tokens" and use[axis.name] == base[axis.name] == ALL:
            continue
        label = axis.label[0].upper() + axis.label[1:]
        note = "as now" if use[axis.name] == base[axis.name] else f"now {base[axis.name]}"
        tiles.append(Tile(label, str(use[axis.name]), note))
    if verdict["gain"] is not None:
        ratio, between = _ratio(verdict["gain"])
        whose = "" if verdict["outcome"] == "better" else "of the best of the rest; "
        tiles.append(Tile("Ratio to the baseline", ratio, f"{whose}{between or 'one round, no interval'}"))
    described = _described(report, use)
    for name, label in (("output_tokens_per_s", "Output tokens per second"), ("kv_peak_mib", "Peak KV, MiB")):
        value = None if described is None else described["metrics"][name]
        if value is not None:
            before = _described(report, base)
            was = "" if before is None or use == base else f"now {figures(before['metrics'][name])}"
            tiles.append(Tile(label, figures(value), was))
    return tiles


def _described(report: Mapping[str, Any], settings: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((each for each in report["candidates"] if each["candidate"] == settings), None)


def _ratio_table(report: Mapping[str, Any], moved: Sequence[str]) -> Sheet:
    rows, raw = [], []
    for each in report["candidates"]:
        found = each["ratio"]
        ratio, between = ("-", "") if found is None else _ratio(found)
        numbers = ("", "", "") if found is None else (found["ratio"], found["low"], found["high"])
        told, state = _settings(each, moved), _state(report, each)
        if each["candidate"] == report["baseline"]:
            between = ""
        rows.append([*told, ratio, between, str(each["rounds"]), state])
        raw.append([*told, *numbers, each["rounds"], state])
    note = (
        "Ratio to the baseline over all rounds that a candidate was in, those of the race among them, which "
        "flatter the one that was chosen by them. The intervals here take the spread from round to round as "
        "the same for all candidates."
    )
    if report["verdict"]["gain"] is not None:
        chosen = Candidate.from_dict(report["verdict"]["chosen"])
        decided = counted(report["confirming_rounds"], "deciding round")
        note += (
            f" The verdict's ratio, of {chosen}, is over the {decided} alone: "
            f"{times(report['verdict']['gain'])}."
        )
    columns = [*_setting_columns(moved), "ratio", "95 %", "rounds", "state"]
    raw_columns = [*moved, "ratio", "low", "high", "rounds", "state"]
    return Sheet("Candidates", columns, rows, note, raw, raw_columns)


def _metric_table(report: Mapping[str, Any], moved: Sequence[str]) -> Sheet:
    raw = [[*_settings(each, moved), *each["metrics"].values()] for each in report["candidates"]]
    rows = [[*row[: len(moved)], *map(figures, row[len(moved) :])] for row in raw]
    note = "The baseline's mean over all rounds, plus the mean difference to it in the rounds that have both."
    columns = [*_setting_columns(moved), *(metric.column for metric in METRICS)]
    return Sheet("What each measured", columns, rows, note, raw, [*moved, *(m.name for m in METRICS)])


def _setting_columns(moved: Sequence[str]) -> list[str]:
    return [axis.column for axis in TUNED if axis.name in moved]


def _settings(each: Mapping[str, Any], moved: Sequence[str]) -> list[str]:
    return [str(each["candidate"][name]) for name in moved]


def _state(report: Mapping[str, Any], each: Mapping[str, Any]) -> str:
    verdict = report["verdict"]
    if each["candidate"] == report["baseline"]:
        return "baseline"
    if each["error"]:
        return "failed"
    if verdict["outcome"] == "better" and each["candidate"] == verdict["recommended"]:
        return "recommended"
    return "best of the rest" if each["candidate"] == verdict["chosen"] else "out"


def _along(report: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """The baseline and those that differ from it in one axis alone, in rising order; no limit comes last."""
    base = report["baseline"]
    others = [axis.name for axis in TUNED if axis.name != name]
    found = [e for e in report["candidates"] if all(e["candidate"][o] == base[o] for o in others)]
    return sorted(found, key=lambda each: _order(each["candidate"][name]))


def _order(value: object) -> tuple[int, int]:
    return (0, value) if isinstance(value, int) else (1, 0)


def _places(chosen: Sequence[Mapping[str, Any]], name: str) -> tuple[list[float], list[str]]:
    """Where they are on the axis, and names of the places if they are no numbers."""
    values = [each["candidate"][name] for each in chosen]
    if all(isinstance(value, int) for value in values):
        return values, []
    return list(range(len(values))), [str(value) for value in values]


def _chart(name: str, kind: str, title: str, places: Sequence[str], **others: Any) -> Chart:
    axis = next(axis for axis in TUNED if axis.name == name)
    return Chart(
        name=f"{name}_{kind}",
        title=f"{title} by {axis.label}",
        x_label=axis.label,
        x_ticks=places,
        log_x=not places,
        **others,
    )


def _score_chart(report: Mapping[str, Any], name: str) -> Chart:
    chosen = [each for each in _along(report, name) if each["ratio"] is not None]
    x, places = _places(chosen, name)
    ratios = [each["ratio"] for each in chosen]
    middle = [found["ratio"] for found in ratios]
    low, high = ([f["ratio"] if f[side] is None else f[side] for f in ratios] for side in ("low", "high"))
    return _chart(
        name,
        "score",
        "Ratio to the baseline",
        places,
        caption="With 95 % intervals, over the rounds each was in; the other settings as in the baseline.",
        y_label="ratio, more is better",
        series=[Series("candidates", x, middle, low, high, bars=True), Series("baseline", x, [1.0] * len(x))],
        from_zero=False,
    )


def _other_charts(report: Mapping[str, Any], name: str) -> list[Chart]:
    found = []
    for kind, title, left, right, *metrics in _PLOTS if name == "block_size" else _PLOTS[:1]:
        series = []
        chosen = [each for each in _along(report, name) if each["ratio"] is not None]
        x, places = _places(chosen, name)
        for side, metric in enumerate(metrics):
            if metric is None:
                continue
            pairs = [(a, each["metrics"][metric]) for a, each in zip(x, chosen, strict=True)]
            known = [(a, b) for a, b in pairs if b is not None]
            if known:
                series.append(
                    Series(
                        _METRIC[metric].label,
                        [a for a, _ in known],
                        [b for _, b in known],
                        right=side == 1,
                    )
                )
        if series:
            caption = "Means; what is not measured in all rounds is set right by the baseline's difference."
            found.append(
                _chart(
                    name,
                    kind,
                    title,
                    places,
                    caption=caption,
                    y_label=left,
                    right_label=right,
                    series=series,
                )
            )
    return found
