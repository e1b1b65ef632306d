"""What comes out of a chat model's text, piece by piece: content, reasoning and tool calls."""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallBegin:
    """The model calls a function; the arguments follow.

    Attributes:
        index: calls of one output are numbered from 0.
        call_id: a name that no other call has.
        name: of the function.
    """

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of the JSON text of a call's arguments; all of it together is a JSON object.

    Attributes:
        index: of the call.
        text: as the model wrote it.
    """

    index: int
    text: str


Event = ContentDelta | ReasoningDelta | ToolCallBegin | ToolCallArguments


class OutputParser(Protocol):
    """Reads the text of one output as it comes. What all events say together depends only on the whole text,
    never on how it was cut into pieces. Belongs to one output and is used up by it.
    """

    def push(self, text: str) -> list[Event]:
        """Take the next piece of the text; gives what is certain by now."""
        ...

    def finish(self) -> list[Event]:
        """Say that the text is complete; gives what was held back."""
        ...


class PlainParser:
    """Takes every text for content."""

    def push(self, text: str) -> list[Event]:
        """The text as it is."""
        return [ContentDelta(text)] if text else []

    def finish(self) -> list[Event]:
        """Nothing: nothing is held back."""
        return []


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model made.

    Attributes:
        call_id, name: as in ``ToolCallBegin``.
        arguments: JSON text; an object, unless the output ended or broke off in the middle of it.
    """

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    """What a whole output says.

    Attributes:
        content: the answer; empty if there is none.
        reasoning: the thoughts; empty if there are none.
        tool_calls: in the order in which they were made.
    """

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]


def gather(events: Iterable[Event]) -> ParsedOutput:
    """Put all events of one output together."""
    content: list[str] = []
    reasoning: list[str] = []
    begun: list[ToolCallBegin] = []
    arguments: list[list[str]] = []
    for event in events:
        match event:
            case ContentDelta():
                content.append(event.text)
            case ReasoningDelta():
                reasoning.append(event.text)
            case ToolCallBegin():
                begun.append(event)
                arguments.append([])
            case ToolCallArguments():
                arguments[event.index].append(event.text)
    calls = (ToolCall(b.call_id, b.name, "".join(pieces)) for b, pieces in zip(begun, arguments, strict=True))
    return ParsedOutput("".join(content), "".join(reasoning), tuple(calls))


def parse(parser: OutputParser, text: str) -> ParsedOutput:
    """What a whole text says, with a parser that has seen nothing yet."""
    return gather([*parser.push(text), *parser.finish()])


def new_call_id() -> str:
    """A name for a tool call, in the form that OpenAI's clients know."""
    return f"call_{secrets.token_hex(12)}"
