"""What the sampler keeps per row between steps. Legend: R rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo.core.sampling import SamplingParams
from octavo.engine.sampling.adjustments import Adjustments
from octavo.engine.sampling.bad_words import TokenBytes, Vocabulary
from octavo.engine.sampling.filters import Filters
from octavo.engine.sampling.random_numbers import stream_of


class SamplingState:
    """Settings of permanent rows, from ``open`` to ``close``.

    A row whose settings ask for nothing but the most likely token leaves no trace: all that a step looks at
    is ``special``.

    Args:
        num_rows: R.
        vocab_size: tokens with a logit; ids of parameters are checked against it.
        eos_token_ids: the model's own stop tokens, for min_tokens.
        tokenizer: for bad_words that are texts.

    Attributes:
        special: the rows for which more is to be done than to find the largest logit.
        filters: temperature and filters by row; no entry means greedy.
        streams: of the random numbers of those rows.
        adjustments: bias, penalties and bans by row, for those that have any.
        num_logprobs: by row, for those whose log-probabilities are wanted.
        faults: why a row's settings could not be taken, by row.
    """

    def __init__(
        self,
        num_rows: int,
        *,
        vocab_size: int,
        eos_token_ids: Sequence[int] = (),
        tokenizer: TokenBytes | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.special: set[int] = set()
        self.filters: dict[int, Filters] = {}
        self.streams: dict[int, int] = {}
        self.adjustments: dict[int, Adjustments] = {}
        self.num_logprobs: dict[int, int] = {}
        self.faults: dict[int, str] = {}
        self._eos_token_ids = tuple(eos_token_ids)
        self._vocabulary = None if tokenizer is None else Vocabulary(tokenizer, vocab_size)

    def open(
        self,
        row: int,
        params: SamplingParams,
        *,
        seed: int,
        sample_index: int = 0,
        prompt_token_ids: Sequence[int] = (),
        output_token_ids: Sequence[int] = (),
    ) -> None:
        """Take a row's settings. If that fails, ``sample`` fails this row alone.

        Args:
            seed: from 0 to 2**64 - 1.
            sample_index: which of the samples of one prompt and seed this row is.
            prompt_token_ids: the prompt.
            output_token_ids: what was generated already, when a preempted request comes back.
        """
        self.close(row)
        try:
            self._check_vocabulary(params)
            if np.float32(params.temperature) > 0:  # what is too small for a float32 is 0
                self.filters[row] = Filters(
                    params.temperature, params.top_k, params.top_p, params.min_p, params.typical_p
                )
                self.streams[row] = stream_of(seed, sample_index)
            if params.num_logprobs is not None:
                self.num_logprobs[row] = params.num_logprobs
            if Adjustments.wanted(params):
                eos = () if params.ignore_eos else self._eos_token_ids
                self.adjustments[row] = Adjustments(
                    params,
                    stop_ids={*eos, *(params.stop_token_ids or ())},
                    vocabulary=self._vocabulary,
                    prompt_token_ids=prompt_token_ids,
                    output_token_ids=output_token_ids,
                )
        except Exception as error:  # one request's settings are no other request's trouble
            self.faults[row] = f"its sampling parameters could not be used: {error!r}"
        if any(row in settings for settings in self._by_row):
            self.special.add(row)

    def close(self, row: int) -> None:
        """Forget a row."""
        if row in self.special:
            self.special.remove(row)
            for settings in self._by_row:
                settings.pop(row, None)

    def accept(self, row: int, token_id: int) -> None:
        """Let a row's penalties and bad words know its next token."""
        if row in self.adjustments:
            self.adjustments[row].accept(token_id)

    @property
    def _by_row(self) -> tuple[dict[int, Any], ...]:
        return self.filters, self.streams, self.adjustments, self.num_logprobs, self.faults

    def _check_vocabulary(self, params: SamplingParams) -> None:
        for name, ids in params.token_ids_by_name().items():
            if max(ids) >= self.vocab_size:
                raise ValueError(f"{name}: token id {max(ids)} is outside the vocabulary")
