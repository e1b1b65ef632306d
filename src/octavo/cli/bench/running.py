"""What the commands that run workloads have in common."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from octavo.bench import interrupts
from octavo.cli.bench.delivering import Delivery
from octavo.cli.bench.progress import experiment_bar
from octavo.core.errors import OctavoError

if TYPE_CHECKING:
    from octavo.bench.experiment import ExperimentSettings
    from octavo.bench.load.arrivals import ArrivalPlan
    from octavo.bench.load.target import Target
    from octavo.bench.report.parts import Document
    from octavo.bench.workloads.item import Workload
    from octavo.engine.llm import LLM

INTERRUPTED: Final = interrupts.INTERRUPTED

Repeats = Annotated[int, typer.Option(min=1, help="Runs of the workload, each with a draw of its own.")]
WarmUp = Annotated[int, typer.Option("--warmup", min=0, help="Requests before, that do not count.")]
PerRequest = Annotated[bool, typer.Option("--per-request", help="Keep every request in the JSON.")]
NoCeilings = Annotated[bool, typer.Option("--no-ceilings", help="Do not measure what the machine can do.")]
Label = Annotated[
    str | None, typer.Option(help="What is measured, for the report, e.g. the precision of a server's model.")
]


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Of a report: which command made it, and how."""

    command: str
    context: typer.Context
    label: str | None
    threads: int | None
    ceilings: bool


@contextmanager
def loaded(model: str, **settings: Any) -> "Iterator[tuple[LLM, float]]":
    """A model, and the seconds that loading it took."""
    from octavo.engine.llm import LLM

    begin = time.perf_counter()
    with LLM(model, **settings) as llm:
        yield llm, time.perf_counter() - begin


def short_name(model: str) -> str:
    """What a report calls a model."""
    return Path(model).name or model


def measure(
    target: "Target", workload: "Workload", plan: "ArrivalPlan", settings: "ExperimentSettings"
) -> dict[str, Any]:
    """Run an experiment; gives its parts of the report."""
    (found,) = measure_all(target, [(workload, plan)], settings)
    return found


def measure_all(
    target: "Target", cases: "Sequence[tuple[Workload, ArrivalPlan]]", settings: "ExperimentSettings"
) -> list[dict[str, Any]]:
    """Run one experiment after the other; fewer come back if Ctrl-C ends them."""
    import uvloop

    from octavo.bench.experiment import describe, run_experiment

    async def run() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        await target.open()
        try:
            with experiment_bar() as progress:
                for workload, plan in cases:
                    findings = await run_experiment(target, workload, plan, settings, progress)
                    found.append(describe(findings, target, workload, plan, settings))
                    if findings.interrupted:
                        break
        finally:
            await target.close()
        return found

    return uvloop.run(run())


def finish(
    report: dict[str, Any],
    document: "Callable[[Mapping[str, Any]], Document]",
    delivery: Delivery,
    how: Circumstances,
) -> None:
    """Complete a report, give it out, and leave with the status that says how it went.

    Raises:
        OctavoError: no request was answered; the report is out all the same.
    """
    from octavo.bench.report.head import head

    begin = head(how.command, arguments_of(how.context), threads=how.threads, ceilings=how.ceilings)
    report["target"]["label"] = how.label
    delivery.give({**begin, **report}, document)
    if report["interrupted"]:
        raise typer.Exit(INTERRUPTED)
    parts = report.get("points", [report])
    if not any(repeat["requests"]["ok"] for part in parts for repeat in part["repeats"]):
        raise OctavoError(f"no request was answered: {report['warnings'][0]}")


def arguments_of(context: typer.Context) -> list[str]:
    """The command line, without the name of the program."""
    given = context.find_root().obj
    return list(given) if isinstance(given, list) else sys.argv[1:]
