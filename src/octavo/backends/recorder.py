"""A forward pass recorded for the native tape: operations on symbolic values, and where each will lie."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from octavo import _native
from octavo.backends.base import FloatArray

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


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """An activation matrix, equal only to itself.

    Attributes:
        width: float32 values per row.
        selected: there is a row per wanted logit, not per token.
    """

    width: int
    selected: bool = False


Emit = Callable[[_native.Tape, list[_native.Value], _native.Value], None]
EmitFused = Callable[[_native.Tape, list[_native.Value], "Linear", _native.Value], None]


@dataclass(frozen=True, slots=True)
class Record:
    """One operation.

    Attributes:
        emit: adds it to a tape, given where its inputs and its output lie.
        overwritable: index in ``inputs`` of a value whose place the output may take, or None.
        linear: the layer, if this is one.
        emit_fused: adds this operation and a linear layer that reads its result, as one; None if that
            cannot be. Inputs are this operation's, then perhaps the layer's residual.
    """

    emit: Emit
    inputs: tuple[Value, ...]
    output: Value
    overwritable: int | None = None
    linear: Linear | None = None
    emit_fused: EmitFused | None = None


@dataclass(slots=True)
class Recorder:
    """The operations of ``Ops`` in backends/base.py: each call appends a record and returns its output.

    Attributes:
        q_width: Hq * D, the width of what rope_and_write returns.
    """

    q_width: int
    records: list[Record] = field(default_factory=list)

    def embed(self, table: Weight) -> Value:
        """Rows of the table for the step's token ids."""
        assert isinstance(table, Embedding)
        return self._append(lambda tape, _, out: tape.embed(table.native, out), (), Value(table.width))

    def rms_norm(self, x: Value, weight: Weight, eps: float) -> Value:
        """RMS norm over the last axis."""
        assert isinstance(weight, Vector)
        return self._append(
            lambda tape, inputs, out: tape.rms_norm(inputs[0], weight.values, eps, out),
            (x,),
            Value(x.width, x.selected),
            overwritable=0,
            emit_fused=lambda tape, inputs, layer, out: tape.norm_linear(
                inputs[0], weight.values, eps, layer.packed, *inputs[1:], out=out
            ),
        )

    def head_norm(self, qkv: Value, first_head: int, num_heads: int, weight: Weight, eps: float) -> Value:
        """RMS norm of some heads, the others unchanged."""
        assert isinstance(weight, Vector)
        return self._append(
            lambda tape, inputs, out: tape.head_norm(
                inputs[0], first_head, num_heads, weight.values, eps, out
            ),
            (qkv,),
            Value(qkv.width, qkv.selected),
            overwritable=0,
        )

    def linear(self, x: Value, weight: Weight, residual: Value | None = None) -> Value:
        """A linear layer, with its bias and the residual added."""
        assert isinstance(weight, Linear)
        return self._append(
            lambda tape, inputs, out: tape.linear(
                inputs[0], weight.packed, weight.quantize_input, inputs[1] if residual else None, out
            ),
            (x,) if residual is None else (x, residual),
            Value(weight.packed.num_outputs, x.selected),
            overwritable=None if residual is None else 1,
            linear=weight,
        )

    def rope_and_write(self, qkv: Value, layer: int) -> Value:
        """Rotate q and k, write k and v to the cache, return q."""
        return self._append(
            lambda tape, inputs, out: tape.rope_and_write(inputs[0], layer, out), (qkv,), Value(self.q_width)
        )

    def paged_attention(self, q: Value, layer: int) -> Value:
        """Attention over the cache."""
        return self._append(
            lambda tape, inputs, out: tape.paged_attention(inputs[0], layer, out), (q,), Value(q.width)
        )

    def silu_mul(self, gate_up: Value) -> Value:
        """``silu(gate) * up`` of the two halves."""
        return self._append(
            lambda tape, inputs, out: tape.silu_mul(inputs[0], out),
            (gate_up,),
            Value(gate_up.width // 2, gate_up.selected),
            emit_fused=lambda tape, inputs, layer, out: tape.silu_linear(
                inputs[0], layer.packed, *inputs[1:], out=out
            ),
        )

    def select(self, x: Value) -> Value:
        """The rows whose logits are wanted."""
        return self._append(
            lambda tape, inputs, out: tape.select(inputs[0], out), (x,), Value(x.width, selected=True)
        )

    def _append(
        self,
        emit: Emit,
        inputs: tuple[Value, ...],
        output: Value,
        *,
        overwritable: int | None = None,
        linear: Linear | None = None,
        emit_fused: EmitFused | None = None,
    ) -> Value:
        self.records.append(Record(emit, inputs, output, overwritable, linear, emit_fused))
        return output


def fuse(records: Sequence[Record]) -> list[Record]:
    """Join each norm or activation to the linear layer that follows it, where nothing else reads its result.

    The layer then computes it on the way to quantizing its input: an operation, and a wait for all threads,
    less. The numbers are the same.
    """
    readers = Counter(value for record in records for value in record.inputs)
    fused: list[Record] = []
    for record in records:
        first = fused[-1] if fused else None
        layer = record.linear
        if (
            first is not None
            and first.emit_fused is not None
            and layer is not None
            and layer.quantize_input
            and layer.packed.all_quantized
            and record.inputs[0] is first.output
            and readers[first.output] == 1
        ):
            fused[-1] = _join(first.emit_fused, layer, first.inputs, record)
        else:
            fused.append(record)
    return fused


def _join(emit_fused: EmitFused, layer: Linear, inputs: tuple[Value, ...], record: Record) -> Record:
    return Record(
        lambda tape, places, out: emit_fused(tape, places, layer, out),
        inputs + record.inputs[1:],
        record.output,
        record.overwritable,
    )


@dataclass(frozen=True, slots=True)
class BufferPlan:
    """Which buffer holds each value, and how wide each buffer must be."""

    widths: list[int]
    buffer_of: dict[Value, int]


def assign_buffers(records: Sequence[Record], result: Value) -> BufferPlan:
    """Give every value but ``result`` a buffer, free for another value after its last reader."""
    last_use = {v: i for i, record in enumerate(records) for v in (*record.inputs, record.output)}
    widths: list[int] = []
    buffer_of = {result: OUTPUT}
    free: list[int] = []
    for i, record in enumerate(records):
        dying = [v for v in dict.fromkeys(record.inputs) if last_use[v] == i and v is not result]
        if record.output not in buffer_of:
            heir = None if record.overwritable is None else record.inputs[record.overwritable]
            if heir in dying and record.inputs.count(heir) == 1:
                buffer_of[record.output] = buffer_of[heir]
                dying.remove(heir)
            else:
                buffer_of[record.output] = _take(free, widths, record.output.width)
            if last_use[record.output] == i:
                dying.append(record.output)
        free += [buffer_of[v] for v in dying]
    return BufferPlan(widths, buffer_of)


def _take(free: list[int], widths: list[int], width: int) -> int:
    """The free buffer that fits ``width`` best, widened if none is wide enough; a new one if none is free."""
    if not free:
        widths.append(width)
        return len(widths) - 1
    best = min(free, key=lambda b: (widths[b] < width, abs(widths[b] - width)))
    free.remove(best)
    widths[best] = max(widths[best], width)
    return best
