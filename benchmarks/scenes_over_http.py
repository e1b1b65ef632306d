"""The scenes of ``octavo bench scenes`` against a server that speaks OpenAI's completions API.

    python benchmarks/scenes_over_http.py http://127.0.0.1:8080 --vocab-size 49152 --json

All requests of a scene are sent at once; prompts are token ids. A server with slots, as llama.cpp's, needs as
many as the scene has requests, with room for all of them.
"""

import argparse
import http.client
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import numpy as np

from octavo.bench.scenes import SCENES, Scene


def complete(url: str, prompt: list[int], max_tokens: int, share_prefixes: bool) -> int:
    """Sends one request and waits for its end; returns the tokens that it generated."""
    where = urlsplit(url)
    body = {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": share_prefixes,
    }
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=900)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    if response.status != 200:
        raise RuntimeError(f"status {response.status}: {answer[:300]!r}")
    return int(json.loads(answer)["usage"]["completion_tokens"])


def measure(url: str, scene: Scene, vocab_size: int, repeats: int) -> dict[str, object]:
    """Tokens per second in each of ``repeats`` runs, after one that is not counted."""
    rng = np.random.default_rng(0)
    rates = []
    for repeat in range(repeats + 1):
        prompts = scene.prompts(rng, vocab_size)
        begin = time.perf_counter()
        with ThreadPoolExecutor(len(prompts)) as pool:
            counts = list(
                pool.map(lambda p: complete(url, p, scene.output_len, scene.shared_len > 0), prompts)
            )
        seconds = time.perf_counter() - begin
        if set(counts) != {scene.output_len}:
            raise RuntimeError(f"scene {scene.name}: {sorted(set(counts))} tokens, not {scene.output_len}")
        if repeat:
            rates.append(round(scene.num_counted / seconds, 1))
    return {"scene": scene.name, "tokens_per_s": statistics.median(rates), "runs": rates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--only", choices=[scene.name for scene in SCENES], action="append")
    parser.add_argument("--vocab-size", type=int, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = [
        measure(arguments.url, scene, arguments.vocab_size, arguments.repeats)
        for scene in SCENES
        if not arguments.only or scene.name in arguments.only
    ]
    if arguments.json:
        print(json.dumps(results, indent=1))
        return
    for result in results:
        print(f"{result['scene']}: {result['tokens_per_s']:,.0f} tokens/s; runs {result['runs']}")


if __name__ == "__main__":
    main()
