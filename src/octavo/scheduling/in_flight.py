"""Prefixes being computed: a prompt that begins like one in progress waits for its blocks.

Blocks can be found by name only once they are computed. Of many prompts with a common beginning that arrive
together, each would find nothing and compute it again. So the names that running prompts are going to publish
are kept here, and a request that needs them is passed over until the last of them is there.
"""

from octavo.core.request import Request
from octavo.paging.matching import PrefixMatch

Place = tuple[Request, int]  # who computes a block, and the position where it ends


class InFlightPrefixes:
    """Names of blocks to come.

    Args:
        block_size: tokens per block; of several groups the largest, whose blocks end where all groups' do.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._places: dict[bytes, Place] = {}
        self._names: dict[Request, list[bytes]] = {}
        self._awaited: dict[Request, Place] = {}

    def start(self, request: Request, match: PrefixMatch) -> None:
        """``request`` computes the tokens behind its match from now on."""
        names = []
        for name, stop in self._missing(match):
            if name not in self._places:
                self._places[name] = request, stop
                names.append(name)
        if names:
            self._names[request] = names

    def stop(self, request: Request) -> None:
        """``request`` has computed what it was going to, or gives up."""
        for name in self._names.pop(request, ()):
            del self._places[name]

    def awaits(self, request: Request, match: PrefixMatch) -> bool:
        """Whether blocks that ``match`` lacks are on their way; ``request`` then waits for them."""
        place: Place | None = None
        for name, _ in self._missing(match):
            if name not in self._places:
                break
            place = self._places[name]
        if place is None:
            return False
        self._awaited[request] = place
        return True

    def still_awaits(self, request: Request) -> bool:
        """Whether what ``request`` was found to wait for is still to come. Cheap."""
        place = self._awaited.get(request)
        if place is None:
            return False
        owner, stop = place
        if owner in self._names and owner.num_computed < stop:
            return True
        del self._awaited[request]
        return False

    def forget(self, request: Request) -> None:
        """``request`` waits no longer."""
        self._awaited.pop(request, None)

    def _missing(self, match: PrefixMatch) -> "list[tuple[bytes, int]]":
        """Names and ends of the whole blocks behind a match."""
        size = self._block_size
        first = (match.num_tokens // size + 1) * size
        return [
            (match.chain.name(match.tokens, stop), stop) for stop in range(first, len(match.tokens) + 1, size)
        ]
