"""A load against a fake server."""

import asyncio

from fake_openai import Behaviour, FakeServer

from octavo.bench.load.arrivals import ArrivalPlan
from octavo.bench.load.generator import run_load
from octavo.bench.load.openai_target import OpenAITarget, ServerOptions
from octavo.bench.workloads.lengths import Fixed
from octavo.bench.workloads.synthetic import Synthetic

AT_ONCE = ArrivalPlan(kind="at-once")


def load(items, plan=AT_ONCE, choose=lambda _: Behaviour(), *, stop_after=None, options=None, **server):
    """Run a load against a fake server; gives the result and the server."""

    async def run():
        async with FakeServer(choose, **server) as fake:
            target = OpenAITarget(fake.url, options or ServerOptions(timeout_s=30))
            await target.open()
            fake.asked.clear()
            stop, done = asyncio.Event(), []

            def on_done(record):
                done.append(record)
                if len(done) == stop_after:
                    stop.set()

            result = await run_load(target, items, plan, stop=stop, on_done=on_done)
            assert len(done) == len(result.records)
            await target.close()
            return result, fake

    return asyncio.run(asyncio.wait_for(run(), 60))


def some(count, num_tokens=5, input_len=3):
    return Synthetic(num_requests=count, input_len=Fixed(input_len), output_len=Fixed(num_tokens)).items(0)
