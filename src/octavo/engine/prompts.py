"""What callers give as prompts and parameters, brought into one form."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import index
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from octavo.core.errors import InvalidRequest, shown
from octavo.core.sampling import SamplingParams

Prompt = str | Sequence[int] | npt.NDArray[np.integer[Any]]


@contextmanager
def naming_prompt(position: int) -> Iterator[None]:
    """Say in a refusal which of several prompts it is about."""
    try:
        yield
    except InvalidRequest as error:
        raise InvalidRequest(f"prompt {position}: {error}", param=error.param) from None


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A single prompt as a list of one; told apart by whether the first element is a number."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, np.ndarray):
        prompts = cast(Sequence[Prompt], prompts.tolist())
    if not isinstance(prompts, Sequence):
        raise InvalidRequest(
            f"prompts must be a text, a list of token ids, or a list of those, not {type(prompts).__name__}",
            param="prompt",
        )
    if not prompts:
        raise InvalidRequest("there are no prompts: the list is empty", param="prompt")
    if isinstance(prompts[0], (str, Sequence, np.ndarray)):
        return list(cast(Sequence[Prompt], prompts))
    return [cast(Sequence[int], prompts)]


def as_token_ids(prompt: Sequence[int] | npt.NDArray[np.integer[Any]]) -> list[int]:
    """The ids as Python integers, or a refusal that names what is none."""
    if isinstance(prompt, np.ndarray):
        prompt = cast(Sequence[int], prompt.tolist())
    if not isinstance(prompt, Sequence) or isinstance(prompt, (bytes, bytearray, memoryview)):
        raise InvalidRequest(
            f"a prompt must be a text or a list of token ids, not {type(prompt).__name__}", param="prompt"
        )
    try:
        if bool in set(map(type, prompt)):
            raise TypeError
        return list(map(index, prompt))
    except TypeError:
        bad = next(t for t in prompt if isinstance(t, bool) or not hasattr(t, "__index__"))
        raise InvalidRequest(
            f"a token id must be an integer, not {shown(bad)} ({type(bad).__name__})", param="prompt"
        ) from None


def per_prompt(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> Sequence[SamplingParams]:
    """The parameters of each of ``count`` prompts."""
    if params is None:
        return [SamplingParams()] * count
    if isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, Sequence) or len(params) != count:
        given = len(params) if isinstance(params, Sequence) else type(params).__name__
        raise InvalidRequest(
            f"sampling_params must be one SamplingParams or one per prompt: {count} prompts, {given} given",
            param="sampling_params",
        )
    return params
