"""``/health``, ``/ready``, ``/version``: for those who watch the server."""

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

import octavo
from octavo.server.errors import json_response
from octavo.server.state import state_of

router = APIRouter()

MOST_STEP_S: Final = 60.0  # the longest steps of healthy engines take a few seconds


@router.head("/health", include_in_schema=False)
@router.get("/health")
async def health(request: Request) -> Response:
    """200 while the engine works, also while it drains; 503 when a step broke it, or does not end."""
    engine = state_of(request).engine
    if engine.failure is not None:
        return json_response({"status": "failed", "reason": repr(engine.failure)}, 503)
    if (step_s := engine.step_s) > MOST_STEP_S:
        return json_response(
            {"status": "stuck", "reason": f"a step has been running for {step_s:.0f} s"}, 503
        )
    return json_response({"status": "ok"})


@router.head("/ready", include_in_schema=False)
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
