"""When requests come."""

import numpy as np
import pytest

from octavo.bench.load.arrivals import ArrivalPlan
from octavo.bench.workloads.lengths import Fixed
from octavo.bench.workloads.synthetic import Synthetic
from octavo.core.errors import InvalidConfig


def items(count):
    return Synthetic(num_requests=count, input_len=Fixed(1)).items(0)


@pytest.mark.parametrize(
    ("kind", "burstiness", "variance"), [("poisson", 9.0, 1.0), ("bursty", 4.0, 4.0), ("bursty", 0.25, 0.25)]
)
def test_arrivals_have_rate_and_variance(kind, burstiness, variance):
    plan = ArrivalPlan(kind=kind, rate=50, burstiness=burstiness, seed=1)
    times = plan.times(items(20_000))
    assert times == plan.times(items(20_000))
    assert times != ArrivalPlan(kind=kind, rate=50, burstiness=burstiness, seed=2).times(items(20_000))
    draws = [plan.of_repeat(repeat).times(items(9)) for repeat in (0, 1, 2)]
    assert draws[0] == times[:9]
    assert len({draw[1] for draw in draws}) == 3
    assert times[0] == 0.0
    gaps = np.diff(times)
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.05)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(variance, rel=0.15)


def test_other_arrivals():
    assert ArrivalPlan(kind="bursty", rate=4, burstiness=0).times(items(3)) == [0, 0.25, 0.5]
    assert ArrivalPlan(kind="at-once").times(items(3)) == [0, 0, 0]
    with pytest.raises(InvalidConfig, match="does not say when"):
        ArrivalPlan(kind="trace").times(items(3))


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "poisson"},
        {"kind": "poisson", "rate": 0},
        {"kind": "bursty", "rate": 1, "burstiness": -1},
        {"kind": "closed"},
        {"kind": "closed", "concurrency": 0},
        {"kind": "sometimes"},
    ],
)
def test_arrivals_that_are_none(wrong):
    with pytest.raises(InvalidConfig):
        ArrivalPlan(**wrong)
