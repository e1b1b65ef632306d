"""What can be put under load: a server, or an engine in this process."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from octavo.bench.load.exchange import Exchange
from octavo.bench.workloads.item import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """What the KV pool is used for at a moment. Counters run since the start of the engine.

    Attributes:
        used_blocks, total_blocks: of the pool, now.
        waste: fraction of the slots in tables that no token fills, now.
        peak_blocks: the most that was ever used.
        num_preemptions, query_tokens, hit_tokens: so far.
    """

    used_blocks: int
    total_blocks: int
    block_bytes: int
    waste: float
    peak_blocks: int
    num_preemptions: int
    query_tokens: int
    hit_tokens: int


class Target(Protocol):
    """Takes requests."""

    async def open(self) -> None:
        """Find out what it is. Before any request."""
        ...

    async def close(self) -> None:
        """Let go of it."""
        ...

    async def send(self, prompt: Prompt, max_tokens: int, exchange: Exchange) -> None:
        """Have a prompt continued and note in ``exchange`` what happens; failures are noted, not raised.

        Cancelled, it ends the request at the other side too.
        """
        ...

    async def memory(self) -> MemoryFacts | None:
        """What its memory is used for, or None if it does not tell."""
        ...

    def watch(self, see: Callable[[MemoryFacts], None] | None) -> bool:
        """Call ``see`` after every step from now on (None ends that), perhaps in another thread.

        False if it cannot; then it is asked from time to time.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """What it is, for reports: plain values."""
        ...

    def peak_rss_bytes(self) -> int | None:
        """The most memory that its process has had, or None if that is not known."""
        ...
