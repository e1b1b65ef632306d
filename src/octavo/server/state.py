"""Everything that the routes of one server share."""

from dataclasses import dataclass
from typing import cast

from fastapi import Request

from octavo.engine.async_engine import AsyncEngine
from octavo.engine.llm import LLM
from octavo.server.memory_feed import MemoryFeed
from octavo.server.memory_report import MemoryReporter
from octavo.server.metrics import Metrics
from octavo.server.registry import RequestRegistry
from octavo.server.settings import ServerSettings
from octavo.server.tracing import Tracing


@dataclass(slots=True)
class ServerState:
    """Owned by the application (``app.state.octavo``), made before it serves."""

    llm: LLM
    engine: AsyncEngine
    settings: ServerSettings
    registry: RequestRegistry
    feed: MemoryFeed
    memory: MemoryReporter
    metrics: Metrics
    tracing: Tracing | None


def state_of(request: Request) -> ServerState:
    """For routes."""
    return cast(ServerState, request.app.state.octavo)
