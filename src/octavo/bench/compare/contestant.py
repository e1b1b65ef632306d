"""What can be compared: something that is started, is given requests when its turn comes, and rests else."""

import ipaddress
import socket
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Protocol

from octavo.bench.load.http import Address
from octavo.bench.load.openai_target import OpenAITarget, ServerOptions
from octavo.bench.load.target import Target
from octavo.core.errors import InvalidConfig, shown

_LONGEST_NAME: Final = 60
_TOLD: Final = ("server", "precision", "model", "endpoint", "ignore_eos")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a reader must know of a contestant.

    Attributes:
        name: short, of characters that print; no two in a comparison have the same.
        precision: of weights, activations and KV, as far as known.
        settings: what else was chosen, in words.
        note: how it was made equal to the others where it has no such setting.

    Raises:
        InvalidConfig: the name is not as it should be.
    """

    name: str
    version: str = ""
    precision: str = ""
    settings: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        name = self.name
        if not (isinstance(name, str) and 1 <= len(name) <= _LONGEST_NAME and name.isprintable()):
            raise InvalidConfig(
                f"name={shown(name)}: must be 1 to {_LONGEST_NAME} characters that print, such as letters, "
                "digits, marks and spaces; no control characters or line ends"
            )

    def as_dict(self) -> dict[str, str]:
        """For reports."""
        return asdict(self)


class Running(Protocol):
    """A contestant that was started.

    Attributes:
        target: takes its requests.
        start_s: from the start to the first answer; None if it ran before.
    """

    @property
    def target(self) -> Target: ...  # noqa: D102

    @property
    def start_s(self) -> float | None: ...  # noqa: D102

    def rest(self) -> None:
        """Others work now: use no processor time."""
        ...

    def wake(self) -> None:
        """Its turn comes."""
        ...

    def peak_rss_bytes(self) -> int | None:
        """The most memory that it has had, or None if that is not known."""
        ...

    async def stop(self) -> None:
        """End it, or let go of it if someone else started it."""
        ...


class Contestant(Protocol):
    """Can be started.

    Attributes:
        runs_at: where a server is that ran before; None of what is started here, with a memory of its own.
        model_name: what a server calls the model, where it must be named; None asks it.
        is_server: whether it speaks OpenAI's API; a library takes prompts alone, and ignores end tokens.
    """

    @property
    def facts(self) -> Facts: ...  # noqa: D102

    @property
    def runs_at(self) -> Address | None: ...  # noqa: D102

    @property
    def model_name(self) -> str | None: ...  # noqa: D102

    @property
    def is_server(self) -> bool: ...  # noqa: D102

    async def start(self, asking: ServerOptions) -> Running:
        """Start it and wait until it has answered a small request.

        Args:
            asking: how all are asked: the endpoint, end tokens, and the time for a request.

        Raises:
            OctavoError: it does not start; says why.
        """
        ...


class AtUrl:
    """A server that runs already. Whether it rests while others work is up to it.

    Args:
        options: what is its own: model, key, and more fields for each request.
    """

    def __init__(self, facts: Facts, url: str, options: ServerOptions) -> None:
        self.facts = facts
        self.runs_at: Address | None = Address.parse(url)
        self.model_name = options.model
        self.is_server = True
        self._url = url
        self._options = options

    async def start(self, asking: ServerOptions) -> Running:
        """Ask what it serves."""
        own = self._options
        options = replace(asking, model=own.model, api_key=own.api_key, body=own.body, asks_memory=False)
        target = OpenAITarget(self._url, options)
        try:
            await target.open()
        except BaseException:
            await target.close()
            raise
        return _Reached(target)


@dataclass(frozen=True, slots=True)
class _Reached:
    target: OpenAITarget
    start_s: float | None = None

    def rest(self) -> None: ...

    def wake(self) -> None: ...

    def peak_rss_bytes(self) -> int | None:
        return self.target.peak_rss_bytes()

    async def stop(self) -> None:
        await self.target.close()


def told_of(target: Target) -> dict[str, Any]:
    """What a target says of itself that belongs into a comparison's report."""
    told = target.describe()
    return {name: told[name] for name in _TOLD if name in told}


def same_place(a: Address, b: Address) -> bool:
    """Whether two addresses are those of one server, as far as their names can be resolved."""
    return (a.port, a.base) == (b.port, b.base) and not _machines(a.host).isdisjoint(_machines(b.host))


def _machines(host: str) -> set[str]:
    try:
        found = {str(info[4][0]).partition("%")[0] for info in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return {host}
    addresses = map(ipaddress.ip_address, found)
    return {"here" if each.is_loopback or each.is_unspecified else str(each) for each in addresses}
