"""Ratios of comparisons, and what makes rounds less than comparable; all by hand."""

import math

import pytest

from octavo.bench.compare.ratios import METRICS, differences, means, pairs, ratio, ratios
from octavo.bench.compare.warnings import few_rounds, warnings_of


def summary(failed=0, complete=True, tokens=12, asked=12, without_usage=0, **metrics):
    failures = {"http 429": {"count": failed, "example": ""}} if failed else {}
    counts = {"without_usage": without_usage, "tokens_per_chunk": 1.0} | dict.fromkeys(
        ("shorter_than_asked", "longer_than_asked", "tpot_read_late", "gaps_read_late"), 0
    )
    return {
        "complete": complete,
        "requests": {"failed": failed, "ok": 3 - failed, "total": 3},
        "failures": failures,
        "prompt_tokens": 100,
        "cached_tokens": 0,
        "output_tokens": tokens,
        "asked_tokens": asked,
        "counts": counts,
        "itl_s": None,
    } | metrics


def test_ratio_by_hand():
    ours = [summary(output_tokens_per_s=20.0), summary(output_tokens_per_s=40.0)]
    theirs = [summary(output_tokens_per_s=10.0), summary(output_tokens_per_s=10.0)]
    found = ratio("output_tokens_per_s", ours, theirs)
    # Logarithms of 2 and 4: mean 1.5 log 2; standard deviation log 2 / sqrt 2; Student's t 12.7062.
    half = 12.7062 * math.log(2) / math.sqrt(2) / math.sqrt(2)
    assert found["ratio"] == pytest.approx(math.sqrt(8))
    assert found["low"] == pytest.approx(math.exp(1.5 * math.log(2) - half))
    assert found["high"] == pytest.approx(math.exp(1.5 * math.log(2) + half))
    assert found["rounds"] == pytest.approx([2, 4])


def test_there_is_no_ratio_to_nothing():
    some, none = summary(itl_s={"max": 0.5}), summary(itl_s={"max": 0.0})
    assert ratio("itl_s.max", [some, some], [some, none]) is None


def test_goodput_is_compared_by_difference_as_it_may_be_nothing():
    ours = [summary(goodput={"fraction": each}) for each in (1.0, 0.8)]
    theirs = [summary(goodput={"fraction": 0.0}, failed=each) for each in (0, 2)]
    found = differences(ours, theirs)["goodput.fraction"]
    # 1.0 and 0.8: mean 0.9, standard deviation 0.2 / sqrt 2, Student's t 12.7062; it cannot be above 1.
    assert found["difference"] == pytest.approx(0.9)
    assert found["low"] == pytest.approx(0.9 - 12.7062 * 0.1)
    assert found["high"] == 1.0
    assert found["rounds"] == pytest.approx([1.0, 0.8])


def gone(ok, total, why, **more):
    """A round of a server that hung or died: of what was due, so many were answered, all well."""
    unanswered = {"ok": ok, "total": total, "failed": total - ok}
    failures = {why: {"count": total - ok, "example": ""}}
    return summary(goodput={"fraction": ok / total}, **more) | {"requests": unanswered, "failures": failures}


def test_who_does_not_answer_keeps_no_objective():
    """Of 16 due in each round it kept 16, then 5, as one timed out and ended the round, then none."""
    ours = [summary(goodput={"fraction": 1.0})] * 4
    theirs = [
        summary(goodput={"fraction": 1.0}),
        gone(5, 16, "timed out", complete=False),
        gone(0, 16, "could not connect"),
        gone(7, 16, "interrupted", complete=False),  # by Ctrl-C: that says nothing of it
    ]
    found = differences(ours, theirs)["goodput.fraction"]
    assert found["rounds"] == pytest.approx([0.0, 11 / 16, 1.0])
    assert found["difference"] == pytest.approx(27 / 48)
    assert means(theirs)["goodput.fraction"]["mean"] == pytest.approx(21 / 48)


def test_goodput_as_a_rate_is_of_the_same_rounds():
    good = {"fraction": 1.0, "requests_per_s": 30.0}
    rounds = [summary(goodput=good), summary(goodput={"fraction": 0.5, "requests_per_s": 24.0}, failed=1)]
    found = means(rounds)
    assert found["goodput.fraction"]["mean"] == pytest.approx(0.75)
    assert found["goodput.requests_per_s"]["mean"] == pytest.approx(27.0)
    longer = [summary(goodput=good, tokens=15)]
    assert pairs("goodput.fraction", rounds[:1], longer) == []
    assert pairs("goodput.requests_per_s", rounds[:1], longer) == []


def test_less_of_a_time_is_better():
    ours, theirs = [summary(ttft_s={"p50": 0.1})], [summary(ttft_s={"p50": 0.4})]
    found = ratio("ttft_s.p50", ours, theirs)
    assert found["ratio"] == pytest.approx(4)
    assert found["low"] is None


@pytest.mark.parametrize(
    "spoiled",
    [None, summary(failed=1, e2e_s={"p50": 1.0}), summary(complete=False, e2e_s={"p50": 1.0}), summary()],
)
def test_only_rounds_that_both_finished_count(spoiled):
    good = summary(e2e_s={"p50": 1.0})
    other = summary(e2e_s={"p50": 3.0})
    assert ratio("e2e_s.p50", [good, good], [spoiled, other])["rounds"] == pytest.approx([3])
    assert ratio("e2e_s.p50", [good], [spoiled]) is None


def test_gaps_are_told_by_median_and_greatest_too():
    """A step of 2 s in 1 of 200 gaps: p99 alone would call the side with the few huge gaps the better one."""
    few_huge = summary(itl_s={"p50": 0.01, "p99": 0.01, "max": 2.0})
    moderate = summary(itl_s={"p50": 0.01, "p99": 0.05, "max": 0.05})
    assert {name: told["mean"] for name, told in means([few_huge]).items()} == {
        "itl_s.p50": 0.01,
        "itl_s.p99": 0.01,
        "itl_s.max": 2.0,
    }
    found = ratios([moderate], [few_huge])
    assert found["itl_s.p99"]["ratio"] == pytest.approx(0.2)
    assert found["itl_s.max"]["ratio"] == pytest.approx(40)
    assert found["itl_s.p50"]["ratio"] == pytest.approx(1)


def every_metric(**more):
    one = {"p50": 1.0, "p99": 1.0, "max": 1.0, "count": 9}
    latencies = {f"{name}_s": one for name in ("ttft", "tpot", "itl", "e2e")}
    rates = dict.fromkeys(("output_tokens_per_s", "prompt_tokens_per_s", "requests_per_s"), 1.0)
    good = {"fraction": 0.5, "requests_per_s": 1.0}
    return summary(**latencies, **rates, **{"goodput": good} | more)


def test_all_that_is_known_is_compared():
    assert set(ratios([every_metric()], [every_metric()])) == set(METRICS)
    assert set(means([every_metric()])) == ALL


GOOD = {"goodput.fraction", "goodput.requests_per_s"}
ALL = {*METRICS, *GOOD}
ITL = {"itl_s.p50", "itl_s.p99", "itl_s.max"}
COUNTING = {"output_tokens_per_s", "tpot_s.p50", "tpot_s.p99"}


@pytest.mark.parametrize("pieces", [3, 24])
def test_pieces_are_no_tokens(pieces):
    """Without usage, only pieces are seen: with 4 tokens in each, a rate would be a quarter of the true."""
    uncounted = every_metric(tokens=pieces, without_usage=3)
    assert ALL - set(means([uncounted])) == COUNTING | GOOD
    # Of 12 tokens 3 pieces have 4 each, and 24 are more than tokens: gaps between them are other gaps.
    assert set(METRICS) - set(ratios([every_metric()], [uncounted])) == COUNTING | ITL
    assert set(METRICS) - set(ratios([uncounted], [every_metric()])) == COUNTING | ITL


def test_as_many_pieces_as_asked_for_are_counted():
    uncounted = every_metric(tokens=12, without_usage=3)
    assert set(ratios([every_metric()], [uncounted])) == set(METRICS)


@pytest.mark.parametrize(("per_piece", "missing"), [(1.05, set()), (1.06, ITL), (4.0, ITL)])
def test_gaps_between_pieces_of_other_sizes_are_not_compared(per_piece, missing):
    """Who sends 4 tokens at once has a quarter of the gaps, each four times as long, and is no slower."""
    one, several = every_metric(), every_metric()
    several["counts"]["tokens_per_chunk"] = per_piece
    assert set(METRICS) - set(ratios([one], [several])) == missing
    assert set(METRICS) - set(ratios([several], [one])) == missing
    assert set(ratios([several], [several])) == set(METRICS)


def test_answers_of_other_lengths_are_other_work():
    other = every_metric(tokens=11)
    whole = {"output_tokens_per_s", "prompt_tokens_per_s", "requests_per_s"}
    assert set(METRICS) - set(ratios([every_metric()], [other])) == whole | {"e2e_s.p50", "e2e_s.p99"}
    assert differences([every_metric()], [other]) == {}
    assert set(means([other])) == ALL  # each is true on its own
    a, b = every_metric(tokens=100, asked=100), every_metric(tokens=98, asked=100)
    assert set(ratios([a], [b])) == set(METRICS)
    assert ratio("e2e_s.p50", [a, a], [other, b])["rounds"] == [1.0]


def test_uncounted_answers_are_compared_as_if_they_had_all_tokens():
    uncounted = every_metric(tokens=3, without_usage=3)
    assert "e2e_s.p50" in ratios([every_metric()], [uncounted])
    assert "e2e_s.p50" not in ratios([every_metric(tokens=6)], [uncounted])


def test_prompts_of_other_lengths_are_other_prompts():
    found = ratios([every_metric()], [every_metric(prompt_tokens=110)])
    assert set(METRICS) - set(found) == {"prompt_tokens_per_s"}
    assert "prompt_tokens_per_s" in ratios([every_metric()], [every_metric(prompt_tokens=101)])


def comparison(*sides, task=""):
    """Sides are lists of rounds."""
    return {
        "task": task,
        "sides": [
            {
                "name": name,
                "failure": None,
                "is_restarted": False,
                "ran_before": False,
                "kept_up": None,
                "told": {"ignore_eos": True},
                "rounds": rounds,
            }
            for name, rounds in zip("abc", sides, strict=False)
        ],
    }


@pytest.mark.parametrize(
    ("rounds", "text"),
    [
        (1, "One round only: no confidence intervals, and the first has the first turn."),
        (2, "2 rounds have intervals 5.6 times as wide as 4 rounds would have."),
        (4, None),
    ],
)
def test_few_rounds_are_told_of_ratios_alone(rounds, text):
    first, nothing = {"ratios": None, "differences": None}, {"ratios": {}, "differences": {}}
    some = {"ratios": {"e2e_s.p50": {"ratio": 2.0}}, "differences": {}}
    assert few_rounds([{"sides": [first, some]}], rounds) == text
    assert few_rounds([{"sides": [first, nothing]}], rounds) is None
    assert few_rounds([], rounds) is None


def told(comparison):
    return warnings_of(comparison, rounds=len(comparison["sides"][0]["rounds"]))


def test_nothing_odd_is_no_warning():
    rounds = [every_metric(), None, every_metric()]
    assert told(comparison(rounds, rounds)) == []


def test_a_round_that_was_interrupted_has_not_failed():
    """Of 3 requests one was answered, and two were under way when Ctrl-C came."""
    cut = every_metric(failed=2, complete=False) | {"failures": {"interrupted": {"count": 2, "example": ""}}}
    assert told(comparison([every_metric(), cut], [every_metric(), None])) == [
        "a: round 2 was interrupted, and does not count."
    ]
    late = cut | {"failures": {"timed out": {"count": 1}, "interrupted": {"count": 1}}}
    assert told(comparison([every_metric(), late], [every_metric(), every_metric()])) == [
        "a: 1 of 6 requests failed: timed out. Who refuses work has less of it: rates and "
        "times of 1 of its 2 rounds are not compared.",
        "a: round 2 ended with the first request that timed out: what was not answered kept no objective.",
    ]


def test_a_side_without_usage_is_warned_of():
    odd = every_metric(tokens=1200, asked=4800, without_usage=3)
    assert told(comparison([every_metric(), every_metric()], [odd, odd], task="c")) == [
        "b (scene c): 6 answers came without usage, in 2,400 pieces where 9,600 tokens were asked for. How "
        "many tokens they had is not known: there are no tokens/s and no TPOT, and other ratios hold only if "
        "these answers were as long as the others'."
    ]
    fine = every_metric(without_usage=3)
    assert told(comparison([every_metric()], [fine])) == [
        "b: answers came without usage; as many pieces came as tokens were asked for."
    ]


def test_short_answers_are_warned_of():
    short = every_metric(tokens=9)
    short["counts"]["shorter_than_asked"] = 2
    odd = comparison([every_metric(), every_metric()], [every_metric(), short])
    odd["sides"][1]["told"] = {"ignore_eos": False}
    assert told(odd) == [
        "b: 2 of 6 answers were shorter than asked for, as the model's end token was not ignored.",
        "In 1 of 2 rounds a answered 12 tokens and b 9 to the same requests: rates and E2E of these are not "
        "compared.",
    ]


def test_long_answers_and_late_reading_are_warned_of():
    odd = every_metric()
    odd["counts"] |= {"longer_than_asked": 2, "tpot_read_late": 2}
    assert told(comparison([every_metric(), every_metric()], [every_metric(), odd])) == [
        "b: 2 of 6 answers were longer than asked for: the server does not keep to max_tokens, so it did "
        "other work than one that does.",
        "b: The load generator read late: the first or last chunk of 2 of 6 answers waited for it, perhaps "
        "with others. TPOT is its own and not the server's, and so is what an objective says of TPOT: the "
        "machine is too busy, or the rate too high for one generator.",
    ]


def test_other_prompts_are_warned_of():
    assert told(comparison([every_metric()] * 2, [every_metric(), every_metric(prompt_tokens=110)])) == [
        "In 1 of 2 rounds a counted 100 tokens and b 110 in the same prompts: prompt tokens/s of these are "
        "not compared."
    ]


def test_several_tokens_at_once_are_warned_of():
    odd = every_metric()
    odd["counts"]["tokens_per_chunk"] = 4.0
    assert told(comparison([every_metric()], [odd])) == [
        "b: 4.00 tokens came at once on average: ITL is the gap between pieces, and compared only with who "
        "sends as many at once."
    ]


def test_failed_requests_are_warned_of_and_nothing_else_of_their_round():
    odd = every_metric(failed=1, tokens=3, without_usage=3, cached_tokens=90)
    assert told(comparison([every_metric()], [odd])) == [
        "b: 1 of 3 requests failed: http 429. Who refuses work has less of it: rates and "
        "times of all its rounds are not compared."
    ]


def test_caches_that_differ_are_warned_of():
    few, many = every_metric(cached_tokens=5), every_metric(cached_tokens=92)
    (text,) = told(comparison([few, few, few], [few, every_metric(cached_tokens=60), many]))
    assert text.startswith("In round 3 b found 92% of its prompt tokens in a cache, a 5%: ")
    assert "b was started for this" in text
    before = comparison([few], [many])
    before["sides"][1]["ran_before"] = True
    (text,) = told(before)
    assert "b ran before and may know these prompts" in text
    assert told(comparison([few], [every_metric(cached_tokens=15)])) == []
    assert told(comparison([every_metric(cached_tokens=None)], [many])) == []
