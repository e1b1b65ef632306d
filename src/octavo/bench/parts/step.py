"""What one step of the engine is made of: a real model that decodes, or reads prompts."""

import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from octavo.attention.plan import StepInputs
from octavo.backends.base import Backend
from octavo.backends.cpu import CpuBackend, Program
from octavo.bench.ceilings import Meter
from octavo.bench.parts.op_counts import CountingLoader, CountingOps, OpCount, Value, Weight, join_counts
from octavo.bench.parts.step_kinds import Decode, Prefill, StepKind
from octavo.bench.parts.step_profile import Timing, profile_python, profile_step
from octavo.bench.tables import print_ceilings, print_table
from octavo.core.config import BlockSizes, EngineConfig, KVDtype
from octavo.core.display import counted
from octavo.engine.build import BuiltEngine, build_engine
from octavo.models.decoder import Decoder
from octavo.models.loading import load_model
from octavo.weights.sources import resolve

_NUM_READS = 15


@dataclass(slots=True)
class _Stopwatch:
    """Stands in the engine's place of the program and takes times, if it is on."""

    program: Program
    on: bool = False
    inputs: StepInputs = field(init=False)  # of the last step
    call_s: float = 0.0  # of the last step, arguments and results included
    op_seconds: npt.NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.op_seconds = np.zeros(len(self.program.op_names))

    @property
    def largest(self) -> list[int]:
        """The program's."""
        return self.program.largest

    def __call__(self, inputs: StepInputs) -> npt.NDArray[np.float32]:
        self.inputs = inputs
        begin = time.perf_counter()
        logits = self.program(inputs, self.op_seconds if self.on else None)
        self.call_s = time.perf_counter() - begin
        return logits


def run(
    model: str,
    *,
    batch: int = 1,
    context_len: int = 128,
    prefill: int | None = None,
    profile: bool = False,
    num_steps: int | None = None,
    kv_dtype: KVDtype = "auto",
    block_size: BlockSizes = 16,
    threads: int | None = None,
) -> dict[str, Any]:
    """Measure steps of a model: ``batch`` sequences of about ``context_len`` tokens that decode.

    Args:
        prefill: measure chunks of this many prompt tokens instead, each after ``context_len`` tokens of its
            prompt; ``batch`` then means nothing.
        profile: take the time of every operation too, and look for the rest of the step in Python.
        num_steps: steps of which the median is taken; by default 64, or 8 of prefill.

    Returns:
        ``step_ms``, ``tokens_per_s``, the bytes and operations of a step, the fraction of the ceilings it
        reaches; with ``profile`` also ``profile``: see ``profile_step``.

    Raises:
        InvalidConfig: the sequences do not fit the model's context or the KV pool.
    """
    num_steps = num_steps or (64 if prefill is None else 8)
    config = EngineConfig(
        kv_dtype=kv_dtype,
        block_size=block_size,
        max_num_seqs=batch,
        max_step_tokens=max(512, batch) if prefill is None else prefill,
        threads=threads,
    )
    built = build_engine(model, config)
    assert isinstance(built.backend, CpuBackend)
    meter = Meter(built.backend)
    ceilings = meter.measure()
    stopwatch = _Stopwatch(cast(Program, built.engine.runner.program))
    built.engine.runner.program = stopwatch
    kind: StepKind
    if prefill is None:
        kind = Decode(
            built,
            batch=batch,
            context_len=context_len,
            num_steps=num_steps * (2 if profile else 1),
            more_steps=num_steps,
        )
    else:
        kind = Prefill(built, chunk_len=prefill, context_len=context_len)

    plain, timed, context_lens = [], [], []
    for _ in range(num_steps):
        plain.append(_time_step(built, kind, stopwatch, on=False))
        if profile:
            timed.append(_time_step(built, kind, stopwatch, on=True))
        context_lens.append(float(stopwatch.inputs.context_len.mean()))
    inputs = stopwatch.inputs
    counts = join_counts(count_step(model, built, inputs), stopwatch.program.op_names)
    streamed = sum(c.streamed_bytes for c in counts)
    meter.warm_up(streamed)
    read_rate = statistics.median(meter.read(streamed) for _ in range(_NUM_READS))
    step_s = statistics.median(step for step, _, _ in plain)
    report: dict[str, Any] = {
        "command": "step",
        "model": Path(model).name,
        "machine": meter.machine.as_dict(),
        "ceilings": ceilings.as_dict(),
        "kv_dtype": built.arena.layout.dtype,
        "block_sizes": list(built.arena.layout.table_block_sizes),
        "batch": len(inputs.rows),
        "context_len": round(statistics.median(context_lens)),
        "new_tokens": inputs.num_tokens,
        "steps": num_steps,
        "step_ms": round(step_s * 1e3, 4),
        "tokens_per_s": round(inputs.num_tokens / step_s, 1),
        "streamed_bytes": streamed,
        "activation_bytes": sum(c.activation_bytes for c in counts),
        "operations": sum(c.operations for c in counts),
        "working_set": {
            "bytes": streamed,
            "level": meter.level_of(streamed),
            "read_gb_s": round(read_rate / 1e9, 2),
        },
        "fraction_of_read": round(streamed / step_s / read_rate, 4),
        "fraction_of_dram": round(streamed / step_s / ceilings.reads[-1].bytes_per_s, 4),
    }
    if profile:
        timing = Timing(
            [step for step, _, _ in timed],
            [call for _, call, _ in timed],
            np.array([ops for *_, ops in timed]),
        )
        report["profile"] = profile_step(counts, timing, ceilings, read_rate, step_s)
        report["profile"]["functions"] = profile_python(built, kind, num_steps)
    return report


def count_step(model: str, built: BuiltEngine, inputs: StepInputs) -> list[OpCount]:
    """What each operation of a step reads, writes and computes, in the order of the forward pass."""
    loaded = load_model(resolve(model))
    # The decoder needs no more of a backend than its loading half.
    loader = cast("Backend[Value, Weight]", CountingLoader())
    decoder = Decoder(loaded.spec, loaded.weights, loader)
    windows = [loaded.spec.window(layer) for layer in range(loaded.spec.num_layers)]
    ops = CountingOps(inputs, built.arena.layout, loaded.spec.num_heads, windows)
    decoder.forward(ops)
    return ops.counts


def render(report: dict[str, Any]) -> None:
    """Print the report for people."""
    print_ceilings(report)
    working_set = report["working_set"]
    print_table(
        f"A step of {report['model']}: {counted(report['new_tokens'], 'token')} of "
        f"{counted(report['batch'], 'sequence')}, after {report['context_len']} of each",
        ["ms", "tokens/s", "MB read", f"GB/s at this size ({working_set['level']})", "of it", "of DRAM"],
        [
            [
                f"{report['step_ms']:.3f}",
                f"{report['tokens_per_s']:,.0f}",
                f"{report['streamed_bytes'] / 1e6:,.1f}",
                f"{working_set['read_gb_s']:.1f}",
                f"{report['fraction_of_read']:.0%}",
                f"{report['fraction_of_dram']:.0%}",
            ]
        ],
    )
    if "profile" not in report:
        return
    profile = report["profile"]
    print_table(
        "Operations",
        ["operation", "times", "us", "of step", "MB", "GB/s", "GOP/s", "bound", "of bound", "lost us"],
        [
            [
                op["label"],
                str(op["count"]),
                f"{op['us']:.1f}",
                f"{op['share']:.1%}",
                f"{op['streamed_bytes'] / 1e6:.2f}",
                f"{op['gb_s']:.1f}",
                f"{op['gop_s']:.0f}",
                op["bound"],
                f"{op['fraction']:.0%}",
                f"{op['lost_us']:.1f}",
            ]
            for op in profile["ops"]
        ],
    )
    print_table(
        "The step",
        ["part", "us", "of step"],
        [
            [name, f"{profile[key]:.1f}", f"{profile[key] / 10 / report['step_ms']:.1f} %"]
            for name, key in (
                ("operations", "ops_us"),
                ("entering and leaving the native call", "call_us"),
                ("Python", "python_us"),
            )
        ],
    )
    print_table(
        "Python by function (a profiler slows them down; read the proportions)",
        ["function", "us", "of Python"],
        [[f["name"], f"{f['us']:.1f}", f"{f['share']:.0%}"] for f in profile["functions"]],
    )


def _time_step(
    built: BuiltEngine, kind: StepKind, stopwatch: _Stopwatch, *, on: bool
) -> tuple[float, float, npt.NDArray[np.float64]]:
    stopwatch.on = False
    kind.prepare()
    stopwatch.on = on
    begin = time.perf_counter()
    built.engine.step()
    return time.perf_counter() - begin, stopwatch.call_s, stopwatch.op_seconds.copy()
