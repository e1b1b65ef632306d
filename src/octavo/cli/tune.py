"""``octavo tune``: which block size and step budget suit this machine and this workload."""

import math
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from octavo.cli import options
from octavo.cli.bench import running
from octavo.cli.bench.delivering import Delivery, tried_file
from octavo.cli.bench.engine_options import EngineOptions
from octavo.cli.bench.progress import long_bar
from octavo.cli.bench.unused_options import refuse_unused, unused
from octavo.cli.bench.workload_making import make_workload
from octavo.cli.bench.workload_options import (
    ArrivalOptions,
    Chat,
    ObjectiveNames,
    SloText,
    WorkloadOptions,
)
from octavo.cli.bench.writing import write_text
from octavo.cli.completion import one_of
from octavo.cli.option_groups import grouped
from octavo.core.config import MAX_BLOCK_SIZE
from octavo.core.errors import InvalidConfig, OctavoError, shown

if TYPE_CHECKING:
    from octavo.bench.tuning.candidates import Candidate
    from octavo.bench.tuning.racing import Standing

_SHAPE: Final = WorkloadOptions(
    workload="chat",
    requests=16,
    input_len="lognormal:48,0.8",
    output_len="lognormal:48,0.6",
    turns="uniform:1,4",
    system_len=200,
)
# What the race itself gives each candidate.
_RACED: Final = frozenset({"block_size", "max_step_tokens", "max_chunk_tokens", "seed"})
# Parameters that `octavo bench serve` has too: of what engine, and what is asked.
_ENGINE: Final = frozenset(field.name for field in fields(EngineOptions)) - _RACED
_ASKED: Final = frozenset(
    field.name for kind in (WorkloadOptions, ArrivalOptions) for field in fields(kind)
) - _RACED | {"slo", "warmup", "chat"}
# Which option has the values that are tried of a setting.
_TRIED_BY: Final = {
    "block_size": "block_sizes",
    "max_step_tokens": "step_budgets",
    "max_chunk_tokens": "chunk_budgets",
}
_WIDE: Final = 1.1  # an interval whose ends are further apart than so many times hides what matters


@dataclass(frozen=True, slots=True, kw_only=True)
class _Delivery(Delivery):
    """--output is where the recommendation goes; the report's JSON has no file of its own."""

    output: Path | None = None


@grouped
def tune(
    context: typer.Context,
    name: options.ModelArgument = None,
    model: options.Model = options.DEFAULT_MODEL,
    *,
    minutes: Annotated[float, typer.Option(min=0, help="About how long it may take.")] = 10.0,
    objective: Annotated[
        str | None,
        typer.Option(
            help="What better means: throughput, latency, balanced (default); with --slo it is goodput.",
            autocompletion=one_of(ObjectiveNames),
        ),
    ] = None,
    slo: SloText = None,
    block_sizes: Annotated[str, typer.Option(help="To try: multiples of 8 in 8..128.")] = "8,16,32,64,128",
    step_budgets: Annotated[str, typer.Option(help="To try as --max-step-tokens.")] = "128,256,512,1024,2048",
    chunk_budgets: Annotated[
        str, typer.Option(help='To try as --max-chunk-tokens; "all" is no limit.')
    ] = "all,128",
    engine: EngineOptions,
    shape: WorkloadOptions = _SHAPE,
    when: ArrivalOptions,
    chat: Chat = False,
    warmup: running.WarmUp = 4,
    journal: Annotated[
        Path, typer.Option(help="Grows by a line for each round; run again, it goes on from there.")
    ] = Path("tune.jsonl"),
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write the recommendation there, for --config.", callback=tried_file
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --output replace a file.")] = False,
    no_ceilings: running.NoCeilings = False,
    delivery: _Delivery,
    config: options.Config = None,
) -> None:
    """Find the block size and the step budget that suit this machine and this workload.

    Candidates race, round by round, against the settings of now (--block-size, --max-step-tokens,
    --max-chunk-tokens), which are kept unless another is better for certain. Killed or interrupted, the same
    command goes on where it was.
    """
    delivery = replace(delivery, besides={"--output": output, "--journal": journal})
    refuse_unused(context)
    if not math.isfinite(minutes):
        raise InvalidConfig(f"minutes={minutes}: must be a number, such as 10")
    if output is not None and output.is_file() and not force:
        raise InvalidConfig(f"output={output} is there already; --force replaces it")
    from octavo.bench.conditions import conditions
    from octavo.bench.metrics.slo import parse_slo
    from octavo.bench.report.head import head
    from octavo.bench.report.tune import document
    from octavo.bench.tuning.candidates import ALL, Candidate, challengers
    from octavo.bench.tuning.journal import Journal
    from octavo.bench.tuning.objective import MEANS, choose
    from octavo.bench.tuning.racing import Race, extended_after, standing
    from octavo.bench.tuning.runner import run_race
    from octavo.bench.tuning.verdict import describe_candidates, judge
    from octavo.bench.workloads.item import digest

    model = name or model
    goal = choose(objective, has_slo=slo is not None)
    limits = {} if slo is None else parse_slo(slo).as_dict()
    size = options.parse_block_size(engine.block_size)
    baseline = Candidate(
        size if isinstance(size, int) else engine.block_size,
        engine.max_step_tokens,
        ALL if engine.max_chunk_tokens is None else engine.max_chunk_tokens,
    )
    axes = challengers(
        baseline,
        {
            "block_size": _numbers("block_sizes", block_sizes, multiple=8, most=MAX_BLOCK_SIZE),
            "max_step_tokens": _numbers("step_budgets", step_budgets),
            "max_chunk_tokens": _numbers("chunk_budgets", chunk_budgets, also=ALL),
        },
    )
    if not axes:
        raise InvalidConfig("block_sizes, step_budgets, chunk_budgets: nothing to try but what is used now")
    race = Race(baseline, axes, minutes * 60)
    made = make_workload(shape, is_chat=chat)
    command = ["bench", "serve", "--model", model, "--repeats", "1", "--no-ceilings", "--json"]
    command += _arguments(context, (_ASKED | _ENGINE).difference(unused(context.params)))
    interrupted = False
    with Journal(journal) as book:
        begin = head(
            "tune",
            running.arguments_of(context),
            threads=engine.threads,
            ceilings=book.is_new and not no_ceilings,
        )
        settings = {
            "model": model,
            "objective": goal,
            **baseline.as_dict(),
            **{option: _values(axes.get(name, ()), name) for name, option in _TRIED_BY.items()},
            "seed": shape.seed,
            "measured_with": command,
            "workload_digest": digest(made.items(0)),
            **conditions(begin, model),
        }
        began = book.begin({**begin, "settings": settings})
        num_before = len(book.rounds)
        try:
            with long_bar("Tuning", race.budget_s, counts=False) as show:
                run_race(race, command, shape.seed, goal, book, show=show)
        except KeyboardInterrupt:
            interrupted = True
        now = standing(race, book.rounds)
        runs = [each for entry in book.entries for each in entry["measured"]]
        report = began | {
            "command_line": begin["command_line"],
            "settings": {"minutes": minutes, **settings},
            "interrupted": interrupted,
            "objective": {"name": goal, "means": MEANS[goal], "slo": limits},
            "baseline": baseline.as_dict(),
            "verdict": judge(now).as_dict(),
            "candidates": describe_candidates(baseline, book.rounds, book.entries),
            "confirming_rounds": len(now.confirming),
            "spent_s": round(now.spent_s, 3),
            "target": runs[0]["target"] if runs else None,
            "workload": runs[0]["workload"] if runs else None,
            "rounds": book.entries,
        }
        has_more = standing(replace(race, budget_s=math.inf), book.rounds).phase != "over"
        extended = extended_after(race, book.rounds)
    report["warnings"] = _warnings(report, now, extended)
    report["warnings"] += _measured_before(report, now, num_before, journal, has_more=has_more)
    is_written = output is not None and now.phase == "over"
    if output is not None and not is_written:
        report["warnings"].append(f"{output} is not written: that waits for the end of the race.")
    try:
        if output is not None and is_written:
            _write_config(output, report, context)
    finally:
        delivery.give(report, document)
    if is_written and not delivery.as_json:
        typer.echo(f"Written: {output}. To use it: octavo serve --config {shlex.quote(str(output))}")
    if interrupted:
        raise typer.Exit(running.INTERRUPTED)


def _arguments(context: typer.Context, names: Collection[str]) -> list[str]:
    """What says the same to another command that has these parameters."""
    found: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.name not in names or value is None:
            continue
        if not isinstance(value, bool):
            found += [parameter.opts[0], str(value)]
        elif value:
            found.append(parameter.opts[0])
        else:
            found += parameter.secondary_opts[:1]
    return found


def _numbers(
    name: str, text: str, *, multiple: int = 1, most: int = 1 << 20, also: str | None = None
) -> list[int | str]:
    from octavo.bench.workloads.lengths import count_of

    found: list[int | str] = []
    for part in (each.strip() for each in text.split(",")):
        number = count_of(part)
        if part == also:
            found.append(part)
        elif number is not None and 1 <= number <= most and number % multiple == 0:
            found.append(number)
        else:
            what = "integers" if multiple == 1 else f"multiples of {multiple}"
            raise InvalidConfig(
                f"{name}={shown(text)}: write {what} up to {most:,}, with commas between"
                + (f', or "{also}"' if also else "")
            )
    return list(dict.fromkeys(found))


def _values(candidates: "Sequence[Candidate]", name: str) -> str:
    """Of one setting, as its option has them."""
    return ",".join(str(getattr(one, name)) for one in candidates)


def _warnings(report: dict[str, Any], now: "Standing", extended: Sequence[int]) -> list[str]:
    found = []
    if report["verdict"]["outcome"] == "unsettled":
        found.append("Not settled: it was ended before enough rounds decide. Run the same again to go on.")
    gain = report["verdict"]["gain"]
    if report["verdict"]["outcome"] == "as good" and gain["high"] > _WIDE * gain["low"]:
        found.append(
            f"The interval is wide ({gain['low']:.2f} to {gain['high']:.2f}): smaller differences are not "
            "seen. More --minutes or --requests make it narrower, and so does a machine that is idle."
        )
    for each in report["candidates"]:
        if each["error"]:
            found.append(f"{_told(each['candidate'])} failed: {each['error']}")
    if extended:
        which = ", ".join(map(str, extended))
        found.append(
            f"It was over after round {which} and went on with more --minutes: who does so until a result "
            "pleases finds more often than one time in forty what is no better."
        )
    return found


def _measured_before(
    report: dict[str, Any], now: "Standing", num_before: int, journal: Path, *, has_more: bool
) -> list[str]:
    """How much of it.

    Args:
        has_more: there would be rounds to run, were there time.
    """
    rounds = len(report["rounds"])
    if num_before and num_before == rounds and now.phase == "over":
        least = round(max(report["settings"]["minutes"], now.spent_s / 60), 1)
        what = f"more --minutes than {least:g} go on with it" if has_more else "remove it to measure anew"
        return [f"All of it was measured before, as {journal} says; {what}."]
    if num_before:
        which, were = ("first", "was") if num_before == 1 else (f"first {num_before}", "were")
        return [f"The {which} of {rounds} rounds {were} measured before, as {journal} says."]
    return []


def _told(settings: dict[str, Any]) -> "Candidate":
    from octavo.bench.tuning.candidates import Candidate

    return Candidate.from_dict(settings)


def _write_config(file: Path, report: dict[str, Any], context: typer.Context) -> None:
    """The recommendation, with the engine's options as they were given.

    Raises:
        OctavoError: it cannot be written.
    """
    from octavo.bench.report.facts import machine_fact, workload_fact
    from octavo.bench.report.tune import better_is, headline, measured
    from octavo.bench.tuning.config_file import as_toml

    kept: dict[str, Any] = {"model": report["settings"]["model"]}
    for parameter in context.command.params:
        if parameter.name in _ENGINE and _was_given(context, parameter.name):
            kept[parameter.opts[0][2:]] = context.params[parameter.name]
    told = [
        ("By octavo tune", headline(report)),
        ("Machine", machine_fact({**report, "target": {}})),
        ("Workload", workload_fact(report["workload"])),
        ("Better is", better_is(report)),
        ("Measured", measured(report)),
        ("Date", report["measured_at"]),
        ("Octavo", report["octavo"]),
        ("Command", report["command_line"]),
    ]
    try:
        write_text(file, as_toml(kept, report["verdict"]["recommended"], told))
    except OSError as error:
        raise OctavoError(f"cannot write {file}: {error.strerror}") from error


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"
