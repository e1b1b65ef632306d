"""Prompt-lookup speculation: guess the next tokens of a sequence from what it said before.

Owns the guesses of one sequence, and how many of them are worth verifying. After A. Saxena, "Prompt Lookup
Decoding" (2023): the longest n-gram that ends the sequence and occurred before is looked up, and the tokens
that followed it then are the draft.
"""

from array import array
from collections.abc import Iterable
from typing import Final

# How much a token's outcome weighs in the rate of its kind: the last eight or so count.
_LEARNING_RATE: Final = 1 / 8
_FIRST_RATE: Final = 0.5

_TOKEN_BITS: Final = 32


class NGramDraft:
    """Guesses for one growing sequence; ``extend`` with each new token, ``propose`` before each step.

    How long a draft should be depends on how often guesses come true. A guess comes true if the sequence goes
    on with it, verified or not, so every generated token is also a trial of the guess that there was for it.
    A sequence that no longer repeats itself is left alone, and one that begins again is noticed; nothing need
    be verified to find out. What is proposed is therefore a function of the tokens alone: the same after a
    preemption, and in whatever company and steps they came.

    Rates of coming true are kept for each length of n-gram. A draft's token is verified in vain unless all
    before it come true too, so a draft goes on while the product of the rates is worth what a token costs.

    Args:
        min_ngram: tokens that must agree, at least 1.
        max_ngram: tokens that are compared.
        max_draft: tokens proposed at most.
        token_cost: time of verifying one token, as a fraction of a step that decodes one.
        max_history: tokens that are remembered; bounds the index to that many entries for each length.
    """

    def __init__(
        self,
        *,
        min_ngram: int = 2,
        max_ngram: int = 4,
        max_draft: int = 8,
        token_cost: float = 0.25,
        max_history: int = 8192,
    ) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(f"need 1 <= min_ngram <= max_ngram, not {min_ngram} and {max_ngram}")
        if max_draft < 0 or max_history < 1:
            raise ValueError(f"max_draft={max_draft} or max_history={max_history} is too low")
        if not 0 < token_cost <= 1:
            raise ValueError(f"token_cost={token_cost}: must be above 0 and at most 1")
        self._max_draft = max_draft
        self._token_cost = token_cost
        self._max_history = max_history
        self._lengths = range(min_ngram, max_ngram + 1)
        self._masks = [(1 << _TOKEN_BITS * n) - 1 for n in self._lengths]
        num_lengths = len(self._lengths)
        self._tokens = array("i")
        self._rates = [_FIRST_RATE] * num_lengths
        # By length of n-gram: where each n-gram last ended, and for each position, where the n-gram that ends
        # there ended before. The second finds matches without a look-up, and takes back the first.
        self._latest: list[dict[int, int]] = [{} for _ in range(num_lengths)]
        self._earlier = [array("i") for _ in range(num_lengths)]
        self._columns = list(zip(self._lengths, self._masks, self._latest, self._earlier, strict=True))
        self._last_key = 0  # the longest n-gram at the end
        # For each position: the length whose rate its token changed, or -1, and that rate before.
        self._tried = array("b")
        self._rate_before = array("d")

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, token_ids: Iterable[int], *, generated: bool = True) -> None:
        """Take in the sequence's next tokens. Those of a prompt (``generated=False``) count as no trials."""
        tokens, rates = self._tokens, self._rates
        last_key = self._last_key
        for token in token_ids:
            match = self._match() if generated else None
            if match is None:
                self._tried.append(-1)
                self._rate_before.append(0.0)
            else:
                i, end = match
                self._tried.append(i)
                self._rate_before.append(rates[i])
                rates[i] += ((tokens[end + 1] == token) - rates[i]) * _LEARNING_RATE
            position = len(tokens)
            tokens.append(token)
            if position >= self._max_history:
                self._forget(position - self._max_history)
            last_key = (last_key << _TOKEN_BITS | token) & self._masks[-1]
            for length, mask, latest, earlier in self._columns:
                if position + 1 < length:
                    earlier.append(-1)
                else:
                    key = last_key & mask
                    earlier.append(latest.get(key, -1))
                    latest[key] = position
        self._last_key = last_key

    def propose(self, max_len: int | None = None) -> list[int]:
        """The tokens that may follow: at most ``max_draft`` and ``max_len``, none if they would not pay.

        Where the earlier occurrence is so near that its continuation reaches the present, the draft continues
        itself, as a repetition does.
        """
        match = self._match()
        if match is None:
            return []
        length, end = match
        limit = self._max_draft if max_len is None else min(max_len, self._max_draft)
        draft: list[int] = []
        source, rate = end + 1, 1.0
        while len(draft) < limit:
            rate *= self._rates[min(length + len(draft), len(self._rates) - 1)]
            if rate < self._token_cost:
                break
            at = source + len(draft)
            draft.append(self._tokens[at] if at < len(self._tokens) else draft[at - len(self._tokens)])
        return draft

    def truncate(self, length: int) -> None:
        """Forget all tokens from position ``length`` on, as if they had never come."""
        before = len(self._tokens)
        if not 0 <= length <= before:
            raise ValueError(f"cannot truncate {before} tokens to {length}")
        oldest = length - self._max_history  # the first position that is remembered again
        for position in range(before - 1, length - 1, -1):
            for i, key in enumerate(self._keys(position)):
                earlier = self._earlier[i][position]
                if self._latest[i].get(key) == position:
                    del self._latest[i][key]
                    if earlier >= 0:
                        self._latest[i][key] = earlier
            if self._tried[position] >= 0:
                self._rates[self._tried[position]] = self._rate_before[position]
        for position in range(max(oldest, 0), min(before - self._max_history, length)):
            for i, key in enumerate(self._keys(position)):
                self._latest[i][key] = max(self._latest[i].get(key, -1), position)
        for column in (self._tokens, self._tried, *self._earlier):
            del column[length:]
        del self._rate_before[length:]
        self._last_key = self._key(length - 1)

    def _match(self) -> tuple[int, int] | None:
        """Index of the longest length at which the sequence's end occurred before, and where that ended."""
        for i in range(len(self._earlier) - 1, -1, -1):
            if self._earlier[i] and self._earlier[i][-1] >= 0:
                return i, self._earlier[i][-1]
        return None

    def _forget(self, position: int) -> None:
        for latest, key in zip(self._latest, self._keys(position), strict=False):
            if latest.get(key) == position:
                del latest[key]

    def _keys(self, position: int) -> list[int]:
        """The n-grams that end at ``position``, shortest first, each as one number: its last token lowest."""
        key = self._key(position)
        return [key & mask for n, mask in zip(self._lengths, self._masks, strict=True) if n <= position + 1]

    def _key(self, position: int) -> int:
        """The longest n-gram that ends at ``position``, or what there is of it."""
        key = 0
        for token in self._tokens[max(position + 1 - self._lengths[-1], 0) : position + 1]:
            key = key << _TOKEN_BITS | token
        return key
