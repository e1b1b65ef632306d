"""Who is better: the sentence and the numbers that a report of a comparison begins with."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from octavo.bench.compare.failures import stop_of, trouble_of
from octavo.bench.compare.judging import LATENCIES, is_open
from octavo.bench.compare.ratios import GOODPUT, pairs
from octavo.bench.compare.wording import (
    NAMES,
    advantage,
    amount,
    extent,
    found_of,
    value,
    verdict,
)
from octavo.bench.metrics.summary import over_repeats
from octavo.bench.report.parts import Tile

Side = Mapping[str, Any]
_IN_HEADLINE: Final = 2
_ALSO: Final = ("output_tokens_per_s", *LATENCIES)


def headline(comparisons: Sequence[Mapping[str, Any]], rounds: int, *, interrupted: bool = False) -> str:
    """Who failed, and the first against the best other in each task: a win over the slowest says little."""
    say = _sentence if len(comparisons) == 1 else _of_scene
    parts = [say(each, rival, rounds) for each in comparisons if (rival := rival_of(each)) is not None]
    trouble = ", ".join(text for each in comparisons for text in trouble_of(each, rounds))
    if not parts and interrupted:
        return "Nothing could be compared: it was interrupted"
    if not parts:
        failed = [side for each in comparisons for side in each["sides"] if side["failure"]]
        why = f"{failed[0]['name']} {failed[0]['failure']}" if failed else trouble or "the warnings say why"
        return f"Nothing could be compared: {why}"
    begin = f"{trouble}. " if trouble else ""
    if len(comparisons) > 1:
        return f"{begin}{comparisons[0]['sides'][0]['name']} against the best other: {', '.join(parts)}"
    return begin + parts[0]


def tiles(comparisons: Sequence[Mapping[str, Any]], rounds: int) -> list[Tile]:
    """Of one task its metrics, of several the first of each. No two stand there that cannot be compared."""
    found = []
    for each in comparisons:
        rival = rival_of(each)
        if rival is None:
            continue
        metrics = _metrics(each, rival)
        if stopped := _stopped(each, rival, rounds):
            found += stopped
            # Ratios of the rounds before would look as if nothing had happened.
            if found_of(rival, GOODPUT):
                found.append(_tile(each, rival, GOODPUT, NAMES[GOODPUT], rounds))
        elif len(comparisons) == 1:
            others = [m for m in _ALSO if m not in metrics and found_of(rival, m) and has_ratio(each, m)]
            found += [_tile(each, rival, metric, NAMES[metric], rounds) for metric in (*metrics, *others)]
        else:
            label = f"Scene {each['task']}, {NAMES[metrics[0]]}"
            found.append(_tile(each, rival, metrics[0], label, rounds))
    return found


def rival_of(comparison: Mapping[str, Any]) -> Side | None:
    """The best of the others, by the first metric in which any is known; None if none can be compared.

    Another form of Octavo is no rival of it, unless there are no others, and so it is with who dropped out.
    """
    rivals = _rivals(comparison)
    return rivals[0] if rivals else None


def _rivals(comparison: Mapping[str, Any]) -> list[Side]:
    """Those that can be compared, the best first."""
    _, *others = comparison["sides"]
    standing = [side for side in others if not side["failure"]]
    return _ranked(comparison, standing) or _ranked(comparison, others)


def _ranked(comparison: Mapping[str, Any], others: Sequence[Side]) -> list[Side]:
    foreign = [side for side in others if not str(side["name"]).startswith("octavo ")]
    for metric in (*comparison["judged_by"], *LATENCIES):
        for group in (foreign, others):
            known = [
                (advantage(metric, found), i) for i, s in enumerate(group) if (found := found_of(s, metric))
            ]
            if known:
                return [group[i] for _, i in sorted(known)]
    return []


def _among(comparison: Mapping[str, Any]) -> str:
    """Of how many others the one that is named is the best; "" if there is no choice."""
    count = len(_rivals(comparison))
    return f"best of {count} others" if count > 1 else ""


def _alike(metric: str, found: Mapping[str, Any]) -> str:
    """What is to be said before the numbers if they are no win."""
    said = verdict(metric, found)
    return "" if said in ("better", "worse") else said


def has_ratio(comparison: Mapping[str, Any], metric: str) -> bool:
    """Whether a ratio says something of the engines.

    Where requests come at their own times, all who keep up have the same rates.
    """
    if not (is_open(comparison["workload"]["arrivals"]) and metric.endswith("_per_s")):
        return True
    return any(side["kept_up"] is False for side in comparison["sides"])


def mean_of(comparison: Mapping[str, Any], side: Side, metric: str) -> float | None:
    """What a report shows of a side in a metric: its mean over the rounds compared, of maxima the greatest.

    These are the rounds that count for it and the first, and of the first those that count for it and the
    best other. Where there is none it is of all rounds of the side.
    """
    first, rival = comparison["sides"][0], rival_of(comparison)
    other = rival if side is first else side
    known = [] if other is None else pairs(metric, first["rounds"], other["rounds"])
    if known:
        values = [pair[0 if side is first else 1] for pair in known]
        return over_repeats(metric, values)["mean"]
    found: float | None = (side["means"].get(metric) or {}).get("mean")
    return found


def _metrics(comparison: Mapping[str, Any], rival: Side) -> list[str]:
    """What decides; where that is not known, how long people wait."""
    for metrics in (comparison["judged_by"], LATENCIES):
        if known := [metric for metric in metrics if found_of(rival, metric)]:
            return known
    return []


def _sentence(comparison: Mapping[str, Any], rival: Side, rounds: int) -> str:
    chosen = _metrics(comparison, rival)[:_IN_HEADLINE]
    where = f"Scene {comparison['task']}: " if comparison["task"] else ""
    text = ", ".join(_clause(comparison, rival, metric, rounds) for metric in chosen)
    among = _among(comparison)
    whom = f"the {among} ({rival['name']})" if among else rival["name"]
    return f"{where}{comparison['sides'][0]['name']} against {whom}: {text}"


def _of_scene(comparison: Mapping[str, Any], rival: Side, rounds: int) -> str:
    """One of several: the ratio alone, as the values are in the tiles."""
    metric = _metrics(comparison, rival)[0]
    found = found_of(rival, metric)
    assert found is not None
    doubt = f"{said}, " if (said := _alike(metric, found)) else ""
    how = extent(metric, found, rounds)
    return f"scene {comparison['task']} {amount(metric, found)} {rival['name']} ({doubt}{how})"


def _clause(comparison: Mapping[str, Any], rival: Side, metric: str, rounds: int) -> str:
    """Both values, and how sure it is that they differ."""
    found = found_of(rival, metric)
    assert found is not None
    ours, theirs = _both(comparison, rival, metric)
    name = NAMES[metric].removesuffix(" p50")
    if metric in LATENCIES:
        text = f"{name} {ours} vs {theirs}"
    elif metric == GOODPUT:
        text = f"{ours} vs {theirs} of requests {name}"
    else:
        text = f"{ours} vs {theirs} {name}"
    if said := _alike(metric, found):
        text += f": {said}"
    return f"{text} ({amount(metric, found)}, {extent(metric, found, rounds)})"


def _stopped(comparison: Mapping[str, Any], rival: Side, rounds: int) -> list[Tile]:
    """That one of the two is gone."""
    label = f"Scene {comparison['task']}, stopped answering" if comparison["task"] else "Stopped answering"
    sides = (comparison["sides"][0], rival)
    return [Tile(label, side["name"], when) for side in sides if (when := stop_of(side, rounds))]


def _tile(comparison: Mapping[str, Any], rival: Side, metric: str, label: str, rounds: int) -> Tile:
    found = found_of(rival, metric)
    assert found is not None
    first = comparison["sides"][0]["name"]
    ours, theirs = _both(comparison, rival, metric)
    which = f" ({among})" if (among := _among(comparison)) else ""
    said = f"; {word}" if (word := verdict(metric, found)) and word != "better" else ""
    note = f"{first} {ours}, {rival['name']} {theirs}{which}; {extent(metric, found, rounds)}{said}"
    return Tile(label, amount(metric, found), note)


def _both(comparison: Mapping[str, Any], rival: Side, metric: str) -> tuple[str, str]:
    """What is shown of the first, and of the other."""
    ours, theirs = (mean_of(comparison, side, metric) for side in (comparison["sides"][0], rival))
    return value(metric, ours), value(metric, theirs)
