"""The last minutes of the memory feed: one key frame and the differences since, in bounded memory."""

import math
import zlib
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from octavo.server.memory.blocks import BlockRows, Ids
from octavo.server.memory.frames import as_full

PAST_S: Final = 300.0
MAX_BYTES: Final = 32 << 20
_OVERHEAD_BYTES: Final = 512  # of the objects around one difference


class Change(NamedTuple):
    """One difference.

    Attributes:
        t: Unix seconds.
        rows: of the blocks ``ids``.
    """

    t: float
    ids: Ids
    rows: BlockRows


class _Kept(NamedTuple):
    change: Change
    frame: bytes  # zlib

    @property
    def num_bytes(self) -> int:
        rows = self.change.rows
        arrays = self.change.ids.nbytes + rows.states.nbytes + rows.owners.nbytes + rows.refs.nbytes
        return arrays + len(self.frame) + _OVERHEAD_BYTES


class History:
    """Frames as they were sent, oldest first.

    Args:
        past_s: seconds that are kept.
        max_bytes: what the differences may take; the oldest go first.

    Attributes:
        num_bytes: what they take.
    """

    def __init__(
        self, rows: BlockRows, t: float, frame: str, *, past_s: float = PAST_S, max_bytes: int = MAX_BYTES
    ) -> None:
        self.num_bytes = 0
        self._past_s = past_s
        self._max_bytes = max_bytes
        self._rows = rows.copy()
        self._changed_at = np.full(len(rows.states), t)
        self._t = t
        self._frame = _packed(frame)
        self._kept: deque[_Kept] = deque()

    def __len__(self) -> int:
        return 1 + len(self._kept)

    def add(self, change: Change, frame: str) -> None:
        """The next frame, which said ``change``."""
        kept = _Kept(change, _packed(frame))
        self._kept.append(kept)
        self.num_bytes += kept.num_bytes
        # One that is too old may stay as key frame: what it shows lasted until the next.
        while self._kept and (
            self._kept[0].change.t < change.t - self._past_s or self.num_bytes > self._max_bytes
        ):
            self._absorb(self._kept.popleft())

    def frames(self, after_t: float = -math.inf) -> Iterator[str]:
        """A key frame, then the differences, as they are now whatever comes later.

        Args:
            after_t: Unix seconds; differences before are in the key frame.
        """
        rows, changed_at = self._rows.copy(), self._changed_at.copy()
        t, frame = self._t, self._frame
        later = []
        for kept in self._kept:
            if kept.change.t >= after_t:
                later.append(kept.frame)
                continue
            t, frame = kept.change.t, kept.frame
            rows.put(kept.change.ids, kept.change.rows)
            changed_at[kept.change.ids] = t

        def frames() -> Iterator[str]:
            yield as_full(_unpacked(frame), rows, t - changed_at)
            for difference in later:
                yield _unpacked(difference)

        return frames()

    def _absorb(self, kept: _Kept) -> None:
        change = kept.change
        self.num_bytes -= kept.num_bytes
        self._rows.put(change.ids, change.rows)
        self._changed_at[change.ids] = change.t
        self._t, self._frame = change.t, kept.frame


def _packed(frame: str) -> bytes:
    return zlib.compress(frame.encode("ascii"), 1)


def _unpacked(frame: bytes) -> str:
    return zlib.decompress(frame).decode("ascii")
