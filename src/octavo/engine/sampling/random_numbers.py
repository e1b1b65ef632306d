"""Random numbers from a counter, not from a stream: each is a pure function of what it is for.

Company in the batch, order, preemption and speculation cannot change them.
"""

from typing import Final

# SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014); the
# finalizer is variant 13 of Stafford's mixers.
_GAMMA: Final = 0x9E3779B97F4A7C15
_MIX_1: Final = 0xBF58476D1CE4E5B9
_MIX_2: Final = 0x94D049BB133111EB
_MASK: Final = 2**64 - 1


def stream_of(seed: int, sample_index: int = 0) -> int:
    """Where the numbers of one sample of a request begin, from 0 to 2**64 - 1.

    Sample 0 has the stream of the seed itself. The others are outputs of a generator that begins elsewhere,
    so that neither the samples of one seed nor equal samples of neighbouring seeds walk in each other's
    steps.
    """
    stream = _mix(seed + _GAMMA)
    return _mix(_mix(stream ^ _MIX_1) + sample_index * _GAMMA) if sample_index else stream


def uniform(stream: int, position: int) -> float:
    """A number in [0, 1), a multiple of 2**-53: output ``position`` + 1 of the generator at ``stream``."""
    return (_mix(stream + (position + 1) * _GAMMA) >> 11) * 2.0**-53


def _mix(z: int) -> int:
    """The finalizer, of an integer taken modulo 2**64."""
    z &= _MASK
    z = (z ^ (z >> 30)) * _MIX_1 & _MASK
    z = (z ^ (z >> 27)) * _MIX_2 & _MASK
    return z ^ (z >> 31)
