"""The bytes of the KV cache: one mapping, cut in frames."""

import mmap

import numpy as np
import numpy.typing as npt

from octavo.core.errors import InvalidConfig
from octavo.core.units import format_bytes
from octavo.storage.layout import KVLayout

HUGE_PAGE_BYTES = 2 << 20


def map_huge(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Anonymous memory on huge pages where the system has them, aligned to them: zeros, uint8 [num_bytes].

    Raises:
        OSError, ValueError, OverflowError: there is no such range of addresses.
    """
    area = mmap.mmap(-1, num_bytes + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        area.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(area, np.uint8)  # keeps the mapping
    shift = -raw.ctypes.data % HUGE_PAGE_BYTES
    return raw[shift : shift + num_bytes]


class Arena:
    """``num_frames`` frames of ``layout.frame_bytes`` bytes; frame 0 is the null block, never a sequence's.

    The mapping is anonymous and private: pages cost memory when first written. It asks for huge pages, since
    a block table defeats the prefetcher and small pages would add a TLB miss to each block.

    Attributes:
        data: uint8 [num_frames, frame_bytes], a view of the mapping.
    """

    def __init__(self, layout: KVLayout, num_frames: int) -> None:
        if num_frames < 2:
            raise InvalidConfig(
                f"the KV pool needs at least 2 blocks of {format_bytes(layout.frame_bytes)}, has {num_frames}"
            )
        self.layout = layout
        self.num_frames = num_frames
        size = num_frames * layout.frame_bytes
        try:
            self.data: npt.NDArray[np.uint8] = map_huge(size).reshape(num_frames, layout.frame_bytes)
        except (OSError, ValueError, OverflowError) as error:
            raise InvalidConfig(
                f"cannot reserve {format_bytes(size)} for the KV cache: {error}; set a smaller kv_memory"
            ) from error

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy whole frames, ``(source, destination)`` each, in order."""
        for source, destination in pairs:
            self.data[destination] = self.data[source]
