"""The application: routes, the gate before them, and the engine that lives as long as they serve."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

import octavo
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.llm import LLM
from octavo.engine.precision import precision_of
from octavo.server.answering.chat_format import ChatFormat
from octavo.server.errors import install_error_handlers
from octavo.server.memory.feed import MemoryFeed
from octavo.server.memory.report import MemoryReporter, PoolFacts
from octavo.server.middleware import Gate
from octavo.server.registry import RequestRegistry
from octavo.server.routes import chat, completions, health, memory, metrics, models, page
from octavo.server.settings import ServerSettings
from octavo.server.state import ServerState
from octavo.server.telemetry.metrics import Metrics
from octavo.server.telemetry.observers import Observers
from octavo.server.telemetry.tracing import Tracing


def create_app(llm: LLM, settings: ServerSettings) -> FastAPI:
    """An ASGI application that serves ``llm``; the engine's thread runs from its start-up to its shutdown."""
    engine = AsyncEngine(llm)
    registry = RequestRegistry()
    feed = MemoryFeed(engine, registry)
    facts = PoolFacts.of(llm)
    state = ServerState(
        llm,
        engine,
        settings,
        chat_format=ChatFormat(llm, settings),
        registry=registry,
        feed=feed,
        memory=MemoryReporter(engine, feed, registry, facts=facts, shows_tokens=settings.shows_tokens),
        metrics=Metrics.of(llm, model_name=settings.model_name, prefix=settings.metrics_prefix),
        tracing=None
        if settings.otlp_endpoint is None
        else Tracing.over_http(settings.otlp_endpoint, model_name=settings.model_name),
        precision=precision_of(llm),
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        tracing = () if state.tracing is None else (state.tracing,)
        llm.engine.observer = Observers(feed.activity, state.metrics.engine, *tracing)
        engine.start()
        feed.start()
        try:
            yield
        finally:
            await feed.stop()
            await engine.shutdown(drain=False)
            llm.engine.observer = None
            if state.tracing is not None:
                await asyncio.to_thread(state.tracing.close)

    app = FastAPI(
        title="Octavo",
        version=octavo.__version__,
        summary="Large language models from a paged KV cache, in the form of OpenAI's API.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.octavo = state
    for room in (completions, chat, models, memory, metrics, page, health):
        app.include_router(room.router)
    install_error_handlers(app)
    app.add_middleware(
        Gate, settings=settings, is_draining=lambda: state.is_draining, count=state.metrics.http.count
    )
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    return app
