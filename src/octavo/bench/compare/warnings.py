"""What a reader must know before believing a comparison."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, Final

from octavo.bench.compare.contestant import Contestant, same_place
from octavo.bench.compare.judging import drain_s
from octavo.bench.compare.ratios import (
    is_compared,
    is_counted,
    is_interrupted,
    is_whole,
    output_differs,
    prompts_differ,
)
from octavo.bench.compare.turns import Contents
from octavo.bench.load.exchange import INTERRUPTED
from octavo.bench.metrics.spread import t_quantile
from octavo.bench.metrics.warnings import late_reading, other_lengths
from octavo.bench.report.numbers import seconds
from octavo.core.display import counted
from octavo.core.errors import InvalidConfig

_FEW_ROUNDS: Final = 4
_CACHED: Final = 0.1  # a difference in the cached fraction of prompt tokens that is worth a word
_SEVERAL: Final = 1.05  # tokens per piece


def warnings_beforehand(contestants: Sequence[Contestant], contents: Contents, *, rounds: int) -> list[str]:
    """Of servers that may be one, or share a cache, and of prompts that come again.

    Raises:
        InvalidConfig: two are the same server, and nothing but the same prompts can be asked of both.
    """
    before = [
        (each.facts.name, each.runs_at, each.model_name) for each in contestants if each.runs_at is not None
    ]
    found = []
    for (a, here, model), (b, there, other) in combinations(before, 2):
        if not same_place(here, there):
            continue
        if model != other and model is not None and other is not None:
            found.append(
                f"{a} and {b} are one server, {there}: if its models {model} and {other} are the same, "
                "the ratio says how much is chance."
            )
            continue
        if not contents.workload.can_differ:
            raise InvalidConfig(
                f"{a} and {b} are the same server, {there}: the second would find the first one's prompts in "
                "its cache, as this workload has the same for all; name different servers"
            )
        found.append(f"{a} and {b} are the same server, {there}: their ratio says how much is chance.")
    if len(before) > 1 and not contents.workload.can_differ:
        names = " and ".join(name for name, *_ in before)
        found.append(
            f"This workload has the same prompts for all: if {names} share a cache, who comes later finds "
            "there what another computed."
        )
    if rounds > 1 and not contents.workload.can_differ:
        found.append(
            f"Each of the {rounds} rounds has the same prompts: what a contestant's cache remembers of them "
            "is not computed again. --rounds 1 measures each once."
        )
    return found


def few_rounds(comparisons: Sequence[Mapping[str, Any]], rounds: int) -> str | None:
    """That intervals over so few are hardly of use; None if there are enough, or nothing was compared."""
    if not any(map(is_compared, comparisons)):
        return None
    if rounds == 1:
        return "One round only: no confidence intervals, and the first has the first turn."
    if rounds >= _FEW_ROUNDS:
        return None
    wide = _width(rounds) / _width(_FEW_ROUNDS)
    return f"{rounds} rounds have intervals {wide:.1f} times as wide as {_FEW_ROUNDS} rounds would have."


def warnings_of(comparison: Mapping[str, Any], *, rounds: int, interrupted: bool = False) -> list[str]:
    """Of one task, from its part of the report.

    Args:
        rounds: that were wanted.
        interrupted: whether someone ended it early.
    """
    where = f" (scene {comparison['task']})" if comparison["task"] else ""
    first, *others = comparison["sides"]
    found = []
    for side in comparison["sides"]:
        if side["failure"]:
            found.append(f"{side['name']} dropped out{where}: {side['failure']}")
        found += [f"{side['name']}{where}: {text}" for text in _of_side(side)]
        if side["is_restarted"]:
            found.append(side["restarted"])
    left = [side["name"] for side in comparison["sides"] if not side["failure"]]
    if others and len(left) < 2 and not interrupted and len(first["rounds"]) < rounds:
        found.append(
            f"It ended after {len(first['rounds'])} of {counted(rounds, 'round')}{where}: "
            f"{f'only {left[0]} was' if left else 'none were'} left."
        )
    for other in others:
        found += _lengths(first, other, where)
    if text := _caches(comparison["sides"], where):
        found.append(text)
    return found


def _of_side(side: Mapping[str, Any]) -> list[str]:
    """What makes its rounds less than comparable."""
    known = [each for each in side["rounds"] if each is not None]
    found = [*_failed(known), *_unfinished(side["rounds"])]
    if side["kept_up"] is False:
        late = max(filter(is_whole, known), key=drain_s)
        found.append(
            f"it did not keep up: it answered for {seconds(drain_s(late))} after the last request had come, "
            f"and all had come within {seconds(late['last_due_s'])}. Its latencies are the longer the more "
            "requests there are."
        )
    rounds = [each for each in known if is_whole(each)]
    with_counts = [each for each in rounds if is_counted(each)]
    if uncounted := [each for each in rounds if not is_counted(each)]:
        without = sum(each["counts"]["without_usage"] for each in uncounted)
        pieces = sum(each["output_tokens"] for each in uncounted)
        asked = sum(each["asked_tokens"] for each in uncounted)
        found.append(
            f"{counted(without, 'answer')} came without usage, in {counted(pieces, 'piece')} where {asked:,} "
            "tokens were asked for. How many tokens they had is not known: there are no tokens/s and no "
            "TPOT, and other ratios hold only if these answers were as long as the others'."
        )
    if sum(each["counts"]["without_usage"] for each in with_counts):
        found.append("answers came without usage; as many pieces came as tokens were asked for.")
    lengths: Counter[str] = Counter()
    for each in with_counts:
        lengths.update({name: each["counts"][name] for name in ("shorter_than_asked", "longer_than_asked")})
    ok = sum(each["requests"]["ok"] for each in with_counts)
    found += other_lengths(lengths, ok, ignores_eos=bool(side["told"].get("ignore_eos")))
    found += late_reading(rounds)
    per_piece = max((each["counts"]["tokens_per_chunk"] or 0.0 for each in with_counts), default=0.0)
    if per_piece > _SEVERAL:
        found.append(
            f"{per_piece:.2f} tokens came at once on average: ITL is the gap between pieces, and compared "
            "only with who sends as many at once."
        )
    return found


def _failed(rounds: Sequence[Mapping[str, Any]]) -> list[str]:
    """That requests failed; one that Ctrl-C ended, or that ended with another, did not."""
    by_reason: Counter[str] = Counter()
    for each in rounds:
        by_reason.update({why: told["count"] for why, told in each["failures"].items() if why != INTERRUPTED})
    if not by_reason:
        return []
    odd = sum(bool(each["failures"].keys() - {INTERRUPTED}) for each in rounds)
    total = sum(each["requests"]["total"] for each in rounds)
    reasons = ", ".join(f"{why} ({count})" if len(by_reason) > 1 else why for why, count in by_reason.items())
    which = "all its rounds" if odd == len(rounds) else f"{odd} of its {len(rounds)} rounds"
    return [
        f"{by_reason.total()} of {total} requests failed: {reasons}. Who refuses work has less of it: rates "
        f"and times of {which} are not compared."
    ]


def _unfinished(rounds: Sequence[Mapping[str, Any] | None]) -> list[str]:
    """That rounds were not finished."""
    found = []
    for number, each in enumerate(rounds, 1):
        if each is not None and not each["complete"]:
            found.append(
                f"round {number} was interrupted, and does not count."
                if is_interrupted(each)
                else f"round {number} ended with the first request that timed out: what was not answered "
                "kept no objective."
            )
    return found


def _lengths(first: Mapping[str, Any], other: Mapping[str, Any], where: str) -> list[str]:
    """That two sides gave, or were given, different numbers of tokens."""
    pairs = _pairs(first, other)
    found = []
    if odd := [(a, b) for a, b in pairs if is_counted(a) and is_counted(b) and output_differs(a, b)]:
        ours, theirs = (sum(pair[i]["output_tokens"] for pair in odd) for i in (0, 1))
        found.append(
            f"In {len(odd)} of {len(pairs)} rounds{where} {first['name']} answered {ours:,} tokens and "
            f"{other['name']} {theirs:,} to the same requests: rates and E2E of these are not compared."
        )
    if odd := [(a, b) for a, b in pairs if prompts_differ(a, b)]:
        ours, theirs = (sum(pair[i]["prompt_tokens"] for pair in odd) for i in (0, 1))
        found.append(
            f"In {len(odd)} of {len(pairs)} rounds{where} {first['name']} counted {ours:,} tokens and "
            f"{other['name']} {theirs:,} in the same prompts: prompt tokens/s of these are not compared."
        )
    return found


def _caches(sides: Sequence[Mapping[str, Any]], where: str) -> str | None:
    """That one found far more of its prompts in a cache than another in the same round; the worst case."""
    worst = (0.0, "")
    for number, turn in enumerate(zip(*(side["rounds"] for side in sides), strict=False), 1):
        cached = {
            side["name"]: each["cached_tokens"] / each["prompt_tokens"]
            for side, each in zip(sides, turn, strict=True)
            if is_whole(each) and each["cached_tokens"] is not None and each["prompt_tokens"]
        }
        if not cached:
            continue
        most, least = max(cached, key=cached.__getitem__), min(cached, key=cached.__getitem__)
        ran_before = next(side["ran_before"] for side in sides if side["name"] == most)
        text = (
            f"In round {number}{where} {most} found {cached[most]:.0%} of its prompt tokens in a cache, "
            f"{least} {cached[least]:.0%}: their ratios are in part those of the caches. "
        ) + (
            f"{most} ran before and may know these prompts from an earlier run; another --seed gives others."
            if ran_before
            else f"{most} was started for this, so it computed that itself: its cache is part of what it is."
        )
        worst = max(worst, (cached[most] - cached[least], text))
    return worst[1] if worst[0] > _CACHED else None


def _width(rounds: int) -> float:
    """Of an interval, in units of the spread of the rounds."""
    return t_quantile(rounds - 1) / math.sqrt(rounds)


def _pairs(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """The rounds that count for both."""
    both = zip(a["rounds"], b["rounds"], strict=False)
    return [(x, y) for x, y in both if is_whole(x) and is_whole(y)]
