"""What the memory policy costs: one decoding step, and each operation alone. No model, no bytes.

A step is what a scheduler asks of the policy for sequences that decode: slots for one token each, tables
extended where a block is full, the new tokens taken in, complete blocks published. Sequences stand at random
places in their blocks, so with 64 of them and blocks of 16 about four cross a boundary in each step.
"""

import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from octavo.paging import GroupSpec, KVManager

POOL_BLOCKS = 100_000
VOCAB_SIZE = 50_000
UNIFORM = (GroupSpec(16),)
MIXED = (GroupSpec(64, num_tables=9), GroupSpec(16, num_tables=2), GroupSpec(8))


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure everything; times in microseconds, rates per second.

    Args:
        quick: few repetitions, to see that it works.

    Returns:
        ``step_us_64``: median cost of one step of 64 decoding sequences; ``steps``: it and its variations;
        ``operations``: rates of single operations by number of live sequences; ``machine``.
    """
    num_steps = 32 if quick else 1600
    steps = [
        _measure_step(num_steps, label="64 sequences"),
        _measure_step(num_steps, label="1 sequence", num_sequences=1),
        _measure_step(num_steps, label="256 sequences", num_sequences=256),
        _measure_step(num_steps, label="small pool", num_blocks=64 * 140),
        _measure_step(num_steps, label="large pool", num_blocks=10 * POOL_BLOCKS),
        _measure_step(num_steps, label="short context", context_len=32),
        _measure_step(num_steps, label="long context", context_len=8192),
        _measure_step(num_steps, label="no prefix cache", prefix_cache=False),
        _measure_step(num_steps, label="three groups", groups=MIXED),
        _measure_step(num_steps, label="window of 256", groups=(GroupSpec(16, window=256),)),
        _measure_step(num_steps, label="one call per sequence and operation", batched=False),
    ]
    operations = [_measure_operations(live, 50 if quick else 2000) for live in (1, 64, 1024)]
    return {
        "step_us_64": steps[0]["median_us"],
        "steps": steps,
        "operations": operations,
        "machine": {
            "python": platform.python_version(),
            "processor": platform.machine(),
            "os": platform.system(),
        },
    }


def render(report: dict[str, Any]) -> str:
    """The report as text for a terminal."""
    lines = [
        "Cost of one step of decoding sequences (microseconds)",
        f"{'':38}{'sequences':>10}{'pool':>10}{'context':>9}{'median':>9}{'p10':>8}{'p90':>8}",
    ]
    for s in report["steps"]:
        lines.append(
            f"{s['label']:38}{s['sequences']:>10}{s['pool_blocks']:>10}{s['context_len']:>9}"
            f"{s['median_us']:>9.1f}{s['p10_us']:>8.1f}{s['p90_us']:>8.1f}"
        )
    lines += [
        "",
        f"Operations per second, pool of {POOL_BLOCKS} blocks, prompts of 256 tokens of which 128 are cached",
        f"{'live sequences':>16}{'match':>11}{'create':>11}{'append':>11}{'release':>11}{'stats':>11}",
    ]
    for row in report["operations"]:
        rates = "".join(f"{row[name]:>11,.0f}" for name in ("match", "create", "append", "release", "stats"))
        lines.append(f"{row['live']:>16}{rates}")
    return "\n".join(lines)


def _measure_step(
    num_steps: int,
    *,
    label: str,
    num_sequences: int = 64,
    num_blocks: int = POOL_BLOCKS,
    context_len: int = 512,
    groups: Sequence[GroupSpec] = UNIFORM,
    prefix_cache: bool = True,
    batched: bool = True,
) -> dict[str, Any]:
    rng = random.Random(0)
    kv = KVManager(num_blocks=num_blocks, groups=groups, prefix_cache=prefix_cache)
    sequences = []
    for _ in range(num_sequences):
        length = context_len + rng.randrange(64)
        sequences.append(_start(kv, [rng.randrange(VOCAB_SIZE) for _ in range(length)]))
    for seq in sequences:
        kv.append_tokens(seq, [0])
    times = []
    for _ in range(num_steps):
        work = [(seq, 1) for seq in sequences]
        results: list[tuple[int, int, int | None]] = [
            (seq, 1, rng.randrange(VOCAB_SIZE)) for seq in sequences
        ]
        begin = time.perf_counter()
        if batched:
            kv.commit_step(work)
            kv.advance_step(results)
        else:
            for seq, count in work:
                kv.commit(kv.plan_slots(seq, count))
            for seq, count, token in results:
                kv.mark_computed(seq, kv.num_computed(seq) + count)
                kv.append_tokens(seq, [token or 0])
        times.append((time.perf_counter() - begin) * 1e6)
    tenths = statistics.quantiles(times, n=10)
    return {
        "label": label,
        "sequences": num_sequences,
        "pool_blocks": num_blocks,
        "context_len": context_len,
        "block_sizes": [group.block_size for group in groups],
        "median_us": round(statistics.median(times), 2),
        "p10_us": round(tenths[0], 2),
        "p90_us": round(tenths[-1], 2),
    }


def _measure_operations(live: int, repeat: int) -> dict[str, Any]:
    """Rates of single operations; "append" is one token's way: append, plan, commit, mark."""
    rng = random.Random(0)
    kv = KVManager(num_blocks=POOL_BLOCKS, groups=UNIFORM)
    shared = [rng.randrange(VOCAB_SIZE) for _ in range(128)]

    def prompt() -> list[int]:
        return shared + [rng.randrange(VOCAB_SIZE) for _ in range(128)]

    sequences = [_start(kv, prompt()) for _ in range(live)]
    new_prompts = [prompt() for _ in range(repeat)]
    created: list[int] = []

    def append(i: int) -> None:
        seq = sequences[i % live]
        kv.append_tokens(seq, [i])
        kv.commit(kv.plan_slots(seq, 1))
        kv.mark_computed(seq, kv.seq_len(seq))

    return {
        "live": live,
        "match": _rate(repeat, lambda i: kv.match(new_prompts[i])),
        "create": _rate(repeat, lambda i: created.append(kv.create_sequence(new_prompts[i]))),
        "append": _rate(repeat, append),
        "release": _rate(repeat, lambda i: kv.release_sequence(created[i])),
        "stats": _rate(repeat, lambda i: kv.stats()),
    }


def _rate(repeat: int, operation: Callable[[int], object]) -> float:
    begin = time.perf_counter()
    for i in range(repeat):
        operation(i)
    return round(repeat / (time.perf_counter() - begin))


def _start(kv: KVManager, tokens: list[int]) -> int:
    """A sequence whose tokens are all computed."""
    seq = kv.create_sequence(tokens)
    grant = kv.commit(kv.plan_slots(seq, kv.seq_len(seq) - kv.num_computed(seq)))
    kv.complete_copies(grant.copies)
    kv.mark_computed(seq, kv.seq_len(seq))
    return seq
