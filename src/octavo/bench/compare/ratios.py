"""How many times better one side is than another, round by round."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeGuard

from octavo.bench.load.exchange import TIMEOUT
from octavo.bench.metrics.spread import interval, ratio_interval
from octavo.bench.metrics.summary import over_repeats

Better = Literal["more", "less"]
# Numbers of a summary whose ratios are told, and whether more of them or less is better.
METRICS: Final[Mapping[str, Better]] = {
    "output_tokens_per_s": "more",
    "prompt_tokens_per_s": "more",
    "requests_per_s": "more",
    "ttft_s.p50": "less",
    "ttft_s.p99": "less",
    "tpot_s.p50": "less",
    "tpot_s.p99": "less",
    # A median and a greatest gap too: one huge step makes gaps so few that p99 does not see them.
    "itl_s.p50": "less",
    "itl_s.p99": "less",
    "itl_s.max": "less",
    "e2e_s.p50": "less",
    "e2e_s.p99": "less",
}
# Whose differences are told: it may be 0, and there is no ratio to 0.
GOODPUT: Final = "goodput.fraction"
DIFFERENCES: Final = (GOODPUT,)
Rounds = Sequence[Mapping[str, Any] | None]

_ALL: Final = (*METRICS, *DIFFERENCES, "goodput.requests_per_s")
_COUNTING: Final = (
    "output_tokens_per_s",
    "tpot_s.p50",
    "tpot_s.p99",
    "goodput.fraction",
    "goodput.requests_per_s",
)
# What depends on how long the answers were, and so cannot be compared if one side's were longer.
_WHOLE_ANSWERS: Final = (
    "output_tokens_per_s",
    "prompt_tokens_per_s",
    "requests_per_s",
    "e2e_s.p50",
    "e2e_s.p99",
    "goodput.fraction",
    "goodput.requests_per_s",
)
_ALIKE: Final = 0.02  # numbers of tokens that differ by less than this fraction are taken for the same
_SAME_PIECES: Final = 1.05  # tokens per piece that differ by less than this factor are taken for the same


def means(rounds: Rounds) -> dict[str, dict[str, Any]]:
    """Mean of each metric over the rounds in which it is known, with its interval; of maxima the greatest."""
    found = {}
    for metric in _ALL:
        values = [value for each in rounds if (value := metric_of(each, metric)) is not None]
        if values:
            found[metric] = over_repeats(metric, values)
    return found


def pairs(metric: str, ours: Rounds, theirs: Rounds) -> list[tuple[float, float]]:
    """The values of both in each round in which they are known and can be compared."""
    found = []
    for our, their in zip(ours, theirs, strict=False):
        a, b = metric_of(our, metric), metric_of(their, metric)
        if a is not None and b is not None and _is_alike(metric, our or {}, their or {}):
            found.append((a, b))
    return found


def ratio(metric: str, ours: Rounds, theirs: Rounds) -> dict[str, Any] | None:
    """How many times better ours is: 2 is twice the rate or half the time.

    Each round gives one ratio of two runs that were minutes apart, so what the machine did to both cancels.
    Their geometric mean has a 95 % interval by Student's t on the logarithms. None if there is no round in
    which both can be compared, or a value is 0.
    """
    known = pairs(metric, ours, theirs)
    if not known or min(map(min, known)) <= 0:
        return None
    found = [a / b if METRICS[metric] == "more" else b / a for a, b in known]
    told = ratio_interval(found)
    return {"ratio": told.ratio, "low": told.low, "high": told.high, "rounds": found}


def ratios(ours: Rounds, theirs: Rounds) -> dict[str, dict[str, Any]]:
    """Of all metrics that both have."""
    found = {metric: ratio(metric, ours, theirs) for metric in METRICS}
    return {metric: each for metric, each in found.items() if each is not None}


def differences(ours: Rounds, theirs: Rounds) -> dict[str, dict[str, Any]]:
    """By how much ours is more, for what has no ratio: mean over the rounds, with its 95 % interval."""
    found = {}
    for metric in DIFFERENCES:
        if known := [a - b for a, b in pairs(metric, ours, theirs)]:
            told = interval(known, least=-1.0, most=1.0)
            found[metric] = {
                "difference": told["mean"],
                "low": told["low"],
                "high": told["high"],
                "rounds": known,
            }
    return found


def metric_of(summary: Mapping[str, Any] | None, metric: str) -> float | None:
    """A metric of a round that was complete and answered in full; else None.

    None too if it needs the number of output tokens and that is not known. Of goodput all rounds count that
    nobody interrupted: a request that was due and not answered did not keep the objective.
    """
    is_good = metric.startswith("goodput.")
    if summary is None or (is_interrupted(summary) if is_good else not is_whole(summary)):
        return None
    if metric in _COUNTING and not is_counted(summary):
        return None
    found: Any = summary
    for name in metric.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(name)
    return found if isinstance(found, (int, float)) else None


def is_compared(comparison: Mapping[str, Any]) -> bool:
    """Whether any two sides of a report's task could be compared in anything."""
    return any(side["ratios"] or side["differences"] for side in comparison["sides"])


def is_whole(summary: Mapping[str, Any] | None) -> TypeGuard[Mapping[str, Any]]:
    """Whether a round took place, was not interrupted, and all its requests were answered."""
    return summary is not None and summary["complete"] and not summary["requests"]["failed"]


def is_interrupted(summary: Mapping[str, Any]) -> bool:
    """Whether someone ended a round; a request that times out ends it too, but that is the server."""
    return not summary["complete"] and TIMEOUT not in summary["failures"]


def is_counted(summary: Mapping[str, Any]) -> bool:
    """Whether the number of output tokens is known: from usage, or by as many pieces as tokens asked for.

    Pieces of a stream alone tell nothing: there may be several tokens in each.
    """
    return not summary["counts"]["without_usage"] or summary["output_tokens"] == summary["asked_tokens"]


def output_differs(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two sides answered the same requests at clearly different length, as far as that is known."""
    return _differs(_length(a), _length(b))


def prompts_differ(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two sides counted clearly different numbers of tokens in the same prompts."""
    ours, theirs = a["prompt_tokens"], b["prompt_tokens"]
    return ours is not None and theirs is not None and _differs(ours, theirs)


def _is_alike(metric: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    # Where requests failed, the tokens of the others say nothing of their lengths.
    if metric in _WHOLE_ANSWERS and is_whole(a) and is_whole(b) and output_differs(a, b):
        return False
    if metric.startswith("itl_s."):
        return not _pieces_differ(a, b)
    return metric != "prompt_tokens_per_s" or not prompts_differ(a, b)


def _pieces_differ(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether one side sends clearly more tokens at once, so that its gaps are fewer and longer."""
    ours, theirs = _per_piece(a), _per_piece(b)
    return ours is not None and theirs is not None and max(ours, theirs) > _SAME_PIECES * min(ours, theirs)


def _per_piece(summary: Mapping[str, Any]) -> float | None:
    """Tokens in a piece; where nobody counted them, of as many as were asked for."""
    told: float | None = summary["counts"]["tokens_per_chunk"]
    return told and told * _length(summary) / summary["output_tokens"]


def _length(summary: Mapping[str, Any]) -> int:
    """Output tokens; where nobody counted them, what was asked for."""
    found: int = summary["output_tokens" if is_counted(summary) else "asked_tokens"]
    return found


def _differs(a: int, b: int) -> bool:
    return abs(a - b) > _ALIKE * max(a, b)
