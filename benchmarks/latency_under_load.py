"""What a long prompt does to others: gaps between tokens of running streams, before and beside it.

    python benchmarks/latency_under_load.py --budget 256 --chunk 16 --json

Streams decode; then a prompt of thousands of tokens arrives. Until its first token, each step computes a
chunk of it beside the streams' tokens, so a gap is at most the time of one full step.
"""

import argparse
import json
import time
from itertools import product

import numpy as np

from octavo import LLM, SamplingParams, _native
from octavo.bench.machine import describe
from octavo.engine.generation import Generation


def gaps_ms(llm: LLM, streams: list[Generation], until: "Generation | int") -> list[float]:
    """Milliseconds between tokens of each stream, until a request's first token or for some steps."""
    counts = [g.num_output_tokens for g in streams]
    last = [time.perf_counter()] * len(streams)
    gaps = []
    while until > 0 if isinstance(until, int) else until.num_output_tokens == 0:
        llm.engine.step()
        now = time.perf_counter()
        for i, stream in enumerate(streams):
            if stream.num_output_tokens > counts[i]:
                counts[i] = stream.num_output_tokens
                gaps.append(1e3 * (now - last[i]))
                last[i] = now
        if isinstance(until, int):
            until -= 1
    return gaps


def measure(llm: LLM, num_streams: int, prompt_len: int) -> dict[str, float]:
    """One scene: streams alone, then with the long prompt."""
    rng = np.random.default_rng(0)
    endless = SamplingParams(max_tokens=4000, temperature=0, ignore_eos=True)
    streams = []
    for _ in range(num_streams):
        stream = llm.prepare(rng.integers(100, 40_000, 128).tolist(), endless)
        llm.engine.submit(stream)
        streams.append(stream)
    while min(s.num_output_tokens for s in streams) == 0:
        llm.engine.step()
    gaps_ms(llm, streams, 20)  # warm up
    before = gaps_ms(llm, streams, 150)
    long = llm.prepare(
        rng.integers(100, 40_000, prompt_len).tolist(), SamplingParams(max_tokens=1, temperature=0)
    )
    start = time.perf_counter()
    llm.engine.submit(long)
    during = gaps_ms(llm, streams, long)
    ttft_s = time.perf_counter() - start
    for stream in streams:
        llm.engine.abort(stream)
    p50, p99 = np.percentile(before, [50, 99]).tolist()
    during_p50, during_p99 = np.percentile(during, [50, 99]).tolist()
    return {
        "before_p50_ms": p50,
        "before_p99_ms": p99,
        "during_p50_ms": during_p50,
        "during_p99_ms": during_p99,
        "p99_ratio": during_p99 / p99,
        "long_prompt_ttft_s": ttft_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompt-len", type=int, default=8000)
    parser.add_argument("--budget", type=int, action="append", help="tokens per step; may be repeated")
    parser.add_argument("--chunk", type=int, action="append", help="of these for prompts; may be repeated")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    report = {
        "machine": describe(_native.usable_cores(), _native.isa()).as_dict(),
        "streams": arguments.streams,
        "prompt_len": arguments.prompt_len,
    }
    for budget, chunk in product(arguments.budget or [256], arguments.chunk or [None]):
        with LLM(arguments.model, max_step_tokens=budget, max_chunk_tokens=chunk, kv_memory="2GiB") as llm:
            name = f"budget {budget}" if chunk is None else f"budget {budget}, chunks of {chunk}"
            report[name] = measure(llm, arguments.streams, arguments.prompt_len)
    if arguments.json:
        print(json.dumps(report, indent=1))
        return
    for name, found in report.items():
        if isinstance(found, dict) and "p99_ratio" in found:
            print(
                f"{name}: p99 gap {found['before_p99_ms']:.1f} ms alone, {found['during_p99_ms']:.1f} ms "
                f"beside the long prompt ({found['p99_ratio']:.1f} times); its first token after "
                f"{found['long_prompt_ttft_s']:.1f} s"
            )


if __name__ == "__main__":
    main()
