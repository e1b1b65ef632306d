"""A long random run of the memory policy against the naive model of the property tests.

Run it as ``python benchmarks/paging_soak.py --steps 100000 --report benchmarks/reports/paging_soak.json``.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "property"))

from paging_model import PagingModel, colliding_hash
from test_paging_stateful import GROUPS

from octavo.paging.hashing import content_hash

POOL_SIZES = [2, 3, 4, 6, 10, 24, 24, 60, 60]
MAX_LIVE = 6


def run_episode(rng: random.Random, num_steps: int) -> tuple[dict[str, int], Counter]:
    """One pool, ``num_steps`` random operations, each checked; the events and the operations counted."""
    model = PagingModel(
        rng.choice(GROUPS),
        rng.choice(POOL_SIZES),
        prefix_cache=rng.random() < 0.9,
        hash_function=colliding_hash if rng.random() < 0.2 else content_hash,
    )
    prompts = [[0] * 9]
    operations: Counter = Counter()
    for _ in range(num_steps):
        live = list(model.tokens)
        seq = rng.choice(live) if live else None
        name = rng.choices(
            ["create", "step", "append", "fork", "truncate", "release", "complete"],
            [2 if len(live) < MAX_LIVE else 0, 5, 3, 1 if len(live) < MAX_LIVE else 0, 1, 1.5, 0.5],
        )[0]
        if seq is None and name != "complete":
            name = "create"
        tail = [rng.randrange(3) for _ in range(rng.randrange(1, 8))]
        if name == "create":
            prompt = rng.choice(prompts)[: rng.randrange(20)] + tail
            prompts = [*prompts[-30:], prompt]
            model.create(prompt, rng.choice(["", "", "tenant"]), use_match=rng.random() < 0.5)
        elif name == "step":
            chunk = rng.randrange(1, 13)
            waiting = {s: len(tokens) - model.computed[s] for s, tokens in model.tokens.items()}
            work = [(s, min(n, chunk)) for s, n in waiting.items() if n and rng.random() < 0.8]
            model.step(
                work,
                batched=rng.random() < 0.5,
                accept=rng.choice([1.0, 1.0, 0.5, 0.0]),
                complete=rng.random() < 0.7,
            )
        elif name == "append" and len(model.tokens[seq]) < 30:
            model.append(seq, tail[:4])
            prompts = [*prompts[-30:], model.tokens[seq][:]]
        elif name == "fork":
            model.fork(seq)
        elif name == "truncate":
            model.truncate(seq, rng.randrange(len(model.tokens[seq]) + 1))
        elif name == "release":
            model.release(seq)
        elif name == "complete":
            model.complete_copies()
        operations[name] += 1
    model.complete_copies()
    for seq in list(model.tokens):
        model.release(seq)
    assert model.kv.num_free_blocks == model.num_blocks - 1
    return model.events, operations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--episode", type=int, default=500, help="operations on one pool")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path)
    args = parser.parse_args()
    events: Counter = Counter()
    operations: Counter = Counter()
    begin = time.perf_counter()
    for episode in range(-(-args.steps // args.episode)):
        seed = args.seed * 1_000_003 + episode
        try:
            new_events, new_operations = run_episode(random.Random(seed), args.episode)
        except BaseException:
            print(f"episode {episode}, random.Random({seed})", file=sys.stderr)
            raise
        events.update(new_events)
        operations.update(new_operations)
    report = {
        "steps": sum(operations.values()),
        "operations": dict(operations),
        "events": dict(events),
        "seed": args.seed,
        "seconds": round(time.perf_counter() - begin),
        "result": "every step agreed with the naive model",
    }
    text = json.dumps(report, indent=2)
    print(text)
    if args.report:
        args.report.write_text(text + "\n")


if __name__ == "__main__":
    main()
