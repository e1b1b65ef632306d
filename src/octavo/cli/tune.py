"""``octavo tune``: which block size and step budget suit this machine and this workload."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from octavo.cli import options
from octavo.cli.bench import running
from octavo.cli.bench import workload_options as asked
from octavo.cli.bench.delivering import Delivery, Html, Png, tried_file
from octavo.cli.bench.progress import long_bar
from octavo.cli.bench.writing import write_text
from octavo.cli.completion import one_of
from octavo.core.config import MAX_BLOCK_SIZE
from octavo.core.errors import InvalidConfig, OctavoError, shown

if TYPE_CHECKING:
    from octavo.bench.tuning.candidates import Candidate
    from octavo.bench.tuning.racing import Standing

# Parameters that `octavo bench serve` has too: what is asked, and of what engine.
_ASKED: Final = (
    "workload", "file", "requests", "input_len", "output_len", "shared_prefix", "phrase_len", "turns",
    "system_len", "pause", "scale", "limit", "max_prompt_tokens", "max_output_tokens", "vocab_size",
    "as_text", "arrivals", "rate", "burstiness", "concurrency", "slo", "warmup", "chat",
)  # fmt: skip
_ENGINE: Final = (
    "kv_memory", "kv_dtype", "threads", "max_num_seqs", "max_context", "prefix_cache", "speculative",
)  # fmt: skip
_WIDE: Final = 1.1  # an interval whose ends are further apart than so many times hides what matters


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
            autocompletion=one_of(asked.ObjectiveNames),
        ),
    ] = None,
    slo: asked.SloText = None,
    block_sizes: Annotated[str, typer.Option(help="To try: multiples of 8 in 8..128.")] = "8,16,32,64,128",
    step_budgets: Annotated[str, typer.Option(help="To try as --max-step-tokens.")] = "128,256,512,1024,2048",
    chunk_budgets: Annotated[
        str, typer.Option(help='To try as --max-chunk-tokens; "all" is no limit.')
    ] = "all,128",
    block_size: options.BlockSize = "16",
    max_step_tokens: options.MaxStepTokens = 512,
    max_chunk_tokens: options.MaxChunkTokens = None,
    workload: asked.Kind = "chat",
    file: asked.File = None,
    requests: asked.Requests = 16,
    input_len: asked.InputLen = "lognormal:48,0.8",
    output_len: asked.OutputLen = "lognormal:48,0.6",
    shared_prefix: asked.SharedPrefix = "0",
    phrase_len: asked.PhraseLen = 16,
    turns: asked.Turns = "uniform:1,4",
    system_len: asked.SystemLen = 200,
    pause: asked.Pause = 0.0,
    scale: asked.Scale = 1.0,
    limit: asked.Limit = None,
    max_prompt_tokens: asked.MaxPrompt = None,
    max_output_tokens: asked.MaxOutput = None,
    vocab_size: asked.VocabSize = None,
    as_text: asked.AsText = False,
    seed: asked.WorkloadSeed = 0,
    arrivals: asked.ArrivalKind = None,
    rate: asked.Rate = None,
    burstiness: asked.Burstiness = 4.0,
    concurrency: asked.Concurrency = 8,
    chat: asked.Chat = False,
    warmup: running.WarmUp = 4,
    kv_memory: options.KVMemory = None,
    kv_dtype: options.KVDtype = "auto",
    threads: options.Threads = None,
    max_num_seqs: options.MaxNumSeqs = 64,
    max_context: options.MaxContext = None,
    prefix_cache: options.PrefixCache = True,
    speculative: options.Speculative = None,
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
    as_json: options.AsJson = False,
    html: Html = None,
    png: Png = None,
    config: options.Config = None,
) -> None:
    """Find the block size and the step budget that suit this machine and this workload.

    Candidates race, round by round, against the settings of now (--block-size, --max-step-tokens,
    --max-chunk-tokens), which are kept unless another is better for certain. Killed or interrupted, the same
    command goes on where it was.
    """
    delivery = Delivery(
        as_json=as_json,
        output=None,
        html=html,
        png=png,
        besides={"--output": output, "--journal": journal},
    )
    asked.refuse_unused(context)
    if output is not None and output.is_file() and not force:
        raise InvalidConfig(f"output={output} is there already; --force replaces it")
    from octavo.bench.metrics.slo import parse_slo
    from octavo.bench.report.head import head
    from octavo.bench.report.tune import document
    from octavo.bench.tuning.candidates import ALL, Candidate, challengers
    from octavo.bench.tuning.journal import Journal
    from octavo.bench.tuning.objective import MEANS, choose
    from octavo.bench.tuning.racing import Race, standing
    from octavo.bench.tuning.runner import run_race
    from octavo.bench.tuning.verdict import describe_candidates, judge
    from octavo.bench.workloads.item import digest

    model = name or model
    goal = choose(objective, has_slo=slo is not None)
    limits = {} if slo is None else parse_slo(slo).as_dict()
    size = options.parse_block_size(block_size)
    baseline = Candidate(
        size if isinstance(size, int) else block_size,
        max_step_tokens,
        ALL if max_chunk_tokens is None else max_chunk_tokens,
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
    made = asked.make_workload(
        is_chat=chat,
        vocabulary=asked.make_vocabulary(vocab_size),
        **{**context.params, "kind": workload, "file": file},
    )
    command = ["bench", "serve", "--model", model, "--repeats", "1", "--no-ceilings", "--json"]
    command += _arguments(context, {*_ASKED, *_ENGINE}.difference(asked.unused(context.params)))
    interrupted = False
    with Journal(journal) as book:
        begin = head(
            "tune",
            running.arguments_of(context),
            threads=threads,
            ceilings=book.is_new and not no_ceilings,
        )
        settings = {
            "model": model,
            "objective": goal,
            "minutes": minutes,
            "baseline": baseline.as_dict(),
            "candidates": [one.as_dict() for each in axes.values() for one in each],
            "seed": seed,
            "measured_with": command,
            "workload_digest": digest(made.items(0)),
            "octavo": begin["octavo"],
            "cpu": begin["machine"]["cpu"],
        }
        begin = book.begin({**begin, "settings": settings})
        num_before = len(book.rounds)
        try:
            with long_bar("Tuning", race.budget_s, counts=False) as show:
                run_race(race, command, seed, goal, book, show=show)
        except KeyboardInterrupt:
            interrupted = True
        now = standing(race, book.rounds)
        runs = [each for entry in book.entries for each in entry["measured"]]
        report = begin | {
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
    report["warnings"] = _warnings(report, now, num_before, journal)
    try:
        if output is not None and now.phase == "over":
            _write_config(output, report, context)
    finally:
        delivery.give(report, document)
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


def _warnings(report: dict[str, Any], now: "Standing", num_before: int, journal: Path) -> list[str]:
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
    if num_before and num_before == len(report["rounds"]) and now.phase == "over":
        found.append(f"All of it was measured before, as {journal} says; remove that file to measure anew.")
    return found


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
