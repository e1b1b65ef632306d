"""A tool call written as a JSON object, read as it comes."""

import json
from collections.abc import Callable, Collection
from typing import Any, Final

from octavo.server.parsing.events import Event, ToolCallArguments, ToolCallBegin
from octavo.server.parsing.json_text import JsonScanner, is_json_object, skip_spaces

_NAME: Final = "name"
_ARGUMENTS: Final = ("arguments", "parameters")
_BEFORE_KEY: Final = ("first key", "key")


class CallObject:
    """Reads ``{"name": ..., "arguments": {...}}``; ``parameters`` means the same as ``arguments``.

    The call is certain when its name is known and its arguments begin; from then on they are given out as
    they come. Arguments that come before the name, or as JSON text within a string, are given out by
    ``end``, and so is ``{}`` for a call without any. What stands under other keys is read over. A function
    that is not known, a key that comes twice, and arguments that are no object break it.

    Attributes:
        has_begun: something of the call was given out, so it cannot be taken back.
        is_closed: the object is complete.
        is_broken: the next character cannot come here, or what came is no call.

    Args:
        names: of the functions that there are; None takes every name.
        index: of the call.
        make_id: gives a name for the call.
        before: text that belongs to the call and was read already.
    """

    def __init__(
        self, names: Collection[str] | None, index: int, make_id: Callable[[], str], before: str
    ) -> None:
        self.has_begun = False
        self.is_closed = False
        self.is_broken = False
        self._names = names
        self._index = index
        self._make_id = make_id
        self._not_given = [before]
        self._state = "start"
        self._scanner = JsonScanner()
        self._pieces: list[str] = []  # of the key or value that the scanner is in, unless it is given out
        self._seen: set[str] = set()
        self._key = ""
        self._name: str | None = None
        self._arguments: str | None = None

    @property
    def text(self) -> str:
        """What was read since the last of what was given out."""
        return "".join(self._not_given)

    def hold(self, text: str) -> None:
        """Count a text behind the object to the call."""
        self._not_given.append(text)

    def feed(self, text: str, pos: int, events: list[Event]) -> int:
        """Read from ``pos`` on, as far as the object goes, and append to ``events`` what is certain.

        Returns:
            The position of the first character that was not read.
        """
        while pos < len(text) and not self.is_closed and not self.is_broken:
            if self._state in ("in key", "in value", "in arguments"):
                end = self._scanner.feed(text, pos)
                piece = text[pos:end]
                if self._state == "in arguments":
                    events += [ToolCallArguments(self._index, piece)] if piece else []
                else:
                    self._not_given.append(piece)
                    self._pieces.append(piece)
                self.is_broken = self._scanner.is_broken
                if self._scanner.is_done:
                    self._end_scan()
            elif (end := skip_spaces(text, pos)) > pos:
                self._not_given.append(text[pos:end])
            else:
                end += self._take(text[pos], events)
            pos = end
        return pos

    def end(self, events: list[Event]) -> None:
        """Give out the call, which is closed and not broken, as far as that was not done.

        A call without a name, or with arguments in a string that are no object, breaks now.
        """
        if self.has_begun:
            return
        arguments = "{}" if self._arguments in (None, "null") else str(self._arguments)
        if arguments.startswith('"'):
            arguments = json.loads(arguments)
        if self._name is None or not is_json_object(arguments):
            self.is_broken = True
            return
        self._begin(events)
        events.append(ToolCallArguments(self._index, arguments))

    def _begin(self, events: list[Event]) -> None:
        self.has_begun = True
        self._not_given.clear()
        events.append(ToolCallBegin(self._index, self._make_id(), str(self._name)))

    def _take(self, char: str, events: list[Event]) -> int:
        """Take a character between keys and values, or begin one of those; says how many were taken."""
        state = self._state
        if state == "value":
            return self._begin_value(char, events)
        if state in _BEFORE_KEY and char == '"':
            return self._begin_scan("in key")
        if char == {"start": "{", "colon": ":", "after": ","}.get(state):
            self._state = {"start": "first key", "colon": "value", "after": "key"}[state]
        elif char == "}" and state in ("first key", "after"):
            self.is_closed = True
        else:
            self.is_broken = True
            return 0
        self._not_given.append(char)
        return 1

    def _begin_value(self, char: str, events: list[Event]) -> int:
        if self._key == _NAME:
            self.is_broken = char != '"'
        elif self._key in _ARGUMENTS:
            self.is_broken = char not in '{"n'
            if char == "{" and self._name is not None:
                self._begin(events)
                return self._begin_scan("in arguments")
        return self._begin_scan("in value")

    def _begin_scan(self, state: str) -> int:
        self._state, self._scanner = state, JsonScanner()
        self._pieces.clear()
        return 0  # the scanner takes it

    def _end_scan(self) -> None:
        """A key or a value is complete."""
        state, text = self._state, "".join(self._pieces)
        self._state = "colon" if state == "in key" else "after"
        if state == "in key":
            self._key = json.loads(text)
            role = _ARGUMENTS[0] if self._key in _ARGUMENTS else self._key
            self.is_broken = role in self._seen
            self._seen.add(role)
        elif state == "in value" and self._key == _NAME:
            name: Any = json.loads(text)
            self._name = name
            self.is_broken = not name or (self._names is not None and name not in self._names)
        elif state == "in value" and self._key in _ARGUMENTS:
            self._arguments = text
