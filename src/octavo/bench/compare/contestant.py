"""What can be compared: something that is started, is given requests when its turn comes, and rests else."""

import ipaddress
import socket
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from octavo.bench.load.http import Address
from octavo.bench.load.openai_target import OpenAITarget, ServerOptions
from octavo.bench.load.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a reader must know of a contestant.

    Attributes:
        name: short; no two in a comparison have the same.
        precision: of weights, activations and KV, as far as known.
        settings: what else was chosen, in words.
        note: how it was made equal to the others where it has no such setting.
    """

    name: str
    version: str = ""
    precision: str = ""
    settings: str = ""
    note: str = ""

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
        takes_chats: whether it has a chat endpoint, as far as is known before it is asked.
    """

    @property
    def facts(self) -> Facts: ...  # noqa: D102

    @property
    def runs_at(self) -> Address | None: ...  # noqa: D102

    @property
    def model_name(self) -> str | None: ...  # noqa: D102

    @property
    def takes_chats(self) -> bool: ...  # noqa: D102

    async def start(self, *, is_chat: bool = False) -> Running:
        """Start it and wait until it has answered a small request.

        Args:
            is_chat: requests go to its chat endpoint.

        Raises:
            OctavoError: it does not start; says why.
        """
        ...


class AtUrl:
    """A server that runs already. Whether it rests while others work is up to it."""

    def __init__(self, facts: Facts, url: str, options: ServerOptions) -> None:
        self.facts = facts
        self.runs_at: Address | None = Address.parse(url)
        self.model_name = options.model
        self.takes_chats = True
        self._url = url
        self._options = options

    async def start(self, *, is_chat: bool = False) -> Running:
        """Ask what it serves."""
        target = OpenAITarget(self._url, replace(self._options, is_chat=is_chat))
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
    return {name: told[name] for name in ("server", "model", "endpoint", "ignore_eos") if name in told}


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
