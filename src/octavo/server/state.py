"""Everything that the routes of one server share."""

import time
from dataclasses import dataclass, field
from typing import cast

from fastapi import Request

import octavo
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.llm import LLM
from octavo.server.answering.chat_format import ChatFormat
from octavo.server.memory.feed import MemoryFeed
from octavo.server.memory.report import MemoryReporter
from octavo.server.registry import RequestRegistry
from octavo.server.settings import ServerSettings
from octavo.server.telemetry.metrics import Metrics
from octavo.server.telemetry.tracing import Tracing


@dataclass(slots=True)
class ServerState:
    """Owned by the application (``app.state.octavo``), made before it serves.

    Attributes:
        precision: of weights, activations and KV, in words.
        is_draining: whether nothing new is taken; set when the server is told to stop.
        created: when the server started, in whole seconds.
    """

    llm: LLM
    engine: AsyncEngine
    settings: ServerSettings
    chat_format: ChatFormat
    registry: RequestRegistry
    feed: MemoryFeed
    memory: MemoryReporter
    metrics: Metrics
    tracing: Tracing | None
    precision: str
    is_draining: bool = False
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def fingerprint(self) -> str:
        """What answers depend on beside the request: the same fingerprint and seed give the same tokens."""
        config = self.llm.config
        return f"octavo-{octavo.__version__}-{config.activations}-{config.kv_dtype}"


def state_of(request: Request) -> ServerState:
    """For routes."""
    return cast(ServerState, request.app.state.octavo)
