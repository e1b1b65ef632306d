"""``octavo replay``: make the decisions of a recording again, without a model."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from octavo.cli import options
from octavo.core.display import counted, printable


def replay(
    file: Annotated[Path, typer.Argument(help="A recording, as `octavo generate --record` writes it.")],
    as_json: options.AsJson = False,
    config: options.Config = None,
) -> None:
    """Re-run the scheduler and block manager on a recording, and compare every decision.

    Exit status 1 if one comes out otherwise.
    """
    from octavo.scheduling.recording import replay as replay_file

    report = replay_file(file)
    if as_json:
        print(json.dumps(asdict(report)))
    else:
        print(
            f"{counted(report.num_requests, 'request')}, {counted(report.num_steps, 'step')}, "
            f"{counted(report.num_tokens, 'token')} computed, "
            f"{counted(report.num_preemptions, 'preemption')}"
        )
        outcome = "every decision is the same" if report.difference is None else report.difference
        print(printable(outcome))
    if report.difference is not None:
        raise typer.Exit(1)
