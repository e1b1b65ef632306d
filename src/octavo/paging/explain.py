"""Why a cached prefix ended where it did."""

from typing import Literal, NamedTuple

Reason = Literal["complete", "disabled", "differs", "evicted", "salt", "never computed", "limited"]

_TEXTS: dict[Reason, str] = {
    "complete": "all tokens but the last, which is always computed, were cached",
    "disabled": "the prefix cache is switched off",
    "differs": "the closest cached sequence first differs at token {position}",
    "evicted": "the block with token {position} was cached, but has been evicted",
    "salt": "the block with token {position} is cached under another salt only",
    "limited": "no more than {position} tokens were looked for, as the logits of the others are wanted",
    "never computed": "no complete block was cached that goes on from token {position}",
}


class PrefixExplanation(NamedTuple):
    """The outcome of one prefix lookup.

    Attributes:
        num_tokens: known tokens when the sequence was created.
        num_cached: of those, how many were served from the cache.
        reason: why not more.
        position: the token the reason is about, counted from 0.
    """

    num_tokens: int
    num_cached: int
    reason: Reason
    position: int

    def __str__(self) -> str:
        text = _TEXTS[self.reason].format(position=self.position)
        return f"{self.num_cached} of {self.num_tokens} tokens cached: {text}"
