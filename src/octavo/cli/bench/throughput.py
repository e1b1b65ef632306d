"""``octavo bench throughput``: all requests at once, without a server."""

from typing import Annotated

import typer

from octavo.cli import options
from octavo.cli.bench import running
from octavo.cli.bench import workload_options as asked
from octavo.cli.bench.delivering import Delivery, Html, Output, Png
from octavo.cli.bench.progress import experiment_bar
from octavo.core.errors import InvalidConfig


def throughput(
    context: typer.Context,
    model: options.Model = options.DEFAULT_MODEL,
    *,
    workload: Annotated[
        str, typer.Option("--workload", "-w", help="synthetic, repetitive, or from --file: prompts.")
    ] = "synthetic",
    file: asked.File = None,
    requests: asked.Requests = 64,
    input_len: asked.InputLen = "256",
    output_len: asked.OutputLen = "128",
    shared_prefix: asked.SharedPrefix = "0",
    phrase_len: asked.PhraseLen = 16,
    limit: asked.Limit = None,
    max_prompt_tokens: asked.MaxPrompt = None,
    max_output_tokens: asked.MaxOutput = None,
    seed: asked.WorkloadSeed = 0,
    repeats: running.Repeats = 3,
    warmup: running.WarmUp = 4,
    block_size: options.BlockSize = "16",
    kv_memory: options.KVMemory = None,
    kv_dtype: options.KVDtype = "auto",
    threads: options.Threads = None,
    max_num_seqs: options.MaxNumSeqs = 64,
    max_step_tokens: options.MaxStepTokens = 512,
    max_context: options.MaxContext = None,
    prefix_cache: options.PrefixCache = True,
    speculative: options.Speculative = None,
    record: options.Record = None,
    per_request: running.PerRequest = False,
    no_ceilings: running.NoCeilings = False,
    as_json: options.AsJson = False,
    output: Output = None,
    html: Html = None,
    png: Png = None,
    config: options.Config = None,
) -> None:
    """Measure how many tokens per second an engine gives when all requests are there at once."""
    delivery = Delivery(as_json=as_json, output=output, html=html, png=png)
    asked.refuse_unused(context)
    if workload == "chat":
        raise InvalidConfig("workload=chat: turns wait for answers; octavo bench serve measures that")
    from octavo.bench.experiment import ExperimentSettings, describe
    from octavo.bench.load.arrivals import ArrivalPlan
    from octavo.bench.load.engine_target import EngineTarget
    from octavo.bench.offline import run_offline
    from octavo.bench.report.serve import document

    settings = ExperimentSettings(repeats=repeats, warm_up=warmup, per_request=per_request)
    with running.loaded(
        model,
        block_size=options.parse_block_size(block_size),
        kv_memory=kv_memory,
        kv_dtype=kv_dtype,
        threads=threads,
        max_num_seqs=max_num_seqs,
        max_step_tokens=max_step_tokens,
        max_context=max_context,
        prefix_cache=prefix_cache,
        speculative=speculative,
        record=record,
    ) as (llm, start_s):
        made = asked.make_workload(
            is_chat=False,
            vocabulary=asked.make_vocabulary(None, most=llm.spec.vocab_size),
            kind=workload,
            file=file,
            requests=requests,
            input_len=input_len,
            output_len=output_len,
            shared_prefix=shared_prefix,
            phrase_len=phrase_len,
            scale=1.0,
            limit=limit,
            max_prompt_tokens=max_prompt_tokens,
            max_output_tokens=max_output_tokens,
            as_text=False,
            seed=seed,
        )
        with experiment_bar() as progress:
            findings = run_offline(llm, made, settings, progress)
        target = EngineTarget(llm, name=running.short_name(model), start_s=start_s)
        report = describe(findings, target, made, ArrivalPlan(kind="at-once"), settings)
    running.finish(
        report,
        document,
        delivery,
        running.Circumstances("throughput", context, label=None, threads=threads, ceilings=not no_ceilings),
    )
