"""Random sequences in a paged cache, and the native attention run on them."""

from dataclasses import dataclass, replace

import numpy as np

from octavo import _native
from octavo.attention.plan import StepInputs
from octavo.storage.arena import Arena
from octavo.storage.codec import write_kv
from octavo.storage.layout import KVLayout, StorageDtype

ISAS = _native.available_isas()
LAYER = 1  # of two: the other one's tiles stay poisoned


@dataclass(frozen=True)
class Shape:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: StorageDtype = "float32"
    window: int | None = None


@dataclass(frozen=True)
class Sequence:
    """One sequence's queries [n, Hq, D], K and V [n, Hkv, D]: the whole of it, whatever is computed when."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray


def make_sequence(shape: Shape, num_tokens: int, seed: int) -> Sequence:
    rng = np.random.default_rng(seed)

    def heads(count: int) -> np.ndarray:
        return rng.standard_normal((num_tokens, count, shape.head_dim)).astype(np.float32)

    # Twice the usual spread in q makes some weights large; a mean in V would show weights that do not add up.
    return Sequence(2 * heads(shape.num_heads), heads(shape.num_kv_heads), heads(shape.num_kv_heads) + 1)


@dataclass
class Paged:
    """Sequences in a cache whose unused bytes are all NaN, with block tables in random order."""

    shape: Shape
    arena: Arena
    tables: tuple[np.ndarray, ...]
    rows: list[int]
    sequences: list[Sequence]

    def step(self, work: list[tuple[int, int, int]]) -> tuple[StepInputs, np.ndarray]:
        """Inputs and queries of a step that computes positions [start, stop) of sequence i, for each item."""
        first = np.cumsum([0, *(stop - start for _, start, stop in work)])
        step = StepInputs.build(
            [
                (self.rows[i], start, list(range(first[j], first[j + 1])), False)
                for j, (i, start, stop) in enumerate(work)
            ],
            self.tables,
        )
        return step, np.concatenate([self.sequences[i].q[start:stop] for i, start, stop in work])

    def write(self, index: int, start: int, stop: int) -> None:
        """Put K and V of some positions of a sequence into the cache."""
        k, v = self.sequences[index].k[start:stop], self.sequences[index].v[start:stop]
        write_kv(self.arena, LAYER, self.tables, self.rows[index], start, k=k, v=v)


def make_paged(
    shape: Shape,
    sequences: list[Sequence],
    block_size: int,
    *,
    seed: int = 0,
    split_tables: bool = False,
    fill: bool = True,
) -> Paged:
    """A cache with room for the sequences. ``split_tables``: V has a block table of its own."""
    rng = np.random.default_rng(seed)
    layout = KVLayout.uniform(
        num_layers=2,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        block_size=block_size,
        dtype=shape.dtype,
    )
    if split_tables:
        layers = [replace(w, v_tiles=tuple(replace(t, table=1) for t in w.v_tiles)) for w in layout.layers]
        layout = replace(layout, layers=tuple(layers), table_block_sizes=(block_size, block_size))
    num_blocks = [-(-len(s.k) // block_size) for s in sequences]
    num_frames = 1 + layout.num_tables * sum(num_blocks) + 3
    arena = Arena(layout, num_frames)
    arena.data[:] = 0xFF  # NaN in every dtype
    frames = iter(rng.permutation(np.arange(1, num_frames)))
    rows = [int(r) for r in rng.permutation(len(sequences) + 2)[: len(sequences)]]
    shape_of_table = (len(sequences) + 2, max(num_blocks) + 1)
    tables = tuple(np.zeros(shape_of_table, np.int32) for _ in range(layout.num_tables))
    for row, count in zip(rows, num_blocks, strict=True):
        for table in tables:
            table[row, :count] = [next(frames) for _ in range(count)]
    paged = Paged(shape, arena, tables, rows, sequences)
    for i, sequence in enumerate(sequences if fill else []):
        paged.write(i, 0, len(sequence.k))
    return paged


class Native:
    """The native operations on one cache."""

    def __init__(self, paged: Paged, *, isa: str, threads: int = 1, angles: np.ndarray | None = None) -> None:
        """``angles`` [max positions, rotary_dim / 2] of the rotary embedding."""
        shape, layout = paged.shape, paged.arena.layout
        angles = np.zeros((8192, shape.head_dim // 2), np.float32) if angles is None else angles
        self.paged = paged
        self.isa = isa
        self._team = _native.Team(threads)
        self.cos, self.sin = np.cos(angles), np.sin(angles)
        layers = [
            (
                layer.block_size,
                shape.window or 0,
                [(t.table, t.offset) for t in layer.k_tiles],
                [(t.table, t.offset) for t in layer.v_tiles],
            )
            for layer in layout.layers
        ]
        self._cache = _native.Cache(
            paged.arena.data,
            layout.dtype,
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            layout.num_tables,
            self.cos,
            self.sin,
            layers,
        )

    def attend(self, step: StepInputs, q: np.ndarray) -> np.ndarray:
        """Attention of q [T, Hq, D] over what the cache holds."""
        tape, first, last = self._tape(q)
        tape.paged_attention(first, LAYER, last)
        return self._run(tape, step)

    def pieces(self, step: StepInputs, q: np.ndarray) -> list[tuple[int, list[int], int, int]]:
        """What the attention of a step is cut into; see ``_native.Tape.attention_pieces``."""
        tape, first, last = self._tape(q)
        tape.paged_attention(first, LAYER, last)
        self._run(tape, step)
        return tape.attention_pieces()

    def rope_and_write(self, step: StepInputs, qkv: np.ndarray) -> np.ndarray:
        """Rotated q [T, Hq, D] of qkv [T, Hq + 2 Hkv, D]; K and V go to the cache."""
        tape, first, last = self._tape(qkv)
        tape.rope_and_write(first, LAYER, last)
        return self._run(tape, step)

    def _tape(self, x: np.ndarray) -> tuple[_native.Tape, _native.Value, _native.Value]:
        """A tape that begins by looking up the rows of ``x`` as if they were an embedding table."""
        rows = np.ascontiguousarray(x.reshape(len(x), -1), np.float32)
        width = rows.shape[1]
        tape = _native.Tape(self._team, self.isa, len(x), [width], self._cache)
        first = _native.Value(0, width, False)
        tape.embed(_native.Embedding("F32", rows.view(np.uint8), width), first)
        return tape, first, _native.Value(-1, self.paged.shape.num_heads * self.paged.shape.head_dim, False)

    def _run(self, tape: _native.Tape, step: StepInputs) -> np.ndarray:
        shape = self.paged.shape
        out = np.full((step.num_tokens, shape.num_heads * shape.head_dim), np.nan, np.float32)
        tape.run(
            step.token_ids,
            step.positions,
            step.rows,
            step.query_start,
            step.context_len,
            step.logit_tokens,
            list(step.block_tables),
            out,
        )
        return out.reshape(-1, shape.num_heads, shape.head_dim)
