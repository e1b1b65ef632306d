"""Options that say how a server is reached and asked: groups for ``grouped``, and single ones."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import typer

from octavo.cli.completion import one_of
from octavo.cli.options import parse_object
from octavo.core.errors import InvalidConfig, shown

IgnoreEosNames = Literal["auto", "on", "off"]

IgnoreEos = Annotated[
    str,
    typer.Option(
        help="auto, on, off: ask for answers of full length; auto asks if the server takes that.",
        autocompletion=one_of(IgnoreEosNames),
    ),
]
Timeout = Annotated[float, typer.Option(help="Seconds that a request may take.")]
USUAL_TIMEOUT_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAccess:
    """The key, the model's name and the process of one server, and how long it may take."""

    api_key: Annotated[
        str | None,
        typer.Option(help="Of the server. Seen by all who list processes: --api-key-file is not."),
    ] = None
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with the server's key in its first line.")
    ] = None
    model_name: Annotated[
        str | None, typer.Option(help="What the server calls the model. Default: it is asked.")
    ] = None
    timeout: Timeout = USUAL_TIMEOUT_S
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
        key = self.api_key
        if self.api_key_file is not None:
            if key is not None:
                raise InvalidConfig("give either --api-key or --api-key-file")
            key = key_in(self.api_key_file)
        return {"model": self.model_name, "api_key": key, "timeout_s": self.timeout, "pid": pid}


def key_in(file: Path) -> str:
    """A key from a file.

    Raises:
        InvalidConfig: it cannot be read, or has none.
    """
    try:
        lines = file.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"api_key_file: cannot read {file}: {error}") from error
    if not lines:
        raise InvalidConfig(f"api_key_file: {file} has no key")
    return lines[0]


def parse_ignore_eos(text: str) -> bool | None:
    """As ``ServerOptions`` takes it.

    Raises:
        InvalidConfig: it is none of the choices.
    """
    if text not in get_args(IgnoreEosNames):
        raise InvalidConfig(f"ignore_eos={shown(text)}: choose one of {', '.join(get_args(IgnoreEosNames))}")
    return {"on": True, "off": False}.get(text)


def parse_body(text: str | None) -> dict[str, Any]:
    """Fields for every request, from a JSON object.

    Raises:
        InvalidConfig: it is none, or asks for several choices.
    """
    if text is None:
        return {}
    found = parse_object("body", text)
    if found.get("n", 1) != 1:  # gaps between pieces of different choices are nobody's
        raise InvalidConfig(f"body: n={shown(found['n'])}: one choice for each request is measured")
    return found
