"""``/health``, ``/ready``, ``/version``: for those who watch the server."""

from fastapi import APIRouter, Request
from starlette.responses import Response

import octavo
from octavo.server.errors import json_response
from octavo.server.state import state_of

router = APIRouter()


@router.get("/health")
async def health(request: Request) -> Response:
    """200 while the engine can work, also while it drains; 503 when a step broke it."""
    failure = state_of(request).engine.failure
    if failure is None:
        return json_response({"status": "ok"})
    return json_response({"status": "failed", "reason": repr(failure)}, 503)


@router.get("/ready")
async def ready(request: Request) -> Response:
    """200 while new requests are taken."""
    state = state_of(request)
    if state.engine.failure is not None:
        return json_response({"status": "failed"}, 503)
    if state.is_draining:
        return json_response({"status": "draining"}, 503)
    return json_response({"status": "ready"})


@router.get("/version")
async def version() -> Response:
    """The version of Octavo."""
    return json_response({"version": octavo.__version__})
