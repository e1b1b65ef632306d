"""Requests and counters as the memory view's JSON has them."""

from typing import Any

from octavo.engine.block_map import RequestFigures
from octavo.server.memory.activity import Activity
from octavo.server.memory.blocks import Arrangement
from octavo.server.registry import RequestRegistry, ServedRequest

MAX_REQUESTS = 256  # in one frame or answer


class RequestEntries:
    """Describes requests of the engine, with what the server knows of them."""

    def __init__(self, activity: Activity, registry: RequestRegistry) -> None:
        self._activity = activity
        self._registry = registry

    def served(self, figures: RequestFigures) -> ServedRequest | None:
        """The answer that a request, sample or beam belongs to."""
        own = self._registry.of_engine(figures.request_id)
        return own if own is not None else self._registry.of_engine(figures.leader)

    def entry(
        self, figures: RequestFigures, *, age_s: float | None, num_blocks: int = 0, num_shared_blocks: int = 0
    ) -> dict[str, Any]:
        """One request.

        Args:
            age_s: since it arrived; None if that is not known.
        """
        served = self.served(figures)
        return {
            "request_id": figures.request_id,
            "response_id": None if served is None else served.response_id,
            "endpoint": None if served is None else served.endpoint,
            "user": None if served is None else served.user,
            "state": figures.state,
            "prompt_len": figures.prompt_len,
            "num_tokens": figures.num_tokens,
            "num_computed": figures.num_computed,
            "num_cached_tokens": figures.num_cached_tokens,
            "num_preemptions": figures.num_preemptions,
            "age_s": None if age_s is None else round(max(0.0, age_s), 3),
            "num_blocks": num_blocks,
            "num_shared_blocks": num_shared_blocks,
        }

    def entries(self, found: Arrangement, now_s: float) -> list[dict[str, Any]]:
        """Those that run, then those that wait; at most MAX_REQUESTS.

        Args:
            now_s: on the monotonic clock.
        """
        entries = []
        for index in range(min(len(found.held), MAX_REQUESTS)):
            entries.append(self.holder_entry(found, index, now_s))
        for figures in found.blocks.waiting[: MAX_REQUESTS - len(entries)]:
            entries.append(self.entry(figures, age_s=self._age_s(figures, now_s)))
        return entries

    def holder_entry(self, found: Arrangement, index: int, now_s: float) -> dict[str, Any]:
        """One of those that hold blocks."""
        figures = found.blocks.holders[index].figures
        return self.entry(
            figures,
            age_s=self._age_s(figures, now_s),
            num_blocks=len(found.held[index].all),
            num_shared_blocks=found.num_shared(index),
        )

    def waiting_entry(self, figures: RequestFigures, now_s: float) -> dict[str, Any]:
        """One of those that wait."""
        return self.entry(figures, age_s=self._age_s(figures, now_s))

    def _age_s(self, figures: RequestFigures, now_s: float) -> float | None:
        arrival_s = self._activity.arrival_of(figures.leader)
        return None if arrival_s is None else now_s - arrival_s


def frame_stats(found: Arrangement) -> dict[str, Any]:
    """Counters of the pool and of the scheduler, as a frame has them."""
    paging, scheduling = found.blocks.paging, found.blocks.scheduling
    return {
        "waste": round(paging.waste, 6),
        "sharing_ratio": round(paging.sharing_ratio, 6),
        "scatter": round(paging.scatter, 6),
        "hit_rate": round(paging.hit_rate, 6),
        "used_blocks": paging.used_blocks,
        "shared_blocks": paging.shared_blocks,
        "cached_blocks": paging.cached_blocks,
        "free_blocks": paging.free_blocks,
        "pinned_blocks": paging.pinned_blocks,
        "num_running": scheduling.num_running,
        "num_waiting": scheduling.num_waiting,
        "num_preemptions": scheduling.num_preemptions,
    }
