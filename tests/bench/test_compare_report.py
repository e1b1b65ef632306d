"""What the report of a comparison says, and what it does not; all by hand."""

import json

import pytest
from fake_openai import Behaviour
from test_compare_ratios import gone, summary

from octavo.bench.compare.failures import stop_of
from octavo.bench.compare.judging import judged_by, kept_up
from octavo.bench.compare.ratios import differences, means, ratios
from octavo.bench.compare.report import _task_facts, document, scenes_sheet, task_sheet
from octavo.bench.compare.scenes import SCENES, Task, as_task
from octavo.bench.compare.verdict import headline, tiles
from octavo.bench.compare.wording import cell, extent, verdict
from octavo.bench.load.arrivals import ArrivalPlan
from octavo.bench.workloads.lengths import Fixed
from octavo.bench.workloads.synthetic import Synthetic


def task(kind):
    workload = Synthetic(num_requests=3, input_len=Fixed(4), output_len=Fixed(5))
    return Task(workload=workload, plan=ArrivalPlan(kind=kind, rate=1.0, concurrency=2))


LATENCIES = ["ttft_s.p50", "tpot_s.p50", "e2e_s.p50"]


@pytest.mark.parametrize(
    ("kind", "metrics"),
    [
        ("closed", ["output_tokens_per_s"]),
        ("at-once", ["output_tokens_per_s"]),
        ("poisson", LATENCIES),
        ("bursty", LATENCIES),
        ("trace", LATENCIES),
    ],
)
def test_latencies_decide_where_requests_come_at_their_own_times(kind, metrics):
    assert judged_by(task(kind), has_objective=False) == metrics
    assert judged_by(task(kind), has_objective=True) == ["goodput.fraction", *metrics]


def test_scenes_are_decided_by_their_rate():
    assert judged_by(as_task(SCENES["b"]), has_objective=False) == ["prompt_tokens_per_s"]


def came(last_due_s, duration_s, e2e_s, **more):
    return summary(last_due_s=last_due_s, duration_s=duration_s, e2e_s={"p50": e2e_s}, **more)


@pytest.mark.parametrize(
    ("rounds", "did"),
    [
        ([came(10.0, 10.9, 0.5)], True),  # within a tenth of 10 s
        ([came(10.0, 13.0, 2.0)], True),  # within 1.5 medians
        ([came(10.0, 13.1, 2.0)], False),
        ([came(10.0, 20.0, 5.0)], False),  # half as fast as they come
        ([came(10.0, 10.9, 0.5), came(10.0, 20.0, 5.0)], False),
        ([came(10.0, 10.9, 0.5), came(10.0, 20.0, 5.0), came(10.0, 10.9, 0.5)], True),
        ([came(10.0, 20.0, 5.0, failed=1), None], None),
    ],
)
def test_who_kept_up(rounds, did):
    assert kept_up(rounds) is did


def side(name, rounds, first=None, **more):
    return {
        "name": name,
        "failure": None,
        "kept_up": None,
        "ran_before": True,
        "rounds": rounds,
        "means": means(rounds),
        "ratios": None if first is None else ratios(first, rounds),
        "differences": None if first is None else differences(first, rounds),
    } | more


def compared(*rounds, arrivals="closed", judged=("output_tokens_per_s",), task="", **more):
    sides = [
        side(name, each, None if name == "a" else rounds[0], **more)
        for name, each in zip("abc", rounds, strict=False)
    ]
    return {
        "task": task,
        "description": "a description",
        "judged_by": list(judged),
        "workload": {"arrivals": arrivals},
        "sides": sides,
    }


def rates(*values, **more):
    return [summary(output_tokens_per_s=value, **more) for value in values]


def test_a_headline_has_values_ratio_and_interval():
    # Logarithms of 2, 2, 2 and 2.2: standard deviation 0.04766, Student's t 3.1824, four rounds.
    each = compared(rates(20.0, 20.0, 20.0, 22.0), rates(10.0, 10.0, 10.0, 10.0))
    assert headline([each], 4) == "a against b: 20.5 vs 10.0 output tokens/s (2.05 x, 1.90 to 2.21)"
    (tile,) = tiles([each], 4)
    assert (tile.label, tile.value) == ("output tokens/s", "2.05 x")
    assert tile.note == "a 20.5, b 10.0; 1.90 to 2.21"


def test_a_ratio_whose_interval_contains_one_shows_no_difference():
    each = compared(rates(10.0, 11.0, 10.0, 11.0), rates(11.0, 10.0, 11.0, 10.0))
    assert headline([each], 4) == (
        "a against b: 10.5 vs 10.5 output tokens/s: no difference shown (1.00 x, 0.839 to 1.19)"
    )


def test_the_best_other_is_the_one_that_counts():
    each = compared(rates(20.0, 20.0), rates(10.0, 10.0), rates(16.0, 16.0))
    assert headline([each], 2) == (
        "a against the best of 2 others (c): 20.0 vs 16.0 output tokens/s (1.25 x, 1.25 to 1.25)"
    )
    (tile,) = tiles([each], 2)
    assert tile.note == "a 20.0, c 16.0 (best of 2 others); 1.25 to 1.25"
    assert task_sheet(each, 2).columns == ["", "a", "b", "against b", "c", "against c"]


def test_the_only_one_that_can_be_compared_is_not_the_best_of_two():
    each = compared(rates(20.0, 20.0), [None, None], rates(16.0, 16.0))
    assert headline([each], 2).startswith("a against c: 20.0 vs 16.0")


def test_worse_is_said():
    each = compared(rates(10.0, 10.0), rates(20.0, 20.0))
    (row,) = task_sheet(each, 2).rows
    assert row[-1] == "0.500 x (0.500 to 0.500), worse"
    assert tiles([each], 2)[0].note == "a 10.0, b 20.0; 0.500 to 0.500; worse"


def test_what_nobody_will_notice_is_no_win():
    each = compared(rates(100.4, 100.4), rates(100.0, 100.0))
    assert headline([each], 2) == (
        "a against b: 100 vs 100 output tokens/s: equal within 1 % (1.004 x, 1.004 to 1.004)"
    )


@pytest.mark.parametrize(
    ("metric", "low", "high", "text"),
    [
        ("ttft_s.p50", 0.51, 0.9, "0.510 to 0.900"),
        ("ttft_s.p50", 0.803, 1.0004, "0.803 to 1.0004"),  # contains 1
        ("ttft_s.p50", 0.803, 0.996, "0.803 to 0.996"),
        ("ttft_s.p50", 0.803, 0.9996, "0.803 to 0.9996"),  # does not
        ("ttft_s.p50", 1.0, 1.00002, "1.00 to 1.00002"),
        ("ttft_s.p50", 1.0, 12.0, "too few rounds for an interval"),
        ("goodput.fraction", 0.0, 0.0003, "+0.0 to +0.030"),
        ("goodput.fraction", -0.02, 0.5, "-2.0 to +50.0"),
    ],
)
def test_an_interval_shows_on_which_side_of_no_difference_it_ends(metric, low, high, text):
    assert extent(metric, {"low": low, "high": high, "rounds": [1.0, 1.0]}, 2) == text


@pytest.mark.parametrize(
    ("low", "ratio", "high", "text"),
    [
        (0.99, 1.0, 1.01, "equal within 1 %"),
        (1.001, 1.005, 1.011, "better"),
        (0.989, 1.0, 1.01, "no difference shown"),
        (0.4, 0.5, 0.6, "worse"),
        (0.01, 0.1, 1.0, ""),
    ],
)
def test_verdicts(low, ratio, high, text):
    assert verdict("ttft_s.p50", {"ratio": ratio, "low": low, "high": high}) == text


def test_arrivals_that_came_slower_than_drawn_are_told():
    each = compared(waits(0.1, 1.0), waits(0.3, 0.0), kept_up=True, **OPEN)
    each["workload"] |= {"kind": "synthetic", "num_requests": 3, "rate": 10.0}
    for one in each["sides"][0]["rounds"] + each["sides"][1]["rounds"]:
        one["requests_due_per_s"] = 6.52
    assert dict(_task_facts(each))["Kept up"].startswith("both did, with 6.52 requests/s, drawn for 10: ")
    each["workload"]["rate"] = 6.521
    assert dict(_task_facts(each))["Kept up"].startswith("both did, with 6.52 requests/s: ")


def test_fewer_rounds_are_told_and_values_are_those_of_these_rounds():
    """b had one round more than counts, of a slow machine, in which a was interrupted."""
    a, b = rates(20.0, 20.0, 20.0), rates(10.0, 10.0, 1.0)
    a[2]["complete"] = False
    each = compared(a, b)
    assert headline([each], 3) == (
        "a against b: 20.0 vs 10.0 output tokens/s (2.00 x, 2.00 to 2.00, 2 of 3 rounds)"
    )
    (row,) = task_sheet(each, 3).rows
    assert row == ["output tokens/s", "20.0", "10.0", "2.00 x (2.00 to 2.00, 2 of 3 rounds)"]


def test_a_table_has_the_numbers_of_the_tiles():
    """c, the best other, failed in the round in which a was slow, and b is compared in all."""
    c = rates(30.0, 20.0)
    c[1]["requests"] = {"ok": 2, "failed": 1, "total": 3}
    each = compared(rates(30.0, 10.0), rates(10.0, 20.0), c)
    (tile,) = tiles([each], 2)
    assert tile.note.startswith("a 30.0, c 30.0 (best of 2 others); ")
    (row,) = task_sheet(each, 2).rows
    assert (row[1], row[2], row[4]) == ("30.0", "15.0", "30.0")
    assert scenes_sheet([each], 2).rows[0][1] == "30.0"
    # What cannot be compared is of all rounds of a side.
    alone = compared(rates(30.0, 10.0), [None, None])
    (row,) = task_sheet(alone, 2).rows
    assert row[1:] == ["20.0", "-", "-"]


def test_an_early_end_is_the_reason_why_nothing_was_compared():
    cut = rates(1.0, complete=False)
    assert headline([compared(cut, [None])], 4, interrupted=True) == (
        "Nothing could be compared: it was interrupted"
    )
    assert headline([], 4, interrupted=True) == "Nothing could be compared: it was interrupted"


def test_what_cannot_be_compared_does_not_stand_side_by_side():
    """The answers of b were half as long: rates are not compared, times to and between tokens are."""
    times = {"ttft_s": {"p50": 0.1}, "tpot_s": {"p50": 0.01}}
    each = compared(rates(542.0, **times), rates(412.0, tokens=6, **times))
    assert headline([each], 1) == (
        "a against b: TTFT 100 ms vs 100 ms (1.00 x, too few rounds for an interval), TPOT 10.0 ms vs "
        "10.0 ms (1.00 x, too few rounds for an interval)"
    )
    assert [tile.label for tile in tiles([each], 1)] == ["TTFT p50", "TPOT p50"]
    gone = compared([None], rates(547.0))
    gone["sides"][0]["failure"] = "does not start: it is gone"
    assert headline([gone], 1) == "Nothing could be compared: a does not start: it is gone"
    assert tiles([gone], 1) == []


GONE = [
    gone(5, 16, "timed out", complete=False, output_tokens_per_s=5.0),
    gone(0, 16, "could not connect", output_tokens_per_s=0.0),
]
DROPPED = "round 3: could not connect"


def kept_all(count):
    return rates(*[10.0] * count, goodput={"fraction": 1.0})


def test_a_side_that_dies_is_told_first():
    """Of 16 due it kept 16, 5 and 0; as it was gone there was no fourth round."""
    each = compared(kept_all(3), kept_all(1) + GONE, judged=("goodput.fraction", "output_tokens_per_s"))
    each["sides"][1]["failure"] = DROPPED
    # Differences 0, 11/16 and 1: mean 0.5625, standard deviation 0.5115, Student's t 4.3027.
    assert headline([each], 4) == (
        "b stopped answering in round 2 of 4. a against b: 100.0 % vs 43.8 % of requests kept the objective: "
        "no difference shown (+56.2 points, -70.8 to +100.0, 3 of 4 rounds), 10.0 vs 10.0 output tokens/s "
        "(1.00 x, too few rounds for an interval, 1 of 4 rounds)"
    )
    told = [(tile.label, tile.value, tile.note) for tile in tiles([each], 4)]
    assert told[0] == ("Stopped answering", "b", "in round 2 of 4")
    assert [label for label, *_ in told[1:]] == ["kept the objective"]


def test_one_that_dies_is_no_rival_of_who_goes_on():
    each = compared(kept_all(4), [*kept_all(1), *GONE, None], rates(5.0, 5.0, 5.0, 5.0))
    each["sides"][1]["failure"] = DROPPED
    assert headline([each], 4).startswith("b stopped answering in round 2 of 4. a against c: 10.0 vs 5.00")
    assert [tile.label for tile in tiles([each], 4)] == ["output tokens/s"]


@pytest.mark.parametrize(
    ("rounds", "when"),
    [
        ([], "before the first round"),
        (GONE[1:], "in round 1 of 4"),
        ([*kept_all(2), GONE[1]], "in round 3 of 4"),
        ([*kept_all(1), None], "in round 2 of 4"),  # it did not start again
        ([GONE[0], GONE[0], GONE[1]], "in round 2 of 4"),
    ],
)
def test_when_a_side_stopped(rounds, when):
    assert stop_of({"failure": DROPPED, "rounds": rounds}, 4) == when
    assert stop_of({"failure": None, "rounds": rounds}, 4) is None


def test_failed_requests_are_told_first():
    refused = [gone(8, 16, "http 429"), *kept_all(1)]
    refused[1]["requests"] = {"ok": 16, "failed": 0, "total": 16}
    each = compared(kept_all(2), refused)
    assert headline([each], 2).startswith("8 of 32 requests to b failed. a against b: 10.0 vs 10.0 output")
    assert headline([compared(kept_all(1), refused[:1])], 1) == (
        "Nothing could be compared: 8 of 16 requests to b failed"
    )
    scenes = [compared(kept_all(2), refused, task=name) for name in "ab"]
    scenes[1]["sides"][1]["failure"] = DROPPED
    assert headline(scenes, 4).startswith(
        "8 of 32 requests to b of scene a failed, b stopped answering in round 3 of 4 of scene b. a against"
    )


OPEN = {"arrivals": "poisson", "judged": ("goodput.fraction", *LATENCIES)}


def waits(ttft_s, fraction, rate=50.0):
    """Three rounds."""
    latencies = {"ttft_s": {"p50": ttft_s}, "tpot_s": {"p50": 0.01}, "e2e_s": {"p50": 1.0}}
    return rates(*[rate] * 3, **latencies, goodput={"fraction": fraction, "requests_per_s": 1.0})


def test_at_a_rate_that_is_given_waiting_is_what_differs():
    each = compared(waits(0.1, 1.0, 52.0), waits(0.3, 0.0, 50.0), kept_up=True, **OPEN)
    assert headline([each], 3) == (
        "a against b: 100.0 % vs 0.0 % of requests kept the objective (+100.0 points, +100.0 to +100.0), "
        "TTFT 100 ms vs 300 ms (3.00 x, 3.00 to 3.00)"
    )
    told = [tile.label for tile in tiles([each], 3)]
    assert told == ["kept the objective", "TTFT p50", "TPOT p50", "E2E p50"]
    rows = {row[0]: row[1:] for row in task_sheet(each, 3).rows}
    assert list(rows)[:4] == told
    assert rows["output tokens/s"] == ["52.0", "50.0", "-"]
    assert rows["kept the objective"] == ["100.0 %", "0.0 %", "+100.0 points (+100.0 to +100.0)"]


def test_rates_are_compared_where_one_did_not_keep_up():
    each = compared(waits(0.1, 1.0, 60.0), waits(0.3, 0.0, 30.0), kept_up=False, **OPEN)
    rows = {row[0]: row[1:] for row in task_sheet(each, 3).rows}
    assert rows["output tokens/s"] == ["60.0", "30.0", "2.00 x (2.00 to 2.00)"]


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (1.0, 10.0, "2.00 x (1.00 to 10.0)"),
        (1.0, 10.1, "2.00 x (-)"),
        (0.00352, 4156.0, "2.00 x (-)"),
        (None, None, "2.00 x (-)"),
    ],
)
def test_an_interval_that_says_nothing_is_a_dash(low, high, text):
    found = {"ratio": 2.0, "low": low, "high": high, "rounds": [1.0, 4.0]}
    assert cell("ttft_s.p50", found, 2) == text


def test_several_tasks_have_a_tile_each_and_one_table_over_all():
    each = [compared(rates(20.0, 20.0), rates(10.0, 10.0), task=name) for name in "ab"]
    assert headline(each, 2) == (
        "a against the best other: scene a 2.00 x b (2.00 to 2.00), scene b 2.00 x b (2.00 to 2.00)"
    )
    assert [tile.label for tile in tiles(each, 2)] == ["Scene a, output tokens/s", "Scene b, output tokens/s"]


def test_the_first_screen_of_an_open_loop(run, fake):
    a, b = fake(), fake(lambda _: Behaviour(first_s=0.6))
    b.precision = "Q4_1 weights"
    status, out, _ = run(
        "bench", "compare", "--server", f"a={a.url}", "--server", f"b={b.url}", "-n", 6, "--input-len", 4,
        "--output-len", 3, "--rate", 100, "--rounds", 2, "--slo", "ttft=500ms", "--no-ceilings", "--json",
    )  # fmt: skip
    assert status == 0
    report = json.loads(out)
    (comparison,) = report["comparisons"]
    assert comparison["judged_by"] == ["goodput.fraction", *LATENCIES]
    assert comparison["sides"][1]["differences"]["goodput.fraction"]["rounds"] == pytest.approx([1.0, 1.0])
    for each in comparison["sides"][1]["rounds"]:
        assert 0 < each["last_due_s"] < each["duration_s"]
    facts = dict(document(report).facts)
    assert facts["Workload"] == "6 requests, 4 tokens in, 3 out; Poisson arrivals, 100 requests/s"
    assert facts["Objective"] == "TTFT ≤ 500 ms"
    assert facts["a"] == f"{a.url}; model fake; nobody 7.7; precision not told (--label a=TEXT names it)"
    assert facts["b"] == f"{b.url}; model fake; nobody 7.7; Q4_1 weights"
    assert (
        facts["Rounds"]
        == "2; in each, one after the other gets requests of the same lengths, with contents of their own"
    )
    assert "Kept up" in facts
    assert [chart.y_label for chart in document(report).more_charts] == ["TTFT p50, ms"]
