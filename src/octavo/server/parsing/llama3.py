"""Tool calls as bare JSON, as Llama 3.1 and 3.2 write them."""

from collections.abc import Callable, Collection
from typing import Final

from octavo.server.parsing.call_object import CallObject
from octavo.server.parsing.events import ContentDelta, Event, new_call_id
from octavo.server.parsing.json_text import WHITE_SPACE

PYTHON_TAG: Final = "<|python_tag|>"
SEPARATOR: Final = ";"


class Llama3Parser:
    """Reads ``{"name": ..., "parameters": {...}}``, several of them separated by ``;``.

    They count as calls only where the text begins with them, or with ``<|python_tag|>`` in front of them;
    from the first text on that is no call everything is content. White space between and behind calls is left
    out. A call that is broken, names no known function, or is cut off, is content, exactly as the model wrote
    it. Where its arguments were given out already, the call stays with what there is of them, so that they
    may be no whole JSON object: text that breaks such a call becomes content from behind the last character
    given out, and the markup of one that the end of the text cuts off is left out.

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
        self._is_plain = False
        self._mark = PYTHON_TAG  # what may stand in front of the next call
        self._held = ""  # what stands there: white space, the mark or its beginning, white space

    def push(self, text: str) -> list[Event]:
        """Take the next piece of the text."""
        events: list[Event] = []
        pos = 0
        while pos < len(text):
            if self._is_plain:
                events.append(ContentDelta(text[pos:]))
                break
            if self._call is None:
                pos = self._read_before(text, pos, events)
            else:
                pos = self._read_call(self._call, text, pos, events)
        return events

    def finish(self) -> list[Event]:
        """What was held back, now that nothing follows."""
        events: list[Event] = []
        if self._call is not None:
            if not self._call.has_begun:
                self._give_all(self._call.text, events)
        elif not self._num_calls or self._held.strip(WHITE_SPACE) not in ("", SEPARATOR):
            self._give_all(self._held, events)
        self._call, self._held = None, ""
        return events

    def _read_before(self, text: str, pos: int, events: list[Event]) -> int:
        """What stands in front of a call."""
        held = self._held.strip(WHITE_SPACE)
        char = text[pos]
        needs_mark = self._num_calls > 0
        if char == "{" and (held == self._mark or not (held or needs_mark)):
            self._call = CallObject(self._names, self._num_calls, self._make_id, before=self._held)
            self._held = ""
            return pos
        is_space = char in WHITE_SPACE and held in ("", self._mark)
        is_mark = held != self._mark and self._mark[len(held)] == char and self._held.endswith(held)
        if is_space or is_mark:
            self._held += char
            return pos + 1
        self._give_all(self._held, events)
        self._held = ""
        return pos

    def _read_call(self, call: CallObject, text: str, pos: int, events: list[Event]) -> int:
        pos = call.feed(text, pos, events)
        if call.is_closed and not call.is_broken:
            call.end(events)
        if call.is_broken:
            self._give_all(call.text, events)
        if call.is_broken or call.is_closed:
            self._num_calls += call.has_begun
            self._mark = SEPARATOR
            self._call = None
        return pos

    def _give_all(self, content: str, events: list[Event]) -> None:
        """Content, as all that follows."""
        self._is_plain = True
        if content:
            events.append(ContentDelta(content))
