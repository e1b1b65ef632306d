"""Answers about the memory at one moment: the whole pool, one request, one block."""

import time
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from octavo.engine.async_engine import AsyncEngine
from octavo.engine.block_map import named_tokens
from octavo.engine.llm import LLM
from octavo.paging.block import Block
from octavo.paging.explain import PrefixExplanation
from octavo.paging.groups import GroupSpec
from octavo.server.memory.blocks import CACHED, STATE_NAMES, Arrangement
from octavo.server.memory.entries import MAX_REQUESTS
from octavo.server.memory.feed import MemoryFeed
from octavo.server.registry import RequestRegistry


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """What never changes of a pool.

    Attributes:
        layers: of each group.
        num_tokens, num_bytes: of the whole pool.
    """

    groups: tuple[GroupSpec, ...]
    layers: tuple[tuple[int, ...], ...]
    block_bytes: int
    num_tokens: int
    num_bytes: int

    @staticmethod
    def of(llm: LLM) -> "PoolFacts":
        """Of a loaded model's."""
        capacity = llm.capacity
        groups = capacity.plan.groups
        return PoolFacts(
            groups=tuple(group.spec for group in groups),
            layers=tuple(group.layers for group in groups),
            block_bytes=capacity.block_bytes,
            num_tokens=capacity.num_tokens,
            num_bytes=capacity.num_bytes,
        )

    @property
    def table_block_sizes(self) -> list[int]:
        """Tokens per block of each block table."""
        return [spec.block_size for spec in self.groups for _ in range(spec.num_tables)]


class MemoryReporter:
    """Looks once for each answer.

    Args:
        shows_tokens: whether an answer may tell which tokens a block holds.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        feed: MemoryFeed,
        registry: RequestRegistry,
        *,
        facts: PoolFacts,
        shows_tokens: bool,
    ) -> None:
        self._engine = engine
        self._feed = feed
        self._entries = feed.state.entries
        self._registry = registry
        self._facts = facts
        self._shows_tokens = shows_tokens

    # The pool

    async def whole(self) -> dict[str, Any]:
        """Everything but block ids."""
        found = await self._feed.arrangement()
        paging = found.blocks.paging
        facts = self._facts
        counters = asdict(paging)
        groups = counters.pop("groups")
        counters.pop("sequences")
        return {
            "object": "memory",
            "pool": {
                **counters,
                "block_bytes": facts.block_bytes,
                "block_sizes": [spec.block_size for spec in facts.groups],
                "num_tokens": facts.num_tokens,
                "num_bytes": facts.num_bytes,
                "waste": paging.waste,
                "unfilled_tokens": paging.unfilled_tokens,
                "sharing_ratio": paging.sharing_ratio,
                "scatter": paging.scatter,
                "hit_rate": paging.hit_rate,
            },
            "groups": [
                {**group, "layers": list(layers), "window": spec.window}
                for group, spec, layers in zip(groups, facts.groups, facts.layers, strict=True)
            ],
            "tiers": [
                {
                    "name": "device",
                    "total_blocks": paging.total_blocks,
                    "used_blocks": paging.used_blocks,
                    "cached_blocks": paging.cached_blocks,
                    "free_blocks": paging.free_blocks,
                }
            ],
            "scheduler": asdict(found.blocks.scheduling),
            "requests": self._entries.entries(found, time.monotonic()),
            "num_requests": found.blocks.num_requests,
            "shows_tokens": self._shows_tokens,
        }

    # One request

    async def request(self, name: str) -> dict[str, Any] | None:
        """A request by the engine's id or by what the client was told; None if nothing is known of it.

        Of an answer with several sequences it is the first that holds blocks, or else the first.
        """
        ids = self._registry.find(name)
        if not ids and name.isascii() and name.isdigit() and len(name) < 19:
            ids = [int(name)]
        if not ids:
            return None
        found = await self._feed.arrangement()
        now_s = time.monotonic()
        wanted = frozenset(ids)
        for index, holder in enumerate(found.blocks.holders):
            if holder.figures.request_id in wanted or (len(ids) > 1 and holder.figures.leader in wanted):
                entry = self._entries.holder_entry(found, index, now_s)
                return self._with_prefix(entry, holder.figures.leader, ids, found, index)
        for figures in found.blocks.waiting:
            if figures.request_id in wanted:
                entry = self._entries.waiting_entry(figures, now_s)
                return self._with_prefix(entry, figures.leader, ids, found, None)
        return self._over(ids, found)

    def _over(self, ids: list[int], found: Arrangement) -> dict[str, Any] | None:
        """A request that is finished, as far as it is remembered."""
        over = next((over for i in ids if (over := self._feed.activity.finished_request(i))), None)
        if over is None:
            return None
        entry = self._entries.entry(over.figures, age_s=time.monotonic() - over.arrival_s)
        return self._with_prefix(entry, over.figures.leader, ids, found, None)

    def _with_prefix(
        self, entry: dict[str, Any], leader: int, ids: list[int], found: Arrangement, index: int | None
    ) -> dict[str, Any]:
        request_id = entry["request_id"]
        # Explanations are values in a dictionary: reading one needs no pause between steps.
        explain = self._engine.llm.engine.scheduler.explain
        return {
            **entry,
            "request_ids": ids,
            "tables": [] if index is None else self._tables(found, index),
            "block_sizes": self._facts.table_block_sizes,
            "shared_with": [] if index is None else self._shared_with(found, index),
            "prefix": _prefix(explain(request_id) or explain(leader)),
        }

    def _tables(self, found: Arrangement, index: int) -> list[list[int]]:
        tables = []
        views = found.blocks.holders[index].tables
        for spec, view, ids in zip(self._facts.groups, views, found.held[index].tables, strict=True):
            for column in range(spec.num_tables):
                tables.append([0] * view.first + ids[column :: spec.num_tables].tolist())
        return tables

    def _shared_with(self, found: Arrangement, index: int) -> list[dict[str, Any]]:
        mine = np.zeros(len(found.rows.refs), np.bool_)
        mine[found.held[index].all] = True
        mine &= found.rows.refs > 1
        if not mine.any():
            return []
        shared: list[tuple[int, dict[str, Any]]] = []
        for other, held in enumerate(found.held):
            if other != index and (count := int(np.count_nonzero(mine[held.all]))):
                figures = found.blocks.holders[other].figures
                served = self._entries.served(figures)
                response_id = None if served is None else served.response_id
                entry = {"request_id": figures.request_id, "response_id": response_id, "num_blocks": count}
                shared.append((count, entry))
        shared.sort(key=lambda item: -item[0])
        return [entry for _, entry in shared[:MAX_REQUESTS]]

    # One block

    @property
    def num_blocks(self) -> int:
        """Ids go from 1 to this one."""
        return self._feed.state.resolver.num_blocks - 1

    async def block(self, block_id: int) -> dict[str, Any]:
        """One block of the pool, by an id from 1 to ``num_blocks``."""
        found = await self._feed.arrangement()
        code = int(found.rows.states[block_id])
        places = [place for index in range(len(found.held)) for place in _places(found, index, block_id)]
        block: Block | None = None
        position: int | None = None
        tokens: list[int] = []
        if places:
            block, position, tokens = self._held(found, places[0])
        elif code == CACHED:
            block = await self._cached(block_id)
            if block is not None and (contents := named_tokens(block)) is not None:
                position, tokens = contents
        changed_at = float(self._feed.state.changed_at[block_id])
        shown = tokens if self._shows_tokens else None
        return {
            "block_id": block_id,
            "state": STATE_NAMES[code],
            "owners": [found.blocks.holders[place.holder].figures.request_id for place in places],
            "ref_count": len(places),
            "pins": 0 if block is None else block.pins,
            "group": None if block is None else block.group,
            "num_tokens": len(tokens),
            "block_size": None if block is None else self._facts.groups[block.group].block_size,
            "position": position,
            "age_s": round(max(0.0, time.time() - changed_at), 3) if changed_at else None,
            "token_ids": shown,
            "text": None if shown is None else self._text(shown),
        }

    def _held(self, found: Arrangement, place: "_Place") -> tuple[Block, int, list[int]]:
        """A block in a table, the position of its first token, and the tokens whose KV is there."""
        holder = found.blocks.holders[place.holder]
        view = holder.tables[place.group]
        size = self._facts.groups[place.group].block_size
        position = place.logical * size
        # It may have grown since, but what was computed then is still there.
        stop = min(position + size, holder.figures.num_computed)
        return view.blocks[place.logical - view.first], position, holder.request.token_ids[position:stop]

    async def _cached(self, block_id: int) -> Block | None:
        """A block that nobody holds; None if it has just been evicted."""
        resolver = self._feed.state.resolver
        if (block := resolver.named(block_id)) is None:  # it came and went between two looks
            resolver.see(await self._engine.inspect(lambda engine: engine.scheduler.kv.pool.cached_blocks()))
            block = resolver.named(block_id)
        return block

    def _text(self, token_ids: list[int]) -> str:
        return self._engine.llm.tokenizer.decode(token_ids, skip_special=False, continuation=True)


class _Place(NamedTuple):
    """Where a block is in a table: of which holder and group, and its logical index."""

    holder: int
    group: int
    logical: int


def _places(found: Arrangement, index: int, block_id: int) -> list[_Place]:
    places = []
    holder, held = found.blocks.holders[index], found.held[index]
    for group, (view, ids) in enumerate(zip(holder.tables, held.tables, strict=True)):
        for at in np.flatnonzero(ids == block_id).tolist():
            num_tables = len(ids) // len(view.blocks)
            places.append(_Place(index, group, view.first + at // num_tables))
    return places


def _prefix(explanation: PrefixExplanation | None) -> dict[str, Any] | None:
    if explanation is None:
        return None
    return {
        "num_tokens": explanation.num_tokens,
        "num_cached": explanation.num_cached,
        "reason": explanation.reason,
        "position": explanation.position,
        "text": str(explanation),
    }
