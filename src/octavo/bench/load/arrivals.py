"""When requests come."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from octavo.bench.workloads.contents import stream_of
from octavo.bench.workloads.item import WorkItem
from octavo.core.display import counted
from octavo.core.errors import InvalidConfig, shown

Arrivals = Literal["poisson", "bursty", "trace", "closed", "at-once"]
ARRIVALS: tuple[Arrivals, ...] = get_args(Arrivals)

_STREAM = 77


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalPlan:
    """How requests come.

    In an open loop ("poisson", "bursty", "trace", "at-once") they come when they come, however long the
    answers take, as from many people who do not know of each other. In a closed loop a fixed number of users
    each wait for an answer before they ask again: a slow server is asked less, and its delays are then hidden
    from those who would have come.

    Attributes:
        rate: requests per second on average, of "poisson" and "bursty".
        burstiness: of "bursty": the variance of the gaps between arrivals, in units of that of a Poisson
            process. 1 is Poisson, more is burstier, 0 is a metronome.
        concurrency: users of a closed loop.
        seed, draw: of the gaps; each draw has others.

    Raises:
        InvalidConfig: a value that is missing or out of range.
    """

    kind: Arrivals
    rate: float | None = None
    burstiness: float = 4.0
    concurrency: int | None = None
    seed: int = 0
    draw: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ARRIVALS:
            raise InvalidConfig(f"arrivals={shown(self.kind)}: choose one of {', '.join(ARRIVALS)}")
        needs_rate = self.kind in ("poisson", "bursty")
        if needs_rate and (self.rate is None or not 0 < self.rate < float("inf")):
            raise InvalidConfig(f"rate={self.rate}: {self.kind} arrivals need requests per second, above 0")
        if self.kind == "closed" and (self.concurrency is None or self.concurrency < 1):
            raise InvalidConfig(f"concurrency={self.concurrency}: a closed loop needs at least 1 user")
        if not 0 <= self.burstiness <= 1000:
            raise InvalidConfig(f"burstiness={self.burstiness}: must be from 0 to 1000")

    def of_repeat(self, repeat: int) -> "ArrivalPlan":
        """With gaps of this repeat's own, as ``Workload.items`` has lengths of its own."""
        return replace(self, draw=repeat)

    def times(self, items: Sequence[WorkItem]) -> list[float]:
        """Seconds after the start at which each arrives, not falling; the same for the same seed and draw.

        ``items`` are those that do not wait for an answer: first turns, and single requests.

        Raises:
            InvalidConfig: they do not say when they come, and should.
        """
        count = len(items)
        if self.kind in ("at-once", "closed"):
            return [0.0] * count
        if self.kind == "trace":
            found = [item.arrival_s for item in items if item.arrival_s is not None]
            if len(found) < count:
                raise InvalidConfig("arrivals=trace: this workload does not say when its requests come")
            return found
        assert self.rate is not None
        mean = 1 / self.rate
        rng = stream_of(self.seed, _STREAM, self.draw)
        variance = 1.0 if self.kind == "poisson" else self.burstiness
        if variance == 0:
            gaps = [mean] * count
        elif variance == 1:
            gaps = rng.exponential(mean, count).tolist()
        else:
            gaps = rng.gamma(1 / variance, mean * variance, count).tolist()
        times, now = [], 0.0
        for gap in gaps:
            times.append(now)  # the first comes at once
            now += gap
        return times

    def describe(self) -> dict[str, Any]:
        """For reports."""
        found: dict[str, Any] = {"arrivals": self.kind}
        if self.kind in ("poisson", "bursty"):
            found["rate"] = self.rate
        if self.kind == "bursty":
            found["burstiness"] = self.burstiness
        if self.kind == "closed":
            found["concurrency"] = self.concurrency
        return found

    def __str__(self) -> str:
        match self.kind:
            case "poisson":
                return f"Poisson arrivals, {self.rate:g} requests/s"
            case "bursty":
                return (
                    f"bursty arrivals, {self.rate:g} requests/s (gap variance {self.burstiness:g}x Poisson)"
                )
            case "trace":
                return "arrivals as in the trace"
            case "closed":
                assert self.concurrency is not None
                return f"closed loop of {counted(self.concurrency, 'user')}"
            case _:
                return "all requests at once"
