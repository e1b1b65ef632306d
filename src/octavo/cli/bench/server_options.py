"""Options that say how a server is reached: groups for ``grouped``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from octavo.core.errors import InvalidConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerKey:
    """The key that a server asks for."""

    api_key: Annotated[
        str | None,
        typer.Option(help="Of the server. Seen by all who list processes: --api-key-file is not."),
    ] = None
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with the server's key in its first line.")
    ] = None

    def read(self) -> str | None:
        """The key.

        Raises:
            InvalidConfig: the file cannot be read or has none, or both are given.
        """
        file = self.api_key_file
        if file is None:
            return self.api_key
        if self.api_key is not None:
            raise InvalidConfig("give either --api-key or --api-key-file")
        try:
            lines = file.read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidConfig(f"api_key_file: cannot read {file}: {error}") from error
        if not lines:
            raise InvalidConfig(f"api_key_file: {file} has no key")
        return lines[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAccess(ServerKey):
    """The key, the model's name and the process of one server, and how long it may take."""

    model_name: Annotated[
        str | None, typer.Option(help="What the server calls the model. Default: it is asked.")
    ] = None
    timeout: Annotated[float, typer.Option(help="Seconds that a request may take.")] = 600.0
    server_pid: Annotated[int | None, typer.Option(help="Of a local server: for its peak memory.")] = None

    def settings(self) -> dict[str, Any]:
        """As ``ServerOptions`` takes them.

        Raises:
            InvalidConfig: there is no key where there should be one, or no such process here.
        """
        from octavo.bench.load.rss import peak_rss_bytes

        pid = self.server_pid
        if pid is not None and peak_rss_bytes(pid) is None:
            raise InvalidConfig(
                f"server_pid={pid}: no process of this machine has that id, or its memory cannot be read"
            )
        return {"model": self.model_name, "api_key": self.read(), "timeout_s": self.timeout, "pid": pid}
