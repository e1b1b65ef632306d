"""Prompts from a file: a JSON object per line.

``{"prompt": "a text"}``, ``{"prompt": [1, 2, 3]}`` or ``{"messages": [{"role": "user", "content": "..."}]}``,
and if wanted ``"max_tokens"``, and ``"arrival_s"``, in all lines or none: seconds after any moment, since the
first comes at 0. Other keys are refused, in messages too.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from octavo.bench.workloads.contents import Vocabulary, random_tokens, random_words, stream_of
from octavo.bench.workloads.item import MOST_TOKEN_ID, Prompt, WorkItem
from octavo.bench.workloads.limits import TraceLimits
from octavo.bench.workloads.lines import Fields, json_objects
from octavo.bench.workloads.messages import read_messages
from octavo.core.errors import InvalidRequest, shown
from octavo.text.messages import Message

_BYTES_PER_WORD: Final = 5  # about, with the space: a made-up text is about as long as the one it stands for


@dataclass(frozen=True, slots=True)
class PromptsFile:
    """The same requests in every repeat: what a server caches it finds again, and reports say so.

    To warm up there are others, of the same form and about the same length: a server that had seen the first
    prompts of the file would not compute them when it is measured.
    """

    file: Path
    requests: tuple[WorkItem, ...]
    limits: TraceLimits

    @property
    def has_arrivals(self) -> bool:
        """Whether its requests say when they come."""
        return self.requests[0].arrival_s is not None

    @property
    def can_differ(self) -> bool:
        """Whether its repeats have contents of their own."""
        return False

    def items(self, repeat: int, variant: int = 0) -> list[WorkItem]:
        """All of them, or if ``repeat`` is below 0 what stands for them."""
        if repeat >= 0:
            return list(self.requests)
        vocabulary = _vocabulary(self.requests)
        return [
            replace(item, prompt=_stand_in(item.prompt, stream_of(repeat, variant, item.index), vocabulary))
            for item in self.requests
        ]

    def describe(self) -> dict[str, Any]:
        """For reports."""
        return {
            "kind": "prompts",
            "file": self.file.name,
            "num_requests": len(self.requests),
            **self.limits.describe(),
        }


def read_prompts(
    file: Path, limits: TraceLimits, *, max_tokens: int, is_chat: bool | None = None
) -> PromptsFile:
    """Read such a file.

    Args:
        max_tokens: of lines that do not say.
        is_chat: whether requests go to a chat endpoint, which takes no token ids, or to one for completions,
            which takes no messages; None is no endpoint, and takes all.

    Raises:
        MalformedLine: names file and line.
    """
    items: list[WorkItem] = []
    for number, values in json_objects(file):
        fields = Fields(file, number, values)
        fields.only("prompt", "messages", "max_tokens", "arrival_s")
        has_arrival = "arrival_s" in values
        if items and has_arrival != (items[0].arrival_s is not None):
            raise fields.wrong("arrival_s must be in all lines or in none")
        wanted = fields.tokens("max_tokens", least=1) if "max_tokens" in values else max_tokens
        prompt = _prompt(fields, values, limits)
        _check_form(fields, prompt, is_chat=is_chat)
        items.append(
            WorkItem(
                index=len(items),
                prompt=prompt,
                max_tokens=limits.output_len(wanted),
                arrival_s=fields.number("arrival_s") if has_arrival else None,
            )
        )
    if not items:
        raise InvalidRequest(f"{file} has no prompts")
    items.sort(key=lambda item: item.arrival_s or 0.0)
    start_s = items[0].arrival_s or 0.0
    chosen = []
    for i, item in enumerate(items[: limits.limit]):
        arrival_s = None if item.arrival_s is None else (item.arrival_s - start_s) * limits.scale
        chosen.append(replace(item, index=i, arrival_s=arrival_s))
    return PromptsFile(file, tuple(chosen), limits)


def _prompt(fields: Fields, values: dict[str, Any], limits: TraceLimits) -> Prompt:
    if ("prompt" in values) == ("messages" in values):
        raise fields.wrong('must have either "prompt" or "messages"')
    prompt = values.get("prompt")
    if (
        isinstance(prompt, list)
        and prompt
        and all(type(t) is int and 0 <= t <= MOST_TOKEN_ID for t in prompt)
    ):
        return array("i", prompt[: limits.max_prompt_tokens])
    if limits.max_prompt_tokens is not None:
        raise fields.wrong(
            f"max_prompt_tokens={limits.max_prompt_tokens} can cut prompts of token ids alone, and this is "
            "text: leave --max-prompt-tokens out, or give token ids"
        )
    if "messages" in values:
        return read_messages(fields, values["messages"])
    if isinstance(prompt, str) and prompt:
        fields.encodable("prompt")
        return prompt
    raise fields.wrong(f"prompt={shown(prompt)}: must be a text or a list of token ids, not empty")


def _check_form(fields: Fields, prompt: Prompt, *, is_chat: bool | None) -> None:
    """That an endpoint takes it."""
    if is_chat and isinstance(prompt, array):
        raise fields.wrong("token ids, which the chat endpoint does not take: leave --chat out")
    if is_chat is False and isinstance(prompt, tuple):
        raise fields.wrong('messages, which only the chat endpoint takes: use --chat, or give a "prompt"')


def _vocabulary(items: Sequence[WorkItem]) -> Vocabulary:
    """Token ids that the model must have, as the file has one as great."""
    most = max((max(item.prompt) for item in items if isinstance(item.prompt, array)), default=0)
    return Vocabulary.of_size(most + 1)


def _stand_in(prompt: Prompt, rng: np.random.Generator, vocabulary: Vocabulary) -> Prompt:
    """Another prompt of this form and about this length."""
    if isinstance(prompt, array):
        return random_tokens(rng, len(prompt), vocabulary)
    if isinstance(prompt, str):
        return _other_text(prompt, rng)
    return tuple(_other_message(message, rng) for message in prompt)


def _other_message(message: Message, rng: np.random.Generator) -> Message:
    """With other content; what was called stays, as it comes after other texts."""
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": _other_text(content, rng)}
    if isinstance(content, list):
        return {**message, "content": [{**part, "text": _other_text(part["text"], rng)} for part in content]}
    return message


def _other_text(text: str, rng: np.random.Generator) -> str:
    return text and random_words(rng, max(1, len(text.encode()) // _BYTES_PER_WORD))
