"""``octavo bench compare``: the same requests to several engines in turn."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from octavo.cli import options
from octavo.cli.bench import running
from octavo.cli.bench.delivering import Delivery
from octavo.cli.bench.named_servers import NamedServers
from octavo.cli.bench.progress import experiment_bar
from octavo.cli.bench.server_options import USUAL_TIMEOUT_S, IgnoreEos, Timeout, parse_ignore_eos
from octavo.cli.bench.unused_options import OF_REQUESTS, refuse_unused, unused
from octavo.cli.bench.workload_making import make_plan, make_workload
from octavo.cli.bench.workload_options import ArrivalOptions, Chat, SloText, WorkloadOptions
from octavo.cli.completion import complete_model
from octavo.cli.option_groups import grouped
from octavo.core.errors import InvalidConfig, OctavoError, shown

if TYPE_CHECKING:
    from octavo.bench.compare.contestant import Contestant
    from octavo.bench.compare.rounds import CompareSettings
    from octavo.bench.compare.scenes import Task

_THROUGH: Final = ("server", "library")
_NOT_OF_SCENES: Final = (*OF_REQUESTS, "chat", "ignore_eos")
_OF_SERVERS: Final = ("label", "model_name", "api_key", "api_key_file", "body")


class InRounds(TyperCommand):
    """A command that has rounds where its neighbours have repeats."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options.

        Raises:
            InvalidConfig: one is that of its neighbours.
        """
        if any(arg.partition("=")[0] == "--repeats" for arg in args):
            raise InvalidConfig("--repeats: a comparison has rounds: write --rounds")
        return super().parse_args(ctx, args)


@grouped
def compare(
    context: typer.Context,
    *,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Start Octavo with this model.", autocompletion=complete_model),
    ] = None,
    through: Annotated[
        str, typer.Option(help="How to run it: server, library, or both with a comma between.")
    ] = "server",
    settings: Annotated[
        str, typer.Option("--settings", help='JSON object of Octavo\'s settings, e.g. {"block_size": 32}.')
    ] = "{}",
    servers: NamedServers,
    program: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A program to start: JSON with name, command, protocol, ..."),
    ] = None,
    scene: Annotated[
        str | None, typer.Option(help="Instead of a workload: a, b, c, d, or several with commas.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each; in an even number drift cancels.")] = 6,
    warmup: Annotated[
        int | None, typer.Option(min=0, help="Requests after a start that do not count. Default: a round.")
    ] = None,
    shape: WorkloadOptions,
    when: ArrivalOptions,
    slo: SloText = None,
    chat: Chat = False,
    ignore_eos: IgnoreEos = "auto",
    timeout: Timeout = USUAL_TIMEOUT_S,
    threads: options.Threads = None,
    no_ceilings: running.NoCeilings = False,
    delivery: Delivery,
    config: options.Config = None,
) -> None:
    """Compare engines: the same requests to each in turn, round after round; ratios with intervals.

    The first is what the others are compared with, in this order: --model, then each --server, then each
    --program. What this command starts is frozen while others work. Ctrl-C ends it and reports what there
    is. The exit status is 1 if nothing could be compared; the report is out all the same.
    """
    refuse_unused(context, _unused(context.params))
    from octavo.bench.compare import report as reports
    from octavo.bench.compare.comparison import why_nothing
    from octavo.bench.compare.rounds import CompareSettings
    from octavo.bench.compare.scenes import Task, as_task, parse_scenes
    from octavo.bench.load.openai_target import ServerOptions
    from octavo.bench.metrics.slo import parse_slo
    from octavo.bench.report.head import head

    how = CompareSettings(
        rounds=rounds,
        warm_up=warmup,
        slo=None if slo is None else parse_slo(slo),
        asking=ServerOptions(is_chat=chat, ignore_eos=parse_ignore_eos(ignore_eos), timeout_s=timeout),
    )
    contestants = [
        *_octavo(model, through, _parse_settings(settings, threads)),
        *servers.contestants(),
        *_programs(program or []),
    ]
    if len(contestants) < 2:
        raise InvalidConfig("name at least two of --model, --server and --program to compare")
    if scene is not None:
        tasks = [as_task(each, seed=shape.seed) for each in parse_scenes(scene)]
    else:
        made = make_workload(shape, is_chat=chat)
        plan = make_plan(when, seed=shape.seed, has_arrivals=made.has_arrivals)
        tasks = [Task(workload=made, plan=plan)]
    found = measure(contestants, tasks, how, threads=threads, ceilings=not no_ceilings)
    begin = head("compare", running.arguments_of(context), threads=threads, ceilings=False)
    delivery.give({**begin, "model": model, **found}, reports.document)
    if found["interrupted"]:
        raise typer.Exit(running.INTERRUPTED)
    if (why := why_nothing(found)) is not None:
        raise OctavoError(f"nothing could be compared: {why}")


def measure(
    contestants: "list[Contestant]",
    tasks: "list[Task]",
    settings: "CompareSettings",
    *,
    threads: int | None,
    ceilings: bool,
) -> dict[str, Any]:
    """Run it, with a bar for who watches; the first Ctrl-C ends it early."""
    import uvloop

    from octavo.backends.cpu import CpuBackend
    from octavo.bench.ceilings import Meter
    from octavo.bench.compare.comparison import Ceilings
    from octavo.bench.compare.comparison import compare as run_all
    from octavo.bench.interrupts import stop_when_told

    meter = Ceilings(Meter(CpuBackend(threads))) if ceilings else None

    async def run() -> dict[str, Any]:
        with stop_when_told() as stop, experiment_bar() as progress:
            return await run_all(
                lambda _: contestants, tasks, settings, progress=progress, stop=stop, ceilings=meter
            )

    return uvloop.run(run())


def _unused(given: Mapping[str, Any]) -> dict[str, str]:
    """Parameters that have no effect beside the others, and with what they have none."""
    found = unused(given) if given["scene"] is None else dict.fromkeys(_NOT_OF_SCENES, "--scene")
    if given["model"] is None:
        found |= dict.fromkeys(("through", "settings"), "no --model")
        if given["no_ceilings"]:
            found["threads"] = "--no-ceilings and no --model"
    if not given["server"]:
        found |= dict.fromkeys(_OF_SERVERS, "no --server")
    return found


def _octavo(model: str | None, through: str, settings: dict[str, Any]) -> "list[Contestant]":
    if model is None:
        return []
    from octavo.bench.compare import octavo_itself

    ways = through.split(",")
    if wrong := [way for way in ways if way not in _THROUGH]:
        raise InvalidConfig(f"through={shown(wrong[0])}: choose among {', '.join(_THROUGH)}")
    precision = octavo_itself.precision_for(model, settings)
    makers = {"server": octavo_itself.server, "library": octavo_itself.library}
    return [makers[way](model, settings, precision=precision) for way in ways]


def _programs(files: list[Path]) -> "list[Contestant]":
    from octavo.bench.compare.program import read_program

    return [read_program(file) for file in files]


def _parse_settings(text: str, threads: int | None) -> dict[str, Any]:
    found = options.parse_object("settings", text)
    if threads is not None and "threads" in found:
        raise InvalidConfig(f"threads={threads}: --settings has threads too; leave one out")
    return found if threads is None else {"threads": threads, **found}
