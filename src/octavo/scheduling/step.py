"""What policy and mechanism say to each other: one plain value each way per step.

The scheduler never sees an array, the runner never sees a request. Rows are permanent: a running sequence
keeps its row until it leaves, and the runner keeps that row's block tables between steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from octavo.core.request import TokenLogprobs
from octavo.core.sampling import SamplingParams

NOTHING: Final[Mapping[int, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RowOpen:
    """A sequence takes a row; what the sampler needs to know of it until the row closes.

    Attributes:
        seed, sample_index: of the row's random numbers.
        prompt_token_ids, output_token_ids: what penalties look at; there is output where one comes back.
        grammar: what allows its tokens, made elsewhere and passed on unseen, or None.
        num_candidates: 0, or how many most likely tokens a beam wants instead of one that is chosen.
    """

    row: int
    params: SamplingParams
    seed: int
    sample_index: int = 0
    prompt_token_ids: tuple[int, ...] = ()
    output_token_ids: tuple[int, ...] = ()
    grammar: Any = None
    num_candidates: int = 0


class BlockUpdate(NamedTuple):
    """Entry ``place`` of a row's block table number ``table``, a logical block, is now frame ``block_id``."""

    row: int
    table: int
    place: int
    block_id: int


class RowWork(NamedTuple):
    """Tokens of one row to compute, from position ``start`` on.

    Attributes:
        token_ids: known tokens, then drafts: guesses at those that follow.
        sample: whether the known tokens end here, so that the next one is to be chosen.
        num_drafts: how many of ``token_ids`` are drafts; the token after each of them is chosen too.
        forks: rows that choose a first token of their own at the same place.
        score: whether the logits of every token are wanted, to say how likely the prompt was. The last of
            them needs the token that comes then: ``next_token_id``, None at the end of the prompt.
    """

    row: int
    start: int
    token_ids: list[int]
    sample: bool
    num_drafts: int = 0
    forks: tuple[int, ...] = ()
    score: bool = False
    next_token_id: int | None = None

    @property
    def num_logits(self) -> int:
        """Logits wanted, of the last so many tokens."""
        if self.score:
            return len(self.token_ids)
        return 1 + self.num_drafts if self.sample else 0

    @property
    def num_chosen(self) -> int:
        """Tokens chosen: after the last known one and each draft, then one for each fork."""
        return 1 + self.num_drafts + len(self.forks) if self.sample else 0


@dataclass(slots=True)
class StepPlan:
    """Everything the runner has to do in one step, in the order of the fields.

    Attributes:
        num_tokens: computed in this step, drafts included.
        is_plain: whether all of the work is one known token, behind which one is chosen: the usual step.
    """

    closed_rows: list[int] = field(default_factory=list)
    opened_rows: list[RowOpen] = field(default_factory=list)
    block_updates: list[BlockUpdate] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    work: list[RowWork] = field(default_factory=list)
    num_tokens: int = 0
    is_plain: bool = True


class StepResult(NamedTuple):
    """What the step chose, for each ``RowWork`` in order: ``num_chosen`` tokens.

    A choice after a draft that was not what the choice before said is of no use, and may be anything.

    Attributes:
        token_ids: one per choice.
        failures: why there is no token, by index in ``token_ids``: that request alone fails.
        logprobs: how likely a chosen token and others were, by index in ``token_ids``, where asked.
        candidates: ``(token id, log-probability)`` best first, by index in ``token_ids``, for beams.
        prompt_logprobs: how likely the token after each computed one was, by index in ``StepPlan.work``.
    """

    token_ids: list[int]
    failures: Mapping[int, str] = NOTHING
    logprobs: Mapping[int, TokenLogprobs] = NOTHING
    candidates: Mapping[int, list[tuple[int, float]]] = NOTHING
    prompt_logprobs: Mapping[int, list[TokenLogprobs]] = NOTHING
