"""Follows JSON text as it comes, and knows at every character whether it can still become a JSON value."""

import re
from typing import Final

# What clients get back must not be deeper than what they may send (``octavo.text.messages``).
MAX_DEPTH: Final = 60

WHITE_SPACE: Final = " \t\r\n"

_PLAIN_CHARS: Final = re.compile(r'[^"\\\x00-\x1f]*')
_SPACES: Final = re.compile(r"[ \t\r\n]*")
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_LITERALS: Final = {"t": "rue", "f": "alse", "n": "ull"}
_DIGITS: Final = "0123456789"

# From where in a number to where, by its next character. It may end in ``_WHOLE``.
_NUMBER: Final[dict[str, dict[str, str]]] = {
    "sign": {"0": "zero"} | dict.fromkeys(_DIGITS[1:], "digits"),
    "zero": {".": "point", "e": "e", "E": "e"},
    "digits": {".": "point", "e": "e", "E": "e"} | dict.fromkeys(_DIGITS, "digits"),
    "point": dict.fromkeys(_DIGITS, "fraction"),
    "fraction": {"e": "e", "E": "e"} | dict.fromkeys(_DIGITS, "fraction"),
    "e": {"+": "e sign", "-": "e sign"} | dict.fromkeys(_DIGITS, "exponent"),
    "e sign": dict.fromkeys(_DIGITS, "exponent"),
    "exponent": dict.fromkeys(_DIGITS, "exponent"),
}
_WHOLE: Final = frozenset({"zero", "digits", "fraction", "exponent"})


def skip_spaces(text: str, pos: int) -> int:
    """Position of the first character from ``pos`` on that is not white space."""
    found = _SPACES.match(text, pos)
    return found.end() if found else pos


class JsonScanner:
    """One JSON value (RFC 8259, at most ``MAX_DEPTH`` levels deep), read from its first character on.

    All characters that it has taken together are the beginning of a JSON value.

    Attributes:
        is_done: the value is complete.
        is_broken: the next character cannot come here.
    """

    def __init__(self) -> None:
        self.is_done = False
        self.is_broken = False
        self._open: list[str] = []  # the closing bracket of each object and array we are in
        self._state = "value"
        self._is_key = False  # whether the string we are in is one
        self._rest = ""  # of a literal
        self._hex_left = 0

    def feed(self, text: str, pos: int = 0) -> int:
        """Take characters from ``pos`` on, as many as belong to the value.

        Returns:
            The position of the first character that was not taken: behind the value, or what breaks it.
        """
        while pos < len(text) and not self.is_done and not self.is_broken:
            if self._state == "string":
                found = _PLAIN_CHARS.match(text, pos)
                pos = found.end() if found else pos
                if pos == len(text):
                    break
            if self._take(text[pos]):
                pos += 1
        return pos

    def _take(self, char: str) -> bool:
        """Take one character, unless it does not belong to the value."""
        state = self._state
        if state == "string":
            return self._take_in_string(char)
        if state == "escape":
            return self._take_escaped(char)
        if state == "literal":
            if char != self._rest[0]:
                return self._break()
            self._rest = self._rest[1:]
            return bool(self._rest) or self._end_value()
        if state in _NUMBER:
            following = _NUMBER[state].get(char)
            if following is not None:
                self._state = following
                return True
            if state not in _WHOLE:
                return self._break()
            self._end_value()
            return False if self.is_done else self._take(char)
        if char in WHITE_SPACE and self._open:
            return True
        return self._take_between(char)

    def _take_between(self, char: str) -> bool:
        """A character that is not within a string, a number or a literal, nor white space."""
        state = self._state
        if state == "after" and char == ",":
            self._state = "key" if self._open[-1] == "}" else "value"
            return True
        if state in ("after", "first key", "first value") and char == self._open[-1]:
            self._open.pop()
            return self._end_value()
        if state in ("key", "first key"):
            return self._begin_string(is_key=True) if char == '"' else self._break()
        if state == "colon":
            self._state = "value"
            return char == ":" or self._break()
        return self._begin_value(char) if state in ("value", "first value") else self._break()

    def _begin_value(self, char: str) -> bool:
        if char == '"':
            return self._begin_string(is_key=False)
        if char in ("{", "["):
            if len(self._open) >= MAX_DEPTH:
                return self._break()
            self._open.append("}" if char == "{" else "]")
            self._state = "first key" if char == "{" else "first value"
        elif char in _LITERALS:
            self._state, self._rest = "literal", _LITERALS[char]
        elif char == "-":
            self._state = "sign"
        elif char in _NUMBER["sign"]:
            self._state = _NUMBER["sign"][char]
        else:
            return self._break()
        return True

    def _begin_string(self, *, is_key: bool) -> bool:
        self._state, self._is_key = "string", is_key
        return True

    def _take_in_string(self, char: str) -> bool:
        if char == '"':
            if self._is_key:
                self._state = "colon"
                return True
            return self._end_value()
        if char == "\\":
            self._state, self._hex_left = "escape", 0
            return True
        return self._break()  # a control character

    def _take_escaped(self, char: str) -> bool:
        if self._hex_left:
            if char not in _HEX:
                return self._break()
            self._hex_left -= 1
        elif char == "u":
            self._hex_left = 4
        elif char not in '"\\/bfnrt':
            return self._break()
        if not self._hex_left:
            self._state = "string"
        return True

    def _end_value(self) -> bool:
        if self._open:
            self._state = "after"
        else:
            self.is_done = True
        return True

    def _break(self) -> bool:
        self.is_broken = True
        return False


def is_json_object(text: str) -> bool:
    """Whether a text is one JSON object, but for white space around it."""
    text = text.strip(WHITE_SPACE)
    scanner = JsonScanner()
    return text.startswith("{") and scanner.feed(text) == len(text) and scanner.is_done
