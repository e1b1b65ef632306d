"""What the KV pool is used for at this moment, as plain values."""

from dataclasses import asdict, dataclass
from typing import Any

from octavo.paging.stats import PagingStats


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Counters of the pool, and who holds what.

    Attributes:
        stats: used, free, cached, shared and pinned blocks; waste, sharing, scatter, hits, evictions, copies.
        requests: block ids of each running request by its id; a shared block appears under each.
    """

    stats: PagingStats
    requests: dict[int, list[int]]

    def as_dict(self) -> dict[str, Any]:
        """Numbers, lists and dictionaries only, ready for JSON."""
        stats = self.stats
        return {
            **asdict(stats),
            "unfilled_tokens": stats.unfilled_tokens,
            "waste": stats.waste,
            "sharing_ratio": stats.sharing_ratio,
            "scatter": stats.scatter,
            "hit_rate": stats.hit_rate,
            "requests": {request_id: list(block_ids) for request_id, block_ids in self.requests.items()},
        }

    def __str__(self) -> str:
        s = self.stats
        return (
            f"{s.total_blocks:,} KV blocks: {s.used_blocks:,} used by {len(self.requests)} requests "
            f"({s.shared_blocks:,} shared, {s.pinned_blocks:,} pinned), {s.cached_blocks:,} cached, "
            f"{s.free_blocks:,} free\n"
            f"{s.unfilled_tokens:,} slots unfilled ({s.waste:.1%}), {s.sharing_ratio:.2f} owners per block, "
            f"{s.scatter:.0%} scattered\n"
            f"{s.hit_tokens:,} of {s.query_tokens:,} tokens from the prefix cache ({s.hit_rate:.0%}), "
            f"{s.evictions:,} evictions, {s.copies:,} copies"
        )
