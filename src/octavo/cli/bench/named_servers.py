"""Options that name servers to compare, and say something of each: a group for ``grouped``."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.bench.server_options import key_in, parse_body
from octavo.core.errors import InvalidConfig, shown

if TYPE_CHECKING:
    from octavo.bench.compare.contestant import Contestant


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedServers:
    """Servers that run already, and for each its label, model, key and more fields."""

    server: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=URL", help="A server that runs already; may be given several times."),
    ] = None
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TEXT", help="Precision and settings of a server, for the report."),
    ] = None
    model_name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TEXT", help="What a server calls its model. Default: it is asked."),
    ] = None
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=KEY",
            help="Of one server; for a single one KEY alone. Seen by all who list processes: "
            "--api-key-file is not.",
        ),
    ] = None
    api_key_file: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE", help="File with a server's key in its first line."),
    ] = None
    body: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=JSON", help="JSON object with more fields for each request to a server."),
    ] = None

    def contestants(self) -> "list[Contestant]":
        """The servers, in their order.

        Raises:
            InvalidConfig: an option is not as it should be, or says something of an unknown server.
            InvalidRequest: a URL is none.
        """
        from octavo.bench.compare.contestant import AtUrl, Facts
        from octavo.bench.load.openai_target import ServerOptions

        urls = [_named_url(text) for text in self.server or []]
        names = [name for name, _ in urls]
        labels, models = _by_name("label", self.label, names), _by_name("model_name", self.model_name, names)
        bodies, keys = _by_name("body", self.body, names), self._keys(names)
        return [
            AtUrl(
                Facts(name=name, precision=labels.get(name, "")),
                url,
                ServerOptions(
                    model=models.get(name), api_key=keys.get(name), body=parse_body(bodies.get(name))
                ),
            )
            for name, url in urls
        ]

    def _keys(self, servers: list[str]) -> dict[str, str]:
        """By server: a key goes to its own and to no other."""
        given = _keys_by_name("api_key", self.api_key, servers)
        files = _keys_by_name("api_key_file", self.api_key_file, servers)
        if both := given.keys() & files.keys():
            raise InvalidConfig(f"{min(both)}: give either --api-key or --api-key-file")
        return {**given, **{name: key_in(Path(file)) for name, file in files.items()}}


def _keys_by_name(option: str, texts: list[str] | None, servers: list[str]) -> Mapping[str, str]:
    """What belongs to which server. Nothing of a key is in a message, as messages end up in logs."""
    found: dict[str, str] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not (equals and value and name in servers):  # a key may have a "=" of its own
            if len(servers) > 1:
                form = "NAME=FILE" if option.endswith("file") else "NAME=KEY"
                raise InvalidConfig(
                    f"{option}: there are {len(servers)} servers ({', '.join(servers)}), and each gets a "
                    f"key of its own only: write {form}"
                )
            name, value = servers[0], text
        if name in found:
            raise InvalidConfig(f"{option}: {name} has two; give one")
        found[name] = value
    return found


def _by_name(option: str, texts: list[str] | None, servers: list[str]) -> dict[str, str]:
    """What an option says of servers."""
    found = dict(_pair(option, text) for text in texts or [])
    if unknown := [name for name in found if name not in servers]:
        raise InvalidConfig(f"{option}: no --server is called {shown(unknown[0])}")
    return found


def _named_url(text: str) -> tuple[str, str]:
    """A URL without a name may have a "=" in it."""
    name, equals, url = text.partition("=")
    if not (name and equals and url) or "://" in name:
        raise InvalidConfig(f"server={shown(text)}: write NAME=URL, such as a=http://127.0.0.1:8000")
    return name, url


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise InvalidConfig(f"{option}={shown(text)}: write NAME=VALUE")
    return name, value
