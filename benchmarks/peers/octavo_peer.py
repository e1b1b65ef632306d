"""Octavo itself, through its server and as a library: what the peers are compared with."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from peer import Load, Peer
from workshop import Workshop

import octavo
from octavo.bench.compare import octavo_itself
from octavo.bench.compare.program import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Octavo(Peer):
    """Of the environment that runs this."""

    through: Literal["server", "library"]

    def install(self, workshop: Workshop, model: Path) -> None:
        """Nothing to do."""

    def program(self, workshop: Workshop, model: Path, load: Load) -> Program:
        make = octavo_itself.server if self.through == "server" else octavo_itself.library
        settings = {"threads": load.threads}
        return make(str(model), settings, precision=self.precision)


def peers(precision: str = "the file's weights") -> list[Peer]:
    """Server and library.

    Args:
        precision: for reports.
    """
    ways: tuple[Literal["server", "library"], ...] = ("server", "library")
    return [
        Octavo(
            name=f"octavo {way}",
            version=octavo.__version__,
            precision=precision,
            settings="as it comes",
            through=way,
        )
        for way in ways
    ]
