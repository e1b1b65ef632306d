"""Beam search: from the likely next tokens of each beam to the beams that go on.

Owns the beams of one request as token sequences with scores; rows, blocks and logits are others' business.
The semantics are those of transformers' ``generate(num_beams=...)``, in float32 as there, so that scores are
equal to the last bit.

Legend: B live beams, K candidates for each.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from octavo.core.errors import InvalidRequest, shown

MAX_BEAM_WIDTH: Final = 32
MAX_LENGTH_PENALTY: Final = 5.0  # a length to this power is still a float32

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamParams:
    """Parameters of one beam search.

    Attributes:
        width: beams that are kept, and hypotheses that come of it at most; 1 to 32.
        length_penalty: a hypothesis' score is its cumulative logprob divided by its length to this power, so
            a positive one favours long hypotheses. -5 to 5.
        early_stopping: when to stop once there are ``width`` hypotheses. True: at once. False: when the best
            live beam, scored at its present length, is no better than the worst of them. "never": when it
            could not become better, scored at the length that would favour it most.

    Raises:
        InvalidRequest: a value of the wrong type or out of range.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        width, penalty = self.width, self.length_penalty
        if isinstance(width, bool) or not isinstance(width, int) or not 1 <= width <= MAX_BEAM_WIDTH:
            raise InvalidRequest(
                f"width={shown(width)}: must be an integer from 1 to {MAX_BEAM_WIDTH}", param="width"
            )
        if (
            isinstance(penalty, bool)
            or not isinstance(penalty, (int, float))
            or not -MAX_LENGTH_PENALTY <= penalty <= MAX_LENGTH_PENALTY
        ):
            limit = f"a number from {-MAX_LENGTH_PENALTY} to {MAX_LENGTH_PENALTY}"
            raise InvalidRequest(f"length_penalty={shown(penalty)}: must be {limit}", param="length_penalty")
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise InvalidRequest(
                f'early_stopping={shown(self.early_stopping)}: must be True, False or "never"',
                param="early_stopping",
            )


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished sequence.

    Attributes:
        token_ids: what was generated, the stop token included.
        cumulative_logprob: sum of its tokens' logprobs.
        score: that, divided by its length to the power of the length penalty.
        finish_reason: "stop" for a stop token, "length" at the limit.
    """

    token_ids: list[int]
    cumulative_logprob: float
    score: float
    finish_reason: Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class BeamStep:
    """What one step decided: live beam ``i`` is now old beam ``parents[i]`` with ``token_ids[i]`` after it.

    The best beam is first. ``is_done``: the search is over and no beam need go on.
    """

    parents: list[int]
    token_ids: list[int]
    cumulative_logprobs: list[float]
    is_done: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Beam:
    """A sequence as its last token and what came before; beams share their beginnings."""

    logprob: np.float32
    token_id: int = -1
    parent: "_Beam | None" = None

    def token_ids(self) -> list[int]:
        ids: list[int] = []
        beam = self
        while beam.parent is not None:
            ids.append(beam.token_id)
            beam = beam.parent
        return ids[::-1]


class BeamSearch:
    """The search for the continuations of one prompt. It begins with one live beam, the prompt.

    Args:
        params: width, length penalty, early stopping.
        stop_ids: tokens that finish a beam.
        max_tokens: length at which every beam is finished, at least 1.
    """

    def __init__(self, params: BeamParams, *, stop_ids: Collection[int], max_tokens: int) -> None:
        if max_tokens < 1:
            raise ValueError(f"max_tokens={max_tokens}: must be at least 1")
        self._params = params
        self._stop_ids = frozenset(stop_ids)
        self._max_tokens = max_tokens
        self._length = 0
        self._live = [_Beam(np.float32(0))]
        self._finished: list[Hypothesis] = []
        self._is_done = False

    @property
    def num_candidates(self) -> int:
        """K: of each beam, as many of its likeliest tokens are needed (or all, if there are fewer).

        Even if all stop tokens are among the best for every beam, ``width`` others remain to go on.
        """
        return max(2, 1 + len(self._stop_ids)) * self._params.width

    @property
    def num_live(self) -> int:
        """B: beams that want their next tokens."""
        return 0 if self._is_done else len(self._live)

    @property
    def hypotheses(self) -> list[Hypothesis]:
        """What has finished so far: at most ``width``, best first, of equals the one that finished first."""
        return list(self._finished)

    def advance(self, token_ids: IntArray, logprobs: FloatArray) -> BeamStep:
        """Choose among the next tokens of all live beams.

        Args:
            token_ids: [B, K] likely next tokens of each live beam, no token twice for a beam, in any order.
            logprobs: float32 [B, K] of these given their beam; -inf for a token that must not come.

        Raises:
            ValueError: arrays of the wrong shape or dtype, or the search is over.
        """
        if self._is_done:
            raise ValueError("the search is over")
        if (
            token_ids.shape != logprobs.shape
            or len(logprobs) != len(self._live)
            or logprobs.dtype != np.float32
        ):
            raise ValueError(
                f"need ids and float32 logprobs of {len(self._live)} beams, "
                f"not {list(token_ids.shape)} and {logprobs.dtype} {list(logprobs.shape)}"
            )
        self._length += 1
        live: list[_Beam] = []
        parents: list[int] = []
        finished: list[Hypothesis] = []
        for rank, (parent, beam) in enumerate(self._ranked(token_ids, logprobs)):
            stops = beam.token_id in self._stop_ids
            if stops or self._length == self._max_tokens:
                # Lower ranks are there to go on in place of these, not to be finished themselves.
                if rank < self._params.width:
                    finished.append(self._finish(beam, "stop" if stops else "length"))
            elif len(live) < self._params.width:
                live.append(beam)
                parents.append(parent)
        # A stable sort: of equals, the earlier one stays in front.
        ranked = sorted([*self._finished, *finished], key=lambda hypothesis: -hypothesis.score)
        self._finished = ranked[: self._params.width]
        self._live = live
        self._is_done = not live or not self._may_improve()
        return BeamStep(
            parents, [b.token_id for b in live], [float(b.logprob) for b in live], is_done=self._is_done
        )

    def _ranked(self, token_ids: IntArray, logprobs: FloatArray) -> list[tuple[int, _Beam]]:
        """The best K continuations of all beams together; of equals, the lower beam and token id first."""
        sums = logprobs + np.array([beam.logprob for beam in self._live], np.float32)[:, None]
        parents = np.repeat(np.arange(len(sums)), sums.shape[1])
        ids, sums = token_ids.ravel(), sums.ravel()
        order = np.lexsort((ids, parents, -sums))[: self.num_candidates]
        order = order[sums[order] > -np.inf]
        return [
            (int(parents[i]), _Beam(sums[i], int(ids[i]), self._live[parents[i]])) for i in order.tolist()
        ]

    def _finish(self, beam: _Beam, reason: Literal["stop", "length"]) -> Hypothesis:
        score = float(beam.logprob / self._penalty(self._length))
        return Hypothesis(beam.token_ids(), float(beam.logprob), score, reason)

    def _penalty(self, length: int) -> np.float32:
        return np.float32(float(length) ** self._params.length_penalty)

    def _may_improve(self) -> bool:
        if len(self._finished) < self._params.width:
            return True
        early, penalty = self._params.early_stopping, self._params.length_penalty
        if early is True:
            return False
        length = self._max_tokens if early == "never" and penalty > 0 else self._length
        return bool(float(self._live[0].logprob / self._penalty(length)) > self._finished[-1].score)
