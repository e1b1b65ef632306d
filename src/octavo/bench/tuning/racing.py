"""Who runs in the next round, and what the rounds so far say. Rules alone: nothing is measured here.

Every round measures the baseline and all who still run, and only ratios within a round are compared, so what
the machine did to all of them cancels. A race has three phases:

1. *Race*: values of each axis against each other. After every second round the worse half of each axis is
   out, until one is left of each.
2. *Combine*: if several axes have a winner above the baseline, these and all of their changes at once run two
   rounds, and the best of them in these is chosen. Otherwise the best of the race is, even if it is a little
   below the baseline: that may have been lucky.
3. *Confirm*: the chosen one and the baseline alone. Only these rounds decide: in those before, it looks
   better than it is, since that is why it was chosen. They end with the time, not with a result that pleases.

A race may be given more time when it is over. What was decided for lack of time before a round that was run
stays decided, as that round was run without those who were out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, Literal

from octavo.bench.metrics.spread import RatioInterval, ratio_interval
from octavo.bench.tuning.candidates import Candidate, combine

Phase = Literal["race", "combine", "confirm", "over"]

ROUNDS_PER_CUT: Final = 2
COMBINE_ROUNDS: Final = 2
LEAST_CONFIRM: Final = 5
MOST_CONFIRM: Final = 30
_HOPELESS: Final = 0.9  # times the baseline, below which the best of a race is not worth confirming
_RACE_SHARE: Final = 0.6  # of the time, for choosing


@dataclass(frozen=True, slots=True)
class Round:
    """What one round measured.

    Attributes:
        scores: of the baseline and of all who ran; None of those that failed.
        seconds: what it took.
        budget_s: the time that the race had when this was begun; more may be given later.
    """

    scores: Mapping[Candidate, float | None]
    seconds: float
    budget_s: float


@dataclass(frozen=True, slots=True)
class Race:
    """What is raced.

    Attributes:
        axes: candidates that differ from the baseline in one axis, by axis.
        budget_s: seconds that it has now. The first round, and the fewest that can confirm, are run even if
            it is too short.
    """

    baseline: Candidate
    axes: Mapping[str, tuple[Candidate, ...]]
    budget_s: float


@dataclass(slots=True)
class Standing:
    """Where a race stands after some rounds.

    Attributes:
        alive: by axis, who is not out yet.
        running: who is measured in the next round, beside the baseline.
        chosen: who is to be confirmed.
        confirming: the rounds that decide.
        failed: who could not be measured.
        budget_s: seconds that the race had when it came to stand there.
    """

    race: Race
    phase: Phase = "race"
    alive: dict[str, tuple[Candidate, ...]] = field(default_factory=dict)
    running: tuple[Candidate, ...] = ()
    chosen: Candidate | None = None
    confirming: list[Round] = field(default_factory=list)
    failed: list[Candidate] = field(default_factory=list)
    spent_s: float = 0.0
    budget_s: float = 0.0
    _in_phase: list[Round] = field(default_factory=list)
    _racing: list[Round] = field(default_factory=list)


def standing(race: Race, rounds: Sequence[Round]) -> Standing:
    """Where it stands: the same rounds always say the same, so that a race goes on where it was killed."""
    now = Standing(race, alive=dict(race.axes))
    _set_running(now)
    budgets_s = [*(each.budget_s for each in rounds[1:]), race.budget_s]
    for each, now.budget_s in zip(rounds, budgets_s, strict=False):
        now.spent_s += each.seconds
        now._in_phase.append(each)
        now.failed += [one for one in now.running if each.scores.get(one) is None]
        _AFTER[now.phase](now, each)
    return now


def extended_after(race: Race, rounds: Sequence[Round]) -> list[int]:
    """After how many rounds it was over, and went on as it was given more time."""
    return [
        count
        for count, (before, after) in enumerate(pairwise(rounds), 1)
        if after.budget_s > before.budget_s
        and standing(replace(race, budget_s=before.budget_s), rounds[:count]).phase == "over"
    ]


def gain(one: Candidate, baseline: Candidate, rounds: Sequence[Round]) -> RatioInterval | None:
    """How many times better than the baseline in the rounds that have both; None if none has."""
    ratios = ratios_of(one, baseline, rounds)
    return ratio_interval(ratios) if ratios else None


def ratios_of(one: Candidate, baseline: Candidate, rounds: Sequence[Round]) -> list[float]:
    """To the baseline, in each of the rounds that have both."""
    pairs = [(each.scores.get(one), each.scores.get(baseline)) for each in rounds]
    return [ours / theirs for ours, theirs in pairs if ours and theirs]


def _after_race(now: Standing, last: Round) -> None:
    now._racing.append(last)
    for axis, candidates in now.alive.items():
        now.alive[axis] = tuple(one for one in candidates if one not in now.failed)
    is_late = now.spent_s >= _RACE_SHARE * now.budget_s
    if is_late or len(now._racing) % ROUNDS_PER_CUT == 0:
        for axis, candidates in now.alive.items():
            keep = 1 if is_late else math.ceil(len(candidates) / 2)
            now.alive[axis] = tuple(_best_first(now, candidates, now._racing)[:keep])
    if all(len(candidates) <= 1 for candidates in now.alive.values()):
        _leave_race(now)
    _set_running(now)


def _leave_race(now: Standing) -> None:
    winners = {axis: candidates[0] for axis, candidates in now.alive.items() if candidates}
    better = {axis: one for axis, one in winners.items() if _ratio(now, one, now._racing) > 1}
    now._in_phase = []
    if len(better) < 2:
        (best, *_) = [*_best_first(now, tuple(winners.values()), now._racing), None]
        if best is None or _ratio(now, best, now._racing) < _HOPELESS:
            now.phase = "over"
        else:
            _choose(now, best)
    else:
        now.phase = "combine"
        now.alive = {"": tuple(dict.fromkeys((*better.values(), combine(now.race.baseline, better))))}


def _after_combine(now: Standing, last: Round) -> None:
    now.alive = {"": tuple(one for one in now.alive[""] if one not in now.failed)}
    if not now.alive[""]:
        now.phase = "over"
    elif len(now._in_phase) == COMBINE_ROUNDS:
        _choose(now, _best_first(now, now.alive[""], now._in_phase)[0])
    _set_running(now)


def _choose(now: Standing, one: Candidate) -> None:
    now.chosen, now.phase, now._in_phase = one, "confirm", []


def _after_confirm(now: Standing, last: Round) -> None:
    now.confirming.append(last)
    count = len(now.confirming)
    is_late = count >= LEAST_CONFIRM and now.spent_s + last.seconds / 2 >= now.budget_s
    if now.chosen in now.failed or is_late or count >= MOST_CONFIRM:
        now.phase = "over"
    _set_running(now)


def _after_end(now: Standing, last: Round) -> None:
    """Nothing: no round is run."""


def _set_running(now: Standing) -> None:
    if now.phase == "over":
        now.running = ()
    elif now.phase == "confirm":
        now.running = () if now.chosen is None else (now.chosen,)
    else:
        now.running = tuple(one for candidates in now.alive.values() for one in candidates)


def _best_first(now: Standing, candidates: Sequence[Candidate], rounds: Sequence[Round]) -> list[Candidate]:
    """Of equals, the first named comes first."""
    return sorted(candidates, key=lambda one: -_ratio(now, one, rounds))


def _ratio(now: Standing, one: Candidate, rounds: Sequence[Round]) -> float:
    found = gain(one, now.race.baseline, rounds)
    return 0.0 if found is None else found.ratio


_AFTER: Final = {
    "race": _after_race,
    "combine": _after_combine,
    "confirm": _after_confirm,
    "over": _after_end,
}
