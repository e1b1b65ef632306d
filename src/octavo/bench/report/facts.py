"""Sentences about what was measured, on what."""

from collections.abc import Mapping
from typing import Any

from octavo.bench.report.numbers import percent, seconds
from octavo.core.display import counted
from octavo.core.units import format_bytes


def machine_fact(report: Mapping[str, Any]) -> str:
    """Where what was measured ran, or else the load generator."""
    whose = "" if report["target"].get("is_local", True) else "load generator on "
    return whose + processor_fact(report["machine"])


def processor_fact(machine: Mapping[str, Any]) -> str:
    """The processor, and how much of it is used, whoever does."""
    return f"{machine['cpu']}, {machine['threads']} of {machine['cores']} cores, {machine['isa']}"


def objective_fact(limits: Mapping[str, float]) -> str:
    """What counts as well served: ``"TTFT ≤ 500 ms, TPOT ≤ 50.0 ms"``."""
    return ", ".join(f"{name[:-2].upper()} ≤ {seconds(limit)}" for name, limit in limits.items())


def ceilings_fact(report: Mapping[str, Any]) -> str | None:
    """What the machine can do at most, measured at the end of the same run."""
    ceilings = report["ceilings"]
    if ceilings is None:
        return None
    reads = ", ".join(f"{read['level']} {read['gb_s']:.0f}" for read in ceilings["read"])
    return (
        f"read {reads} GB/s; int8 {ceilings['int8_gop_s']:.0f} GOP/s, bfloat16 "
        f"{ceilings['bfloat16_gflop_s']:.0f} and float32 {ceilings['float32_gflop_s']:.0f} GFLOP/s"
    )


def model_fact(report: Mapping[str, Any]) -> str:
    """The model, its precision, and what runs it."""
    target = report["target"]
    precision = target.get("label") or target.get("precision")
    if target["kind"] == "engine":
        file = None if target["file"] == target["model"] else target["file"]
        parts = [file, precision, f"in process, blocks of {target['block_size']} tokens"]
        parts.append(f"KV pool of {format_bytes(target['kv_pool_bytes'])}")
        parts.append(f"steps of {counted(target['max_step_tokens'], 'token')}")
        if not target["prefix_cache"]:
            parts.append("no prefix cache")
    else:
        server = target.get("server")
        parts = [precision or "precision not told (--label names it)"]
        parts.append(f"{server} at {target['url']}" if server else f"served at {target['url']}")
    return f"{target['model']}: " + ", ".join(part for part in parts if part)


def workload_fact(workload: Mapping[str, Any]) -> str:
    """What was asked, in words."""
    kind = workload["kind"]
    if kind == "conversations":
        text = f"{counted(workload['num_sessions'], 'conversation')} of {counted(workload['turns'], 'turn')}"
    elif kind in ("mooncake", "azure", "prompts"):
        text = f"{counted(workload['num_requests'], 'request')} of {workload['file']}"
        if workload.get("scale", 1.0) != 1.0:
            text += f", time x {workload['scale']:g}"
        if workload.get("max_prompt_tokens"):
            text += f", prompts up to {counted(workload['max_prompt_tokens'], 'token')}"
        if workload.get("num_prompts_cut") and "reusable_fraction" in workload:
            text += (
                f" ({workload['num_prompts_cut']:,} cut, so that {percent(workload['reusable_fraction'])} of "
                "prompt tokens, and not "
                f"{percent(workload['reusable_fraction_uncut'])}, can be had from earlier prompts)"
            )
    else:
        text = counted(workload["num_requests"], "request")
    if "input_len" in workload:
        prefixes = workload.get("prefixes") or []
        shared = f"{' + '.join(prefixes)} shared + " if prefixes else ""
        text += f", {shared}{counted(workload['input_len'], 'token')} in, {workload['output_len']} out"
    if kind == "repetitive":
        text += f", repeating {counted(workload['phrase_len'], 'token')}"
    return text
