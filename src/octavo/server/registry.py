"""Which answer of the server belongs to which requests of the engine, for the latest of them."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

MAX_REMEMBERED: Final = 4096


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """One prompt of one HTTP request.

    Attributes:
        response_id: what the client was told, like "chatcmpl-..."; several prompts of one request share it.
        endpoint: "chat" or "completions".
        user: who the client says it is for, or None.
        request_ids: of the engine, one for each choice.
    """

    response_id: str
    endpoint: str
    user: str | None
    request_ids: tuple[int, ...]


class RequestRegistry:
    """Used in the event loop only."""

    def __init__(self) -> None:
        self._served: OrderedDict[int, ServedRequest] = OrderedDict()  # by the engine's id

    def add(self, served: ServedRequest) -> None:
        """A request was taken by the engine."""
        for request_id in served.request_ids:
            self._served[request_id] = served
        while len(self._served) > MAX_REMEMBERED:
            self._served.popitem(last=False)

    def of_engine(self, request_id: int) -> ServedRequest | None:
        """By the engine's id."""
        return self._served.get(request_id)

    def find(self, name: str) -> list[int]:
        """Ids of the engine for a client's response id, or for one of those ids written as text."""
        if name.isascii() and name.isdigit() and len(name) < 20:
            request_id = int(name)
            return [request_id] if request_id in self._served else []
        return [number for number, served in self._served.items() if served.response_id == name]
