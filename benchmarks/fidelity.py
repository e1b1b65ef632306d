"""How far quantized activations and a bfloat16 KV cache move the model's predictions.

Runs the CPU backend over windows of English and Python text that comes with Python and with this repository,
and compares every position's distribution over the vocabulary with that of the full precision path (float32
activations, float32 KV; the weights are the file's own in both). Prints a table, then JSON.

    python benchmarks/fidelity.py [--model smollm2] [--positions 4096] [--window 512]

Quantities, per position, with p of the full precision path and q of the path in question:
    KL          sum p (log p - log q) in nats
    top-1       whether both rank the same token first
    perplexity  exp of the mean of -log q(next token of the text)
"""

import argparse
import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import numpy.typing as npt

from octavo.attention.plan import StepInputs
from octavo.backends.cpu import CpuBackend
from octavo.models.decoder import Decoder
from octavo.models.loading import LoadedModel, load_model
from octavo.storage.arena import Arena
from octavo.storage.layout import KVLayout, StorageDtype
from octavo.text.loading import load_text
from octavo.weights.sources import resolve

FloatArray = npt.NDArray[np.float64]
BLOCK_SIZE = 16
REPOSITORY = Path(__file__).parents[1]
FULL = ("float32", "float32")
PATHS: tuple[tuple[str, StorageDtype], ...] = (
    ("auto", "bfloat16"),  # the default
    ("auto", "float32"),
    ("float32", "bfloat16"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="name, path or repository of the model")
    parser.add_argument("--positions", type=int, default=4096, help="positions to compare, at least")
    parser.add_argument("--window", type=int, default=512, help="tokens of each piece of text")
    arguments = parser.parse_args()

    model = load_model(resolve(arguments.model))
    windows = text_windows(model, arguments.positions, arguments.window)
    full = program(model, *FULL, arguments.window)
    others = {path: program(model, *path, arguments.window) for path in PATHS}
    measured: dict[tuple[str, str], list[FloatArray]] = {path: [] for path in (FULL, *PATHS)}
    for number, tokens in enumerate(windows):
        print(f"\rwindow {number + 1} of {len(windows)}", end="", file=sys.stderr, flush=True)
        p = full(tokens)
        measured[FULL].append(compare(p, p, tokens))
        for path, run in others.items():
            measured[path].append(compare(p, run(tokens), tokens))
    print(file=sys.stderr)
    report(arguments.model, windows, {path: np.concatenate(m) for path, m in measured.items()})


def text_windows(model: LoadedModel, num_positions: int, window: int) -> list[list[int]]:
    """Cut the text in windows of equal length, as many as give the positions asked for."""
    prose = [path.read_text() for path in sorted(REPOSITORY.glob("docs/*.md"))]
    text = "\n\n".join([*(topics[name] for name in sorted(topics)), *prose])
    tokenizer, _ = load_text(model.checkpoint)
    tokens = tokenizer.encode(text, add_bos=False, parse_special=False)
    available = len(tokens) // window
    wanted = -(-num_positions // window)
    if wanted > available:
        raise SystemExit(f"--positions {num_positions}: the text has only {available * window}")
    # Spread over the text, so that many subjects are seen.
    starts = np.linspace(0, available - 1, wanted).astype(int) * window
    return [tokens[start : start + window] for start in starts]


def program(
    model: LoadedModel, activations: str, kv_dtype: StorageDtype, window: int
) -> Callable[[list[int]], FloatArray]:
    """A function from one window's tokens to the log-probabilities after each, float64 [n, vocab]."""
    spec, backend = model.spec, CpuBackend(activations=activations)
    decoder = Decoder(spec, model.weights, backend)
    layout = KVLayout.uniform(
        num_layers=spec.num_layers,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        block_size=BLOCK_SIZE,
        dtype=kv_dtype,
    )
    num_blocks = -(-window // BLOCK_SIZE)
    run = backend.compile(
        decoder.forward,
        arena=Arena(layout, num_blocks + 1),
        attention=decoder.attention_shape(window),
        max_tokens=window,
    )
    table = np.arange(1, num_blocks + 1, dtype=np.int32)[None]

    def log_probabilities(tokens: list[int]) -> FloatArray:
        step = StepInputs.build([(0, 0, tokens, True)], (table,))
        step = step._replace(logit_tokens=np.arange(len(tokens), dtype=np.int32))
        logits = run(step).astype(np.float64)
        logits -= logits.max(axis=-1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        return logits

    return log_probabilities


def compare(p: FloatArray, q: FloatArray, tokens: list[int]) -> FloatArray:
    """Per position with a next token: KL, same first rank, -log q(next token); [n - 1, 3]."""
    p, q = p[:-1], q[:-1]
    kl = (np.exp(p) * (p - q)).sum(axis=-1)
    same = p.argmax(axis=-1) == q.argmax(axis=-1)
    loss = -q[np.arange(len(q)), tokens[1:]]
    return np.stack([kl, same, loss], axis=-1)


def report(model: str, windows: list[list[int]], measured: dict[tuple[str, str], FloatArray]) -> None:
    """Print the table and the JSON object."""
    rows = [summary(*path, values) for path, values in measured.items()]
    print("activations  KV          mean KL  median KL    99 % KL    top-1  perplexity")
    for row in rows:
        numbers = "{mean_kl:10.6f} {median_kl:10.6f} {p99_kl:10.6f} {top1_agreement:8.2%} {perplexity:11.4f}"
        print(("{activations:12} {kv_dtype:8} " + numbers).format(**row))
    positions = len(next(iter(measured.values())))
    result = {
        "model": model,
        "text": f"Python {platform.python_version()} help topics, docs/*.md",
        "positions": positions,
        "window": len(windows[0]),
        "paths": rows,
    }
    print(json.dumps(result, indent=2))


def summary(activations: str, kv_dtype: str, values: FloatArray) -> dict[str, str | float]:
    kl, same, loss = values.T
    return {
        "activations": activations,
        "kv_dtype": kv_dtype,
        "mean_kl": float(kl.mean()),
        "median_kl": float(np.median(kl)),
        "p99_kl": float(np.quantile(kl, 0.99)),
        "top1_agreement": float(same.mean()),
        "perplexity": float(np.exp(loss.mean())),
    }


if __name__ == "__main__":
    main()
