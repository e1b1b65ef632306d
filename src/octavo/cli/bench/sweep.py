"""``octavo bench sweep``: one workload over many settings."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from octavo.cli import options
from octavo.cli.bench import running
from octavo.cli.bench.delivering import DeliveryWithTables
from octavo.cli.bench.progress import long_bar
from octavo.cli.bench.workload_options import WorkloadSeed
from octavo.cli.option_groups import grouped
from octavo.core.config import KVDtype
from octavo.core.errors import InvalidConfig, OctavoError, shown

if TYPE_CHECKING:
    from octavo.bench.sweep.grid import Value


@grouped
def sweep(
    context: typer.Context,
    model: options.Model = options.DEFAULT_MODEL,
    *,
    journal: Annotated[
        Path, typer.Option(help="Grows by a line for each point; run again, the sweep goes on from there.")
    ] = Path("sweep.jsonl"),
    block_size: Annotated[str, typer.Option(help="Tokens per KV block, e.g. 8,16,32,64.")] = "16",
    context_len: Annotated[
        str, typer.Option("--context", help="Prompt tokens, those shared included, e.g. 256,1024.")
    ] = "256",
    concurrency: Annotated[str, typer.Option(help="Users of a closed loop, e.g. 1,4,16.")] = "4",
    shared_prefix: Annotated[str, typer.Option(help="Of the prompt, what all share, e.g. 0,128.")] = "0",
    max_step_tokens: Annotated[str, typer.Option(help="Tokens computed per step, e.g. 128,512.")] = "512",
    kv_dtype: Annotated[str, typer.Option(help="Element types of K and V, e.g. bfloat16,int8.")] = "bfloat16",
    one_at_a_time: Annotated[
        bool,
        typer.Option(
            "--one-at-a-time", help="Move one axis at a time from the first values, not all at once."
        ),
    ] = False,
    requests_per_user: Annotated[int, typer.Option(min=1, help="Requests of each user, per repeat.")] = 2,
    output_len: Annotated[int, typer.Option(min=2, help="Output tokens.")] = 64,
    repeats: running.Repeats = 3,
    seed: WorkloadSeed = 0,
    kv_memory: options.KVMemory = None,
    threads: options.Threads = None,
    no_ceilings: running.NoCeilings = False,
    delivery: DeliveryWithTables,
    config: options.Config = None,
) -> None:
    """Measure how latency, throughput, memory and waste move with settings; each point in a new process.

    Killed or interrupted, the same command goes on where it was.
    """
    delivery = replace(delivery, besides={"--journal": journal})
    from octavo.bench.conditions import conditions
    from octavo.bench.report.head import head
    from octavo.bench.report.sweep import document
    from octavo.bench.separate import what_failed
    from octavo.bench.sweep.grid import key_of, make_points
    from octavo.bench.sweep.journal import Journal
    from octavo.bench.sweep.runner import run_points

    points = make_points(
        {
            "block_size": _numbers("block_size", block_size, least=8),
            "context": _numbers("context", context_len, least=1),
            "concurrency": _numbers("concurrency", concurrency, least=1),
            "shared_prefix": _numbers("shared_prefix", shared_prefix, least=0),
            "max_step_tokens": _numbers("max_step_tokens", max_step_tokens, least=1),
            "kv_dtype": _names("kv_dtype", kv_dtype),
        },
        one_at_a_time=one_at_a_time,
    )
    settings = {
        "model": model,
        "requests_per_user": requests_per_user,
        "output_len": output_len,
        "repeats": repeats,
        "seed": seed,
        "kv_memory": kv_memory,
        "threads": threads,
    }
    interrupted = False
    with Journal(journal) as book:
        begin = head(
            "sweep",
            running.arguments_of(context),
            threads=threads,
            ceilings=book.is_new and not no_ceilings,
        )
        begin = book.begin({**begin, "settings": settings | conditions(begin, model)})
        try:
            with long_bar("Sweep", len(points), counts=True) as show:
                number = count()
                run_points(points, settings, book, on_point=lambda point: show(next(number), _told(point)))
        except KeyboardInterrupt:
            interrupted = True
        wanted = {key_of(point) for point in points}
        measured = [entry for key, entry in book.points.items() if key in wanted]
        order = {key_of(point): i for i, point in enumerate(points)}
        measured.sort(key=lambda entry: order[key_of(entry["point"])])
    report = begin | {
        "interrupted": interrupted,
        "points": measured,
        "warnings": _warnings(measured, len(points), repeats),
    }
    delivery.give(report, document)
    if interrupted:
        raise typer.Exit(running.INTERRUPTED)
    if all(entry["error"] for entry in measured):
        raise OctavoError(f"no point could be measured; the first: {what_failed(measured[0])}")


def _warnings(measured: list[dict[str, Any]], total: int, repeats: int) -> list[str]:
    from octavo.bench.separate import what_failed

    found = []
    if missing := total - len(measured):
        are = "is" if missing == 1 else "are"
        found.append(f"{missing} of {total} points {are} not measured; run it again to go on.")
    for entry in measured:
        if why := what_failed(entry):
            how = "failed, and is left out" if entry["error"] else "failed in part"
            found.append(f"{_told(entry['point'])} {how}: {why}")
    if repeats == 1 and not all(entry["error"] for entry in measured):
        found.append("One repeat only: no confidence intervals.")
    return found


def _told(point: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in point.items())


def _numbers(name: str, text: str, *, least: int) -> "list[Value]":
    from octavo.bench.workloads.item import MOST_TOKENS
    from octavo.bench.workloads.lengths import count_of

    found = [count_of(part) for part in text.split(",")]
    if any(number is None or not least <= number <= MOST_TOKENS for number in found):
        raise InvalidConfig(
            f"{name}={shown(text)}: write integers from {least} to {MOST_TOKENS:,}, such as 16,32"
        )
    return list(dict.fromkeys(number for number in found if number is not None))


def _names(name: str, text: str) -> "list[Value]":
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if part not in get_args(KVDtype):
            raise InvalidConfig(f"{name}={shown(part)}: choose among {', '.join(get_args(KVDtype))}")
    return list(dict.fromkeys(parts))
