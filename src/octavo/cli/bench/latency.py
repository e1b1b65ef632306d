"""``octavo bench latency``: one stream at a time, over lengths of prompts."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli import options
from octavo.cli.bench import running
from octavo.cli.bench.delivering import Delivery
from octavo.cli.bench.engine_options import EngineOptions
from octavo.cli.bench.server_options import ServerAccess
from octavo.cli.bench.workload_making import make_vocabulary
from octavo.cli.bench.workload_options import VocabSize, WorkloadSeed
from octavo.cli.completion import complete_model
from octavo.cli.option_groups import grouped
from octavo.core.errors import InvalidConfig, shown

if TYPE_CHECKING:
    from octavo.bench.load.target import Target


@grouped
def latency(
    context: typer.Context,
    url: Annotated[str | None, typer.Argument(help="A server that speaks OpenAI's API.")] = None,
    *,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Or: a model to load here.", autocompletion=complete_model),
    ] = None,
    prompt_lens: Annotated[str, typer.Option(help="Prompt tokens.")] = "32,128,512,1024",
    output_len: Annotated[int, typer.Option(min=1, help="Output tokens.")] = 64,
    requests: Annotated[int, typer.Option("--requests", "-n", min=1, help="At each length, per repeat.")] = 3,
    repeats: running.Repeats = 3,
    warmup: running.WarmUp = 1,
    seed: WorkloadSeed = 0,
    vocab_size: VocabSize = None,
    access: ServerAccess,
    label: running.Label = None,
    engine: EngineOptions,
    no_ceilings: running.NoCeilings = False,
    delivery: Delivery,
    config: options.Config = None,
) -> None:
    """Measure one stream at a time: time to the first token and per token, by length of the prompt."""
    if (url is None) == (model is None):
        raise InvalidConfig("name either the URL of a server, or a model to load here with --model")
    lengths = parse_lengths_list(prompt_lens)
    from octavo.bench.experiment import ExperimentSettings
    from octavo.bench.load.arrivals import ArrivalPlan
    from octavo.bench.report.latency import document
    from octavo.bench.workloads.lengths import Fixed
    from octavo.bench.workloads.synthetic import Synthetic

    settings = ExperimentSettings(repeats=repeats, warm_up=warmup)

    def run(target: "Target", most_ids: int | None) -> list[dict[str, Any]]:
        vocabulary = make_vocabulary(vocab_size, most=most_ids)
        cases = [
            (
                Synthetic(
                    num_requests=requests,
                    input_len=Fixed(length),
                    output_len=Fixed(output_len),
                    vocabulary=vocabulary,
                    seed=seed,
                ),
                ArrivalPlan(kind="closed", concurrency=1),
            )
            for length in lengths
        ]
        return running.measure_all(target, cases, settings)

    if url is not None:
        from octavo.bench.load.openai_target import OpenAITarget, ServerOptions

        found = run(OpenAITarget(url, ServerOptions(**access.settings())), None)
    else:
        assert model is not None
        with running.loaded(model, **engine.settings()) as (llm, start_s):
            from octavo.bench.load.engine_target import EngineTarget

            name = access.model_name or running.short_name(model)
            found = run(EngineTarget(llm, name=name, start_s=start_s), llm.spec.vocab_size)
    report = {
        "target": found[0]["target"],
        "settings": {
            "prompt_lens": lengths,
            "output_len": output_len,
            "requests": requests,
            "repeats": repeats,
            "warm_up": warmup,
            "seed": seed,
        },
        "interrupted": found[-1]["interrupted"],
        "peak_rss_bytes": found[-1]["peak_rss_bytes"],
        "points": [
            {
                "prompt_len": length,
                "digest": one["workload"]["digest"],
                "summary": one["summary"],
                "repeats": one["repeats"],
            }
            for length, one in zip(lengths, found, strict=False)
        ],
        "warnings": list(dict.fromkeys(warning for one in found for warning in one["warnings"])),
    }
    how = running.Circumstances(
        "latency", context, label=label, threads=engine.threads, ceilings=not no_ceilings
    )
    running.finish(report, document, delivery, how)


def parse_lengths_list(text: str) -> list[int]:
    """Turn ``"32,128"`` into rising lengths without repetition.

    Raises:
        InvalidConfig: it is no such thing.
    """
    from octavo.bench.workloads.item import MOST_TOKENS
    from octavo.bench.workloads.lengths import count_of

    found = [count_of(part) for part in text.split(",")]
    if any(length is None or not 1 <= length <= MOST_TOKENS for length in found):
        raise InvalidConfig(f"prompt_lens={shown(text)}: write lengths such as 32,128,512")
    return sorted({length for length in found if length is not None})
