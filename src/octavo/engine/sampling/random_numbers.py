"""Random numbers from a counter, not from a stream: each is a pure function of what it is for.

Company in the batch, order, preemption and speculation cannot change them.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

# SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014); the
# finalizer is variant 13 of Stafford's mixers.
_GAMMA: Final = 0x9E3779B97F4A7C15
_MIX_1: Final = 0xBF58476D1CE4E5B9
_MIX_2: Final = 0x94D049BB133111EB
_MASK: Final = 2**64 - 1


def stream_of(seed: int, sample_index: int = 0) -> int:
    """Where the numbers of one sample of a request begin, from 0 to 2**64 - 1.

    Sample 0 has the stream of the seed itself; the others are SplitMix64 outputs of that stream's own mix, so
    that neither the samples of one seed nor equal samples of neighbouring seeds walk in each other's steps.
    """
    stream = _mix_int(seed + _GAMMA)
    return _mix_int(_mix_int(stream ^ _MIX_1) + sample_index * _GAMMA) if sample_index else stream


def uniform(streams: npt.NDArray[np.uint64], positions: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1), a pure function of (stream, position), elementwise: float64 [N]."""
    with np.errstate(over="ignore"):
        steps = np.atleast_1d(positions).astype(np.uint64) + np.uint64(1)
        bits = _mix(np.atleast_1d(streams) + steps * np.uint64(_GAMMA))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX_2)
    return z ^ (z >> np.uint64(31))


def _mix_int(z: int) -> int:
    """``_mix`` of one Python integer, taken modulo 2**64."""
    z &= _MASK
    z = (z ^ (z >> 30)) * _MIX_1 & _MASK
    z = (z ^ (z >> 27)) * _MIX_2 & _MASK
    return z ^ (z >> 31)
