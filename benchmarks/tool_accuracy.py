"""How true ``octavo bench serve`` is, against a server whose delays are known, and what its client costs.

    python benchmarks/tool_accuracy.py --json

The server is a process of its own that streams tokens on a schedule, and logs by the machine's one clock when
the end of each request had come to its socket (on Linux the system tells, however late the server read it)
and when it handed each chunk to the socket. The tool's TTFT and TPOT of each request are compared with two
things:

- ``written``, what the server did: from the end of the request to the first chunk handed to the socket; and
  from there to the last, per token. Exit status 1 if the median error of one is over 2 %.
- ``nominal``, the schedule. The server is one process, and writes what is due at the same moment one after
  the other; this counts as an error too.

In both the error of a TTFT holds all that lies outside the server's log, with what else the machine did
meanwhile: the tool's own lateness, connecting, the way there, the way back, and until the tool saw it.
``parts`` has these, and how late the server wrote; of each request, they add up to TTFT less the schedule's.

Then a stream of 2,000 tokens/s is read by this client and, if it is installed, by httpx: processor time per
piece, and from when a piece was written until it was seen. Run it alone: what else runs on the machine delays
both sides.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import uvloop

from octavo.bench.load.arrivals import ArrivalPlan
from octavo.bench.load.exchange import Exchange
from octavo.bench.load.generator import Record, run_load
from octavo.bench.load.openai_target import OpenAITarget, ServerOptions
from octavo.bench.metrics.spread import percentile
from octavo.bench.metrics.timings import timings_of
from octavo.bench.workloads.item import prompt_as_json
from octavo.bench.workloads.lengths import Fixed
from octavo.bench.workloads.synthetic import Synthetic

FAKE = Path(__file__).parents[1] / "tests" / "bench" / "fake_openai.py"
TOLERANCE = 0.02

Log = dict[str, dict[str, Any]]  # by prompt, as JSON


@dataclass(frozen=True, slots=True)
class Scene:
    """What is asked, and what the server is told to do.

    Attributes:
        first_s, gap_s: from the request to the first chunk, and from chunk to chunk.
    """

    name: str
    first_s: float
    gap_s: float
    plan: ArrivalPlan
    num_requests: int
    output_len: int = 64
    tokens_per_chunk: int = 1


SCENES = (
    Scene("one stream", 0.05, 0.005, ArrivalPlan(kind="closed", concurrency=1), 20),
    Scene("one slow stream", 0.5, 0.03, ArrivalPlan(kind="closed", concurrency=1), 6),
    Scene("8 users", 0.1, 0.01, ArrivalPlan(kind="closed", concurrency=8), 64),
    Scene("Poisson, 10 a second", 0.1, 0.01, ArrivalPlan(kind="poisson", rate=10), 60),
    Scene("bursty, 10 a second", 0.1, 0.01, ArrivalPlan(kind="bursty", rate=10), 60),
    Scene("chunks of 4 tokens", 0.1, 0.02, ArrivalPlan(kind="closed", concurrency=4), 24, tokens_per_chunk=4),
    Scene("20 users, 2,000 tokens/s", 0.1, 0.01, ArrivalPlan(kind="closed", concurrency=20), 60, 128),
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


def log_of(url: str) -> Log:
    with urlopen(f"{url}/log") as answer:
        return {json.dumps(entry["prompt"]): entry for entry in json.load(answer)["asked"]}


async def measure(url: str, scene: Scene) -> list[Record]:
    target = OpenAITarget(url, ServerOptions())
    await target.open()
    workload = Synthetic(
        num_requests=scene.num_requests, input_len=Fixed(128), output_len=Fixed(scene.output_len)
    )
    result = await run_load(target, workload.items(0), scene.plan, stop=asyncio.Event())
    await target.close()
    return result.records


def errors(measured: Sequence[float], true: Sequence[float]) -> dict[str, float]:
    """Of each request by itself, as fractions of what is true; and the median of that."""
    found = sorted(value / known - 1 for value, known in zip(measured, true, strict=True))
    return {
        "p50": percentile(sorted(true), 50),
        "error_p50": percentile(found, 50),
        "error_mean": sum(found) / len(found),
        "error_p1": percentile(found, 1),
        "error_p99": percentile(found, 99),
    }


def judge(scene: Scene, records: Sequence[Record], log: Log) -> dict[str, Any]:
    """Compare what the tool says of each request with the schedule and the server's log.

    Raises:
        RuntimeError: a request was not answered, which this server never does by itself.
    """
    if failed := [record.exchange for record in records if not record.is_ok]:
        raise RuntimeError(
            f"{scene.name}: {len(failed)} failed, such as: {failed[0].failure} {failed[0].detail}"
        )
    logged = [log[json.dumps(prompt_as_json(record.item.prompt))] for record in records]
    arrived_s = [entry["arrived_s"] for entry in logged]
    first_s = [entry["written_s"][0] for entry in logged]
    last_s = [entry["written_s"][-1] for entry in logged]
    timings = [timings_of(record) for record in records]
    num_later = scene.output_len - scene.tokens_per_chunk
    found: dict[str, Any] = {"scene": scene.name}
    for metric, nominal_s, written in (
        ("ttft_s", scene.first_s, [b - a for a, b in zip(arrived_s, first_s, strict=True)]),
        (
            "tpot_s",
            scene.gap_s / scene.tokens_per_chunk,
            [(b - a) / num_later for a, b in zip(first_s, last_s, strict=True)],
        ),
    ):
        measured = [getattr(each, metric) for each in timings]
        found[metric] = {
            "p50": percentile(sorted(measured), 50),
            "written": errors(measured, written),
            "nominal": errors(measured, [nominal_s] * len(measured)),
        }
    sent_s = [record.exchange.sent_s or 0.0 for record in records]
    parts = {
        "due_to_sent_s": [each.lateness_s for each in timings],
        "sent_to_arrived_s": [b - a for a, b in zip(sent_s, arrived_s, strict=True)],
        "server_late_s": [b - a - scene.first_s for a, b in zip(arrived_s, first_s, strict=True)],
        "written_to_seen_s": [r.exchange.chunk_s[0] - at for r, at in zip(records, first_s, strict=True)],
    }
    found["parts"] = {
        name: {"p50": percentile(sorted(values), 50), "p99": percentile(sorted(values), 99)}
        for name, values in parts.items()
    }
    found["ok"] = all(
        abs(found[metric]["written"]["error_p50"]) <= TOLERANCE for metric in ("ttft_s", "tpot_s")
    )
    return found


def accuracy() -> list[dict[str, Any]]:
    found = []
    for scene in SCENES:
        behaviour = {
            "first_s": scene.first_s,
            "gap_s": scene.gap_s,
            "tokens_per_chunk": scene.tokens_per_chunk,
        }
        with fake_server(**behaviour) as url:
            records = uvloop.run(measure(url, scene))
            found.append(judge(scene, records, log_of(url)))
    return found


Read = tuple[float, list[list[float]]]  # processor time while the load runs; moments of each stream's pieces


async def read_with_ours(url: str, prompts: Sequence[str], output_len: int) -> Read:
    target = OpenAITarget(url, ServerOptions())
    await target.open()
    exchanges = [Exchange() for _ in prompts]
    begin = time.process_time()
    sending = (target.send(prompt, output_len, e) for prompt, e in zip(prompts, exchanges, strict=True))
    await asyncio.gather(*sending)
    cpu_s = time.process_time() - begin
    await target.close()
    for exchange in exchanges:
        exchange.settle()
    return cpu_s, [exchange.chunk_s for exchange in exchanges]


async def read_with_httpx(url: str, prompts: Sequence[str], output_len: int) -> Read:
    import httpx

    async def one(client: httpx.AsyncClient, prompt: str) -> list[float]:
        body = {"model": "fake", "prompt": prompt, "max_tokens": output_len, "stream": True}
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
        times = await asyncio.gather(*(one(client, prompt) for prompt in prompts))
        return time.process_time() - begin, list(times)


def client_costs(streams: int = 20, output_len: int = 400, gap_s: float = 0.01) -> dict[str, Any]:
    """Processor time per piece, and from when a piece was written until it was seen; in turns."""
    found: dict[str, list[dict[str, float]]] = {}
    with fake_server(first_s=0.2, gap_s=gap_s) as url:
        for turn in range(3):
            for name, read in (("ours", read_with_ours), ("httpx", read_with_httpx)):
                prompts = [f"{name} {turn} {stream}" for stream in range(streams)]
                try:
                    cpu_s, seen = uvloop.run(read(url, prompts, output_len))
                except ImportError:
                    continue
                log = log_of(url)
                written = [log[json.dumps(prompt)]["written_s"] for prompt in prompts]
                delays = sorted(
                    b - a
                    for wrote, saw in zip(written, seen, strict=True)
                    for a, b in zip(wrote, saw, strict=True)
                )
                found.setdefault(name, []).append(
                    {
                        "cpu_us_per_piece": 1e6 * cpu_s / len(delays),
                        "seen_after_p50_us": 1e6 * percentile(delays, 50),
                        "seen_after_p99_us": 1e6 * percentile(delays, 99),
                    }
                )
    return {
        name: {key: percentile(sorted(run[key] for run in runs), 50) for key in runs[0]}
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
                f"{metric[:4]} {found['p50'] * 1e3:.3f} ms (written {found['written']['error_p50']:+.2%}, "
                f"nominal {found['nominal']['error_p50']:+.2%})"
                for metric in ("ttft_s", "tpot_s")
                for found in (scene[metric],)
            )
            print(f"{scene['scene']:<26} {told}{'' if scene['ok'] else '  OFF'}")
        for name, costs in report["client"].items():
            print(
                f"{name}: {costs['cpu_us_per_piece']:.1f} us per piece, "
                f"seen {costs['seen_after_p50_us']:.0f} us after it was written"
            )
    sys.exit(not all(scene["ok"] for scene in report["scenes"]))


if __name__ == "__main__":
    main()
