"""Linear layers, with their weights read from beyond the caches, as in a model that does not fit them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.backends.cpu import CpuBackend, Program
from octavo.backends.recorder import Recorder, Value, Weight
from octavo.bench.parts.kernel_case import (
    F32,
    F64,
    Case,
    ModelSize,
    Rotation,
    compile_ops,
    plain_step,
    relative_error,
)
from octavo.bench.parts.op_counts import CountingLoader
from octavo.bench.parts.random_weights import random_weight
from octavo.engine.machine import available_memory
from octavo.weights.encoding import dequantize
from octavo.weights.tensor import BLOCK_OF, Encoding, WeightTensor

ENCODINGS: tuple[Encoding, ...] = ("Q4_0", "Q4_1", "Q4_K", "Q8_0", "BF16", "F32")
ROWS = (1, 4, 16, 64, 256, 1024)

_RUN_S = 4e-3  # of one run, about, at these rough rates:
_BYTES_PER_S = 2e10
_OPERATIONS_PER_S = {"int8": 6e11, "bfloat16": 1e11, "float32": 1e11}
_MAX_OPS = 512
_MAX_TURNS = 16
_MAX_BUFFER_BYTES = 64 << 20
_MAX_LM_HEAD_ROWS = 64  # logits of a step are of a token per sequence
_CHECKED_ROWS, _CHECKED_OUTPUTS = 8, 96
_TOLERANCES = {"int8": 0.02, "bfloat16": 0.005, "float32": 1e-5}  # of inputs that may be rounded to these


def linear_cases(
    backend: CpuBackend,
    models: Sequence[ModelSize],
    *,
    encodings: Sequence[Encoding] = ENCODINGS,
    rows: Sequence[int] = ROWS,
    layers: Sequence[str] | None = None,
    working_set: int,
) -> Iterator[Case]:
    """Every layer of the models at each number of rows, in each encoding whose blocks fill its inputs.

    Args:
        layers: names of the layers, or None for all.
        working_set: bytes of weights that are gone round, as copies of the layer.
    """
    rng = np.random.default_rng(0)
    for model in models:
        for label, (num_outputs, num_inputs) in model.linears.items():
            for encoding in encodings:
                if (layers is not None and label not in layers) or num_inputs % BLOCK_OF[encoding][0]:
                    continue
                tensor = random_weight(rng, encoding, num_outputs, num_inputs)
                if 2 * max(working_set, tensor.num_bytes) > available_memory():
                    continue
                copies = max(1, -(-working_set // tensor.num_bytes))
                handles = [backend.load_linear([tensor]) for _ in range(copies)]
                layer = _Layer(model, label, tensor, handles)
                for num_rows in rows:
                    if label != "lm_head" or num_rows <= _MAX_LM_HEAD_ROWS:
                        yield _case(backend, layer, rng.standard_normal((num_rows, num_inputs), np.float32))


@dataclass(frozen=True, slots=True)
class _Layer:
    """A linear layer and its copies."""

    model: ModelSize
    label: str
    tensor: WeightTensor
    handles: Sequence[Weight]


def _case(backend: CpuBackend, layer: _Layer, x: F32) -> Case:
    model, tensor, handles = layer.model, layer.tensor, layer.handles
    num_rows, (num_outputs, num_inputs) = len(x), tensor.shape
    size = CountingLoader().load_linear([tensor])
    operations = 2 * num_rows * num_outputs * num_inputs
    estimate_s = max(size.num_bytes / _BYTES_PER_S, operations / _OPERATIONS_PER_S[size.arithmetic])
    num_ops = max(1, min(int(_RUN_S / estimate_s), len(handles), _MAX_OPS))
    buffer_bytes = num_rows * (num_inputs + num_outputs) * 4
    num_turns = max(1, min(_MAX_TURNS, len(handles) // num_ops, _MAX_BUFFER_BYTES // buffer_bytes))
    step = plain_step(num_rows)
    rotation = Rotation(
        [
            (_program(backend, x, handles[turn * num_ops : (turn + 1) * num_ops]), step)
            for turn in range(num_turns)
        ]
    )
    rotation.warm_up()
    return Case(
        kernel="linear",
        name=f"{model.name} {layer.label} {num_outputs} x {num_inputs} {tensor.encoding}, {num_rows} rows",
        parameters={
            "model": model.name,
            "layer": layer.label,
            "outputs": num_outputs,
            "inputs": num_inputs,
            "encoding": tensor.encoding,
            "rows": num_rows,
        },
        check=lambda: _error(_program(backend, x, handles[:1])(step), x, tensor),
        tolerance=_TOLERANCES[size.arithmetic],
        run=rotation.run,
        working_set=num_turns * num_ops * size.num_bytes,
        streamed_bytes=size.num_bytes,
        activation_bytes=buffer_bytes,
        operations=operations,
        arithmetic=size.arithmetic,
    )


def _program(backend: CpuBackend, x: F32, handles: Sequence[Weight]) -> Program:
    def body(ops: Recorder, value: Value) -> Value:
        return [ops.linear(value, handle) for handle in handles][-1]

    return compile_ops(backend, x, body)


def _error(got: F32, x: F32, tensor: WeightTensor) -> float:
    """Against float64, at some rows and outputs, the first and the last among them."""
    rows = np.unique(np.linspace(0, len(x) - 1, _CHECKED_ROWS, dtype=int))
    outputs = np.unique(np.linspace(0, tensor.shape[0] - 1, _CHECKED_OUTPUTS, dtype=int))
    part = WeightTensor("w", tensor.encoding, (len(outputs), tensor.shape[1]), tensor.data[outputs])
    expected: F64 = x[rows].astype(np.float64) @ dequantize(part).astype(np.float64).T
    return relative_error(got[np.ix_(rows, outputs)], expected)
