"""The scene of ``latency_under_load.py`` against a server that speaks OpenAI's completions API.

    python benchmarks/latency_over_http.py http://127.0.0.1:8080 --json

Streams of completions run; then a long prompt arrives. Prompts are token ids. The server needs a slot with
room for the long prompt beside those of the streams.
"""

import argparse
import http.client
import json
import threading
import time
from urllib.parse import urlsplit

import numpy as np


class Stream(threading.Thread):
    """One streamed completion, and when its pieces came."""

    def __init__(self, url: str, prompt: list[int], max_tokens: int) -> None:
        super().__init__(daemon=True)
        self.times: list[float] = []
        self.stop = threading.Event()
        self._url = urlsplit(url)
        self._body = {
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "ignore_eos": True,
            "cache_prompt": False,
        }

    def run(self) -> None:
        connection = http.client.HTTPConnection(self._url.hostname or "", self._url.port, timeout=600)
        connection.request(
            "POST", "/v1/completions", json.dumps(self._body), {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {response.read()[:300]!r}")
        while not self.stop.is_set() and (line := response.readline()):
            if line.startswith(b"data: {"):
                self.times.append(time.perf_counter())
        connection.close()


def gaps_ms(streams: list[Stream], start: float, end: float) -> list[float]:
    """Milliseconds between the pieces of each stream that came between two moments."""
    gaps = []
    for stream in streams:
        times = [t for t in stream.times if start <= t <= end]
        gaps += (1e3 * np.diff([start, *times])).tolist()
    return gaps


def measure(url: str, num_streams: int, prompt_len: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    streams = [Stream(url, rng.integers(100, 40_000, 128).tolist(), 4000) for _ in range(num_streams)]
    for stream in streams:
        stream.start()
    while min(len(s.times) for s in streams) < 20:
        time.sleep(0.01)
    start = time.perf_counter()
    while min(len(s.times) for s in streams) < 170:
        time.sleep(0.01)
    arrival = time.perf_counter()
    long = Stream(url, rng.integers(100, 40_000, prompt_len).tolist(), 1)
    long.start()
    while not long.times and long.is_alive():
        time.sleep(0.005)
    end = time.perf_counter()
    for stream in streams:
        stream.stop.set()
    p50, p99 = np.percentile(gaps_ms(streams, start, arrival), [50, 99]).tolist()
    during_p50, during_p99 = np.percentile(gaps_ms(streams, arrival, end), [50, 99]).tolist()
    return {
        "before_p50_ms": p50,
        "before_p99_ms": p99,
        "during_p50_ms": during_p50,
        "during_p99_ms": during_p99,
        "p99_ratio": during_p99 / p99,
        "long_prompt_ttft_s": end - arrival,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompt-len", type=int, default=8000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments.url, arguments.streams, arguments.prompt_len)
    if arguments.json:
        print(json.dumps(found, indent=1))
        return
    print(
        f"p99 gap {found['before_p99_ms']:.1f} ms alone, {found['during_p99_ms']:.1f} ms beside the long "
        f"prompt ({found['p99_ratio']:.1f} times); its first token after {found['long_prompt_ttft_s']:.1f} s"
    )


if __name__ == "__main__":
    main()
