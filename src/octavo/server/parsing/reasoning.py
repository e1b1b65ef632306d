"""What a model thinks before it answers: ``<think> ... </think>`` at the beginning of its text."""

from typing import Final

from octavo.server.parsing.events import Event, OutputParser, PlainParser, ReasoningDelta
from octavo.server.parsing.hermes import uncertain_from
from octavo.server.parsing.json_text import WHITE_SPACE, skip_spaces

OPENS: Final = "<think>"
CLOSES: Final = "</think>"


def ends_inside(prompt: str) -> bool:
    """Whether a rendered chat template has opened the thoughts already, so that the output begins inside."""
    return prompt.rstrip(WHITE_SPACE).endswith(OPENS)


class ReasoningParser:
    """Parts thoughts at the beginning from the answer behind them, which goes on to another parser.

    White space around the thoughts and in front of the answer is left out. Thoughts that are not closed when
    the text ends are thoughts; ``<think>`` further on in the text is left to the other parser.

    Args:
        inner: reads the answer; content as it is, if none is given.
        begins_inside: the prompt ends with ``<think>``, so the text begins with the thoughts. A further
            ``<think>`` at the beginning is left out.
    """

    def __init__(self, inner: OutputParser | None = None, *, begins_inside: bool = False) -> None:
        self._inner = PlainParser() if inner is None else inner
        self._may_be_answer = not begins_inside
        self._state = "before"
        self._held = ""

    def push(self, text: str) -> list[Event]:
        """Take the next piece of the text."""
        if self._state == "answer":
            return self._inner.push(text)
        events: list[Event] = []
        text, pos = self._held + text, 0
        self._held = ""
        if self._state == "before":
            pos = self._read_before(text)
        if self._state == "begins":
            pos = skip_spaces(text, pos)
            self._state = "thoughts" if pos < len(text) else "begins"
        if self._state == "thoughts":
            pos = self._read_thoughts(text, pos, events)
        if self._state == "after":
            pos = skip_spaces(text, pos)
            self._state = "answer" if pos < len(text) else "after"
        if self._state == "answer":
            events += self._inner.push(text[pos:])
        return events

    def finish(self) -> list[Event]:
        """What was held back, now that nothing follows."""
        events: list[Event] = []
        held, self._held = self._held, ""
        if self._state == "before" and self._may_be_answer:
            events += self._inner.push(held)
        elif held.strip(WHITE_SPACE):
            events.append(ReasoningDelta(held.lstrip(WHITE_SPACE) if self._state == "before" else held))
        return events + self._inner.finish()

    def _read_before(self, text: str) -> int:
        start = skip_spaces(text, 0)
        if text.startswith(OPENS, start):
            self._state = "begins"
            return start + len(OPENS)
        if OPENS.startswith(text[start:]):
            self._held = text
            return len(text)
        self._state = "answer" if self._may_be_answer else "begins"
        return 0

    def _read_thoughts(self, text: str, pos: int, events: list[Event]) -> int:
        at = text.find(CLOSES, pos)
        if at < 0:
            end = uncertain_from(text, pos, CLOSES)
            self._held, after = text[end:], len(text)
        else:
            end = pos + len(text[pos:at].rstrip(WHITE_SPACE))
            self._state, after = "after", at + len(CLOSES)
        if end > pos:
            events.append(ReasoningDelta(text[pos:end]))
        return after
