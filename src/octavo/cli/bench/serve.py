"""``octavo bench serve``: requests as they come, against a server or an engine in this process."""

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from octavo.cli import options
from octavo.cli.bench import running
from octavo.cli.bench import workload_options as asked
from octavo.cli.bench.delivering import Delivery, Html, Output, Png
from octavo.cli.completion import complete_model, one_of
from octavo.core.errors import InvalidConfig, shown

if TYPE_CHECKING:
    from octavo.bench.load.arrivals import ArrivalPlan
    from octavo.bench.workloads.item import Workload

IgnoreEos = Literal["auto", "on", "off"]


def serve(
    context: typer.Context,
    url: Annotated[str | None, typer.Argument(help="A server that speaks OpenAI's API.")] = None,
    *,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Or: a model to load here.", autocompletion=complete_model),
    ] = None,
    workload: asked.Kind = "synthetic",
    file: asked.File = None,
    requests: asked.Requests = 64,
    input_len: asked.InputLen = "128",
    output_len: asked.OutputLen = "64",
    shared_prefix: asked.SharedPrefix = "0",
    phrase_len: asked.PhraseLen = 16,
    turns: asked.Turns = "4",
    system_len: asked.SystemLen = 0,
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
    slo: asked.SloText = None,
    repeats: running.Repeats = 3,
    warmup: running.WarmUp = 4,
    chat: asked.Chat = False,
    api_key: running.ApiKey = None,
    api_key_file: running.ApiKeyFile = None,
    model_name: Annotated[
        str | None, typer.Option(help="What the server calls the model. Default: it is asked.")
    ] = None,
    ignore_eos: Annotated[
        str,
        typer.Option(
            help="auto, on, off: ask for answers of full length; auto asks if the server takes that.",
            autocompletion=one_of(IgnoreEos),
        ),
    ] = "auto",
    body: Annotated[str | None, typer.Option(help="JSON object with more fields for each request.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that a request may take.")] = 600.0,
    server_pid: Annotated[int | None, typer.Option(help="Of a local server: for its peak memory.")] = None,
    label: running.Label = None,
    block_size: options.BlockSize = "16",
    kv_memory: options.KVMemory = None,
    kv_dtype: options.KVDtype = "auto",
    threads: options.Threads = None,
    max_num_seqs: options.MaxNumSeqs = 64,
    max_step_tokens: options.MaxStepTokens = 512,
    max_chunk_tokens: options.MaxChunkTokens = None,
    max_context: options.MaxContext = None,
    prefix_cache: options.PrefixCache = True,
    speculative: options.Speculative = None,
    per_request: running.PerRequest = False,
    no_ceilings: running.NoCeilings = False,
    as_json: options.AsJson = False,
    output: Output = None,
    html: Html = None,
    png: Png = None,
    config: options.Config = None,
) -> None:
    """Put a server under load, or an engine in this process: latencies, throughput, goodput, memory.

    Latencies count from the moment at which a request was due. Ctrl-C ends it and reports what there is.
    """
    delivery = Delivery(as_json=as_json, output=output, html=html, png=png)
    asked.refuse_unused(context)
    if (url is None) == (model is None):
        raise InvalidConfig("name either the URL of a server, or a model to load here with --model")
    if ignore_eos not in get_args(IgnoreEos):
        raise InvalidConfig(f"ignore_eos={shown(ignore_eos)}: choose one of {', '.join(get_args(IgnoreEos))}")
    extra = _parse_body(body)
    from octavo.bench.experiment import ExperimentSettings
    from octavo.bench.metrics.slo import parse_slo
    from octavo.bench.report.serve import document

    settings = ExperimentSettings(
        repeats=repeats,
        warm_up=warmup,
        slo=None if slo is None else parse_slo(slo),
        per_request=per_request,
    )

    def prepare(most_ids: int | None) -> "tuple[Workload, ArrivalPlan]":
        made = asked.make_workload(
            is_chat=chat,
            vocabulary=asked.make_vocabulary(vocab_size, most=most_ids),
            kind=workload,
            file=file,
            requests=requests,
            input_len=input_len,
            output_len=output_len,
            shared_prefix=shared_prefix,
            phrase_len=phrase_len,
            turns=turns,
            system_len=system_len,
            pause=pause,
            scale=scale,
            limit=limit,
            max_prompt_tokens=max_prompt_tokens,
            max_output_tokens=max_output_tokens,
            as_text=as_text,
            seed=seed,
        )
        return made, _plan(
            arrivals,
            has_arrivals=made.has_arrivals,
            rate=rate,
            burstiness=burstiness,
            concurrency=concurrency,
            seed=seed,
        )

    if url is not None:
        from octavo.bench.load.openai_target import OpenAITarget, ServerOptions

        server = ServerOptions(
            model=model_name,
            api_key=running.read_key(api_key, api_key_file),
            is_chat=chat,
            ignore_eos={"on": True, "off": False}.get(ignore_eos),
            body=extra,
            timeout_s=timeout,
            pid=running.check_pid(server_pid),
        )
        target = OpenAITarget(url, server)
        report = running.measure(target, *prepare(None), settings)
    else:
        assert model is not None
        with running.loaded(
            model,
            block_size=options.parse_block_size(block_size),
            kv_memory=kv_memory,
            kv_dtype=kv_dtype,
            threads=threads,
            max_num_seqs=max_num_seqs,
            max_step_tokens=max_step_tokens,
            max_chunk_tokens=max_chunk_tokens,
            max_context=max_context,
            prefix_cache=prefix_cache,
            speculative=speculative,
        ) as (llm, start_s):
            from octavo.bench.load.engine_target import EngineTarget

            name = model_name or running.short_name(model)
            engine = EngineTarget(llm, name=name, start_s=start_s, ignore_eos=ignore_eos != "off")
            report = running.measure(engine, *prepare(llm.spec.vocab_size), settings)
    running.finish(
        report,
        document,
        delivery,
        running.Circumstances("serve", context, label=label, threads=threads, ceilings=not no_ceilings),
    )


def _plan(kind: str | None, *, has_arrivals: bool, rate: float | None, **others: Any) -> "ArrivalPlan":
    from octavo.bench.load.arrivals import ArrivalPlan

    if kind is None:
        kind = "poisson" if rate is not None else "trace" if has_arrivals else "closed"
    if kind == "trace" and not has_arrivals:
        raise InvalidConfig("arrivals=trace: this workload does not say when its requests come")
    return ArrivalPlan(kind=kind, rate=rate, **others)  # type: ignore[arg-type]  # it checks


def _parse_body(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidConfig(f"body={shown(text)}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidConfig(f"body={shown(text)}: must be a JSON object")
    return found
