"""``octavo bench throughput``: all requests at once, without a server."""

from typing import Final

import typer

from octavo.cli import options
from octavo.cli.bench import running
from octavo.cli.bench.delivering import Delivery
from octavo.cli.bench.engine_options import EngineOptions
from octavo.cli.bench.progress import experiment_bar
from octavo.cli.bench.unused_options import refuse_unused
from octavo.cli.bench.workload_making import make_workload
from octavo.cli.bench.workload_options import WorkloadOptions
from octavo.cli.option_groups import grouped
from octavo.core.errors import InvalidConfig

_SHAPE: Final = WorkloadOptions(input_len="256", output_len="128")


@grouped
def throughput(
    context: typer.Context,
    model: options.Model = options.DEFAULT_MODEL,
    *,
    shape: WorkloadOptions = _SHAPE,
    repeats: running.Repeats = 3,
    warmup: running.WarmUp = 4,
    engine: EngineOptions,
    record: options.Record = None,
    per_request: running.PerRequest = False,
    no_ceilings: running.NoCeilings = False,
    delivery: Delivery,
    config: options.Config = None,
) -> None:
    """Measure how many tokens per second an engine gives when all requests are there at once."""
    refuse_unused(context)
    if shape.workload == "chat":
        raise InvalidConfig("workload=chat: turns wait for answers; octavo bench serve measures that")
    from octavo.bench.experiment import ExperimentSettings, describe
    from octavo.bench.load.arrivals import ArrivalPlan
    from octavo.bench.load.engine_target import EngineTarget
    from octavo.bench.offline import run_offline
    from octavo.bench.report.serve import document

    settings = ExperimentSettings(repeats=repeats, warm_up=warmup, per_request=per_request)
    with running.loaded(model, **engine.settings(), record=record) as (llm, start_s):
        made = make_workload(shape, is_chat=None, most_ids=llm.spec.vocab_size)
        with experiment_bar() as progress:
            findings = run_offline(llm, made, settings, progress)
        target = EngineTarget(llm, name=running.short_name(model), start_s=start_s)
        report = describe(findings, target, made, ArrivalPlan(kind="at-once"), settings)
    how = running.Circumstances(
        "throughput", context, label=None, threads=engine.threads, ceilings=not no_ceilings
    )
    running.finish(report, document, delivery, how)
