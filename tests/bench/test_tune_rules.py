"""Who races, who is out, who is chosen, and what is recommended: on made-up measurements."""

import math
import random
from dataclasses import replace

import pytest

from octavo.bench.metrics.spread import pooled_ratio_intervals, ratio_interval
from octavo.bench.tuning.candidates import ALL, Candidate, challengers, combine
from octavo.bench.tuning.journal import as_round
from octavo.bench.tuning.objective import choose, score
from octavo.bench.tuning.racing import (
    LEAST_CONFIRM,
    MOST_CONFIRM,
    Race,
    Round,
    extended_after,
    gain,
    standing,
)
from octavo.bench.tuning.verdict import describe_candidates, judge
from octavo.core.errors import InvalidConfig

BASE = Candidate(16, 512, ALL)


def blocks(*sizes):
    return tuple(replace(BASE, block_size=size) for size in sizes)


def steps(*budgets):
    return tuple(replace(BASE, max_step_tokens=budget) for budget in budgets)


def run(race, speed, *, seconds=1.0, most=200, before=()):
    """Runs a race whose scores are ``speed(candidate, round)``; gives its rounds and where it ended."""
    rounds = list(before)
    while running := standing(race, rounds).running:
        assert len(rounds) < most
        scores = {one: speed(one, len(rounds)) for one in (race.baseline, *running)}
        rounds.append(Round(scores, seconds * len(scores), race.budget_s))
    return rounds, standing(race, rounds)


def who(rounds):
    """Who ran beside the baseline, by round."""
    return [[one for one in each.scores if one != BASE] for each in rounds]


def test_halving_step_by_step():
    eight, thirty_two, sixty_four, most = blocks(8, 32, 64, 128)
    true = {BASE: 100, eight: 90, thirty_two: 110, sixty_four: 105, most: 80}
    race = Race(BASE, {"block_size": (eight, thirty_two, sixty_four, most)}, budget_s=1000)
    rounds, now = run(race, lambda one, _: true[one])
    assert who(rounds)[:2] == [[eight, thirty_two, sixty_four, most]] * 2
    assert who(rounds)[2:4] == [[thirty_two, sixty_four]] * 2
    assert who(rounds)[4:] == [[thirty_two]] * MOST_CONFIRM  # the budget is large
    verdict = judge(now)
    assert (verdict.outcome, verdict.recommended) == ("better", thirty_two)
    assert verdict.gain.ratio == pytest.approx(1.1)
    assert verdict.gain.rounds == MOST_CONFIRM


def test_an_odd_number_keeps_the_larger_half():
    three = blocks(8, 32, 64)
    race = Race(BASE, {"block_size": three}, budget_s=1000)
    rounds, _ = run(race, lambda one, _: 100 + (one == three[2]) - (one == three[0]))
    assert who(rounds)[2] == [three[2], three[1]]
    assert who(rounds)[4] == [three[2]]


def test_two_axes_are_combined():
    block, step = blocks(32)[0], steps(256)[0]
    both = Candidate(32, 256, ALL)
    true = {BASE: 100, block: 110, step: 105, both: 115}
    race = Race(BASE, {"block_size": (block,), "max_step_tokens": (step,)}, budget_s=0)
    rounds, now = run(race, lambda one, _: true[one])
    assert who(rounds) == [[block, step], [block, step, both], [block, step, both], *[[both]] * LEAST_CONFIRM]
    assert judge(now).recommended == both
    assert judge(now).gain.ratio == pytest.approx(1.15)


def test_changes_that_do_not_go_together():
    block, step = blocks(32)[0], steps(256)[0]
    true = {BASE: 100, block: 110, step: 105, Candidate(32, 256, ALL): 108}
    race = Race(BASE, {"block_size": (block,), "max_step_tokens": (step,)}, budget_s=0)
    _, now = run(race, lambda one, _: true[one])
    assert judge(now).recommended == block


def test_an_axis_without_a_winner_is_not_combined():
    block, step = blocks(32)[0], steps(256)[0]
    true = {BASE: 100, block: 99, step: 105}
    race = Race(BASE, {"block_size": (block,), "max_step_tokens": (step,)}, budget_s=0)
    rounds, now = run(race, lambda one, _: true[one])
    assert who(rounds) == [[block, step], *[[step]] * LEAST_CONFIRM]
    assert judge(now).recommended == step


def test_far_worse_ends_at_once():
    race = Race(BASE, {"block_size": blocks(8, 32), "max_step_tokens": steps(128)}, budget_s=1000)
    rounds, now = run(race, lambda one, _: 100 if one == BASE else 89)
    # Two rounds for the first cut; one is left of each axis then, and neither is at 0.9.
    assert len(rounds) == 2
    verdict = judge(now)
    assert (verdict.outcome, verdict.recommended, verdict.chosen) == ("none better", BASE, None)


def test_all_a_little_worse():
    eight, step = blocks(8)[0], steps(128)[0]
    race = Race(BASE, {"block_size": (eight,), "max_step_tokens": (step,)}, budget_s=0)
    _, now = run(race, lambda one, _: {BASE: 100, eight: 97, step: 95}[one])
    verdict = judge(now)
    assert (verdict.outcome, verdict.recommended, verdict.chosen) == ("as good", BASE, eight)
    assert verdict.gain.high == pytest.approx(0.97)


def test_a_lucky_baseline_hides_nothing():
    """In the race it is 8 % too good, which makes all look worse: the best is confirmed, and is found."""
    eight, thirty_two = blocks(8, 32)
    true = {eight: 103, thirty_two: 106}
    race = Race(BASE, {"block_size": (eight, thirty_two)}, budget_s=0)
    _, now = run(race, lambda one, n: true.get(one, 100 if n else 108))
    assert judge(now).recommended == thirty_two
    assert judge(now).gain.ratio == pytest.approx(1.06)


def test_a_tie_is_no_gain():
    race = Race(BASE, {"block_size": blocks(8, 32)}, budget_s=1000)
    _, now = run(race, lambda one, _: 100)
    verdict = judge(now)
    assert (verdict.outcome, verdict.recommended) == ("as good", BASE)
    assert (verdict.gain.low, verdict.gain.high) == (1, 1)


def test_luck_in_the_race_does_not_count():
    """Looks 20 % better while it races, and is not: the rounds that decide know nothing of that."""
    (one,) = blocks(32)
    race = Race(BASE, {"block_size": (one,)}, budget_s=0)
    wobble = (1.02, 0.99, 1.01, 0.98, 1.0)
    rounds, now = run(race, lambda c, n: 100 if c == BASE else 120 if n == 0 else 100 * wobble[n - 1])
    verdict = judge(now)
    assert len(rounds) == 1 + LEAST_CONFIRM
    assert (verdict.outcome, verdict.recommended, verdict.chosen) == ("as good", BASE, one)
    # By hand: mean of the logarithms -0.0000999, their deviation 0.0158137, t = 2.7764 with 4 degrees.
    logs = [math.log(w) for w in wobble]
    mean = sum(logs) / 5
    deviation = math.sqrt(sum((each - mean) ** 2 for each in logs) / 4)
    half = 2.7764 * deviation / math.sqrt(5)
    assert verdict.gain.low == pytest.approx(math.exp(mean - half))
    assert verdict.gain.high == pytest.approx(math.exp(mean + half))
    assert (round(verdict.gain.low, 3), round(verdict.gain.high, 3)) == (0.98, 1.02)


def test_drift_of_the_machine_cancels():
    one, other = blocks(32, 64)
    true = {BASE: 1.0, one: 1.05, other: 0.97}
    race = Race(BASE, {"block_size": (one, other)}, budget_s=0)
    slower = (1.0, 0.3, 2.0, 0.7, 0.2, 1.5, 0.9, 0.4, 1.1, 1.3)
    rounds, now = run(race, lambda c, n: true[c] * slower[n])
    assert judge(now).recommended == one
    assert judge(now).gain.low == pytest.approx(1.05)
    assert gain(other, BASE, rounds).ratio == pytest.approx(0.97)


@pytest.mark.parametrize(("better", "least", "most"), [(1.0, 0, 0.05), (1.15, 0.8, 1)])
def test_how_often_noise_is_believed(better, least, most):
    """With 5 % noise: in 5 of 100 races at most if nothing differs, in most if one is 15 % better."""
    axes = {"block_size": blocks(8, 32, 64, 128), "max_step_tokens": steps(128, 256, 1024)}
    rng = random.Random(7)
    found = 0
    for _ in range(200):
        _, now = run(
            Race(BASE, axes, budget_s=60),
            lambda one, _: (better if one.block_size == 32 else 1) * math.exp(rng.gauss(0, 0.05)),
        )
        verdict = judge(now)
        assert verdict.outcome in ("better", "as good", "none better")
        found += verdict.outcome == "better" and (better == 1.0 or verdict.recommended.block_size == 32)
    assert least <= found / 200 <= most


def test_who_fails_is_out_and_the_rest_goes_on():
    bad, good = blocks(8, 32)
    race = Race(BASE, {"block_size": (bad, good)}, budget_s=0)
    rounds, now = run(race, lambda one, _: {BASE: 100, bad: None, good: 110}[one])
    assert who(rounds)[0] == [bad, good]
    assert bad not in who(rounds)[1]
    assert now.failed == [bad]
    assert judge(now).recommended == good


def test_all_fail():
    race = Race(BASE, {"block_size": blocks(8, 32), "max_step_tokens": steps(128)}, budget_s=100)
    rounds, now = run(race, lambda one, _: 100 if one == BASE else None)
    assert len(rounds) == 1
    assert judge(now).outcome == "none better"


def test_the_chosen_one_fails():
    (one,) = blocks(32)
    race = Race(BASE, {"block_size": (one,)}, budget_s=0)
    rounds, now = run(race, lambda c, n: 100 if c == BASE else 110 if n < 3 else None)
    assert len(rounds) == 4
    verdict = judge(now)
    assert (verdict.outcome, verdict.recommended) == ("failed", BASE)


def test_an_end_before_enough_rounds_decide_settles_nothing():
    (one,) = blocks(32)
    race = Race(BASE, {"block_size": (one,)}, budget_s=0)
    rounds, _ = run(race, lambda c, _: 100 if c == BASE else 150)
    for count in range(len(rounds)):
        verdict = judge(standing(race, rounds[:count]))
        assert (verdict.outcome, verdict.recommended) == ("unsettled", BASE)
    assert judge(standing(race, rounds)).outcome == "better"


def test_the_budget_is_kept():
    """But for half a round, unless the fewest rounds that decide take longer."""
    axes = {"block_size": blocks(8, 24, 32, 48, 64, 96, 128)}
    for minutes in (1, 3, 10):
        _, now = run(Race(BASE, axes, budget_s=60 * minutes), lambda c, _: 1 + c.block_size / 1e4, seconds=4)
        assert now.spent_s <= 60 * minutes + 4 or len(now.confirming) == LEAST_CONFIRM


def test_the_same_rounds_say_the_same_wherever_it_was_cut():
    axes = {"block_size": blocks(8, 32, 64), "max_step_tokens": steps(128, 1024)}
    race = Race(BASE, axes, budget_s=60)
    rng = random.Random(3)
    rounds, now = run(race, lambda one, _: math.exp(rng.gauss(0, 0.1)))
    for count, each in enumerate(rounds):
        cut = standing(race, rounds[:count])
        assert {BASE, *cut.running} == set(each.scores)
    assert standing(race, rounds) == now


def test_a_race_that_is_over_goes_on_with_more_time():
    """Who was out for lack of time stays out: the rounds that decide were run without them."""
    eight, thirty_two, sixty_four = blocks(8, 32, 64)
    true = {BASE: 100, eight: 90, thirty_two: 110, sixty_four: 105}
    race = Race(BASE, {"block_size": (eight, thirty_two, sixty_four)}, budget_s=0)
    rounds, before = run(race, lambda one, _: true[one])
    assert who(rounds) == [[eight, thirty_two, sixty_four], *[[thirty_two]] * LEAST_CONFIRM]
    # A round of two takes two seconds, and the first took four: 14 seconds are spent. It ends when half a
    # round more would be too much, with four more rounds.
    longer = replace(race, budget_s=22)
    more, now = run(longer, lambda one, _: true[one], before=rounds)
    assert who(more) == [*who(rounds), *[[thirty_two]] * 4]
    assert (now.phase, now.failed, now.spent_s, len(now.confirming)) == ("over", [], 22, LEAST_CONFIRM + 4)
    assert [each.budget_s for each in more] == [0] * 6 + [22] * 4
    # The same rounds say the same, whatever time there is, but for what comes after them.
    assert standing(race, more).confirming == now.confirming
    assert standing(race, rounds) == before
    assert extended_after(longer, more) == [6]
    assert extended_after(longer, rounds) == []


def test_more_time_before_it_is_over_undoes_no_round():
    axes = {"block_size": blocks(8, 32, 64)}
    race = Race(BASE, axes, budget_s=0)
    rounds, _ = run(race, lambda one, _: 100 + one.block_size)
    assert standing(race, rounds[:1]).phase == "confirm"  # there was no time for more
    longer = replace(race, budget_s=1000)
    assert standing(longer, rounds[:1]).running == axes["block_size"]  # and now there is
    more, now = run(longer, lambda one, _: 100 + one.block_size, before=rounds[:3])
    assert len(now.confirming) == MOST_CONFIRM
    assert who(more)[:3] == who(rounds)[:3]
    assert extended_after(longer, more) == []


def test_nothing_came_near_but_there_was_little_time():
    axes = {"block_size": blocks(8, 32, 64)}
    rounds, now = run(Race(BASE, axes, budget_s=0), lambda one, _: 100 if one == BASE else 89)
    assert (len(rounds), judge(now).outcome) == (1, "none better")
    assert standing(Race(BASE, axes, budget_s=1000), rounds).running == axes["block_size"]


def test_challengers():
    found = challengers(
        BASE,
        {"block_size": [16, 32, 32], "max_step_tokens": [512], "max_chunk_tokens": [ALL, 128, 512, 1024]},
    )
    assert found == {"block_size": blocks(32), "max_chunk_tokens": (Candidate(16, 512, 128),)}
    assert combine(BASE, {"block_size": blocks(32)[0], "max_step_tokens": steps(128)[0]}) == Candidate(
        32, 128
    )
    # A chunk as large as the step is no limit.
    parts = {"max_step_tokens": steps(128)[0], "max_chunk_tokens": Candidate(16, 512, 128)}
    assert combine(BASE, parts) == Candidate(16, 128, ALL)
    assert Candidate(32, 256, 64).options() == (
        ["--block-size", "32", "--max-step-tokens", "256", "--max-chunk-tokens", "64"]
    )
    assert BASE.options() == ["--block-size", "16", "--max-step-tokens", "512"]
    assert str(Candidate(32, 256, 64)) == "blocks of 32, steps of 256, chunks of 64"
    assert Candidate.from_dict(Candidate("0-9=64,10-29=16").as_dict()) == Candidate("0-9=64,10-29=16")


SUMMARY = {
    name: {"mean": value}
    for name, value in {
        "output_tokens_per_s": 400.0,
        "ttft_s.mean": 0.25,
        "tpot_s.mean": 0.01,
        "goodput.requests_per_s": 2.0,
        "duration_s": 10.0,
    }.items()
}


def test_scores():
    assert score("throughput", SUMMARY) == 400
    assert score("latency", SUMMARY) == pytest.approx(1 / 0.05)  # the root of 0.25 x 0.01 is 0.05
    assert score("balanced", SUMMARY) == pytest.approx(math.sqrt(400 * 20))
    assert score("goodput", SUMMARY) == pytest.approx(2.05)
    # None kept is better than none kept in twice the time, and is no division by zero.
    nothing = {**SUMMARY, "goodput.requests_per_s": {"mean": 0.0}}
    assert score("goodput", nothing) == pytest.approx(0.05)
    # Answers of one token have no time per token.
    alone = {name: value for name, value in SUMMARY.items() if name != "tpot_s.mean"}
    assert score("latency", alone) == pytest.approx(4)
    assert score("throughput", {}) is score("latency", {}) is score("goodput", {}) is None


def test_objectives():
    assert choose(None, has_slo=False) == "balanced"
    assert choose(None, has_slo=True) == "goodput"
    assert choose("latency", has_slo=False) == "latency"
    with pytest.raises(InvalidConfig, match="choose one of throughput"):
        choose("goodput", has_slo=False)
    with pytest.raises(InvalidConfig, match="one of the two"):
        choose("latency", has_slo=True)


def test_intervals_of_ratios():
    found = ratio_interval([2.0, 0.5])
    assert (found.ratio, found.rounds) == (pytest.approx(1), 2)
    # The logarithms are +-ln 2: their deviation is ln 2 x root of 2, that of the mean ln 2; t = 12.7062.
    assert found.high == pytest.approx(2**12.7062)
    assert ratio_interval([1.5]).low is None
    pooled = pooled_ratio_intervals([[2.0, 0.5], [4.0, 1.0], [3.0]])
    # Both groups of two have the same variance, so the pooled one is that too; t = 4.3027 with 2 degrees.
    assert pooled[0].high == pytest.approx(2**4.3027)
    assert pooled[1].ratio == pytest.approx(2)
    assert pooled[2].low == pytest.approx(3 / 2 ** (4.3027 * math.sqrt(2)))
    assert pooled_ratio_intervals([[1.1], [1.2]])[0].high is None
    assert pooled_ratio_intervals([]) == []


def run_of(one, tokens_per_s, waste, error=None):
    summary = {"output_tokens_per_s": {"mean": tokens_per_s}, "memory.waste_mean": {"mean": waste}}
    return {
        "candidate": one.as_dict(),
        "score": None if error else tokens_per_s,
        "error": error,
        "peak_rss_bytes": 1 << 20,
        "summary": summary,
    }


def test_who_was_out_early_is_compared_in_its_own_rounds():
    one, bad = blocks(32, 64)
    entries = [
        {
            "measured": [
                run_of(BASE, 80, 0.01),
                run_of(one, 110, 0.04),
                run_of(bad, 1, 1, "no memory"),
                run_of(BASE, 125, 0.03),
            ],
            "seconds": 1,
            "budget_s": 0,
        },
        {
            "measured": [run_of(BASE, 297.5, 0.03)],
            "seconds": 1,
            "budget_s": 0,
        },  # other requests, faster for everyone
    ]
    rounds = [as_round(entry) for entry in entries]
    # The geometric mean of 80 and 125 is 100; for metrics it is the plain one, 102.5.
    assert rounds[0].scores == {BASE: pytest.approx(100), one: 110, bad: None}
    base, found, failed = describe_candidates(BASE, rounds, entries)
    assert (base["rounds"], base["ratio"]["ratio"]) == (2, 1.0)
    assert base["metrics"]["output_tokens_per_s"] == pytest.approx(200)
    assert (found["rounds"], found["ratio"]["ratio"]) == (1, pytest.approx(1.1))
    assert found["metrics"]["output_tokens_per_s"] == pytest.approx(207.5)
    assert found["metrics"]["waste_percent"] == pytest.approx(4.5)  # 2.5 on average, and 2 more
    assert found["metrics"]["hit_percent"] is None
    assert (failed["error"], failed["ratio"]) == ("no memory", None)
    assert failed["metrics"]["output_tokens_per_s"] is None
