"""Numbers for Prometheus."""

from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client.exposition import choose_encoder

from octavo.server.state import state_of

router = APIRouter(tags=["operating"])


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """All metrics, in the text format or, where it is asked for, in that of OpenMetrics."""
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(state_of(request).metrics.registry), headers={"Content-Type": content_type})
