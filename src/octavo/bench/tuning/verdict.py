"""What a race recommends, and what it found of each candidate."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from octavo.bench.metrics.of_settings import METRICS, Metric, value_of
from octavo.bench.metrics.spread import RatioInterval, pooled_ratio_intervals
from octavo.bench.tuning.candidates import Candidate
from octavo.bench.tuning.journal import runs_of
from octavo.bench.tuning.racing import LEAST_CONFIRM, Round, Standing, gain, ratios_of

Runs = Sequence[Mapping[str, Any]]
Outcome = Literal["better", "as good", "none better", "failed", "unsettled"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to use.

    Attributes:
        outcome: "better": the recommended one is, for certain; "as good": the best of the race is not
            certainly better than the baseline; "none better": none came near it; "failed": the
            best could not be measured to the end; "unsettled": too few rounds confirm it.
        chosen: the best of the race.
        gain: of that one, in the rounds that decide.
    """

    outcome: Outcome
    recommended: Candidate
    chosen: Candidate | None
    gain: RatioInterval | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def judge(now: Standing) -> Verdict:
    """Of a race that is over, or was ended.

    Only what is certainly better than the baseline replaces it: its 95 % interval, over rounds that had no
    part in choosing it, is above 1.
    """
    baseline, chosen = now.race.baseline, now.chosen
    if chosen is None:
        is_over = now.phase == "over"
        return Verdict("none better" if is_over else "unsettled", baseline, None, None)
    found = gain(chosen, baseline, now.confirming)
    if chosen in now.failed:
        return Verdict("failed", baseline, chosen, found)
    if len(now.confirming) < LEAST_CONFIRM:
        return Verdict("unsettled", baseline, chosen, found)
    if found is not None and found.low is not None and found.low > 1:
        return Verdict("better", chosen, chosen, found)
    return Verdict("as good", baseline, chosen, found)


def describe_candidates(
    baseline: Candidate, rounds: Sequence[Round], entries: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The baseline and all candidates that were measured, for reports.

    A candidate that was out early was not measured in the later rounds, whose requests are others. So each
    metric is the mean difference to the baseline in the rounds that have both, added to the baseline's mean
    over all rounds. The intervals of the ratios take the spread from round to round as the same for all,
    since many were in two rounds only; the verdict's does not.

    Args:
        entries: of the journal, those of ``rounds``.
    """
    measured = [runs_of(entry) for entry in entries]
    everyone = dict.fromkeys(one for found in measured for one in (baseline, *found))
    ratios = {one: each for one in everyone if (each := ratios_of(one, baseline, rounds)) and one != baseline}
    intervals = dict(zip(ratios, pooled_ratio_intervals(list(ratios.values())), strict=True))
    described = []
    for one in everyone:
        having = [found for found in measured if one in found]
        ratio = RatioInterval(1.0, 1.0, 1.0, len(having)) if one == baseline else intervals.get(one)
        errors = [run["error"] for found in having for run in found[one] if run["error"]]
        described.append(
            {
                "candidate": one.as_dict(),
                "rounds": len(having),
                "ratio": None if ratio is None else asdict(ratio),
                "metrics": {metric.name: _paired(one, baseline, measured, metric) for metric in METRICS},
                "error": errors[0] if errors else None,
            }
        )
    return described


def _paired(
    one: Candidate, baseline: Candidate, measured: Sequence[Mapping[Candidate, Runs]], metric: Metric
) -> float | None:
    ours = [_value(found.get(one, ()), metric) for found in measured]
    base = [_value(found.get(baseline, ()), metric) for found in measured]
    known = [b for b in base if b is not None]
    differences = [a - b for a, b in zip(ours, base, strict=True) if a is not None and b is not None]
    if not differences:
        return None
    return math.fsum(known) / len(known) + math.fsum(differences) / len(differences)


def _value(runs: Runs, metric: Metric) -> float | None:
    """Mean over the runs of one candidate in a round."""
    found = [value for run in runs if not run["error"] and (value := value_of(run, metric)) is not None]
    return math.fsum(found) / len(found) if found else None
