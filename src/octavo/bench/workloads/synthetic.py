"""Requests made up from distributions of lengths: random, repetitive, or with beginnings in common."""

from array import array
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from octavo.bench.workloads.contents import Vocabulary, random_tokens, random_words, stream_of
from octavo.bench.workloads.item import MOST_TOKENS, Prompt, WorkItem
from octavo.bench.workloads.lengths import Fixed, Lengths, count_of
from octavo.core.errors import InvalidConfig, shown

Form = Literal["tokens", "text", "chat"]
FORMS: tuple[Form, ...] = get_args(Form)

_LENGTHS, _CONTENTS, _CHOICES = 0, 1, 2  # which random stream


@dataclass(frozen=True, slots=True)
class PrefixLevel:
    """One level of a tree of beginnings: each node above has ``branches`` children of ``length`` tokens."""

    length: int
    branches: int


def parse_prefix_tree(text: str) -> tuple[PrefixLevel, ...]:
    """Turn ``"1024"`` or ``"512x1,256x4"`` (length x branches, from the root) into levels.

    Raises:
        InvalidConfig: it is no such thing.
    """
    levels = []
    for part in text.split(","):
        length_text, _, branches_text = part.strip().partition("x")
        length, branches = count_of(length_text), count_of(branches_text or "1")
        if length is None or not branches or max(length, branches) > MOST_TOKENS:
            raise InvalidConfig(
                f"prefix={shown(text)}: write a length, or levels as LENGTHxBRANCHES, e.g. 512x1,256x4; "
                f"numbers up to {MOST_TOKENS:,}"
            )
        levels.append(PrefixLevel(length, branches))
    return tuple(level for level in levels if level.length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthetic:
    """Independent requests.

    Attributes:
        input_len: tokens of a request's own, after what it shares.
        prefixes: each request follows one random path from the root of this tree to a leaf.
        phrase_len: if set, a prompt repeats a phrase of so many tokens over and over.
        form: "tokens" are exact; "text" and "chat" are words, about one token each.
    """

    num_requests: int
    input_len: Lengths = field(default_factory=lambda: Fixed(128))
    output_len: Lengths = field(default_factory=lambda: Fixed(64))
    prefixes: tuple[PrefixLevel, ...] = ()
    phrase_len: int | None = None
    form: Form = "tokens"
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    seed: int = 0

    @property
    def has_arrivals(self) -> bool:
        """Whether its requests say when they come."""
        return False

    @property
    def can_differ(self) -> bool:
        """Whether its repeats have contents of their own."""
        return True

    def items(self, repeat: int, variant: int = 0) -> list[WorkItem]:
        """The requests of one repeat."""
        rng = stream_of(self.seed, _LENGTHS, repeat)
        inputs = self.input_len.sample(rng, self.num_requests)
        outputs = self.output_len.sample(rng, self.num_requests)
        choices = stream_of(self.seed, _CHOICES, repeat)
        paths = [[int(choices.integers(level.branches)) for level in self.prefixes] for _ in inputs]
        return [
            WorkItem(
                index=i,
                prompt=self._prompt((repeat, variant), i, inputs[i], paths[i]),
                max_tokens=outputs[i],
            )
            for i in range(self.num_requests)
        ]

    def describe(self) -> dict[str, Any]:
        """For reports."""
        return {
            "kind": "repetitive" if self.phrase_len else "synthetic",
            "num_requests": self.num_requests,
            "input_len": str(self.input_len),
            "output_len": str(self.output_len),
            "prefixes": [f"{level.length}x{level.branches}" for level in self.prefixes],
            "phrase_len": self.phrase_len,
            "form": self.form,
            "seed": self.seed,
        }

    def _prompt(self, contents: tuple[int, int], index: int, length: int, path: list[int]) -> Prompt:
        shared = array("i")
        words = []
        for depth, level in enumerate(self.prefixes):
            rng = stream_of(self.seed, _CONTENTS, *contents, -1, *path[: depth + 1])
            if self.form == "tokens":
                shared += random_tokens(rng, level.length, self.vocabulary)
            else:
                words.append(random_words(rng, level.length))
        rng = stream_of(self.seed, _CONTENTS, *contents, index)
        if self.form == "tokens":
            phrase = random_tokens(rng, min(length, self.phrase_len or length), self.vocabulary)
            return shared + (phrase * (length // len(phrase) + 1))[:length]
        phrase_words = random_words(rng, min(length, self.phrase_len or length)).split()
        own = (phrase_words * (length // len(phrase_words) + 1))[:length]
        text = " ".join([*words, *own])
        return text if self.form == "text" else ({"role": "user", "content": text},)
