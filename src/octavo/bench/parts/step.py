"""What one step of the engine is made of: a real model that decodes, or reads prompts."""

import cProfile
import pstats
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from octavo.attention.plan import StepInputs
from octavo.backends.base import Backend
from octavo.backends.cpu import CpuBackend, Program
from octavo.bench.ceilings import Ceilings, Meter
from octavo.bench.parts.op_counts import CountingLoader, CountingOps, OpCount, Value, Weight, join_counts
from octavo.bench.parts.step_kinds import Decode, Prefill, StepKind
from octavo.bench.tables import print_ceilings, print_table
from octavo.core.config import BlockSizes, EngineConfig, KVDtype
from octavo.engine.build import BuiltEngine, build_engine
from octavo.models.decoder import Decoder
from octavo.models.loading import load_model
from octavo.weights.sources import resolve

_NUM_FUNCTIONS = 12
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


@dataclass(frozen=True, slots=True)
class _Timing:
    """Seconds of each step: whole, of the native call, of its operations [steps, operations]."""

    step_s: list[float]
    call_s: list[float]
    op_s: npt.NDArray[np.float64]


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
        reaches; with ``profile`` also ``profile``: see ``_profile``.

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
        timing = _Timing(
            [step for step, _, _ in timed],
            [call for _, call, _ in timed],
            np.array([ops for *_, ops in timed]),
        )
        report["profile"] = _profile(counts, timing, ceilings, read_rate, step_s)
        report["profile"]["functions"] = _profile_python(built, kind, num_steps)
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
        f"A step of {report['model']}: {report['new_tokens']} tokens of {report['batch']} sequences,"
        f" after {report['context_len']} of each",
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


def _profile(
    counts: Sequence[OpCount], timing: _Timing, ceilings: Ceilings, read_rate: float, step_s: float
) -> dict[str, Any]:
    """Sum up by label; medians over the steps.

    An operation's bound is the longest of what its parts take at the ceilings: streaming its weights or K and
    V at the rate that a working set of the step's size is read at, moving its activations at the rate of the
    second-level cache, its products, and a loop without work.
    """
    op_s = np.median(timing.op_s, axis=0)
    rows: dict[str, dict[str, Any]] = {}
    for count, seconds in zip(counts, op_s.tolist(), strict=True):
        bounds = {
            "memory": count.streamed_bytes / read_rate,
            "activations": count.activation_bytes / ceilings.reads[0].bytes_per_s,
            count.arithmetic: count.operations / ceilings.peak(count.arithmetic),
            "loop": ceilings.loop_s,
        }
        row = rows.setdefault(
            count.label,
            {"label": count.label, "kind": count.kind, "count": 0, "us": 0.0, "ideal_us": 0.0}
            | {"streamed_bytes": 0, "activation_bytes": 0, "operations": 0},
        )
        row["count"] += 1
        row["us"] += seconds * 1e6
        row["ideal_us"] += max(bounds.values()) * 1e6
        row["streamed_bytes"] += count.streamed_bytes
        row["activation_bytes"] += count.activation_bytes
        row["operations"] += count.operations
        row["bound"] = max(bounds, key=lambda name: bounds[name])
    for row in rows.values():
        seconds = row["us"] / 1e6
        row["share"] = round(seconds / step_s, 4)
        row["gb_s"] = round(row["streamed_bytes"] / seconds / 1e9, 2)
        row["gop_s"] = round(row["operations"] / seconds / 1e9, 1)
        row["fraction"] = round(row["ideal_us"] / row["us"], 4)
        row["lost_us"] = round(row["us"] - row["ideal_us"], 2)
        row["us"], row["ideal_us"] = round(row["us"], 2), round(row["ideal_us"], 2)
    ops = timing.op_s.sum(axis=1)
    calls, steps = np.array(timing.call_s), np.array(timing.step_s)
    python_s = float(np.median(steps - calls))
    return {
        "ops": sorted(rows.values(), key=lambda row: -row["us"]),
        "step_us": round(float(np.median(steps)) * 1e6, 2),
        "ops_us": round(float(np.median(ops)) * 1e6, 2),
        "call_us": round(float(np.median(calls - ops)) * 1e6, 2),
        "python_us": round(python_s * 1e6, 2),
        "python_fraction": round(python_s / step_s, 4),
    }


def _profile_python(built: BuiltEngine, kind: StepKind, num_steps: int) -> list[dict[str, Any]]:
    """The functions in which Python spends a step, by the time in themselves."""
    profiler = cProfile.Profile()
    for _ in range(num_steps):
        kind.prepare()
        profiler.enable()
        built.engine.step()
        profiler.disable()
    times: dict[str, float] = {}
    for (file, _, name), (_, _, own_s, _, _) in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
        if (Path(file).name, name) not in (
            ("cpu.py", "__call__"),
            ("step.py", "__call__"),
        ):  # hold the native call
            key = f"{Path(file).stem}.{name}" if file != "~" else name
            times[key] = times.get(key, 0.0) + own_s
    total = sum(times.values())
    ranked = sorted(times.items(), key=lambda item: -item[1])[:_NUM_FUNCTIONS]
    return [
        {"name": name, "us": round(s / num_steps * 1e6, 2), "share": round(s / total, 4)}
        for name, s in ranked
    ]
