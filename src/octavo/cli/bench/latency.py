"""``octavo bench latency``: one stream at a time, over lengths of prompts."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli import options
from octavo.cli.bench import running
from octavo.cli.bench import workload_options as asked
from octavo.cli.bench.delivering import Delivery, Html, Output, Png
from octavo.cli.completion import complete_model
from octavo.core.errors import InvalidConfig, shown

if TYPE_CHECKING:
    from octavo.bench.load.target import Target


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
    seed: asked.WorkloadSeed = 0,
    vocab_size: asked.VocabSize = None,
    api_key: running.ApiKey = None,
    api_key_file: running.ApiKeyFile = None,
    model_name: Annotated[
        str | None, typer.Option(help="What the server calls the model. Default: it is asked.")
    ] = None,
    server_pid: Annotated[int | None, typer.Option(help="Of a local server: for its peak memory.")] = None,
    label: running.Label = None,
    block_size: options.BlockSize = "16",
    kv_memory: options.KVMemory = None,
    kv_dtype: options.KVDtype = "auto",
    threads: options.Threads = None,
    max_step_tokens: options.MaxStepTokens = 512,
    max_context: options.MaxContext = None,
    no_ceilings: running.NoCeilings = False,
    as_json: options.AsJson = False,
    output: Output = None,
    html: Html = None,
    png: Png = None,
    config: options.Config = None,
) -> None:
    """Measure one stream at a time: time to the first token and per token, by length of the prompt."""
    delivery = Delivery(as_json=as_json, output=output, html=html, png=png)
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
        vocabulary = asked.make_vocabulary(vocab_size, most=most_ids)
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

        server = ServerOptions(
            model=model_name,
            api_key=running.read_key(api_key, api_key_file),
            pid=running.check_pid(server_pid),
        )
        found = run(OpenAITarget(url, server), None)
    else:
        assert model is not None
        with running.loaded(
            model,
            block_size=options.parse_block_size(block_size),
            kv_memory=kv_memory,
            kv_dtype=kv_dtype,
            threads=threads,
            max_step_tokens=max_step_tokens,
            max_context=max_context,
        ) as (llm, start_s):
            from octavo.bench.load.engine_target import EngineTarget

            name = model_name or running.short_name(model)
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
    running.finish(
        report,
        document,
        delivery,
        running.Circumstances("latency", context, label=label, threads=threads, ceilings=not no_ceilings),
    )


def parse_lengths_list(text: str) -> list[int]:
    """Turn ``"32,128"`` into rising lengths without repetition.

    Raises:
        InvalidConfig: it is no such thing.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= 1 << 24 for part in parts):
        raise InvalidConfig(f"prompt_lens={shown(text)}: write lengths such as 32,128,512")
    return sorted({int(part) for part in parts})
