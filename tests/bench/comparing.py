"""What tests of comparisons have in common."""

import asyncio

from octavo.bench.compare.comparison import compare
from octavo.bench.compare.contestant import AtUrl, Facts
from octavo.bench.compare.rounds import CompareSettings
from octavo.bench.compare.scenes import Task
from octavo.bench.load.arrivals import ArrivalPlan
from octavo.bench.load.openai_target import ServerOptions
from octavo.bench.workloads.lengths import Fixed
from octavo.bench.workloads.synthetic import Synthetic

TASK = Task(
    workload=Synthetic(num_requests=3, input_len=Fixed(4), output_len=Fixed(5)),
    plan=ArrivalPlan(kind="at-once"),
)


class Silent:
    def begin(self, name, num_requests): ...

    def done(self, record): ...


class StartedHere(AtUrl):
    """As if the server had been started for the comparison."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.runs_at = None


def compared(contestants, *, task=TASK, **settings):
    """Compare; gives the parts of a report."""

    async def go():
        how = CompareSettings(**settings)
        stop = asyncio.Event()
        return await compare(lambda _: contestants, [task], how, progress=Silent(), stop=stop)

    return asyncio.run(asyncio.wait_for(go(), 120))


def at(server, name, kind=AtUrl, model=None):
    return kind(Facts(name=name), server.url, ServerOptions(timeout_s=30, asks_memory=False, model=model))
