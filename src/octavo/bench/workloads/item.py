"""One request of a workload, and workloads as such."""

import hashlib
import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from octavo.text.messages import Message

MOST_TOKENS: Final = 1 << 24  # of one prompt or one answer; more is taken for a mistake
MOST_TOKEN_ID: Final = 2**31 - 1

# An array and no list: a trace has tens of millions of token ids.
if TYPE_CHECKING:
    TokenIds = array[int]
else:
    TokenIds = array  # before Python 3.12 it takes no parameter

Prompt = str | TokenIds | tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem:
    """One request.

    Attributes:
        index: its number in the workload.
        prompt: what it says; of a later turn, what is new: it follows the turn before and its answer.
        max_tokens: output tokens wanted, at most.
        arrival_s: seconds after the start, where the workload itself says so; otherwise the load generator
            decides.
        session: turns of one conversation have the same number; None is a request on its own.
        turn: 0 is the first of its session.
        pause_s: seconds between the answer of the turn before and this request.
    """

    index: int
    prompt: Prompt
    max_tokens: int
    arrival_s: float | None = None
    session: int | None = None
    turn: int = 0
    pause_s: float = 0.0


class Workload(Protocol):
    """A source of requests."""

    @property
    def has_arrivals(self) -> bool:
        """Whether its requests say when they come."""
        ...

    @property
    def can_differ(self) -> bool:
        """Whether its repeats have contents of their own, as what is made up has; a file's prompts stay."""
        ...

    def items(self, repeat: int, variant: int = 0) -> list[WorkItem]:
        """The requests of one repeat, in the order of arrival.

        What is made up is drawn anew for each repeat: lengths, so that what repeats differ by includes the
        accident of a draw; and contents, so that none finds in a cache what an earlier one left there.
        Variants of a repeat have its lengths and structure, and contents of their own. Repeats below 0 are
        for warming up: always made up, and nothing that a repeat from 0 on has.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """What it is, for reports: plain values."""
        ...


def prompt_as_json(prompt: Prompt) -> str | list[int] | list[Message]:
    """A prompt as OpenAI's API wants it."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, array):
        return prompt.tolist()
    return list(prompt)


def prompt_len(prompt: Prompt) -> int | None:
    """Tokens, if they are known without a tokenizer."""
    return len(prompt) if isinstance(prompt, array) else None


def follow(before: Prompt, answer: str, new: Prompt) -> Prompt:
    """The whole prompt of a later turn: all that was said, and what is new.

    Raises:
        ValueError: token ids cannot follow an answer that is known as text only.
    """
    if isinstance(before, tuple) and isinstance(new, tuple):
        return (*before, {"role": "assistant", "content": answer}, *new)
    if isinstance(before, str) and isinstance(new, str):
        return before + answer + new
    raise ValueError("a conversation needs texts or messages, all of one kind")


def digest(items: Sequence[WorkItem]) -> str:
    """A hash of everything in a stream: equal digests are equal requests."""
    found = hashlib.sha256()
    for item in items:
        prompt = item.prompt
        if isinstance(prompt, tuple):
            prompt = tuple(map(_plain, prompt))
        found.update(prompt.tobytes() if isinstance(prompt, array) else json.dumps(prompt).encode())
        rest = (item.index, item.max_tokens, item.arrival_s, item.session, item.turn, item.pause_s)
        found.update(repr(rest).encode())
    return found.hexdigest()


def _plain(message: Message) -> Any:
    """As pairs, where there is no more: so they were hashed when messages had nothing else."""
    return list(message.values()) if list(message) == ["role", "content"] else message
