"""The application: routes, the gate before them, and the engine that lives as long as they serve."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

import octavo
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.llm import LLM
from octavo.server.errors import install_error_handlers
from octavo.server.middleware import Gate
from octavo.server.routes import chat, completions, health, models
from octavo.server.settings import ServerSettings
from octavo.server.state import ServerState


def create_app(llm: LLM, settings: ServerSettings) -> FastAPI:
    """An ASGI application that serves ``llm``; the engine's thread runs from its start-up to its shutdown."""
    state = ServerState(llm, AsyncEngine(llm), settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        state.engine.start()
        try:
            yield
        finally:
            await state.engine.shutdown(drain=False)

    app = FastAPI(
        title="Octavo",
        version=octavo.__version__,
        summary="Large language models from a paged KV cache, in the form of OpenAI's API.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.octavo = state
    for room in (completions, chat, models, health):
        app.include_router(room.router)
    install_error_handlers(app)
    app.add_middleware(Gate, settings=settings, is_draining=lambda: state.is_draining)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-request-id", "x-api-key"],
            expose_headers=["x-request-id", "retry-after"],
        )
    return app
