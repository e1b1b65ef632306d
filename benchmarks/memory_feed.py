"""What the memory feed costs: a look between two steps, and a frame of it, by size of the pool.

    python benchmarks/memory_feed.py --blocks 20000 --running 64 --json

A scheduler without a model plays the engine: half of the pool in the tables of running sequences, the rest
cached. Between two looks every sequence grows by some tokens.
"""

import argparse
import json
import statistics
import time
from types import SimpleNamespace
from typing import Any, cast

from octavo.bench.machine import describe
from octavo.cli.native import native_isa, usable_cores
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.engine.engine import Engine
from octavo.paging.groups import GroupSpec
from octavo.scheduling.recording import SchedulerSettings
from octavo.scheduling.scheduler import Scheduler
from octavo.scheduling.step import StepResult
from octavo.server.memory.activity import Activity
from octavo.server.memory.feed import MAX_BUILD_SHARE, MAX_LOOK_SHARE, USUAL_INTERVAL_S, FeedState, timed_look
from octavo.server.registry import RequestRegistry

BLOCK_SIZE = 16


def step(scheduler: Scheduler) -> None:
    """One step of a model that always says 7."""
    plan = scheduler.schedule()
    scheduler.commit(StepResult([7] * sum(work.num_chosen for work in plan.work)))


def filled(num_blocks: int, num_running: int) -> Scheduler:
    """Half of the pool held, half cached."""
    settings = SchedulerSettings(
        num_blocks=num_blocks + 1,
        groups=(GroupSpec(BLOCK_SIZE),),
        prefix_cache=True,
        max_num_seqs=num_running,
        max_step_tokens=8192,
    )
    scheduler = settings.build(namespace="bench")
    prompt_len = num_blocks * BLOCK_SIZE // (2 * num_running) - 8 * BLOCK_SIZE
    params = SamplingParams(temperature=0.0, ignore_eos=True)
    for number in range(2 * num_running):
        is_first = number < num_running
        tokens = [number + 1, *range(prompt_len - 1)]
        max_len = prompt_len + (1 if is_first else 8 * BLOCK_SIZE)
        scheduler.add(
            Request(
                request_id=number,
                token_ids=tokens,
                prompt_len=prompt_len,
                params=params,
                max_len=max_len,
                seed=0,
            )
        )
    while scheduler.stats().num_waiting or scheduler.stats().num_running > num_running:
        step(scheduler)
    return scheduler


def measure(num_blocks: int, num_running: int, repeats: int) -> dict[str, Any]:
    """Medians over some looks, with some steps between them."""
    scheduler = filled(num_blocks, num_running)
    engine = cast(Engine, SimpleNamespace(scheduler=scheduler))
    state = FeedState(num_blocks + 1, activity=Activity(), registry=RequestRegistry())
    looks, builds, sizes, keys = [], [], [], []
    for _ in range(repeats):
        for _ in range(2):
            step(scheduler)
        seen = timed_look(engine)
        looks.append(seen.taken_s)
        start = time.perf_counter()
        state.update(seen, time.time())
        builds.append(time.perf_counter() - start)
        sizes.append(len(state.frame))
        start = time.perf_counter()
        key = state.frame_since(-1)
        keys.append(time.perf_counter() - start)
    look_s, build_s = statistics.median(looks), statistics.median(builds[1:])
    interval_s = max(USUAL_INTERVAL_S, look_s / MAX_LOOK_SHARE, build_s / MAX_BUILD_SHARE)
    stats = scheduler.kv.stats()
    return {
        "blocks": num_blocks,
        "running": num_running,
        "used_blocks": stats.used_blocks,
        "cached_blocks": stats.cached_blocks,
        "look_ms": 1e3 * look_s,
        "look_max_ms": 1e3 * max(looks),
        "frame_ms": 1e3 * build_s,
        "first_frame_ms": 1e3 * builds[0],
        "key_frame_ms": 1e3 * statistics.median(keys),
        "frame_bytes": statistics.median(sizes[1:]),
        "key_frame_bytes": len(key),
        "interval_s": interval_s,
        "engine_share": look_s / interval_s,
        "event_loop_share": build_s / interval_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, action="append", help="of the pool; may be repeated")
    parser.add_argument("--running", type=int, action="append", help="sequences; may be repeated")
    parser.add_argument("--repeats", type=int, default=50, help="looks, two steps apart; 50 at most")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = [
        measure(blocks, running, arguments.repeats)
        for blocks in arguments.blocks or [2_000, 20_000]
        for running in arguments.running or [8, 64]
    ]
    if arguments.json:
        machine = describe(usable_cores(), native_isa() or "none")
        print(json.dumps({"machine": machine.as_dict(), "results": results}))
        return
    for result in results:
        print(
            f"{result['blocks']:,} blocks, {result['running']} running: a look {result['look_ms']:.3f} ms, "
            f"a frame {result['frame_ms']:.2f} ms and {result['frame_bytes']:,.0f} bytes, "
            f"a key frame {result['key_frame_ms']:.2f} ms; every {result['interval_s']:.2f} s that is "
            f"{result['engine_share']:.3%} of the engine's time"
        )


if __name__ == "__main__":
    main()
