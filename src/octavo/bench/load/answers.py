"""The pieces of a streamed answer, in the forms that servers give them."""

import json
import re
from typing import Any, Final, TypeVar

from octavo.bench.load.exchange import BAD_ANSWER, BROKEN, NO_OUTPUT, SERVER_ERROR, Exchange
from octavo.bench.load.sse import EventReader
from octavo.core.errors import shown

_DONE: Final = b"[DONE]"
# The event that ends an answer. In the text of another one it cannot stand: a line's end is escaped there.
_LAST_EVENT: Final = re.compile(rb"[\r\n]data: ?\[DONE\]")
_LAST_EVENT_BYTES: Final = len("\ndata: [DONE]")
_TEXTS: Final = ("content", "reasoning_content", "reasoning", "refusal")
_MOST_UNREAD_BYTES: Final = 1 << 22  # of one answer
_MOST_COUNT: Final = 1 << 53

T = TypeVar("T")


class StreamedAnswer:
    """Reads the body of a streamed completion, or chat completion, into an ``Exchange``.

    While it comes, its parts are only kept, each with its time: a server on the same machine needs the
    processor. ``read`` interprets what was kept.

    A piece carries output if it has text; in a chat also with thoughts or tool calls. One without text may be
    the beginning of an answer whose first token is still to be computed, or a token whose text waits for the
    next one: a reader sees nothing, and nothing is what it counts as.
    """

    def __init__(self, exchange: Exchange, *, is_chat: bool) -> None:
        self._exchange = exchange
        self._events = EventReader()
        self._is_chat = is_chat
        self._unread: list[tuple[float, bytes]] = []
        self._end = b"\n"  # the last bytes of what came: the beginning of a stream begins a line
        self.unread_bytes = 0

    def feed(self, body: bytes, now_s: float) -> bool:
        """A part of the body, and when it came; whether the answer is complete with it."""
        self._unread.append((now_s, body))
        self.unread_bytes += len(body)
        if self.unread_bytes > _MOST_UNREAD_BYTES:
            self.read()
        seen = self._end + body
        self._end = seen[1 - _LAST_EVENT_BYTES :]
        return _DONE in seen and _LAST_EVENT.search(seen) is not None

    def read(self) -> None:
        """Interpret what came since the last time."""
        unread, self._unread, self.unread_bytes = self._unread, [], 0
        for now_s, body in unread:
            for event in self._events.feed(body):
                if event != _DONE:
                    self._take(event, now_s)
        if unread:
            self._exchange.last_s = unread[-1][0]

    def read_all(self) -> None:
        """Interpret the rest of an answer that came to its end, and see whether it was one."""
        self.read()
        exchange = self._exchange
        if exchange.finish_reason is None:
            exchange.fail(BROKEN, "the stream ended without a finish_reason")
        elif not exchange.chunk_s and not exchange.output_tokens:
            exchange.fail(NO_OUTPUT, f"finish_reason {shown(exchange.finish_reason)}")

    def _take(self, event: bytes, now_s: float) -> None:
        exchange = self._exchange
        try:
            piece = json.loads(event)
        except (ValueError, RecursionError):
            exchange.fail(BAD_ANSWER, f"not JSON: {shown(event)}")
            return
        if not isinstance(piece, dict):
            exchange.fail(BAD_ANSWER, f"not an object: {shown(event)}")
            return
        if piece.get("error"):
            exchange.fail(SERVER_ERROR, error_text(piece))
            return
        try:
            for choice in _field(piece, "choices", list, []):
                self._take_choice(_checked("a choice", choice, dict), now_s)
            if usage := _field(piece, "usage", dict, {}):
                _take_usage(usage, exchange)
        except TypeError as error:
            exchange.fail(BAD_ANSWER, str(error))

    def _take_choice(self, choice: dict[str, Any], now_s: float) -> None:
        exchange = self._exchange
        if self._is_chat:
            delta = _field(choice, "delta", dict, {})
            text = _field(delta, "content", str, "")
            num_chars = sum(len(_field(delta, name, str, "")) for name in _TEXTS) + _size_of_calls(delta)
        else:
            text = _field(choice, "text", str, "")
            num_chars = len(text)
        reason = _field(choice, "finish_reason", str, None)
        if text:
            exchange.text.append(text)
        if num_chars:
            exchange.chunk_s.append(now_s)
            exchange.chunk_chars.append(num_chars)
        if reason is not None:
            exchange.finish_s = now_s
            exchange.finish_reason = reason
            exchange.finish_had_output = bool(num_chars)


def error_text(body: Any) -> str:
    """What an error says of itself."""
    error = body.get("error", body) if isinstance(body, dict) else body
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else shown(error)


def _take_usage(usage: dict[str, Any], exchange: Exchange) -> None:
    exchange.prompt_tokens = _count(usage.get("prompt_tokens"))
    exchange.output_tokens = _count(usage.get("completion_tokens"))
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict):
        exchange.cached_tokens = _count(details.get("cached_tokens"))


def _size_of_calls(delta: dict[str, Any]) -> int:
    """Characters of tool calls: names and arguments."""
    functions = (
        _field(_checked("a tool call", call, dict), "function", dict, {})
        for call in _field(delta, "tool_calls", list, [])
    )
    return sum(len(_field(f, name, str, "")) for f in functions for name in ("name", "arguments"))


def _field(values: dict[str, Any], name: str, kind: type[T], default: Any) -> Any:
    """A field that may be missing or null; ``TypeError`` if it is something else than it should be."""
    value = values.get(name)
    return default if value is None else _checked(name, value, kind)


def _checked(name: str, value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {shown(value)}")
    return value


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < _MOST_COUNT else None
