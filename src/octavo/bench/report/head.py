"""What every report begins with: version of the format, command, machine, ceilings."""

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import octavo
from octavo.backends.cpu import CpuBackend
from octavo.bench.ceilings import Meter
from octavo.bench.machine import describe

# Raised when a field changes its meaning or goes away; new fields leave it as it is.
SCHEMA_VERSION: Final = 4
_SECRETS: Final = ("--api-key",)


def head(command: str, arguments: Sequence[str], *, threads: int | None, ceilings: bool) -> dict[str, Any]:
    """The beginning of a report. Measuring the ceilings takes about two seconds and all cores.

    Args:
        command: such as "serve".
        arguments: of the command line; keys are left out.
        ceilings: whether to measure them.
    """
    backend = CpuBackend(threads)
    found: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "command": command,
        "command_line": shlex.join(["octavo", *without_secrets(arguments)]),
        "octavo": octavo.__version__,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe(backend.threads, backend.isa).as_dict(),
        "ceilings": None,
    }
    if ceilings:
        meter = Meter(backend)
        found["ceilings"] = meter.measure().as_dict()
    return found


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """The same with "..." in place of keys."""
    found: list[str] = []
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if found and found[-1] in _SECRETS:
            found.append("...")
        else:
            found.append(f"{name}=..." if name in _SECRETS and equals else argument)
    return found
