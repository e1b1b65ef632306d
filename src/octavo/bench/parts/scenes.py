"""The scenes, end to end through ``LLM.generate``.

Prompts are random token ids and the model's end tokens are ignored, so that every run does the same work.
"""

import resource
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from octavo.backends.cpu import CpuBackend
from octavo.bench.ceilings import Meter
from octavo.bench.scenes import SCENES, Scene
from octavo.bench.tables import print_ceilings, print_table
from octavo.core.config import BlockSizes, KVDtype
from octavo.core.errors import InvalidConfig
from octavo.core.sampling import SamplingParams
from octavo.core.units import format_bytes
from octavo.engine.llm import LLM

_REPEATS = 3

_QUICK: Final = (
    Scene("a", "quick", 1, 0, 8, 4),
    Scene("b", "quick", 1, 0, 32, 1, counts_prompt=True),
    Scene("c", "quick", 3, 0, 8, 3),
    Scene("d", "quick", 3, 16, 4, 3),
)


def run(
    model: str,
    *,
    only: Sequence[str] = (),
    quick: bool = False,
    kv_dtype: KVDtype = "auto",
    block_size: BlockSizes = 16,
    threads: int | None = None,
) -> dict[str, Any]:
    """Measure the scenes, each the median of three runs after a first one that is not counted.

    Args:
        only: names of scenes; empty is all.
        quick: much smaller scenes, to see that it works.

    Returns:
        ``scenes`` with their ``tokens_per_s``, ``start_s`` until the model was ready, ``peak_rss_bytes`` of
        the process while it ran (before the ceilings are measured), ``machine``, ``ceilings``.

    Raises:
        InvalidConfig: a name in ``only`` is none of the scenes.
    """
    scenes = {scene.name: scene for scene in (_QUICK if quick else SCENES)}
    for name in only:
        if name not in scenes:
            raise InvalidConfig(f"scene {name!r}: choose among {', '.join(scenes)}")
    begin = time.perf_counter()
    with LLM(model, kv_dtype=kv_dtype, block_size=block_size, threads=threads) as llm:
        start_s = time.perf_counter() - begin
        results = [_measure(llm, scenes[name]) for name in only or scenes]
        peak_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    meter = Meter(CpuBackend(threads))
    ceilings = meter.measure()
    return {
        "command": "scenes",
        "model": Path(model).name,
        "quick": quick,
        "kv_dtype": kv_dtype,
        "block_size": block_size,
        "machine": meter.machine.as_dict(),
        "ceilings": ceilings.as_dict(),
        "start_s": round(start_s, 3),
        "peak_rss_bytes": peak_rss_bytes,
        "scenes": results,
    }


def render(report: dict[str, Any]) -> None:
    """Print the report for people."""
    print_ceilings(report)
    print_table(
        f"{report['model']}: started in {report['start_s']:.2f} s,"
        f" peak memory {format_bytes(report['peak_rss_bytes'])}",
        ["scene", "tokens/s", "runs", "first token ms"],
        [
            [
                f"{scene['scene']}  {scene['description']}",
                f"{scene['tokens_per_s']:,.0f}",
                ", ".join(f"{rate:,.0f}" for rate in scene["runs"]),
                f"{scene['first_token_ms']:,.0f}",
            ]
            for scene in report["scenes"]
        ],
    )


def _measure(llm: LLM, scene: Scene) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    params = SamplingParams(temperature=0, max_tokens=scene.output_len, ignore_eos=True)
    rates, first_tokens = [], []
    for repeat in range(_REPEATS + 1):
        prompts = scene.prompts(rng, llm.spec.vocab_size)
        begin, begin_monotonic = time.perf_counter(), time.monotonic()
        outputs = llm.generate(prompts, params, progress=False)
        seconds = time.perf_counter() - begin
        for output in outputs:
            if output.error is not None or len(output.outputs[0].token_ids) != scene.output_len:
                raise AssertionError(f"scene {scene.name}: a request ended early: {output.error}")
        if repeat:
            rates.append(scene.num_counted / seconds)
            first = [o.metrics.first_token_s - begin_monotonic for o in outputs if o.metrics.first_token_s]
            first_tokens.append(statistics.median(first))
    return {
        "scene": scene.name,
        "description": scene.description,
        "requests": scene.num_requests,
        "prompt_len": scene.shared_len + scene.own_len,
        "output_len": scene.output_len,
        "counts": "prompt" if scene.counts_prompt else "output",
        "tokens_per_s": round(statistics.median(rates), 1),
        "runs": [round(rate, 1) for rate in rates],
        "first_token_ms": round(statistics.median(first_tokens) * 1e3, 2),
    }
