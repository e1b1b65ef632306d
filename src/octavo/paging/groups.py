"""Groups of layers, each with its own block size, out of one pool of byte-equal frames."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """What the memory policy needs to know of one group of layers.

    Attributes:
        block_size: tokens per block.
        window: tokens a query sees, itself included, or None for all before it.
        num_tables: frames that one block occupies, one per block table of the group.
    """

    block_size: int
    window: int | None = None
    num_tables: int = 1

    def __post_init__(self) -> None:
        for name, value in (("block_size", self.block_size), ("num_tables", self.num_tables)):
            if value < 1:
                raise ValueError(f"{name}={value}: must be at least 1")
        if self.window is not None and self.window < 1:
            raise ValueError(f"window={self.window}: must be at least 1, or None for no window")
