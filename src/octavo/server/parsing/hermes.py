"""Tool calls between ``<tool_call>`` and ``</tool_call>``, as Qwen2.5, Qwen3 and Hermes write them."""

from collections.abc import Callable, Collection
from typing import Final

from octavo.server.parsing.call_object import CallObject
from octavo.server.parsing.events import ContentDelta, Event, new_call_id
from octavo.server.parsing.json_text import WHITE_SPACE, skip_spaces

OPENS: Final = "<tool_call>"
CLOSES: Final = "</tool_call>"


class HermesParser:
    """Finds ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` anywhere in the text.

    White space around calls is left out; before content it stays. A call that is broken, names no known
    function, or is not closed when the text ends, is content again, exactly as the model wrote it. Where its
    arguments were given out already, the call stays with what there is of them, so that they may be no whole
    JSON object: text that breaks such a call becomes content from behind the last character given out, and
    the markup of one that the end of the text cuts off is left out.

    Args:
        names: of the functions that there are; None takes every name.
        make_id: gives a name for each call.
    """

    def __init__(
        self, names: Collection[str] | None = None, *, make_id: Callable[[], str] = new_call_id
    ) -> None:
        self._names = names
        self._make_id = make_id
        self._num_calls = 0
        self._call: CallObject | None = None
        self._num_closing = 0  # characters of the closing tag that have come
        self._held = ""  # content that may turn out to belong to a call
        self._is_behind_call = False

    def push(self, text: str) -> list[Event]:
        """Take the next piece of the text."""
        events: list[Event] = []
        text, pos = self._held + text, 0
        self._held = ""
        while pos < len(text):
            if self._call is None:
                pos = self._read_content(text, pos, events)
            else:
                pos = self._read_call(self._call, text, pos, events)
        return events

    def finish(self) -> list[Event]:
        """What was held back, now that nothing follows."""
        events: list[Event] = []
        if self._call is None:
            is_space = not self._held.strip(WHITE_SPACE)
            self._give("" if self._is_behind_call and is_space else self._held, events)
        elif not self._call.has_begun:
            self._give(self._call.text, events)
        self._call, self._held = None, ""
        return events

    def _read_content(self, text: str, pos: int, events: list[Event]) -> int:
        at = text.find(OPENS, pos)
        if at < 0:
            end = uncertain_from(text, pos, OPENS)
            self._give(text[pos:end], events)
            self._held = text[end:]
            return len(text)
        content = text[pos:at].rstrip(WHITE_SPACE)
        self._give(content, events)
        after = at + len(OPENS)
        self._call = CallObject(
            self._names, self._num_calls, self._make_id, before=text[pos + len(content) : after]
        )
        self._num_closing = 0
        return after

    def _read_call(self, call: CallObject, text: str, pos: int, events: list[Event]) -> int:
        pos = call.feed(text, pos, events)
        if call.is_closed and not call.is_broken:
            pos = self._read_closing(call, text, pos)
        if self._num_closing == len(CLOSES):
            call.end(events)
        if call.is_broken:
            self._give(call.text, events)
        if call.is_broken or self._num_closing == len(CLOSES):
            self._num_calls += call.has_begun
            self._is_behind_call = not call.is_broken
            self._call = None
        return pos

    def _read_closing(self, call: CallObject, text: str, pos: int) -> int:
        while pos < len(text) and self._num_closing < len(CLOSES):
            end = skip_spaces(text, pos) if self._num_closing == 0 else pos
            if end == pos:
                if text[pos] != CLOSES[self._num_closing]:
                    call.is_broken = True
                    break
                self._num_closing += 1
                end = pos + 1
            call.hold(text[pos:end])
            pos = end
        return pos

    def _give(self, content: str, events: list[Event]) -> None:
        if content:
            events.append(ContentDelta(content))
            self._is_behind_call = False


def uncertain_from(text: str, pos: int, mark: str) -> int:
    """Where in a text without ``mark`` begins what may come to belong to one: its beginning, and white space
    in front of it, or white space at the end.
    """
    end = len(text)
    longest = min(len(mark) - 1, end - pos)
    partial = next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)
    return pos + len(text[pos : end - partial].rstrip(WHITE_SPACE))
