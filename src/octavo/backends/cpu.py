"""The native backend: kernels in C++; a forward pass is recorded once and replayed with one call per step."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from octavo import _native
from octavo.attention.plan import StepInputs
from octavo.backends.base import AttentionShape, FloatArray, Ops
from octavo.backends.recorder import Embedding, Linear, Recorder, Value, Vector, Weight, assign_buffers, fuse
from octavo.core.config import Activations
from octavo.core.errors import InvalidConfig, shown
from octavo.storage.arena import Arena
from octavo.weights.encoding import dequantize
from octavo.weights.tensor import WeightTensor


class Program:
    """A compiled forward pass: one native call per step.

    Attributes:
        largest: as in ``base.Program``; empty if the result has a row for each token.
    """

    def __init__(self, tape: _native.Tape, width: int, selected: bool) -> None:
        self.largest: list[int] = []
        self._tape = tape
        self._selected = selected
        self._output: FloatArray = np.empty((0, width), np.float32)

    @property
    def op_names(self) -> list[str]:
        """Operations of the forward pass as they run; those that run as one are joined by a plus sign."""
        return self._tape.op_names()

    def __call__(self, step: StepInputs, op_seconds: npt.NDArray[np.float64] | None = None) -> FloatArray:
        """Float32 [S, width], a view of memory that the next call reuses.

        Args:
            op_seconds: float64, receives how long each of ``op_names`` took; None takes no times.

        Raises:
            ValueError: an array of ``step`` has a wrong shape, dtype or value; nothing has been computed.
        """
        num_rows = len(step.logit_tokens if self._selected else step.token_ids)
        if num_rows > len(self._output):
            size = max(num_rows, 2 * len(self._output))
            self._output = np.empty((size, self._output.shape[1]), np.float32)
        output = self._output[:num_rows]
        self.largest = self._tape.run(
            step.token_ids,
            step.positions,
            step.rows,
            step.query_start,
            step.context_len,
            step.logit_tokens,
            step.block_tables,
            output,
            op_seconds,
        )
        return output


class CpuBackend:
    """Native kernels on one team of threads.

    Args:
        threads: workers of the team, or None for the cores this process may use.
        activations: "int8" quantizes the input of int4 and int8 layers per 32 values, "float32" does not.
            "auto" does, and rounds the input of bfloat16 layers to bfloat16 where the instruction set
            multiplies pairs of them (those named ``*_bf16``).
        isa: instruction set of the kernels, one of ``_native.available_isas()``, or None for the best one
            (or what OCTAVO_ISA in the environment names).

    Attributes:
        team: the threads.

    Raises:
        InvalidConfig: no such instruction set, less than one thread, or more than 16 and more than 4 for each
            usable core.
    """

    def __init__(
        self, threads: int | None = None, activations: Activations = "auto", *, isa: str | None = None
    ) -> None:
        try:
            self.isa = _native.isa() if isa is None else isa
        except ValueError as error:
            raise InvalidConfig(str(error)) from error
        if self.isa not in _native.available_isas():
            raise InvalidConfig(f"isa={isa!r}: choose one of {', '.join(_native.available_isas())}")
        cores = _native.usable_cores()
        self.threads = cores if threads is None else threads
        limit = max(16, 4 * cores)
        if not 1 <= self.threads <= limit:
            raise InvalidConfig(
                f"threads={shown(threads)}: must be from 1 to {limit}; {cores} cores are usable here"
            )
        self._activations = activations
        self.team = _native.Team(self.threads)
        self._memory = _native.WeightMemory()

    def load_linear(self, weights: Sequence[WeightTensor], biases: Sequence[WeightTensor] = ()) -> Weight:
        """Pack one layer whose outputs are those of ``weights``, one after the other; copies them."""
        if biases and len(biases) != len(weights):
            raise ValueError(f"{len(biases)} biases for {len(weights)} weights: give one for each, or none")
        packed = _native.pack_linear(
            self.team,
            self._memory,
            [
                (w.encoding, w.data, w.shape[1], _as_vector(biases[i]) if biases else None)
                for i, w in enumerate(weights)
            ],
        )
        return Linear(packed, quantize_input=quantizes_input(self._activations, all_bf16=packed.all_bf16))

    def load_embedding(self, table: WeightTensor) -> Weight:
        """Refer to the table's own bytes."""
        return Embedding(_native.Embedding(table.encoding, table.data, table.shape[1]), table.shape[1])

    def load_vector(self, vector: WeightTensor) -> Weight:
        """The vector as float32."""
        return Vector(_as_vector(vector))

    def compile(
        self,
        forward: Callable[[Ops[Value, Weight]], Value],
        *,
        arena: Arena,
        attention: AttentionShape,
        max_tokens: int,
    ) -> Program:
        """Record ``forward`` once; the program returned replays it for steps of up to ``max_tokens`` tokens.

        If ``forward`` ends without ``select``, the result has a row for each token.
        """
        layout = arena.layout
        recorder = Recorder(q_width=attention.num_heads * layout.head_dim)
        result = forward(recorder)
        records = fuse(recorder.records)
        plan = assign_buffers(records, result)
        windows = attention.windows or (None,) * len(layout.layers)
        cache = _native.Cache(
            arena.data,
            layout.dtype,
            attention.num_heads,
            layout.num_kv_heads,
            layout.head_dim,
            layout.num_tables,
            np.ascontiguousarray(attention.cos, np.float32),
            np.ascontiguousarray(attention.sin, np.float32),
            [
                (
                    layer.block_size,
                    window or 0,
                    [(tile.table, tile.offset) for tile in layer.k_tiles],
                    [(tile.table, tile.offset) for tile in layer.v_tiles],
                )
                for layer, window in zip(layout.layers, windows, strict=True)
            ],
        )
        tape = _native.Tape(self.team, self.isa, max_tokens, plan.widths, cache)

        def placed(value: Value) -> _native.Value:
            return _native.Value(plan.buffer_of[value], value.width, value.selected)

        for record in records:
            record.emit(tape, [placed(v) for v in record.inputs], placed(record.output))
        return Program(tape, result.width, result.selected)


def quantizes_input(activations: Activations, *, all_bf16: bool) -> bool:
    """Whether a layer has its input in fewer bits, if its encoding has kernels for that."""
    return not (activations == "float32" or (activations == "int8" and all_bf16))


def _as_vector(tensor: WeightTensor) -> FloatArray:
    """The values of a vector as float32, without a copy where they are that already."""
    return np.ascontiguousarray(dequantize(tensor), np.float32).reshape(-1)
