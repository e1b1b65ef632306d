"""What the KV pool is used for: at this moment, and as a stream."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import Response, StreamingResponse

from octavo.server.errors import json_response
from octavo.server.memory.feed import MAX_INTERVAL_S, MIN_INTERVAL_S, USUAL_INTERVAL_S
from octavo.server.memory.history import PAST_S
from octavo.server.state import state_of

router = APIRouter(prefix="/v1/memory", tags=["memory"])


@router.get("")
async def memory(request: Request) -> Response:
    """Pool, groups of layers, tiers, scheduler and requests, at this moment."""
    return json_response(await state_of(request).memory.whole())


@router.get("/requests/{request_id}", responses={404: {"description": "nothing is known of such a request"}})
async def memory_of_request(request: Request, request_id: str) -> Response:
    """One request's block tables, whom it shares blocks with, and why its cached prefix ended where it did.

    The id is the engine's number, or the id that the response has.
    """
    found = await state_of(request).memory.request(request_id)
    if found is None:
        raise HTTPException(404, f"request {request_id[:100]!r} is unknown, or too long ago")
    return json_response(found)


@router.get("/blocks/{block_id}", responses={404: {"description": "there is no such block"}})
async def memory_of_block(request: Request, block_id: int) -> Response:
    """Who holds one block of the pool, since when, and which tokens are in it."""
    reporter = state_of(request).memory
    if not 1 <= block_id <= reporter.num_blocks:
        raise HTTPException(
            404, f"there is no block {block_id}: they are numbered 1 to {reporter.num_blocks}"
        )
    return json_response(await reporter.block(block_id))


@router.get("/stream", response_class=StreamingResponse)
async def memory_stream(
    request: Request,
    interval: Annotated[float, Query(ge=MIN_INTERVAL_S, le=MAX_INTERVAL_S)] = USUAL_INTERVAL_S,
    past: Annotated[float, Query(ge=0, le=PAST_S)] = PAST_S,
) -> StreamingResponse:
    """Frames as server-sent events: those of the last minutes, then what changes, until the client leaves.

    ``interval`` is the time between two live frames in seconds, at least; ``past`` how many seconds of the
    past are wanted, at most.
    """
    return StreamingResponse(
        _events(state_of(request).feed.frames(interval, past)),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _events(frames: AsyncIterator[str]) -> AsyncIterator[str]:
    async for frame in frames:
        yield f"data: {frame}\n\n"
