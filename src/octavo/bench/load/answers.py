"""The pieces of a streamed answer, in the forms that servers give them."""

import json
from typing import Any, Final

from octavo.bench.load.exchange import BAD_ANSWER, SERVER_ERROR, Exchange
from octavo.bench.load.sse import EventReader
from octavo.core.errors import shown

_DONE: Final = b"[DONE]"
_TEXTS: Final = ("content", "reasoning_content", "reasoning", "refusal")


class StreamedAnswer:
    """Reads the body of a streamed completion, or chat completion, into an ``Exchange``.

    Which pieces carry output: in a completion every piece with a choice that goes on, even without text, as a
    token's text may wait for the next one; in a chat those with text, thoughts or tool calls, since a piece
    with the role alone comes before the first token. A piece that says why a choice ended counts if it has
    text.
    """

    def __init__(self, exchange: Exchange, *, is_chat: bool) -> None:
        self._exchange = exchange
        self._events = EventReader()
        self._is_chat = is_chat

    def feed(self, body: bytes, now_s: float) -> None:
        """A part of the body, and when it came."""
        for event in self._events.feed(body):
            if event != _DONE:
                self._take(event, now_s)

    def _take(self, event: bytes, now_s: float) -> None:
        exchange = self._exchange
        try:
            piece = json.loads(event)
        except ValueError:
            exchange.fail(BAD_ANSWER, f"not JSON: {shown(event)}")
            return
        if not isinstance(piece, dict):
            exchange.fail(BAD_ANSWER, f"not an object: {shown(event)}")
            return
        if piece.get("error"):
            exchange.fail(SERVER_ERROR, error_text(piece))
            return
        for choice in piece.get("choices") or ():
            self._take_choice(choice, now_s)
        if isinstance(usage := piece.get("usage"), dict):
            take_usage(usage, exchange)

    def _take_choice(self, choice: dict[str, Any], now_s: float) -> None:
        exchange = self._exchange
        reason = choice.get("finish_reason")
        if self._is_chat:
            delta = choice.get("delta") or {}
            text = "".join(delta[name] for name in _TEXTS if isinstance(delta.get(name), str))
            has_output = bool(text or delta.get("tool_calls"))
            text = delta.get("content") or ""
        else:
            text = choice.get("text") or ""
            has_output = bool(text) or reason is None
        if text:
            exchange.text.append(text)
        if has_output:
            exchange.chunk_s.append(now_s)
        if reason is not None:
            exchange.finish_s = now_s
            exchange.finish_reason = reason
            exchange.finish_had_output = has_output


def take_usage(usage: dict[str, Any], exchange: Exchange) -> None:
    """The token counts of an answer."""
    exchange.prompt_tokens = _count(usage.get("prompt_tokens"))
    exchange.output_tokens = _count(usage.get("completion_tokens"))
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict):
        exchange.cached_tokens = _count(details.get("cached_tokens"))


def error_text(body: Any) -> str:
    """What an error says of itself."""
    error = body.get("error", body) if isinstance(body, dict) else body
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else shown(error)


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
