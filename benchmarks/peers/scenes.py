"""The four scenes against Octavo and every peer that can be installed and started here.

    python benchmarks/peers/scenes.py --rounds 4 --html peers.html --output peers.json

Peers are installed into environments of their own, with pip alone, below --folder. In each scene all are
started, warmed up, frozen while others work, and given the same requests in turn.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop
from everyone import everyone
from peer import Load, Peer
from workshop import Workshop

from octavo.backends.cpu import CpuBackend
from octavo.bench.ceilings import Meter
from octavo.bench.compare.comparison import Ceilings, compare
from octavo.bench.compare.octavo_itself import precision_for
from octavo.bench.compare.program import write_program
from octavo.bench.compare.report import document
from octavo.bench.compare.rounds import CompareSettings
from octavo.bench.compare.scenes import Task, as_task, parse_scenes
from octavo.bench.interrupts import stop_when_told
from octavo.bench.report.head import head
from octavo.cli.bench.delivering import Delivery
from octavo.cli.bench.progress import experiment_bar
from octavo.cli.bench.writing import check_file
from octavo.core.errors import OctavoError
from octavo.engine.precision import weights_of
from octavo.weights.sources import resolve


def main() -> None:
    asked = parse(sys.argv[1:])
    for file in (asked.output, asked.html):
        if file is not None:
            check_file(file)
    delivery = Delivery(as_json=asked.json, output=asked.output, html=asked.html)
    model = resolve(asked.model)
    threads = CpuBackend(asked.threads).threads
    chosen = choose(everyone(precision_for(str(model), {}), weights_of(model)), asked.only, asked.without)
    workshop = Workshop(asked.folder.expanduser())
    present, absent = install(chosen, workshop, model)
    if asked.install_only:
        print("\n".join(f"{peer.name} is there" for peer in present))
        raise SystemExit(1 if absent else 0)
    if not present:
        raise SystemExit("no peer is there to be run")
    tasks = [as_task(scene) for scene in parse_scenes(asked.scene)]
    if asked.programs is not None:
        write_programs(present, workshop, model, tasks, threads=threads, folder=asked.programs)
        return
    found = run(present, absent, workshop, model, tasks, threads=threads, asked=asked)
    report = {
        **head("compare", [], threads=threads, ceilings=False),
        "model": model.name,
        **found,
    }
    report = without_home(report, Path.home())
    report["command_line"] = shlex.join(["python", "benchmarks/peers/scenes.py", *sys.argv[1:]])
    delivery.give(report, document)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ", ".join(peer.name for peer in everyone())
    parser.add_argument("--model", default="smollm2", help="a GGUF file, or a name octavo knows")
    parser.add_argument("--scene", default="a,b,c,d")
    parser.add_argument("--rounds", type=int, default=4, help="in an even number drift cancels")
    parser.add_argument("--warmup", type=int, default=4, help="requests after a start that do not count")
    parser.add_argument("--only", action="append", help=f"may be given several times: {names}")
    parser.add_argument("--without", action="append", default=[], help="leave one out")
    parser.add_argument("--folder", type=Path, default=Path("~/.cache/octavo/peers"))
    parser.add_argument("--threads", type=int, help="default: one for each core")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--output", type=Path, help="write the JSON here")
    parser.add_argument("--html", type=Path, help="write a page here")
    parser.add_argument(
        "--install-only", action="store_true", help="run nothing; status 1 if one is not there"
    )
    parser.add_argument(
        "--programs", type=Path, help="run nothing; write a FILE for octavo bench compare --program each"
    )
    return parser.parse_args(arguments)


def choose(peers: Sequence[Peer], only: Sequence[str] | None, without: Sequence[str]) -> list[Peer]:
    """Those that were asked for, in their usual order.

    Raises:
        SystemExit: a name is none of theirs.
    """
    names = [peer.name for peer in peers]
    if wrong := [name for name in [*(only or []), *without] if name not in names]:
        raise SystemExit(f"no peer is called {wrong[0]}; there are: {', '.join(names)}")
    return [peer for peer in peers if (only is None or peer.name in only) and peer.name not in without]


def install(peers: Sequence[Peer], workshop: Workshop, model: Path) -> tuple[list[Peer], dict[str, str]]:
    """Those that are there now, and why the others are not."""
    present, absent = [], {}
    for peer in peers:
        try:
            peer.install(workshop, model)
        except (OctavoError, OSError) as error:
            absent[peer.name] = f"cannot be installed: {error}"
            workshop.say(f"{peer.name} {absent[peer.name]}")
        else:
            present.append(peer)
    return present, absent


def load_of(task: Task, threads: int) -> Load:
    """What a peer is to be ready for."""
    assert task.num_requests is not None
    assert task.longest is not None
    return Load(num_requests=task.num_requests, longest=task.longest, threads=threads)


def run(
    present: Sequence[Peer],
    absent: dict[str, str],
    workshop: Workshop,
    model: Path,
    tasks: Sequence[Task],
    *,
    threads: int,
    asked: argparse.Namespace,
) -> dict[str, Any]:
    ceilings = Ceilings(Meter(CpuBackend(threads)))

    async def all_tasks() -> dict[str, Any]:
        with stop_when_told() as stop, experiment_bar() as progress:
            return await compare(
                lambda task: [peer.program(workshop, model, load_of(task, threads)) for peer in present],
                tasks,
                CompareSettings(rounds=asked.rounds, warm_up=asked.warmup),
                progress=progress,
                stop=stop,
                ceilings=ceilings,
                absent=absent,
            )

    return uvloop.run(all_tasks())


def without_home(value: Any, home: Path) -> Any:
    """The same with "~" for the user's home wherever it stands: reports are for others."""
    if isinstance(value, str):
        return (
            re.sub(rf"(?<![\w.~/-]){re.escape(str(home))}(?![\w-]|\.\w)", "~", value) if home.name else value
        )
    if isinstance(value, dict):
        return {name: without_home(each, home) for name, each in value.items()}
    if isinstance(value, list):
        return [without_home(each, home) for each in value]
    return value


def write_programs(
    peers: Sequence[Peer],
    workshop: Workshop,
    model: Path,
    tasks: Sequence[Task],
    *,
    threads: int,
    folder: Path,
) -> None:
    """A file for each peer, ready for the largest of the scenes."""
    loads = [load_of(task, threads) for task in tasks]
    load = Load(
        num_requests=max(each.num_requests for each in loads),
        longest=max(each.longest for each in loads),
        threads=threads,
    )
    folder.mkdir(parents=True, exist_ok=True)
    for peer in peers:
        file = folder / f"{peer.name.replace(' ', '-')}.json"
        write_program(peer.program(workshop, model, load), file)
        print(file)


if __name__ == "__main__":
    try:
        main()
    except OctavoError as error:
        raise SystemExit(f"scenes.py: {error}") from error
