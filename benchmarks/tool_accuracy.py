"""How true ``octavo bench serve`` is, against a server whose delays are known, and what its client costs.

    python benchmarks/tool_accuracy.py --json

The server is a process of its own that streams tokens at moments that are known beforehand. For each scene
the tool's TTFT and TPOT are compared with these: exit status 1 if a median is more than 2 % off. Then a
stream of 2,000 tokens/s is read by this client and, if it is installed, by httpx, and the processor time per
piece is compared. Run it alone: what else runs on the machine delays both sides.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from octavo.bench.load.arrivals import ArrivalPlan
from octavo.bench.load.exchange import Exchange
from octavo.bench.load.generator import run_load
from octavo.bench.load.openai_target import OpenAITarget, ServerOptions
from octavo.bench.metrics.summary import summarize
from octavo.bench.workloads.lengths import Fixed
from octavo.bench.workloads.synthetic import Synthetic

FAKE = Path(__file__).parents[1] / "tests" / "bench" / "fake_openai.py"
TOLERANCE = 0.02
# Name, first token, gap, tokens per chunk, arrivals, requests, output tokens.
SCENES: tuple[tuple[str, float, float, int, ArrivalPlan, int, int], ...] = (
    ("one stream", 0.05, 0.005, 1, ArrivalPlan(kind="closed", concurrency=1), 20, 64),
    ("one slow stream", 0.5, 0.03, 1, ArrivalPlan(kind="closed", concurrency=1), 6, 64),
    ("8 users", 0.1, 0.01, 1, ArrivalPlan(kind="closed", concurrency=8), 64, 64),
    ("Poisson, 10 a second", 0.1, 0.01, 1, ArrivalPlan(kind="poisson", rate=10), 60, 64),
    ("bursty, 10 a second", 0.1, 0.01, 1, ArrivalPlan(kind="bursty", rate=10), 60, 64),
    ("chunks of 4 tokens", 0.1, 0.02, 4, ArrivalPlan(kind="closed", concurrency=4), 24, 64),
    ("20 streams, 2,000 tokens/s", 0.1, 0.01, 1, ArrivalPlan(kind="closed", concurrency=20), 60, 128),
)


@contextmanager
def fake_server(**behaviour: float | int) -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, FAKE, json.dumps(behaviour)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


async def measure(url: str, plan: ArrivalPlan, num_requests: int, output_len: int) -> dict[str, Any]:
    target = OpenAITarget(url, ServerOptions())
    await target.open()
    workload = Synthetic(num_requests=num_requests, input_len=Fixed(128), output_len=Fixed(output_len))
    result = await run_load(target, workload.items(0), plan, stop=asyncio.Event())
    await target.close()
    return summarize(result, None)


def accuracy() -> list[dict[str, Any]]:
    found = []
    for name, first_s, gap_s, per_chunk, plan, num_requests, output_len in SCENES:
        with fake_server(first_s=first_s, gap_s=gap_s, tokens_per_chunk=per_chunk) as url:
            summary = asyncio.run(measure(url, plan, num_requests, output_len))
        tpot_s = gap_s / per_chunk
        entry: dict[str, Any] = {"scene": name, "ok": summary["requests"]["ok"] == num_requests}
        for metric, known_s in (("ttft_s", first_s), ("tpot_s", tpot_s)):
            measured = summary[metric]
            entry[metric] = {
                "known": known_s,
                "p50": measured["p50"],
                "error_p50": measured["p50"] / known_s - 1,
                "error_mean": measured["mean"] / known_s - 1,
                "error_p99": measured["p99"] / known_s - 1,
            }
            entry["ok"] &= abs(entry[metric]["error_p50"]) <= TOLERANCE
        entry["lateness_p99_s"] = summary["lateness_s"]["p99"]
        found.append(entry)
    return found


Read = tuple[float, list[list[float]]]  # processor time while the load runs; moments of the pieces


async def read_with_ours(url: str, streams: int, output_len: int) -> Read:
    target = OpenAITarget(url, ServerOptions())
    await target.open()
    exchanges = [Exchange() for _ in range(streams)]
    begin = time.process_time()
    await asyncio.gather(*(target.send("Hello", output_len, exchange) for exchange in exchanges))
    cpu_s = time.process_time() - begin
    await target.close()
    for exchange in exchanges:
        exchange.settle()
    return cpu_s, [exchange.chunk_s for exchange in exchanges]


async def read_with_httpx(url: str, streams: int, output_len: int) -> Read:
    import httpx

    body = {"model": "fake", "prompt": "Hello", "max_tokens": output_len, "stream": True}

    async def one(client: httpx.AsyncClient) -> list[float]:
        times = []
        async with client.stream("POST", f"{url}/v1/completions", json=body) as response:
            async for line in response.aiter_lines():
                now = time.perf_counter()
                if line.startswith("data: {"):
                    piece = json.loads(line[6:])
                    if piece["choices"] and piece["choices"][0]["text"]:
                        times.append(now)
        return times

    async with httpx.AsyncClient(timeout=60) as client:
        begin = time.process_time()
        times = await asyncio.gather(*(one(client) for _ in range(streams)))
        return time.process_time() - begin, list(times)


def client_costs(streams: int = 20, output_len: int = 400, gap_s: float = 0.01) -> dict[str, Any]:
    """Processor time per piece, and how far pieces came from when they were sent, in turns."""
    found: dict[str, list[dict[str, float]]] = {}
    with fake_server(first_s=0.2, gap_s=gap_s) as url:
        for _ in range(3):
            for name, read in (("ours", read_with_ours), ("httpx", read_with_httpx)):
                try:
                    cpu_s, times = asyncio.run(read(url, streams, output_len))
                except ImportError:
                    continue
                pieces = sum(map(len, times))
                off = sorted(abs(t[i] - t[0] - i * gap_s) for t in times for i in range(1, len(t)))
                found.setdefault(name, []).append(
                    {"cpu_us_per_piece": 1e6 * cpu_s / pieces, "off_p50_us": 1e6 * off[len(off) // 2]}
                )
    return {
        name: {key: sorted(run[key] for run in runs)[len(runs) // 2] for key in runs[0]}
        for name, runs in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    report = {"scenes": accuracy(), "client": client_costs()}
    if arguments.json:
        print(json.dumps(report, indent=1))
    else:
        for scene in report["scenes"]:
            told = ", ".join(
                f"{metric[:4]} {scene[metric]['p50'] * 1e3:.3f} ms ({scene[metric]['error_p50']:+.2%})"
                for metric in ("ttft_s", "tpot_s")
            )
            print(f"{scene['scene']:<28} {told}{'' if scene['ok'] else '  OFF'}")
        for name, costs in report["client"].items():
            print(f"{name}: {costs['cpu_us_per_piece']:.1f} us per piece")
    sys.exit(not all(scene["ok"] for scene in report["scenes"]))


if __name__ == "__main__":
    main()
