"""Steps to measure: sequences that decode together, or chunks of prompts, one after the other."""

from typing import Protocol

import numpy as np

from octavo.core.errors import InvalidConfig
from octavo.core.sampling import SamplingParams
from octavo.engine.build import BuiltEngine
from octavo.engine.generation import Generation

_WARM_STEPS = 4
_MIN_STEP_TOKENS = 256


class StepKind(Protocol):
    """Brings the engine to where its next step is one to measure."""

    def prepare(self) -> None:
        """Do whatever must come before the next step to measure."""
        ...


class Decode:
    """``batch`` sequences of random tokens, one new token each per step. The budget is at least 512 a step.

    Args:
        context_len: tokens of each in the middle of the steps.
        num_steps: steps of which that is the middle.
        more_steps: steps that may come after.

    Raises:
        InvalidConfig: the sequences would outgrow the context.
    """

    def __init__(
        self, built: BuiltEngine, *, batch: int, context_len: int, num_steps: int, more_steps: int = 0
    ) -> None:
        prompt_len = max(1, context_len - _WARM_STEPS - num_steps // 2)
        # The first sequences decode while the prompts of the last are still read.
        num_tokens = _WARM_STEPS + num_steps + more_steps + batch * prompt_len // _MIN_STEP_TOKENS + 2
        generations = [_submit(built, _rng(i), prompt_len, num_tokens) for i in range(batch)]
        while min(g.request.num_output_tokens for g in generations) == 0:
            built.engine.step()
        for _ in range(_WARM_STEPS):
            built.engine.step()

    def prepare(self) -> None:
        """Nothing: every step is like the last."""


class Prefill:
    """The last ``chunk_len`` tokens of a new prompt each time, after ``context_len`` computed before.

    The engine's step budget must be ``chunk_len``. ``context_len`` is rounded up to a multiple of it.

    Raises:
        InvalidConfig: the prompt would be longer than the context.
    """

    def __init__(self, built: BuiltEngine, *, chunk_len: int, context_len: int) -> None:
        self._built = built
        self._prompt_len = -(-context_len // chunk_len) * chunk_len + chunk_len
        self._chunk_len = chunk_len
        self._num_prompts = 0

    def prepare(self) -> None:
        """Compute a prompt but for its last chunk."""
        generation = _submit(self._built, _rng(self._num_prompts), self._prompt_len, 1)
        self._num_prompts += 1
        while generation.request.num_computed < self._prompt_len - self._chunk_len:
            self._built.engine.step()


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def _submit(built: BuiltEngine, rng: np.random.Generator, prompt_len: int, num_tokens: int) -> Generation:
    limit = built.capacity.context_len
    if prompt_len + num_tokens > limit:
        raise InvalidConfig(
            f"{prompt_len} + {num_tokens} tokens: the context has {limit} ({built.capacity.context_reason})"
        )
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    generation = built.engine.prepare(rng.integers(0, built.spec.vocab_size, prompt_len).tolist(), params)
    built.engine.submit(generation)
    return generation
