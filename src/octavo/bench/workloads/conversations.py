"""Chats of several turns: each turn is sent after the answer to the one before, with all that was said."""

from dataclasses import dataclass, field
from typing import Any

from octavo.bench.workloads.contents import random_words, stream_of
from octavo.bench.workloads.item import Prompt, WorkItem
from octavo.bench.workloads.lengths import Fixed, Lengths

_LENGTHS, _CONTENTS, _SYSTEM = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversations:
    """Sessions of turns.

    Attributes:
        system_len: words of a system message that all sessions have in common; 0 is none.
        input_len: words of what a user says in a turn.
        pause_s: seconds that a user takes to read and write.
        as_chat: messages for a chat endpoint; otherwise plain texts.
    """

    num_sessions: int
    turns: Lengths = field(default_factory=lambda: Fixed(4))
    input_len: Lengths = field(default_factory=lambda: Fixed(64))
    output_len: Lengths = field(default_factory=lambda: Fixed(64))
    system_len: int = 0
    pause_s: float = 0.0
    as_chat: bool = True
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
        """The requests of one repeat; sessions one after the other, their turns in order."""
        rng = stream_of(self.seed, _LENGTHS, repeat)
        items: list[WorkItem] = []
        for session, num_turns in enumerate(self.turns.sample(rng, self.num_sessions)):
            inputs = self.input_len.sample(rng, num_turns)
            outputs = self.output_len.sample(rng, num_turns)
            for turn in range(num_turns):
                items.append(
                    WorkItem(
                        index=len(items),
                        prompt=self._prompt((repeat, variant), session, turn, inputs[turn]),
                        max_tokens=outputs[turn],
                        session=session,
                        turn=turn,
                        pause_s=self.pause_s if turn else 0.0,
                    )
                )
        return items

    def describe(self) -> dict[str, Any]:
        """For reports."""
        return {
            "kind": "conversations",
            "num_sessions": self.num_sessions,
            "turns": str(self.turns),
            "input_len": str(self.input_len),
            "output_len": str(self.output_len),
            "system_len": self.system_len,
            "pause_s": self.pause_s,
            "form": "chat" if self.as_chat else "text",
            "seed": self.seed,
        }

    def _prompt(self, contents: tuple[int, int], session: int, turn: int, length: int) -> Prompt:
        said = random_words(stream_of(self.seed, _CONTENTS, *contents, session, turn), length)
        system = ""
        if turn == 0 and self.system_len:
            system = random_words(stream_of(self.seed, _SYSTEM, *contents), self.system_len)
        if not self.as_chat:
            return f"{system}\n{said}\n" if system else f"\n{said}\n"
        first = ({"role": "system", "content": system},) if system else ()
        return (*first, {"role": "user", "content": said})
