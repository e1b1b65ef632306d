"""What all peers have in common: they are installed into environments of their own, and then started."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from workshop import Workshop

from octavo.bench.compare.contestant import Facts, Running
from octavo.bench.compare.program import Program
from octavo.bench.load.openai_target import ServerOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a peer is to be ready for; some must be told when they start.

    Attributes:
        num_requests: at once, at most.
        longest: tokens of a request at most, prompt and output together.
        threads: to compute with.
    """

    num_requests: int
    longest: int
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """An engine in one precision.

    Attributes:
        name: short, for tables and the command line.
        version: what ``install`` installs.
        precision: of weights, activations and KV.
        settings: what is chosen in every scene, in words.
        note: how it is made equal to the others where it has no such setting.
    """

    name: str
    version: str
    precision: str
    settings: str
    note: str = ""

    def install(self, workshop: Workshop, model: Path) -> None:
        """Install it and make the model's files that it reads, unless they are there.

        Args:
            model: a GGUF file.

        Raises:
            OctavoError: that failed; says why.
        """
        raise NotImplementedError

    def program(self, workshop: Workshop, model: Path, load: Load) -> Program:
        """How it is started, in its best setting for a load."""
        raise NotImplementedError

    @asynccontextmanager
    async def start(self, workshop: Workshop, model: Path, load: Load) -> AsyncIterator[Running]:
        """Start it, and stop it in the end.

        Gives its target, how long it took to start, and the peak memory of all its processes.

        Raises:
            OctavoError: it does not start; says why.
        """
        running = await self.program(workshop, model, load).start(ServerOptions())
        try:
            yield running
        finally:
            await running.stop()

    def facts(self, extra: str = "") -> Facts:
        """For reports.

        Args:
            extra: settings that depend on the load.
        """
        settings = ", ".join(part for part in (self.settings, extra) if part)
        return Facts(
            name=self.name,
            version=self.version,
            precision=self.precision,
            settings=settings,
            note=self.note,
        )
