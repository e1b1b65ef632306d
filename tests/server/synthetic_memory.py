"""A memory feed of any size without an engine: made-up requests that come, share prefixes, grow and go."""

import asyncio
import base64
import json
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fastapi import APIRouter, FastAPI
from fastapi.responses import JSONResponse, StreamingResponse

from octavo.server.routes import page

BLOCK_SIZE = 16
FREE, HELD, SHARED, CACHED, PINNED, LOWER = range(6)
PAST_S = 300
SIGN_OF_LIFE_S = 4.0


@dataclass
class MadeUpRequest:
    request_id: int
    began: float
    prompt_len: int
    length: int
    num_cached: int
    end: int
    blocks: list[int] = field(default_factory=list)


class SyntheticMemory:
    """Blocks 1 to ``total``; ``tick`` moves time on by half a second."""

    def __init__(self, total: int, seed: int = 1) -> None:
        self.total = total
        self.rng = np.random.default_rng(seed)
        self.refs = np.zeros(total + 1, np.int64)
        self.owners = np.full(total + 1, -1, np.int64)
        self.named = np.zeros(total + 1, bool)
        self.lower = np.zeros(total + 1, bool)
        self.pinned = np.zeros(total + 1, bool)
        self.states = np.zeros(total + 1, np.uint8)
        self.since = np.zeros(total + 1)
        self.requests: list[MadeUpRequest] = []
        self.ended: dict[int, dict[str, Any]] = {}
        self.prefixes: list[list[int]] = []
        self.free = deque(range(1, total + 1))
        self.t = 0.0
        self.connections = 0
        self.num_live = 0  # frames sent that were no past ones
        self.past_counts: list[tuple[float, list[int]]] = []  # of every tick
        self.next_id = 1
        self.sent = self._columns()
        self.steps: list[list[float]] = []

    def _take(self, count: int) -> list[int]:
        if len(self.free) < count:  # evict what is cached
            cached = np.flatnonzero(self.named & (self.refs == 0))
            cached = cached[np.argsort(self.since[cached])][: max(count, self.total // 20)]
            self.named[cached] = self.lower[cached] = False
            self.free.extend(cached.tolist())
        return [self.free.popleft() for _ in range(min(count, len(self.free)))]

    def _hold(self, request: MadeUpRequest, blocks: list[int]) -> None:
        for block in blocks:
            self.refs[block] += 1
            if self.owners[block] < 0:
                self.owners[block] = request.request_id
        request.blocks += blocks

    def _arrive(self) -> int:
        size = max(2, self.total // 400)
        which = int(self.rng.integers(6))
        while len(self.prefixes) <= which:
            self.prefixes.append([])
        prefix = self.prefixes[which]
        known = [b for b in prefix if self.named[b] or self.refs[b]]
        own = int(self.rng.integers(1, size + 1))
        request = MadeUpRequest(self.next_id, self.t, 0, 0, 0, 0)
        self.next_id += 1
        if known and len(known) == len(prefix):
            self._hold(request, prefix)
            request.num_cached = len(prefix) * BLOCK_SIZE
        else:
            self.prefixes[which] = self._take(2 * size)
            self._hold(request, self.prefixes[which])
        self._hold(request, self._take(own))
        request.prompt_len = request.length = len(request.blocks) * BLOCK_SIZE - 5
        request.end = request.length + int(self.rng.integers(40, 200 * size))
        self.requests.append(request)
        return request.prompt_len - request.num_cached

    def _leave(self, request: MadeUpRequest) -> None:
        for block in request.blocks:
            self.refs[block] -= 1
            if self.refs[block] == 0:
                self.named[block] = True
                self.owners[block] = -1
            elif self.owners[block] == request.request_id:
                others = (r.request_id for r in self.requests if r is not request and block in r.blocks)
                self.owners[block] = next(others, -1)
        self.requests.remove(request)
        self.ended[request.request_id] = self.describe(request) | {
            "state": "finished",
            "tables": [],
            "block_sizes": [],
            "shared_with": [],
            "prefix": None,
        }

    def tick(self, t: float) -> None:
        self.t = t
        room = len(self.free) + int((self.named & (self.refs == 0)).sum())
        prompt = 0
        if len(self.requests) < 24 and room > self.total // 5 and self.rng.random() < 0.6:
            prompt = self._arrive()
        grow = max(12, self.total // 200)
        for request in list(self.requests):
            request.length += int(self.rng.integers(grow // 2, grow))
            need = -(-request.length // BLOCK_SIZE) - len(request.blocks)
            if request.length >= request.end:
                self._leave(request)
            elif need > 0:
                self._hold(request, self._take(need))
        self.pinned[:] = False
        self.pinned[self.rng.integers(1, self.total + 1, max(1, self.total // 1500))] = True
        idle = np.flatnonzero(self.named & (self.refs == 0))
        if len(idle):
            old = idle[self.t - self.since[idle] > 25]
            self.lower[old[old % 100 < 25]] = True
        rows = len(self.requests)
        for k in range(6):
            drafts = int(self.rng.integers(0, rows + 1)) if k % 2 else 0
            self.steps.append([t - 0.5 + k * 0.08, 0.07, rows, prompt if k == 0 else 0, rows, drafts])
        self._settle()
        self.past_counts.append((t, self.counts()))

    def scramble(self, count: int) -> None:
        """Change this many blocks to random states: the feed at its worst."""
        self.t = time.time()
        ids = self.rng.choice(self.total, count, replace=False) + 1
        self.states[ids] = (self.states[ids] + self.rng.integers(1, 6, count)) % 6
        self.since[ids] = self.t

    def _settle(self) -> None:
        states = np.where(self.refs > 1, SHARED, np.where(self.refs == 1, HELD, FREE))
        cached = self.named & (self.refs == 0)
        states = np.where(cached & ~self.lower, CACHED, np.where(cached, LOWER, states))
        states = np.where(self.pinned & (self.refs > 0), PINNED, states).astype(np.uint8)
        self.since[states != self.states] = self.t
        self.states = states

    def _columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.states.copy(), self.owners.copy(), self.refs.copy()

    def counts(self) -> list[int]:
        return np.bincount(self.states[1:], minlength=6).tolist()

    def frame(self, *, full: bool) -> dict[str, Any]:
        before, self.sent = self.sent, self._columns()
        changed = np.zeros(self.total + 1, bool)
        for old, new in zip(before, self.sent, strict=True):
            changed |= old != new
        ids = np.arange(1, self.total + 1) if full else np.flatnonzero(changed)
        found: dict[str, Any] = {
            "t": self.t,
            "full": full,
            "total": self.total,
            "states": _base64(self.states[ids], "<u1"),
            "owners": _base64(self.owners[ids], "<i4"),
            "refs": _base64(self.refs[ids], "<u2"),
            "requests": [self.describe(request) for request in self.requests],
            "num_requests": len(self.requests),
            "stats": self.stats(),
            "steps": self.steps,
            "cost": 0.001,
        }
        found |= {"ages": _base64(self.t - self.since[ids], "<f4")} if full else {"ids": _base64(ids, "<i4")}
        self.steps = []
        return found

    def stats(self) -> dict[str, Any]:
        free, held, shared, cached, pinned, lower = self.counts()
        wave = np.sin(self.t / 17)
        return {
            "waste": 0.035 + 0.012 * wave,
            "sharing_ratio": float(self.refs.sum() / max(1, held + shared)),
            "scatter": 0.2,
            "hit_rate": 0.62 + 0.1 * np.sin(self.t / 60),
            "used_blocks": held + shared + pinned,
            "shared_blocks": shared,
            "cached_blocks": cached + lower,
            "free_blocks": free,
            "pinned_blocks": pinned,
            "num_running": len(self.requests),
            "num_waiting": 0,
            "num_preemptions": 0,
            "tokens_per_s": 11.0 * len(self.requests) * (1 + 0.1 * wave),
            "prompt_tokens_per_s": 800.0,
            "ttft_s": 0.08 + 0.03 * wave if self.rng.random() < 0.5 else None,
        }

    def describe(self, request: MadeUpRequest) -> dict[str, Any]:
        return {
            "request_id": request.request_id,
            "response_id": f"chatcmpl-{request.request_id}",
            "endpoint": "chat",
            "user": None,
            "state": "running",
            "prompt_len": request.prompt_len,
            "num_tokens": request.length,
            "num_computed": request.length - 1,
            "num_cached_tokens": request.num_cached,
            "num_preemptions": 0,
            "age_s": self.t - request.began,
            "num_blocks": len(request.blocks),
            "num_shared_blocks": int((self.refs[request.blocks] > 1).sum()),
        }

    def detail(self, request: MadeUpRequest) -> dict[str, Any]:
        own = set(request.blocks)
        sharers = [(r, len(own.intersection(r.blocks))) for r in self.requests if r is not request]
        text = f"{request.num_cached} of {request.prompt_len} tokens cached: no complete block was cached"
        return self.describe(request) | {
            "tables": [request.blocks],
            "block_sizes": [BLOCK_SIZE],
            "shared_with": [
                {"request_id": r.request_id, "response_id": f"chatcmpl-{r.request_id}", "num_blocks": n}
                for r, n in sharers
                if n
            ],
            "prefix": {
                "num_tokens": request.prompt_len,
                "num_cached": request.num_cached,
                "reason": "never computed",
                "position": request.num_cached,
                "text": text,
            },
        }


def _base64(values: np.ndarray, dtype: str) -> str:
    return base64.b64encode(values.astype(dtype).tobytes()).decode()


def memory_router(
    memory: SyntheticMemory, *, period_s: float, changes: int | None, frames: int, ends: bool
) -> APIRouter:
    """Routes of the feed: five past minutes, ``frames`` frames ``period_s`` apart, then no change or its end.

    ``changes`` is how many random blocks change in each frame; None moves the made-up requests on.
    """
    router = APIRouter()
    now = time.time()
    past = []
    for k in range(2 * PAST_S):
        memory.tick(now - PAST_S + k / 2)
        past.append(json.dumps(memory.frame(full=k == 0)))

    async def stream() -> AsyncIterator[str]:
        memory.connections += 1
        for text in past:
            yield f"data: {text}\n\n"
        for _ in range(frames):
            await asyncio.sleep(period_s)
            if changes is None:
                memory.tick(time.time())
            else:
                memory.scramble(changes)
            memory.num_live += 1
            yield f"data: {json.dumps(memory.frame(full=False))}\n\n"
        while not ends:  # a page that hears nothing for long connects anew, and shows the past while it comes
            await asyncio.sleep(SIGN_OF_LIFE_S)
            yield f"data: {json.dumps(memory.frame(full=False))}\n\n"

    @router.get("/v1/memory/stream")
    async def feed() -> StreamingResponse:
        return StreamingResponse(stream(), media_type="text/event-stream")

    @router.get("/v1/memory")
    async def summary() -> dict[str, Any]:
        pool = {"total_blocks": memory.total, "block_sizes": [BLOCK_SIZE], "block_bytes": 368640}
        return {"object": "memory", "pool": pool}

    @router.get("/v1/memory/requests/{request_id}")
    async def request_detail(request_id: str) -> JSONResponse:
        number = int(request_id.rpartition("-")[2])
        for request in memory.requests:
            if request.request_id == number:
                return JSONResponse(memory.detail(request))
        if number in memory.ended:
            return JSONResponse(memory.ended[number])
        return JSONResponse({"error": {"message": "unknown request", "type": "not_found"}}, 404)

    @router.get("/v1/memory/blocks/{block_id}")
    async def block(block_id: int) -> dict[str, Any]:
        owners = [r.request_id for r in memory.requests if block_id in r.blocks]
        return {
            "block_id": block_id,
            "state": "held",
            "owners": owners,
            "ref_count": int(memory.refs[block_id]),
            "pins": 0,
            "group": 0,
            "num_tokens": BLOCK_SIZE,
            "block_size": BLOCK_SIZE,
            "position": 16 * (block_id % 40),
            "age_s": float(memory.t - memory.since[block_id]),
            "token_ids": list(range(16)),
            "text": " a sheet of paper is folded three times, and gives sixteen pages",
        }

    return router


def synthetic_app(
    memory: SyntheticMemory,
    *,
    period_s: float = 0.5,
    changes: int | None = None,
    frames: int = 10**6,
    ends: bool = False,
) -> FastAPI:
    """The page over a made-up memory."""
    app = FastAPI()
    app.include_router(page.router)
    feed = memory_router(memory, period_s=period_s, changes=changes, frames=frames, ends=ends)
    app.include_router(feed)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": "made-up", "object": "model"}]}

    return app
