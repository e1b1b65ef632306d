"""``octavo bench serve``: requests as they come, against a server or an engine in this process."""

from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli import options
from octavo.cli.bench import running
from octavo.cli.bench.delivering import Delivery
from octavo.cli.bench.engine_options import EngineOptions
from octavo.cli.bench.server_options import IgnoreEos, ServerAccess, parse_body, parse_ignore_eos
from octavo.cli.bench.unused_options import refuse_unused
from octavo.cli.bench.workload_making import make_plan, make_workload
from octavo.cli.bench.workload_options import ArrivalOptions, Chat, SloText, WorkloadOptions
from octavo.cli.completion import complete_model
from octavo.cli.option_groups import grouped
from octavo.core.errors import InvalidConfig

if TYPE_CHECKING:
    from octavo.bench.load.arrivals import ArrivalPlan
    from octavo.bench.workloads.item import Workload


@grouped
def serve(
    context: typer.Context,
    url: Annotated[str | None, typer.Argument(help="A server that speaks OpenAI's API.")] = None,
    *,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Or: a model to load here.", autocompletion=complete_model),
    ] = None,
    shape: WorkloadOptions,
    when: ArrivalOptions,
    slo: SloText = None,
    repeats: running.Repeats = 3,
    warmup: running.WarmUp = 4,
    chat: Chat = False,
    access: ServerAccess,
    ignore_eos: IgnoreEos = "auto",
    body: Annotated[str | None, typer.Option(help="JSON object with more fields for each request.")] = None,
    label: running.Label = None,
    engine: EngineOptions,
    per_request: running.PerRequest = False,
    no_ceilings: running.NoCeilings = False,
    delivery: Delivery,
    config: options.Config = None,
) -> None:
    """Put a server under load, or an engine in this process: latencies, throughput, goodput, memory.

    Latencies count from the moment at which a request was due. Ctrl-C ends it and reports what there is.
    """
    refuse_unused(context)
    if (url is None) == (model is None):
        raise InvalidConfig("name either the URL of a server, or a model to load here with --model")
    asks_full, extra = parse_ignore_eos(ignore_eos), parse_body(body)
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
        made = make_workload(shape, is_chat=chat, most_ids=most_ids)
        return made, make_plan(when, seed=shape.seed, has_arrivals=made.has_arrivals)

    if url is not None:
        from octavo.bench.load.openai_target import OpenAITarget, ServerOptions

        server = ServerOptions(
            is_chat=chat,
            ignore_eos=asks_full,
            body=extra,
            **access.settings(),
        )
        target = OpenAITarget(url, server)
        report = running.measure(target, *prepare(None), settings)
    else:
        assert model is not None
        with running.loaded(model, **engine.settings()) as (llm, start_s):
            from octavo.bench.load.engine_target import EngineTarget

            name = access.model_name or running.short_name(model)
            here = EngineTarget(llm, name=name, start_s=start_s, ignore_eos=asks_full is not False)
            report = running.measure(here, *prepare(llm.spec.vocab_size), settings)
    how = running.Circumstances(
        "serve", context, label=label, threads=engine.threads, ceilings=not no_ceilings
    )
    running.finish(report, document, delivery, how)
