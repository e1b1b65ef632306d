"""Where the time of a step goes: its operations against what bounds them, and Python by function."""

import cProfile
import pstats
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.bench.ceilings import Ceilings
from octavo.bench.parts.op_counts import OpCount
from octavo.bench.parts.step_kinds import StepKind
from octavo.engine.build import BuiltEngine

_NUM_FUNCTIONS = 12


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of each step: whole, of the native call, of its operations [steps, operations]."""

    step_s: list[float]
    call_s: list[float]
    op_s: npt.NDArray[np.float64]


def profile_step(
    counts: Sequence[OpCount], timing: Timing, ceilings: Ceilings, read_rate: float, step_s: float
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


def profile_python(built: BuiltEngine, kind: StepKind, num_steps: int) -> list[dict[str, Any]]:
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
