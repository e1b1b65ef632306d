"""The application on a socket, until it is told to stop."""

import asyncio
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import Final

import uvicorn

from octavo.core.errors import OctavoError
from octavo.engine.llm import LLM
from octavo.server.app import create_app
from octavo.server.connection import BoundedConnection
from octavo.server.settings import ServerSettings
from octavo.server.state import ServerState

_BACKLOG: Final = 2048
_log = logging.getLogger("octavo.server")


def serve(llm: LLM, settings: ServerSettings, *, on_ready: Callable[[str], None] = lambda url: None) -> None:
    """Serve until SIGTERM or SIGINT, then finish what runs.

    A second signal, or ``drain_timeout_s``, breaks that off.

    Args:
        on_ready: told the address once connections are taken.

    Raises:
        OctavoError: the address cannot be had.
    """
    _allow_many_connections()
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # else a line for each bad packet
    listener = listen(settings.host, settings.port)
    app = create_app(llm, settings)
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=BoundedConnection,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
        backlog=_BACKLOG,
    )
    server = DrainingServer(config, app.state.octavo, lambda: on_ready(address(listener, settings.host)))
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections.

    Raises:
        OctavoError: the address is taken, or is none of this machine's.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, where = found[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise OctavoError(f"cannot listen on {host}:{port}: {error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        hint = "; --port 0 takes a free one" if isinstance(error, OSError) and error.errno == 98 else ""
        raise OctavoError(f"cannot listen on {host}:{port}: {error.strerror or error}{hint}") from error
    return listener


def _allow_many_connections() -> None:
    """As many open files as the system lets this process have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def address(listener: socket.socket, host: str) -> str:
    """The URL under which the socket is reached."""
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class DrainingServer(uvicorn.Server):
    """A server that finishes its work before it stops listening to clients."""

    def __init__(self, config: uvicorn.Config, state: ServerState, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._state = state
        self._on_ready = on_ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None
        self._num_signals = 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take connections."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal lets what runs finish, the second breaks it off, the third waits for nothing."""
        self._num_signals += 1
        if self._loop is None:
            self.force_exit = self.should_exit = True
            return
        if self._num_signals > 2:
            os._exit(1)  # a step that does not end would keep the process
        self._state.is_draining = True
        self._loop.call_soon_threadsafe(self._stop, signal.Signals(sig).name)

    def _stop(self, why: str) -> None:
        if self._draining is None:
            _log.info("%s: finishing what runs; again breaks it off", why)
            self._draining = asyncio.create_task(self._drain())
        else:
            self._draining.cancel()

    async def _drain(self) -> None:
        engine, limit_s = self._state.engine, self._state.settings.drain_timeout_s
        try:
            await asyncio.wait_for(engine.drain(), limit_s)
        except (TimeoutError, asyncio.CancelledError):
            _log.warning("requests that still run are broken off")
            await engine.shutdown(drain=False)  # their clients are told
        await self._state.feed.stop()  # or its watchers would stay
        self.should_exit = True
