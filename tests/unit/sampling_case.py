"""Rows to sample from, and the definition of every filter, slowly and in float64."""

from collections.abc import Sequence

import numpy as np

from octavo.backends.oracle import largest
from octavo.core.sampling import SamplingParams
from octavo.engine.sampling import sampler
from octavo.engine.sampling.state import SamplingState
from octavo.scheduling.step import StepResult


class Letters:
    """A vocabulary from a list of texts; those in angle brackets are special tokens."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = [text.encode() for text in texts]

    def token_bytes(self, token_id: int) -> bytes:
        return self.texts[token_id] if token_id < len(self.texts) else b""

    def visible_bytes(self, token_id: int) -> bytes:
        data = self.token_bytes(token_id)
        return b"" if data.startswith(b"<") else data


def sample(
    logits: np.ndarray, rows: Sequence[int], positions: Sequence[int], state: SamplingState, **options: object
) -> StepResult:
    """The sampler, told of the largest logits by the reference."""
    return sampler.sample(logits, largest(logits), rows, positions, state, **options)  # type: ignore[arg-type]


def state_for(
    *params: SamplingParams,
    vocab_size: int = 2000,
    seeds: Sequence[int] | None = None,
    sample_indices: Sequence[int] | None = None,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    eos: Sequence[int] = (),
    tokenizer: Letters | None = None,
) -> SamplingState:
    """Row i has ``params[i]``, and seed i unless given; all rows have the same tokens."""
    state = SamplingState(max(1, len(params)), vocab_size=vocab_size, eos_token_ids=eos, tokenizer=tokenizer)
    for row, one in enumerate(params):
        state.open(
            row,
            one,
            seed=row if seeds is None else seeds[row],
            sample_index=0 if sample_indices is None else sample_indices[row],
            prompt_token_ids=prompt,
            output_token_ids=output,
        )
    return state


def pick(
    logits: np.ndarray, params: SamplingParams, *, position: int = 0, seed: int = 7, **settings: object
) -> int:
    """One token from one row of logits [V]."""
    state = state_for(params, vocab_size=len(logits), seeds=[seed], **settings)  # type: ignore[arg-type]
    result = sample(logits[None], np.zeros(1, np.int32), np.array([position], np.int32), state)
    assert not result.failures
    return result.token_ids[0]


def draw_many(logits: np.ndarray, params: SamplingParams, count: int, seed: int = 7) -> np.ndarray:
    """Tokens of as many rows with one seed, at positions 0, 1, ..., each from the same logits [V]."""
    state = state_for(*[params] * count, vocab_size=len(logits), seeds=[seed] * count)
    rows = np.arange(count)
    result = sample(logits[None], rows, rows, state, sources=np.zeros(count, np.int32))
    assert not result.failures
    return np.array(result.token_ids)


def reference(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Probabilities by the definition of each filter: sets of tokens, float64."""
    ids = sorted(range(len(logits)), key=lambda t: (-logits[t], t))
    p = np.exp((logits.astype(np.float64) - logits.max()) / params.temperature)
    if params.top_k:
        ids = ids[: params.top_k]
    if params.top_p < 1:
        ids = smallest_set(ids, p, params.top_p)
    ids = [t for t in ids if p[t] >= params.min_p * p.max()]
    if params.typical_p < 1:
        ids = [t for t in ids if p[t]]
        q = p / p[ids].sum()
        entropy = -sum(q[t] * np.log(q[t]) for t in ids)
        ids = smallest_set(sorted(ids, key=lambda t: abs(-np.log(q[t]) - entropy)), p, params.typical_p)
    result = np.zeros(len(logits))
    result[ids] = p[ids] / p[ids].sum()
    return result


def smallest_set(ids: list[int], p: np.ndarray, fraction: float) -> list[int]:
    """The first ids whose probability reaches a fraction of that of all of them."""
    total, mass, kept = sum(p[t] for t in ids), 0.0, []
    for token in ids:
        if mass >= fraction * total:
            break
        kept.append(token)
        mass += p[token]
    return kept
