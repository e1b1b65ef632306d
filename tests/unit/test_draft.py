import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from octavo.scheduling.ngram import NGramDraft


class Naive:
    """The rule by scanning; every number is worked out again from the whole sequence."""

    def __init__(self, min_ngram: int, max_ngram: int, max_draft: int, token_cost: float, max_history: int):
        self.min, self.max, self.max_draft = min_ngram, max_ngram, max_draft
        self.cost, self.history = token_cost, max_history
        self.tokens: list[int] = []
        self.generated: list[bool] = []

    def match(self, tokens: list[int]) -> tuple[int, int] | None:
        last = len(tokens) - 1
        for n in range(self.max, self.min - 1, -1):
            for end in range(last - 1, max(n - 1, last - self.history + 1) - 1, -1):
                if last >= n - 1 and tokens[end - n + 1 : end + 1] == tokens[last - n + 1 :]:
                    return n, end
        return None

    def propose(self) -> list[int]:
        rates = dict.fromkeys(range(self.min, self.max + 1), 0.5)
        for i, token in enumerate(self.tokens):
            found = self.match(self.tokens[:i])
            if found and self.generated[i]:
                n, end = found
                rates[n] += ((self.tokens[end + 1] == token) - rates[n]) / 8
        found = self.match(self.tokens)
        if not found:
            return []
        n, end = found
        text, rate = list(self.tokens), 1.0
        for i in range(self.max_draft):
            rate *= rates[min(n + i, self.max)]
            if rate < self.cost:
                break
            text.append(text[end + 1 + i])
        return text[len(self.tokens) :]


SETTINGS = [
    {"min_ngram": 2, "max_ngram": 4, "max_draft": 6, "token_cost": 0.25, "max_history": 9},
    {"min_ngram": 1, "max_ngram": 1, "max_draft": 3, "token_cost": 0.4, "max_history": 1000},
    {"min_ngram": 1, "max_ngram": 3, "max_draft": 20, "token_cost": 0.05, "max_history": 4},
    {"min_ngram": 3, "max_ngram": 5, "max_draft": 5, "token_cost": 0.1, "max_history": 17},
]


class DraftMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.pairs = [(NGramDraft(**s), Naive(**s)) for s in SETTINGS]

    @rule(tokens=st.lists(st.integers(0, 2), max_size=12), generated=st.booleans())
    def extend(self, tokens, generated):
        for draft, naive in self.pairs:
            draft.extend(tokens, generated=generated)
            naive.tokens += tokens
            naive.generated += [generated] * len(tokens)

    @rule(times=st.integers(1, 4), length=st.integers(1, 8))
    def repeat_the_end(self, times, length):
        self.extend(self.pairs[0][1].tokens[-length:] * times, True)

    @rule(share=st.floats(0, 1))
    def truncate(self, share):
        for draft, naive in self.pairs:
            length = round(share * len(draft))
            draft.truncate(length)
            del naive.tokens[length:], naive.generated[length:]

    @invariant()
    def agrees(self):
        for draft, naive in self.pairs:
            assert len(draft) == len(naive.tokens)
            assert draft.propose() == naive.propose()
            assert draft.propose(2) == naive.propose()[:2]
            assert all(len(latest) <= naive.history for latest in draft._latest)


DraftMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=12, deadline=None)
TestDraft = DraftMachine.TestCase


def test_the_latest_occurrence_of_the_longest_ngram_is_continued():
    draft = NGramDraft(min_ngram=2, max_ngram=3, max_draft=4, token_cost=0.01)
    draft.extend([1, 2, 3, 10, 2, 3, 20, 9, 1, 2, 3], generated=False)
    assert draft.propose() == [10, 2, 3, 20]  # three tokens agree, though two agree later
    draft.truncate(8)
    draft.extend([7, 2, 3], generated=False)
    assert draft.propose() == [20, 9, 7, 2]
    assert draft.propose(1) == [20]
    assert draft.propose(0) == []


def test_repetition_continues_itself():
    draft = NGramDraft(max_draft=7, token_cost=0.001)
    draft.extend([5, 6, 5, 6, 5])
    assert draft.propose() == [6, 5, 6, 5, 6, 5, 6]


def accepted_share(draft: NGramDraft, tokens: list[int]) -> tuple[int, int]:
    """Tokens proposed and tokens accepted, if the sequence goes on with ``tokens`` by speculation."""
    at = num_proposed = num_accepted = 0
    while at < len(tokens):
        proposed = draft.propose()
        right = 0
        while right < len(proposed) and tokens[at + right : at + right + 1] == proposed[right : right + 1]:
            right += 1
        num_proposed += len(proposed)
        num_accepted += right
        draft.extend(tokens[at : at + right + 1])
        at += right + 1
    return num_proposed, num_accepted


def test_drafts_grow_and_vanish_with_what_comes_true():
    rng = random.Random(1)
    text = [rng.randrange(1000) for _ in range(300)]
    draft = NGramDraft()
    draft.extend(text, generated=False)
    proposed, accepted = accepted_share(draft, text[100:250])  # an answer that quotes the prompt
    assert accepted > 110
    assert proposed < 1.2 * accepted
    assert len(draft.propose()) == 8
    # Two tokens in a row that were there before, never going on the same way.
    noise = [t for i in range(100) for t in (*text[i : i + 2], 2000 + i)]
    wasted, _ = accepted_share(draft, noise[:60])
    assert wasted < 20
    assert accepted_share(draft, noise[60:]) == (0, 0)
    proposed, accepted = accepted_share(draft, text[150:200])  # and it is noticed when it pays again
    assert accepted > 30


def test_random_text_is_left_alone():
    rng = random.Random(2)
    draft = NGramDraft(min_ngram=1)
    tokens = [rng.randrange(50) for _ in range(3000)]
    proposed, _ = accepted_share(draft, tokens)
    assert proposed < 60


def test_how_tokens_arrive_does_not_matter():
    rng = random.Random(3)
    tokens = [rng.randrange(4) for _ in range(200)]
    whole, single = NGramDraft(), NGramDraft()
    whole.extend(tokens)
    for token in tokens:
        single.propose()
        single.extend([token, 1, 2, 3])
        single.truncate(len(single) - 3)
    assert single.propose() == whole.propose()
    assert single._rates == whole._rates


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_ngram": 0},
        {"min_ngram": 5},
        {"max_draft": -1},
        {"max_history": 0},
        {"token_cost": 0},
        {"token_cost": 2},
    ],
)
def test_senseless_settings_are_refused(wrong):
    with pytest.raises(ValueError):
        NGramDraft(**wrong)
    with pytest.raises(ValueError):
        NGramDraft().truncate(1)
