"""The native backend: kernels in C++, a model's operations recorded once and replayed with one call per step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from octavo import _native
from octavo.attention.plan import StepInputs
from octavo.backends.base import AttentionShape, FloatArray, Ops
from octavo.core.config import Activations
from octavo.core.errors import InvalidConfig, UnsupportedModel
from octavo.storage.arena import Arena
from octavo.weights.tensor import BLOCK_OF, WeightTensor

OUTPUT = -1  # in place of a buffer's number: the array that the step returns


@dataclass(frozen=True, slots=True)
class Linear:
    """A packed linear layer, and whether it quantizes its input."""

    packed: _native.PackedLinear
    quantize_input: bool


@dataclass(frozen=True, slots=True)
class Embedding:
    """An embedding table, read row by row as the file holds it."""

    native: _native.Embedding
    width: int


@dataclass(frozen=True, slots=True)
class Vector:
    """A norm's weight."""

    values: FloatArray


Weight = Linear | Embedding | Vector


@dataclass(eq=False, slots=True)
class Value:
    """An activation matrix of the recorded program: what it is now, where it will lie later."""

    width: int
    selected: bool = False  # a row per wanted logit, not per token


@dataclass(frozen=True, slots=True)
class Record:
    """One recorded operation.

    Attributes:
        emit: adds it to a tape, given where its inputs and its output lie.
        overwrites: index in ``inputs`` of a value that the output may take the place of, or None.
    """

    emit: Callable[[_native.Tape, list[_native.Value], _native.Value], None]
    inputs: tuple[Value, ...]
    output: Value
    overwrites: int | None = None


@dataclass(slots=True)
class Recorder:
    """The operations on symbolic values: each call appends a record."""

    attention: AttentionShape
    num_kv_heads: int
    head_dim: int
    records: list[Record] = field(default_factory=list)

    def embed(self, table: Weight) -> Value:
        assert isinstance(table, Embedding)
        return self._record(lambda tape, _, out: tape.embed(table.native, out), (), Value(table.width))

    def rms_norm(self, x: Value, weight: Weight, eps: float) -> Value:
        assert isinstance(weight, Vector)
        return self._record(
            lambda tape, inputs, out: tape.rms_norm(inputs[0], weight.values, eps, out),
            (x,),
            Value(x.width, x.selected),
            overwrites=0,
        )

    def head_norm(self, qkv: Value, first_head: int, num_heads: int, weight: Weight, eps: float) -> Value:
        assert isinstance(weight, Vector)
        return self._record(
            lambda tape, inputs, out: tape.head_norm(
                inputs[0], first_head, num_heads, weight.values, eps, out
            ),
            (qkv,),
            Value(qkv.width, qkv.selected),
            overwrites=0,
        )

    def linear(self, x: Value, weight: Weight, residual: Value | None = None) -> Value:
        assert isinstance(weight, Linear)
        return self._record(
            lambda tape, inputs, out: tape.linear(
                inputs[0], weight.packed, weight.quantize_input, inputs[1] if residual else None, out
            ),
            (x,) if residual is None else (x, residual),
            Value(weight.packed.num_outputs, x.selected),
            overwrites=None if residual is None else 1,
        )

    def rope_and_write(self, qkv: Value, layer: int) -> Value:
        width = self.attention.num_heads * self.head_dim
        return self._record(
            lambda tape, inputs, out: tape.rope_and_write(inputs[0], layer, out), (qkv,), Value(width)
        )

    def paged_attention(self, q: Value, layer: int) -> Value:
        return self._record(
            lambda tape, inputs, out: tape.paged_attention(inputs[0], layer, out), (q,), Value(q.width)
        )

    def silu_mul(self, gate_up: Value) -> Value:
        return self._record(
            lambda tape, inputs, out: tape.silu_mul(inputs[0], out),
            (gate_up,),
            Value(gate_up.width // 2, gate_up.selected),
        )

    def select(self, x: Value) -> Value:
        return self._record(
            lambda tape, inputs, out: tape.select(inputs[0], out), (x,), Value(x.width, selected=True)
        )

    def _record(
        self,
        emit: Callable[[_native.Tape, list[_native.Value], _native.Value], None],
        inputs: tuple[Value, ...],
        output: Value,
        overwrites: int | None = None,
    ) -> Value:
        self.records.append(Record(emit, inputs, output, overwrites))
        return output


@dataclass(frozen=True, slots=True)
class BufferPlan:
    """Where each value lies: buffers are reused once the last reader of their value is done."""

    widths: list[int]
    place: dict[Value, int]


def assign_buffers(records: Sequence[Record], result: Value) -> BufferPlan:
    """Give every value but ``result`` a buffer; a value's buffer is free again after its last use."""
    last_use: dict[Value, int] = {}
    for index, record in enumerate(records):
        for value in (*record.inputs, record.output):
            last_use[value] = index
    widths: list[int] = []
    place: dict[Value, int] = {result: OUTPUT}
    free: list[int] = []
    for index, record in enumerate(records):
        dying = [v for v in dict.fromkeys(record.inputs) if last_use[v] == index and v is not result]
        if record.output not in place:
            reused = record.inputs[record.overwrites] if record.overwrites is not None else None
            if reused in dying and record.inputs.count(reused) == 1:
                place[record.output] = place[reused]
                dying.remove(reused)
            else:
                place[record.output] = _take(free, widths, record.output.width)
        free += [place[v] for v in dying]
        if last_use[record.output] == index and record.output is not result:
            free.append(place[record.output])
    return BufferPlan(widths, place)


def _take(free: list[int], widths: list[int], width: int) -> int:
    """The free buffer that fits ``width`` best, widened if none is wide enough, or a new one."""
    if not free:
        widths.append(width)
        return len(widths) - 1
    best = min(free, key=lambda b: (widths[b] < width, abs(widths[b] - width)))
    free.remove(best)
    widths[best] = max(widths[best], width)
    return best


def _as_vector(tensor: WeightTensor) -> FloatArray:
    if tensor.encoding == "F32":
        return np.frombuffer(tensor.data, np.float32)
    return np.ascontiguousarray(tensor.dequantize(), np.float32).reshape(-1)


class Program:
    """A compiled forward pass: one native call per step."""

    def __init__(self, tape: _native.Tape, width: int, selected: bool) -> None:
        self._tape = tape
        self._selected = selected
        self._output: FloatArray = np.empty((0, width), np.float32)

    def __call__(self, step: StepInputs) -> FloatArray:
        """Float32 [S, width], a view of memory that the next call reuses.

        Raises:
            ValueError: an array of ``step`` has a wrong shape, dtype or value; nothing has been computed.
        """
        num_rows = len(step.logit_tokens if self._selected else step.token_ids)
        if num_rows > len(self._output):
            size = max(num_rows, 2 * len(self._output))
            self._output = np.empty((size, self._output.shape[1]), np.float32)
        output = self._output[:num_rows]
        self._tape.run(
            step.token_ids,
            step.positions,
            step.rows,
            step.query_start,
            step.context_len,
            step.logit_tokens,
            step.block_tables,
            output,
        )
        return output


class CpuBackend:
    """Native kernels on one team of threads.

    Args:
        threads: workers of the team, or None for the cores this process may use.
        activations: "int8" quantizes the input of int4 and int8 layers per 32 values, "float32" does not;
            "auto" is "int8".
        isa: instruction set of the kernels, one of ``_native.available_isas()``, or None for the best one
            (or what OCTAVO_ISA in the environment names).
    """

    def __init__(
        self, threads: int | None = None, activations: Activations = "auto", *, isa: str | None = None
    ) -> None:
        try:
            self.isa = isa or _native.isa()
            if self.isa not in _native.available_isas():
                raise ValueError(f"isa={isa!r}: choose one of {', '.join(_native.available_isas())}")
        except ValueError as error:
            raise InvalidConfig(str(error)) from error
        self.threads = threads if threads is not None else _native.usable_cores()
        if self.threads < 1:
            raise InvalidConfig(f"threads={threads}: must be at least 1")
        self.activations: Literal["int8", "float32"] = "float32" if activations == "float32" else "int8"
        self._team = _native.Team(self.threads)

    def load_linear(self, weights: Sequence[WeightTensor], biases: Sequence[WeightTensor] = ()) -> Weight:
        """Pack one layer whose outputs are those of ``weights``, one after the other."""
        if biases and len(biases) != len(weights):
            raise ValueError(f"{len(biases)} biases for {len(weights)} weights: give one for each, or none")
        packed = _native.pack_linear(
            self._team,
            [
                (w.encoding, w.data, w.shape[1], _as_vector(biases[i]) if biases else None)
                for i, w in enumerate(weights)
            ],
        )
        return Linear(packed, self.activations == "int8")

    def load_embedding(self, table: WeightTensor) -> Weight:
        """Keep a reference to the table's own bytes."""
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
    ) -> Callable[[StepInputs], FloatArray]:
        """Record ``forward`` once; the program it returns replays it natively."""
        layout = arena.layout
        recorder = Recorder(attention, layout.num_kv_heads, layout.head_dim)
        result = forward(recorder)
        plan = assign_buffers(recorder.records, result)
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
        tape = _native.Tape(self._team, self.isa, max_tokens, plan.widths, cache)

        def native(value: Value) -> _native.Value:
            return _native.Value(plan.place[value], value.width, value.selected)

        for record in recorder.records:
            record.emit(tape, [native(v) for v in record.inputs], native(record.output))
        return Program(tape, result.width, result.selected)
