"""Continuous batching of transformers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from model_files import TRANSFORMERS, as_bfloat16, install_transformers
from peer import Load, Peer
from workshop import INSIDE, OFFLINE, Workshop

from octavo.bench.compare.program import Program

_ENVIRONMENT: Final = "transformers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformers(Peer):
    """The library."""

    def install(self, workshop: Workshop, model: Path) -> None:
        install_transformers(workshop)
        as_bfloat16(workshop, model)

    def program(self, workshop: Workshop, model: Path, load: Load) -> Program:
        command = [workshop.python(_ENVIRONMENT), str(INSIDE / "transformers_driver.py")]
        command += [str(as_bfloat16(workshop, model)), str(load.threads), str(load.num_requests)]
        command += [str(load.longest)]
        return Program(facts=self.facts(), command=command, protocol="lines", env=OFFLINE)


def peers() -> list[Peer]:
    """One."""
    return [
        Transformers(
            name="transformers",
            version=f"{TRANSFORMERS[0]} {TRANSFORMERS[1]}",
            precision="bfloat16 weights (dequantized), bfloat16 KV",
            settings="continuous batching, prefix sharing, SDPA",
            note="the library by pipes, with an end token that does not exist",
        )
    ]
