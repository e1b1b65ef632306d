"""What policy and mechanism say to each other: one plain value each way per step.

The scheduler never sees an array, the runner never sees a request. Rows are permanent: a running sequence
keeps its row until it leaves, and the runner keeps that row's block tables between steps.
"""

from dataclasses import dataclass, field

from octavo.core.request import TokenLogprobs
from octavo.core.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class RowOpen:
    """A sequence takes a row; what the sampler needs to know of it until the row closes.

    ``token_ids`` are its tokens so far: ``prompt_len`` of the prompt, then those generated before it was
    preempted.
    """

    row: int
    params: SamplingParams
    seed: int
    token_ids: list[int]
    prompt_len: int
    sample_index: int = 0


@dataclass(frozen=True, slots=True)
class BlockUpdate:
    """Logical block ``index`` of a row's block table number ``table`` is now frame ``block_id``."""

    row: int
    table: int
    index: int
    block_id: int


@dataclass(frozen=True, slots=True)
class RowWork:
    """Tokens of one row to compute: known tokens from position ``start`` on; sample after the last or not."""

    row: int
    start: int
    token_ids: list[int]
    sample: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Everything the runner has to do in one step, in the order of the fields."""

    closed_rows: list[int] = field(default_factory=list)
    opened_rows: list[RowOpen] = field(default_factory=list)
    block_updates: list[BlockUpdate] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    work: list[RowWork] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(len(w.token_ids) for w in self.work)


@dataclass(frozen=True, slots=True)
class StepResult:
    """Token sampled for each ``RowWork`` with ``sample`` set, in their order.

    ``failures`` maps an index of ``token_ids`` to the reason why there is no token: that request alone fails.
    ``logprobs`` maps an index to the token's log-probabilities, where they are wanted.
    """

    token_ids: list[int]
    failures: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
