"""Who comes when, and what each is given: nobody may live on what another computed."""

import dataclasses
import json
from collections import Counter
from itertools import pairwise, permutations

import pytest
from comparing import TASK, StartedHere, at, compared
from fake_openai import Behaviour

from octavo.bench.compare.contestant import AtUrl, same_place
from octavo.bench.compare.ratios import metric_of
from octavo.bench.compare.scenes import SCENES, as_task
from octavo.bench.compare.turns import order_of
from octavo.bench.load.arrivals import ArrivalPlan
from octavo.bench.load.http import Address
from octavo.bench.workloads.lengths import Uniform
from octavo.bench.workloads.limits import TraceLimits
from octavo.bench.workloads.prompts_file import read_prompts
from octavo.bench.workloads.synthetic import Synthetic
from octavo.core.errors import InvalidConfig

# Student's t by hand: 12.7062 / sqrt(2) and 4.3027 / sqrt(3), beside 3.1824 / sqrt(4).
TWO = "2 rounds have intervals 5.6 times as wide as 4 rounds would have."
THREE = "3 rounds have intervals 1.6 times as wide as 4 rounds would have."


def test_order_by_hand():
    assert [order_of(number, 2) for number in range(3)] == [[0, 1], [1, 0], [1, 0]]
    assert [order_of(number, 3) for number in range(4)] == [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]]
    assert order_of(0, 4) == [0, 1, 3, 2]
    assert order_of(5, 1) == [0]


@pytest.mark.parametrize("count", range(2, 10))
def test_each_comes_after_each_other_equally_often(count):
    rounds = range(count * (1 + count % 2))
    after = Counter(pair for number in rounds for pair in pairwise(order_of(number, count)))
    assert after == dict.fromkeys(permutations(range(count), 2), len(rounds) // count)


@pytest.mark.parametrize("count", range(1, 10))
def test_an_even_drift_cancels_in_two_rounds(count):
    for number in range(0, 20, 2):
        both = order_of(number, count), order_of(number + 1, count)
        assert {sum(turns.index(place) for turns in both) for place in range(count)} == {count - 1}


def asked_in(log):
    """Who was asked in turn, and what, without the probes."""
    turns = [(who, asked.body["prompt"]) for who, asked in log if asked.body["prompt"] != "Hello"]
    groups = [turns[i : i + 3] for i in range(0, len(turns), 3)]
    assert all(len({who for who, _ in group}) == 1 for group in groups)
    return [group[0][0] for group in groups], [sorted(prompt for _, prompt in group) for group in groups]


@pytest.fixture
def two(fake):
    """Two servers, and the list in which they note who was asked what."""
    log = []
    a = fake(lambda asked: log.append(("a", asked)) or Behaviour(gap_s=0.002))
    b = fake(lambda asked: log.append(("b", asked)) or Behaviour(gap_s=0.02))
    return a, b, log


def test_what_is_started_here_gets_the_same_in_alternate_order(two):
    a, b, log = two
    found = compared([at(a, "a", StartedHere), at(b, "b", StartedHere)], rounds=3)
    who, prompts = asked_in(log)
    assert who == list("ababbaba")
    of_a, of_b = ([p for w, p in zip(who, prompts, strict=True) if w == name] for name in "ab")
    assert of_a == of_b
    assert len({json.dumps(each) for each in of_a}) == 4  # warm-up and three rounds
    comparison = found["comparisons"][0]
    assert comparison["order"] == [["a", "b"], ["b", "a"], ["b", "a"]]
    assert comparison["workload"]["contents"] == "same"
    first, second = comparison["sides"]
    for metric in ("tpot_s.p50", "output_tokens_per_s"):
        told = second["ratios"][metric]
        assert told["low"] <= told["ratio"] <= told["high"]
        assert told["ratio"] > 1
        values = [[metric_of(each, metric) for each in side["rounds"]] for side in (first, second)]
        by_hand = [x / y if metric.startswith("output") else y / x for x, y in zip(*values, strict=True)]
        assert told["rounds"] == pytest.approx(by_hand)
    assert found["warnings"] == [THREE]


def test_servers_that_ran_before_get_contents_of_their_own(two):
    a, b, log = two
    found = compared([at(a, "a"), at(b, "b")], rounds=3)
    _, prompts = asked_in(log)
    every = [json.dumps(prompt) for group in prompts for prompt in group]
    assert len(set(every)) == len(every) == 24  # nothing is asked twice, of whomever
    assert {len(prompt) for group in prompts for prompt in group} == {4}
    assert found["comparisons"][0]["workload"]["contents"] == "own"
    assert found["warnings"] == [THREE]


@pytest.mark.parametrize("kind", [AtUrl, StartedHere], ids=["own contents", "the same"])
def test_each_round_has_a_draw_of_its_own_and_all_have_it(fake, kind):
    a, b = fake(), fake()
    lengths = Synthetic(num_requests=4, input_len=Uniform(1, 10_000), output_len=Uniform(1, 40))
    task = dataclasses.replace(TASK, workload=lengths, plan=ArrivalPlan(kind="poisson", rate=200))
    found = compared([at(a, "a", kind), at(b, "b", kind)], task=task, rounds=3)
    ours, theirs = (
        [
            (each["prompt_tokens"], each["asked_tokens"], round(each["last_due_s"], 6))
            for each in side["rounds"]
        ]
        for side in found["comparisons"][0]["sides"]
    )
    assert ours == theirs
    for column in zip(*ours, strict=True):
        assert len(set(column)) == 3


def test_one_server_that_ran_before_gets_what_the_others_get(two):
    a, b, log = two
    compared([at(a, "a"), at(b, "b", StartedHere)], rounds=1)
    _, prompts = asked_in(log)
    assert prompts[0] == prompts[1]
    assert prompts[2] == prompts[3]


def test_the_same_server_twice_does_not_answer_from_its_cache(fake):
    seen = []
    server = fake(lambda asked: seen.append(json.dumps(asked.body["prompt"])) or Behaviour())
    twice = [at(server, "a"), at(server, "b")]
    found = compared(twice, rounds=2)
    prompts = [prompt for prompt in seen if prompt != '"Hello"']
    assert len(set(prompts)) == len(prompts) == 18
    assert found["warnings"] == [
        f"a and b are the same server, {server.url}: their ratio says how much is chance.",
        TWO,
    ]


def test_two_models_of_one_server_may_be_compared(fake, tmp_path):
    server = fake(models=("one", "two"))
    both = [at(server, "a", model="one"), at(server, "b", model="two")]
    found = compared(both, rounds=2)
    assert found["warnings"] == [
        f"a and b are one server, {server.url}: if its models one and two are the same, "
        "the ratio says how much is chance.",
        TWO,
    ]
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": [1, 2, 3]}\n')
    task = dataclasses.replace(TASK, workload=read_prompts(file, TraceLimits(), max_tokens=4))
    assert compared(both, task=task, rounds=2)["warnings"][1].startswith("This workload has the same prompts")
    with pytest.raises(InvalidConfig, match="a and c are the same server"):
        compared([*both, at(server, "c", model="one")], task=task)


def test_prompts_of_a_file_cannot_be_others(fake, tmp_path):
    a, b = fake(), fake()
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": [1, 2, 3]}\n{"prompt": [4, 5, 6]}\n')
    task = dataclasses.replace(TASK, workload=read_prompts(file, TraceLimits(), max_tokens=4))
    with pytest.raises(InvalidConfig, match=r"a and c are the same server, http://127\.0\.0\.1:"):
        compared([at(a, "a"), at(b, "b"), at(a, "c")], task=task)
    assert a.asked == []
    found = compared([at(a, "a"), at(b, "b")], task=task, rounds=2)
    assert found["warnings"] == [
        "This workload has the same prompts for all: if a and b share a cache, who comes later finds there "
        "what another computed.",
        "Each of the 2 rounds has the same prompts: what a contestant's cache remembers of them is not "
        "computed again. --rounds 1 measures each once.",
        TWO,
    ]
    found = compared([at(a, "a"), at(b, "b")], task=task, rounds=1)
    assert not any("rounds has the same" in text for text in found["warnings"])
    assert found["comparisons"][0]["workload"]["contents"] == "same"


@pytest.mark.parametrize(
    ("a", "b", "is_same"),
    [
        ("http://127.0.0.1:80", "http://localhost/v1", True),
        ("http://0.0.0.0:80", "http://[::1]:80/", True),
        ("http://127.0.0.1:80", "http://127.0.0.1:81", False),
        ("http://127.0.0.1:80/one", "http://127.0.0.1:80/two", False),
        ("http://10.1.2.3:80", "http://10.1.2.3", True),
        ("http://10.1.2.3:80", "http://10.1.2.4", False),
        ("http://no-such.invalid", "http://no-such.invalid:80", True),
        ("http://no-such.invalid", "http://nor-this.invalid", False),
    ],
)
def test_the_same_place(a, b, is_same):
    assert same_place(Address.parse(a), Address.parse(b)) == is_same


def test_no_scene_begins_like_another():
    """A server that ran before sees all scenes: what it computed in one must be of no use in the next."""
    for seeds in ((0, 0), (0, 1)):
        beginnings = [
            {
                tuple(item.prompt[:16])
                for number in (-1, 0, 1)
                for item in as_task(scene, seed=seed).workload.items(number)
            }
            for scene, seed in zip((SCENES["a"], SCENES["b"]), seeds, strict=True)
        ]
        assert not beginnings[0] & beginnings[1]
    every = [
        {tuple(item.prompt[:16]) for item in as_task(scene).workload.items(0)} for scene in SCENES.values()
    ]
    assert len(set.union(*every)) == sum(map(len, every))
